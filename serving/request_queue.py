"""Requests that wait for the local engine's worker thread, first in, first out.

Any thread may put; one worker takes. A request whose caller has gone (cancelled future) is dropped when its turn comes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import PlansmithError


class EngineClosedError(PlansmithError):
    """The engine was closed before the plan was done."""

    def __init__(self) -> None:
        super().__init__("the local engine is closed; make a new one to plan again.")


@dataclass(eq=False, slots=True)
class Request:
    """One query, and where its draft goes."""

    query: str
    catalog: Catalog
    constrained: bool
    temperature: float = 0.0
    """0 takes the likeliest token each time."""
    seed: int = 0
    """Of the request's own random numbers, where the temperature is above 0."""
    on_text: Callable[[str], None] | None = None
    """Gets the text as it is written, whole characters at a time, in the worker's thread."""
    told: int = 0
    """Characters that it was given."""
    future: Future[Draft] = field(default_factory=Future[Draft])
    started: float = field(default_factory=perf_counter)

    def tell(self, text: str, *, whole: bool) -> None:
        """Pass on what is new of the text; while it is not whole, what may be half a character waits."""
        if self.on_text is None:
            return
        text = text if whole else text.rstrip("\ufffd")
        if len(text) > self.told:
            self.on_text(text[self.told :])
            self.told = len(text)

    def answer(self, draft: Draft) -> None:
        """Hand the draft to the caller, if there still is one."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(draft)

    def fail(self, error: BaseException) -> None:
        """Raise `error` at the caller, if there still is one and it has no answer yet."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class RequestQueue:
    """FIFO with a blocking take for the worker."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return len(self._requests)

    def put(self, request: Request) -> None:
        """Add a request; raises `EngineClosedError` after `close`."""
        with self._changed:
            if self._closed:
                raise EngineClosedError
            self._requests.append(request)
            self._changed.notify()

    def take(self, *, gather: int, wait_seconds: float) -> Request | None:
        """Wait for a request, then at most `wait_seconds` for `gather` of them; None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._closed)
            self._changed.wait_for(lambda: len(self._requests) >= gather or self._closed, timeout=wait_seconds)
            return None if self._closed else self._requests.popleft()

    def take_alike(self, catalog: Catalog) -> Request | None:
        """The first request if it is for this catalog, without waiting; requests for others are never overtaken."""
        with self._changed:
            if self._closed or not self._requests or self._requests[0].catalog != catalog:
                return None
            return self._requests.popleft()

    def close(self) -> None:
        """Refuse further requests, fail those that wait, and wake the worker."""
        with self._changed:
            self._closed = True
            waiting = list(self._requests)
            self._requests.clear()
            self._changed.notify_all()
        for request in waiting:
            request.fail(EngineClosedError())
