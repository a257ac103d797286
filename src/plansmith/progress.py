"""How the command line shows progress: a bar on a terminal, plain lines otherwise, both on standard error.

Implements `plansmith.contract.progress.Progress`. Plain lines come at most every few seconds, so that a log of an
hour stays readable.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from plansmith.contract.progress import Progress

LINE_EVERY_S = 5.0
"""Seconds between two plain lines of one task."""


@contextmanager
def shown_progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """Progress on standard error for the time of the block; an open bar is closed when the block ends or fails."""
    target = stream if stream is not None else sys.stderr
    progress = Bars(target) if target.isatty() else Lines(target)
    try:
        yield progress
    finally:
        progress.close()


class Lines:
    """Plain lines, for logs and pipes."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._what = ""
        self._total = self._done = 0
        self._begun = self._told = 0.0
        self._values: dict[str, float | str] = {}

    def start(self, what: str, total: int) -> None:
        self._what, self._total, self._done, self._values = what, total, 0, {}
        self._begun = self._told = self._clock()
        self.note(f"{what}: 0/{total}")

    def advance(self, amount: int = 1, **values: float | str) -> None:
        self._done += amount
        self._values.update(values)
        now = self._clock()
        if now - self._told < LINE_EVERY_S:
            return
        self._told = now
        spent = now - self._begun
        left = spent / self._done * (self._total - self._done) if self._done else 0.0
        share = f" ({100 * self._done // self._total}%)" if self._total else ""
        more = "" if "time_left" in self._values else f", {duration(left)} left"
        self.note(f"{self._what}: {self._done}/{self._total}{share}{_shown(self._values)}{more}")

    def finish(self) -> None:
        if self._what:
            spent = duration(self._clock() - self._begun)
            self._values.pop("time_left", None)
            self.note(f"{self._what}: {self._done}/{self._total} in {spent}{_shown(self._values)}")
        self._what = ""

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is open."""


class Bars:
    """One bar a task, by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
        )
        self._console = Console(file=stream, markup=False, highlight=False)
        self._bar = RichProgress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console)
        self._values: dict[str, float | str] = {}

    def start(self, what: str, total: int) -> None:
        self._values = {}
        self._bar.start()
        self._task = self._bar.add_task(what, total=total, values="")

    def advance(self, amount: int = 1, **values: float | str) -> None:
        self._values.update(values)
        self._bar.update(self._task, advance=amount, values=_shown(self._values).lstrip(", "))

    def finish(self) -> None:
        self._bar.stop_task(self._task)
        self._bar.stop()

    def note(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Put the terminal back as it was."""
        self._bar.stop()


class Watch:
    """Wall time since it was made, as people read it."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __str__(self) -> str:
        return duration(time.monotonic() - self._begun)


def duration(seconds: float) -> str:
    """Seconds as people read them: `45 s`, `3 min 20 s`, `1 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _shown(values: dict[str, float | str]) -> str:
    texts = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()}
    return "".join(f", {name.replace('_', ' ')} {text}" for name, text in texts.items())
