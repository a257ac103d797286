"""Waiting for workers: cancellation, hanging threads, their number, and results that come too late."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from plansmith.serving.workers.base import CallInfo
from plansmith.serving.workers.decorator import worker
from plansmith.serving.workers.threads import WorkerThreads

INFO = CallInfo(run_id="run", step=0)


def test_our_own_cancellation_stays_a_cancellation() -> None:
    @worker
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    async def main() -> bool:
        task = asyncio.create_task(wait.call({"seconds": 60}, INFO))
        await asyncio.sleep(0.02)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert [one for one in asyncio.all_tasks() if one is not asyncio.current_task()] == []
        return isinstance(result, asyncio.CancelledError)

    assert asyncio.run(main())
    assert wait.late_results == 0


def test_an_async_worker_that_swallows_its_cancellation_holds_nobody_up() -> None:
    @worker
    async def stubborn() -> str:
        for _ in range(3):
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return "late"

    async def main() -> float:
        start = time.perf_counter()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await stubborn.call({}, INFO)
        waited = time.perf_counter() - start
        await asyncio.sleep(0.3)
        return waited

    assert asyncio.run(main()) < 0.045
    assert stubborn.late_results == 1


def test_a_time_limit_ends_the_wait_for_a_sync_worker_and_its_late_result_is_counted() -> None:
    threads, release = WorkerThreads(), threading.Event()

    @worker(threads=threads)
    def hang() -> str:
        release.wait(20)
        return "late"

    async def main() -> None:
        start = time.perf_counter()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await hang.call({}, INFO)
        assert time.perf_counter() - start < 2
        assert threads.counts().busy == 1
        release.set()
        await _until(lambda: threads.counts().late == 1)

    asyncio.run(main())
    assert threads.counts().busy == 0


def test_a_result_after_the_end_of_its_loop_is_counted_as_well() -> None:
    threads, release = WorkerThreads(), threading.Event()
    hang = worker(threads=threads)(partial_named(release))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await hang.call({}, INFO)

    asyncio.run(main())
    release.set()
    asyncio.run(_until(lambda: threads.counts().late == 1))


def partial_named(release: threading.Event) -> Callable[[], str]:
    def hang() -> str:
        release.wait(20)
        return "late"

    return hang


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


HANGING = """
import asyncio, time
from plansmith.serving.workers.base import CallInfo
from plansmith.serving.workers.decorator import worker

@worker
def hang() -> None:
    time.sleep(600)

async def main():
    try:
        async with asyncio.timeout(0.2):
            await hang.call({}, CallInfo("r", 0))
    except TimeoutError:
        print("left")

asyncio.run(main())
"""


def test_a_process_with_a_hanging_worker_can_exit() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def test_threads_are_bounded_and_a_call_that_waits_for_one_can_be_taken_back() -> None:
    threads, release, started = WorkerThreads(limit=3, idle_s=0.05), threading.Event(), []

    @worker(threads=threads)
    def hold(n: int) -> int:
        started.append(n)
        release.wait(20)
        return n

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(hold.call({"n": n}, INFO)) for n in range(6)]
        await _until(lambda: len(started) == 3)
        assert threads.counts()[:3] == (3, 3, 3)
        tasks[5].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert threads.counts().queued == 2
        release.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await _until(lambda: threads.counts().threads == 0)
        return found

    found = asyncio.run(main())
    assert found[:5] == [0, 1, 2, 3, 4]
    assert isinstance(found[5], asyncio.CancelledError)
    assert (sorted(started), threads.counts().withdrawn, threads.counts().late) == ([0, 1, 2, 3, 4], 1, 0)


def test_a_thread_is_used_again_and_sees_the_callers_context() -> None:
    threads, var = WorkerThreads(limit=4), contextvars.ContextVar("var", default="none")

    @worker(threads=threads)
    def look() -> list[str]:
        before = var.get()
        var.set("changed")
        return [before, threading.current_thread().name, str(threading.current_thread().daemon)]

    async def main() -> list[Any]:
        var.set("mine")
        found = [await look.call({}, INFO) for _ in range(3)]
        assert var.get() == "mine"
        return found

    found = asyncio.run(main())
    assert {(one[0], one[2]) for one in found} == {("mine", "True")}
    assert threads.counts().threads <= 2  # the one before may still be on its way back


def test_two_calls_at_once_never_share_the_one_thread_that_is_idle() -> None:
    threads, meeting = WorkerThreads(limit=4), threading.Barrier(3)

    @worker(threads=threads)
    def meet(alone: bool) -> bool:
        if not alone:
            meeting.wait(5)
        return alone

    async def main() -> list[Any]:
        await meet.call({"alone": True}, INFO)
        await _until(lambda: threads.counts()[:2] == (1, 0))
        return await asyncio.gather(*(meet.call({"alone": False}, INFO) for _ in range(3)))

    assert asyncio.run(main()) == [False] * 3


def test_many_calls_at_once_each_get_their_own_result() -> None:
    threads = WorkerThreads(limit=8)

    @worker(threads=threads)
    def double(n: int) -> int:
        return 2 * n

    async def main() -> list[Any]:
        return await asyncio.gather(*(double.call({"n": n}, INFO) for n in range(500)))

    assert asyncio.run(main()) == [2 * n for n in range(500)]
    assert threads.counts().threads <= 8
