"""Processes that work for another one end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

SCRIPT = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from plansmith.contract.processes import follow_parent

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=follow_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(60)
"""


def started(tmp_path: Path) -> tuple[subprocess.Popen[str], int]:
    script = tmp_path / "leader.py"
    script.write_text(SCRIPT)
    leader = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    return leader, int(leader.stdout.readline())


def end(leader: subprocess.Popen[str]) -> None:
    """Kill it; a follower may still hold the other end of the pipe, so nothing is read."""
    leader.kill()
    leader.wait()
    assert leader.stdout is not None
    leader.stdout.close()


def test_a_follower_ends_when_its_leader_is_killed(tmp_path: Path):
    leader, follower = started(tmp_path)
    assert psutil.pid_exists(follower)
    end(leader)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(follower) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = psutil.pid_exists(follower)
    if left:
        psutil.Process(follower).kill()
    assert not left


def test_a_follower_leaves_ctrl_c_to_its_leader(tmp_path: Path):
    leader, follower = started(tmp_path)
    process = psutil.Process(follower)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.is_running()
    end(leader)
