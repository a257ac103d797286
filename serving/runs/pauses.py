"""Fewer and shorter pauses of Python's garbage collector, for a process that runs many plans at once.

Almost all of an event loop's delay with a thousand runs under way is the collector looking at every live object
(measured: `scripts/bench/orchestrator`). For a process's main program to call, once, when all is loaded.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (10_000, 50, 50)


def fewer_pauses() -> None:
    """Take what is loaded out of the collector's sight, and let it look at the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
