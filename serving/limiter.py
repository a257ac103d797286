"""How many requests may be under way at once, learnt from the endpoint's refusals.

The limit halves when the endpoint says that it is asked too much (429), and grows by about one for each round of
answers, up to its maximum: additive increase, multiplicative decrease, as TCP does it (Chiu and Jain, 1989). Refusals
of requests that began before the last halving say nothing new and do not halve again. A refusal may also bring a pause
for all requests (`Retry-After`). First come, first served. For one event loop at a time; not for several threads.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple


class Slot(NamedTuple):
    """The right to have one request under way."""

    epoch: int
    """How many halvings there were before it began."""


class AdaptiveLimiter:
    """Hands out slots, `limit` of them at once."""

    def __init__(self, maximum: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if maximum < 1:
            raise ValueError(f"at least one request must be allowed, found a maximum of {maximum}")
        self.maximum = maximum
        self._limit = float(maximum)
        self._clock = clock
        self._under_way = 0
        self._epoch = 0
        self._not_before = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """How many requests may be under way now."""
        return int(self._limit)

    @property
    def under_way(self) -> int:
        """How many requests are."""
        return self._under_way

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[Slot]:
        """Wait for a slot and the end of a pause, and hold the slot for the block."""
        await self._take()
        try:
            while (pause := self._not_before - self._clock()) > 0:
                await asyncio.sleep(pause)
            yield Slot(self._epoch)
        finally:
            self._under_way -= 1
            self._wake()

    def succeeded(self) -> None:
        """An answer came: the limit grows by its share of one."""
        self._limit = min(self._limit + 1 / self._limit, float(self.maximum))
        self._wake()

    def throttled(self, slot: Slot, *, pause_seconds: float = 0.0) -> None:
        """The endpoint refused the request of this slot, and may have asked for a pause."""
        self._not_before = max(self._not_before, self._clock() + pause_seconds)
        if slot.epoch == self._epoch:
            self._limit = max(1.0, self._limit / 2)
            self._epoch += 1

    async def _take(self) -> None:
        if self._under_way < self.limit and not self._waiting:
            self._under_way += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:  # its turn came in the moment in which it was cancelled
                self._under_way -= 1
                self._wake()
            raise

    def _wake(self) -> None:
        """Give free slots to those that have waited longest; the slot counts from now."""
        while self._waiting and self._under_way < self.limit:
            self._under_way += 1
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled, and gives its slot back itself
                turn.set_result(None)
