"""How fast answers come, and how long the rest will take.

Answers under way count half: of eight requests begun at once, the first answer is no sign that one took so long alone.
The time up to the first answer (loading, the prompt's prefix, compiling a grammar) is left out of the rate as soon as
as much time has passed since, so that a slow start does not make the whole look slow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

_WINDOW = 256


class _Mark(NamedTuple):
    at: float
    work: float
    """Answers so far, those under way counted half."""


class Pace:
    """Tell it of answers as they come."""

    def __init__(self, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._begun = _Mark(clock(), 0.0)
        self._first: float | None = None
        self._marks: deque[_Mark] = deque(maxlen=_WINDOW)
        self._done = 0

    def add(self, answers: int, *, under_way: int = 0) -> None:
        """So many answers came; so many requests are still under way."""
        self._done += answers
        now = self._clock()
        self._first = now if self._first is None else self._first
        self._marks.append(_Mark(now, self._done + under_way / 2))

    @property
    def rate(self) -> float:
        """Answers a second, of late."""
        if self._first is None:
            return 0.0
        last = self._marks[-1]
        warm = len(self._marks) > 1 and last.at - self._first >= self._first - self._begun.at
        start = self._marks[0] if warm else self._begun
        return (last.work - start.work) / max(last.at - start.at, 1e-9)

    @property
    def time_left(self) -> str:
        """As people read it (`45 s`, `3 min 20 s`, `1 h 5 min`); `?` as long as nothing is known."""
        rate = self.rate
        if rate <= 0:
            return "?" if self._done < self._total else "0 s"
        seconds = round((self._total - self._done) / rate)
        if seconds < 60:
            return f"{seconds} s"
        minutes, rest = divmod(seconds, 60)
        return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
