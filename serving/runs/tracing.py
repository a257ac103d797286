"""OpenTelemetry spans, where its API is installed; else nothing happens.

Names: `plansmith.run`, `plansmith.step`, `plansmith.react`; behind the gateway also `plansmith.request` and
`plansmith.attempt`. Attributes hold names, numbers and statuses, never arguments or results.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any


@cache
def _tracing() -> Any:
    try:
        return importlib.import_module("opentelemetry.trace")
    except ImportError:
        return None


def span(name: str, attributes: dict[str, str | int]) -> AbstractContextManager[Any]:
    """A span around a block; gives the span, or None where there is no OpenTelemetry."""
    trace = _tracing()
    if trace is None:
        return nullcontext(None)
    tracer = trace.get_tracer("plansmith")
    opened: AbstractContextManager[Any] = tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    )
    return opened


def note(opened: Any, key: str, value: str | int) -> None:
    """Set an attribute of a span that `span` gave."""
    if opened is not None:
        opened.set_attribute(key, value)
