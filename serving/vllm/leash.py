"""Runs a command that ends with whoever started it, its own children included: `python -m ... COMMAND...`.

Reads standard input, which the parent keeps open and never writes: its end means that the parent is gone, however it
went. Then, and on SIGTERM, the command's whole process group gets SIGTERM, and SIGKILL after a grace
(`PLANSMITH_GRACE_S`). The exit code is the command's. POSIX only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import FrameType


def main(command: list[str]) -> int:
    grace = float(os.environ.get("PLANSMITH_GRACE_S", "20"))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    ending = threading.Event()

    def end(number: int | None = None, frame: FrameType | None = None) -> None:
        del number, frame
        if not ending.is_set():
            ending.set()
            threading.Thread(target=_end_group, args=(child, grace), daemon=True).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch_parent, args=(end,), daemon=True).start()
    while True:
        try:
            code = child.wait(1.0)
            break
        except subprocess.TimeoutExpired:
            continue
    _signal_group(child.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _watch_parent(end: object) -> None:
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    assert callable(end)
    end()


def _end_group(child: subprocess.Popen[bytes], grace: float) -> None:
    _signal_group(child.pid, signal.SIGTERM)
    limit = time.monotonic() + grace
    while child.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)
    _signal_group(child.pid, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
