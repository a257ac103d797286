"""Who may come in, and when: keys in constant time, a rate for each, places under way, places in the queue.

For one event loop. Nothing waits without a limit: a request that finds the queue full is told when to come again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from plansmith.serving.gateway.config import KeyConfig, LimitsConfig
from plansmith.serving.gateway.errors import ErrorCode, GatewayError

ANYBODY = KeyConfig(name="anybody", sha256="0" * 64)
"""Who asks where there are no keys."""
KEY_PREFIX = "psk-"


class NewKey(NamedTuple):
    """A key that was just made."""

    key: str
    """Shown once."""
    sha256: str
    """What the config holds."""


def new_key() -> NewKey:
    """A random key of 256 bits."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return NewKey(key, hashlib.sha256(key.encode()).hexdigest())


class KeyRing:
    """The keys that are let in."""

    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self._keys = tuple(keys)

    @property
    def open(self) -> bool:
        """Whether everybody is let in."""
        return not self._keys

    def holder(self, authorization: str | None) -> KeyConfig:
        """Whose key a request brings; every key is compared, in constant time.

        Raises:
            GatewayError: none, or none that is known.

        """
        if self.open:
            return ANYBODY
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise GatewayError(ErrorCode.UNAUTHORIZED, "give a key: 'Authorization: Bearer psk-...'.")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).hexdigest()
        found: KeyConfig | None = None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        if found is None:
            raise GatewayError(ErrorCode.UNAUTHORIZED, "the key is not known here.")
        return found


class Rates:
    """A token bucket a key: a minute's worth at once, then the rate."""

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = None if per_minute is None else per_minute / 60
        self._most = max(1.0, per_minute or 0)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> None:
        """Count a request; raises `GatewayError` where the key has made too many."""
        if self._rate is None:
            return
        now = self._clock()
        left, since = self._left.get(name, (self._most, now))
        left = min(self._most, left + (now - since) * self._rate)
        if left < 1:
            self._left[name] = (left, now)
            wait = (1 - left) / self._rate
            message = f"more than {self._rate * 60:g} requests a minute; try again in {wait:.0f} s."
            raise GatewayError(ErrorCode.RATE_LIMITED, message, retry_after=wait)
        self._left[name] = (left - 1, now)


class Places:
    """Places under way and in the queue, first come first served."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._seconds = 1.0
        self.under_way = 0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None]:
        """Hold a place; waits in the queue, or raises `GatewayError` where that is full."""
        await self._enter()
        begun = time.monotonic()
        try:
            yield
        finally:
            self._seconds += 0.2 * (time.monotonic() - begun - self._seconds)
            self._leave()

    async def _enter(self) -> None:
        if self.under_way < self._limits.concurrency and not self._waiting:
            self.under_way += 1
            return
        if len(self._waiting) >= self._limits.queue_size:
            wait = self._seconds * (1 + len(self._waiting) / self._limits.concurrency)
            message = (
                f"{self.under_way} requests are under way and {len(self._waiting)} wait, which is all; try again later."
            )
            raise GatewayError(ErrorCode.QUEUE_FULL, message, retry_after=wait)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # it was given a place just before it went away
            else:
                with suppress(ValueError):  # the one who passed the queue may have taken it out
                    self._waiting.remove(place)
            raise

    def _leave(self) -> None:
        """Give the place to the next in the queue."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.under_way -= 1


class Place:
    """A place under way, waited for no longer than the deadline."""

    def __init__(self, places: Places, deadline: float) -> None:
        """Take neither yet; `deadline` is `time.monotonic`."""
        self._places, self._deadline = places, deadline

    async def __aenter__(self) -> None:
        self._held = self._places.taken()
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                await self._held.__aenter__()
        except TimeoutError as error:
            raise GatewayError(
                ErrorCode.DEADLINE, "the request's time was over while it waited for its turn.", retry_after=1
            ) from error

    async def __aexit__(self, *about: Any) -> None:
        await self._held.__aexit__(*about)
