"""Circuit breakers: a worker that keeps failing is left alone for a while, then probed by one call.

The pattern is Nygard's (Release It!). Failures that say something about the arguments do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from plansmith.serving.runs.config import BreakerConfig
from plansmith.serving.workers.base import CallFailure, FailureCode

_ABOUT_THE_CALL = frozenset(
    {FailureCode.INVALID_ARGUMENT, FailureCode.NOT_FOUND, FailureCode.FORBIDDEN, FailureCode.CANCELLED}
)


class Breaker:
    """Of one worker, shared by all runs; used in one event loop."""

    def __init__(self, config: BreakerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed.

        Args:
            config: when it opens and for how long.
            clock: seconds that never go back.

        """
        self._config = config
        self._clock = clock
        self._failures = 0
        self._opened: float | None = None
        self._probing = False

    def refusal(self) -> CallFailure | None:
        """Why a call may not be made now; None lets it through, as the probe where one is due."""
        if self._opened is None:
            return None
        left = self._opened + self._config.cool_s - self._clock()
        if left > 0 or self._probing:
            when = f"in {left:.1f} s" if left > 0 else "when the call that probes it has ended"
            message = f"it failed {self._failures} times in a row and is not called; try again {when}."
            return CallFailure(code=FailureCode.UNAVAILABLE, message=message, retryable=True)
        self._probing = True
        return None

    def ended(self, failure: CallFailure | None) -> None:
        """Take note of how a call ended."""
        self._probing = False
        if failure is None or failure.code in _ABOUT_THE_CALL:
            self._failures, self._opened = 0, None
            return
        self._failures += 1
        if self._failures >= self._config.failures:
            self._opened = self._clock()

    def given_up(self) -> None:
        """A call was given up by its run, which says nothing about the worker."""
        self._probing = False
