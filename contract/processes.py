"""Processes that work for another one: they leave Ctrl-C to it, and end when it is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def follow_parent() -> None:
    """Make this spawned process a follower; to be called first in it.

    Ctrl-C goes to all processes of a terminal: the spawning one hears it and ends its pool. A killed one cannot tell
    its pool to shut down, so a follower watches it and ends by itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
