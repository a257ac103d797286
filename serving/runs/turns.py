"""Turns of the event loop: of many tasks that are ready at once, few work before the loop looks after its timers again.

A thousand runs that begin together would otherwise hold up the loop for as long as all of them need to check their
plans, and every deadline and every other user of the loop with it. Where few are ready nobody waits.
"""

from __future__ import annotations

import asyncio
from collections import deque

_AT_ONCE = 8


class Turns:
    """Lets a bounded number of tasks through each turn, in the order in which they came; for one event loop."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        """Make it; `at_once` tasks may pass in a turn."""
        self._at_once = at_once
        self._passed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a turn; what the caller does until it waits again belongs to it."""
        loop = asyncio.get_running_loop()
        if self._passed < self._at_once and not self._waiting:
            self._passed += 1
            if self._passed == 1:
                loop.call_soon(self._next, loop)
            return
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        await place

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """A new turn: those who waited longest pass."""
        self._passed = 0
        while self._waiting and self._passed < self._at_once:
            place = self._waiting.popleft()
            if not place.done():  # else its task was cancelled
                place.set_result(None)
                self._passed += 1
        if self._passed:
            loop.call_soon(self._next, loop)
