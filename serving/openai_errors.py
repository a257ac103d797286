"""What an endpoint's refusal means: try again, give up this query, or give up altogether. Pure.

Reads status, headers and body of a response that is no success. `Retry-After` is taken in seconds, as a date, and in
the form `retry-after-ms` of some hosted endpoints.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

from plansmith.contract.errors import InputError
from plansmith.serving.openai_reply import Event, plain_text

_AGAIN = frozenset({408, 409, 425, 429})
_ABOUT_THE_REQUEST = frozenset({400, 413, 422})
_TOO_LONG = ("context length", "context_length", "context size", "maximum model length", "too long", "too many tokens")
_NO_MONEY = ("insufficient_quota", "billing")
_ADVICE = {
    401: "Check the key in the variable that api_key_env names.",
    402: "The account behind the key has no credit.",
    403: "The key may not use this model or this endpoint.",
    404: "Check the URL (does it end in /v1?) and the model's name.",
}
_SHOWN = 300


class EndpointRefusedError(InputError):
    """An endpoint refuses what would be the same for every query (key, model, URL, field): exit code 2."""


class QueryRefusedError(Exception):
    """An endpoint refuses one query (too long for the model), though it answers others."""

    def __init__(self, event: Event, found: str) -> None:
        super().__init__(found)
        self.event = event


class TryAgainError(Exception):
    """A request that may succeed later."""

    def __init__(self, found: str, advice: str, *, retry_after: float | None = None, final: bool = False) -> None:
        super().__init__(found)
        self.advice = advice
        self.retry_after = retry_after
        """Seconds that the endpoint asks to wait; None where it names none."""
        self.final = final
        """It asks for a longer wait than is allowed, so there is no use in trying again."""


def judge_status(
    status: int, headers: Mapping[str, str], content: bytes, *, known: bool, max_wait: float
) -> TryAgainError | QueryRefusedError | EndpointRefusedError:
    """What to do about a response that is no success.

    Args:
        status: HTTP status.
        headers: the response's, names in lower case.
        content: the response's body.
        known: a request of the same form was answered before, so that a refusal is about this query.
        max_wait: longest `Retry-After` that is waited for, in seconds.

    """
    code, message = _read_error(content)
    found = f"answered {status}" + (f": {message}" if message else "")
    if status == 429 and any(word in code for word in _NO_MONEY):
        return EndpointRefusedError(f"{found}. {_ADVICE[402]}")
    if status in _AGAIN or status >= 500:
        return _again(status, headers, found, max_wait)
    if status in _ABOUT_THE_REQUEST:
        if any(words in code or words in message.lower() for words in _TOO_LONG):
            return QueryRefusedError(Event.TOO_LONG, f"{found}. Shorten the query, or use a model with more context.")
        if known:
            return QueryRefusedError(Event.QUERY_REFUSED, f"{found}. It answered other queries of the same form.")
    advice = _ADVICE.get(status, "Check route, constraint and extra_body: the endpoint does not take such a request.")
    return EndpointRefusedError(f"{found}. {advice}")


def _again(status: int, headers: Mapping[str, str], found: str, max_wait: float) -> TryAgainError:
    wait = retry_after(headers)
    advice = "Ask with less concurrency, or later." if status == 429 else "Look at what the server logs."
    if wait is not None and wait > max_wait:
        return TryAgainError(
            f"it {found} and asks to wait {wait:.0f} s, more than retry_after_max_seconds ({max_wait:g}).",
            advice,
            retry_after=wait,
            final=True,
        )
    return TryAgainError(f"it {found}.", advice, retry_after=wait)


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds that a response asks to wait; None where it does not, or in no form that is known."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        try:
            seconds = float(value) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, date.timestamp() - (time.time() if now is None else now))
    except (TypeError, ValueError, OverflowError):
        return None


def explain_disconnect(error: BaseException) -> str:
    """Why there was no connection, or what broke it, as the transport says it."""
    cause = error.__cause__ or error
    return f"no connection, or it broke: {_one_line(str(cause) or type(cause).__name__)}."


def _read_error(content: bytes) -> tuple[str, str]:
    """Code and message of an error's body, in whichever of the usual forms; as text where it has none of them."""
    try:
        body: Any = json.loads(content)
    except (ValueError, RecursionError):
        return "", _one_line(content[: 4 * _SHOWN].decode("utf-8", "replace"))
    error: Any = cast("dict[str, Any]", body).get("error", cast("Any", body)) if isinstance(body, dict) else body
    if isinstance(error, dict):
        fields = cast("dict[str, Any]", error)
        code = f"{fields.get('code') or ''} {fields.get('type') or ''}".strip()
        told = fields.get("message") or fields.get("detail") or fields
        return code.lower(), _one_line(told if isinstance(told, str) else json.dumps(told))
    return "", _one_line(error if isinstance(error, str) else json.dumps(error))


def _one_line(text: str) -> str:
    line = " ".join(plain_text(text).split()).rstrip(".")
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
