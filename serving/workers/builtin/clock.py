"""Dates and times: now in a zone, moments moved and compared, weekdays. The clock is given; tests hold it still."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, Field

from plansmith.serving.workers.base import FailureCode, WorkerError
from plansmith.serving.workers.decorator import FunctionWorker, worker


class Moment(BaseModel):
    """A moment as a calendar and a clock show it."""

    iso: str
    """With the zone's offset."""
    date: str
    time: str
    weekday: str


class Distance(BaseModel):
    """From one moment to another; negative where the second is earlier."""

    days: float
    hours: float
    seconds: float


def clock_workers(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> list[FunctionWorker[..., object]]:
    """The workers `time_now`, `time_shift` and `time_between`.

    Args:
        now: the clock; gives a moment with a zone.

    """

    def time_now(zone: str = "UTC") -> Moment:
        """Date and time now.

        Args:
            zone: name of a time zone, such as Europe/Lisbon.
        """
        return _moment(now().astimezone(_zone(zone)))

    def time_shift(
        moment: str,
        days: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0,
        hours: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0,
        minutes: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0,
    ) -> Moment:
        """A moment moved by days, hours and minutes.

        Args:
            moment: in ISO form; without an offset it is in UTC.
            days: may be negative.
            hours: may be negative.
            minutes: may be negative.
        """
        try:
            return _moment(_read(moment) + timedelta(days=days, hours=hours, minutes=minutes))
        except OverflowError as error:
            raise WorkerError(FailureCode.INVALID_ARGUMENT, "the years 1 to 9999 are known; that is beyond.") from error

    def time_between(start: str, end: str) -> Distance:
        """How long it is from one moment to another.

        Args:
            start: in ISO form; without an offset it is in UTC.
            end: as start.
        """
        seconds = (_read(end) - _read(start)).total_seconds()
        return Distance(days=seconds / 86_400, hours=seconds / 3_600, seconds=seconds)

    return [
        worker(effect="read", idempotent=True, timeout_s=5)(time_now),
        worker(effect="pure", idempotent=True, timeout_s=5)(time_shift),
        worker(effect="pure", idempotent=True, timeout_s=5)(time_between),
    ]


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"there is no time zone {name!r}; use a name such as 'Europe/Lisbon' or 'UTC'."
        raise WorkerError(FailureCode.INVALID_ARGUMENT, message) from error


def _read(text: str) -> datetime:
    try:
        found = (
            datetime.fromisoformat(text)
            if len(text) > 10
            else datetime.combine(date.fromisoformat(text), datetime.min.time())
        )
    except ValueError as error:
        message = f"{text[:40]!r} is no moment in ISO form, such as 2026-03-01 or 2026-03-01T14:30."
        raise WorkerError(FailureCode.INVALID_ARGUMENT, message) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _moment(value: datetime) -> Moment:
    shown = value.replace(microsecond=0)
    weekdays = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    return Moment(
        iso=shown.isoformat(),
        date=shown.date().isoformat(),
        time=shown.time().isoformat(timespec="minutes"),
        weekday=weekdays[shown.weekday()],
    )
