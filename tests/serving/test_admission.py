"""Keys, rates and places by themselves: with a clock of their own."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.serving.gateway.admission import KeyRing, Place, Places, Rates, new_key
from plansmith.serving.gateway.config import KeyConfig, LimitsConfig
from plansmith.serving.gateway.errors import ErrorCode, GatewayError
from plansmith.serving.gateway.running import RecentRuns
from plansmith.serving.gateway.wire import RunResponse, RunState


def test_a_new_key_opens_the_ring_and_nothing_near_it_does():
    made, other = new_key(), new_key()
    ring = KeyRing([KeyConfig(name="b", sha256=other.sha256), KeyConfig(name="a", sha256=made.sha256)])
    assert ring.holder(f"Bearer {made.key}").name == "a"
    assert ring.holder(f"bearer  {made.key} ").name == "a"
    assert hashlib.sha256(made.key.encode()).hexdigest() == made.sha256
    for wrong in (
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {made.key}",
        f"Bearer {made.key}x",
        f"Bearer {made.sha256}",
        made.key,
    ):
        with pytest.raises(GatewayError) as caught:
            ring.holder(wrong)
        assert (caught.value.status, caught.value.headers()["www-authenticate"]) == (401, "Bearer")


def test_a_rate_lets_a_minutes_worth_in_at_once_and_then_one_at_a_time():
    now = 0.0
    rates = Rates(60, clock=lambda: now)
    for _ in range(60):
        rates.take("a")
    with pytest.raises(GatewayError) as caught:
        rates.take("a")
    assert caught.value.retry_after == pytest.approx(1.0)
    now = 1.0
    rates.take("a")
    with pytest.raises(GatewayError):
        rates.take("a")
    now = 1000.0
    for _ in range(60):
        rates.take("a")


@given(st.lists(st.floats(0, 3), max_size=200), st.floats(1, 120))
def test_no_minute_sees_more_than_its_rate_and_what_was_saved_up(waits: list[float], rate: float):
    now = 0.0
    taken: list[float] = []
    rates = Rates(rate, clock=lambda: now)
    for wait in waits:
        now += wait
        with suppress(GatewayError):
            rates.take("a")
            taken.append(now)
    for begin in taken:
        assert sum(begin <= one <= begin + 60 for one in taken) <= 2 * rate + 1.001


def test_places_are_given_in_order_and_a_waiter_who_leaves_takes_none_with_it():
    async def work() -> None:
        places = Places(LimitsConfig(concurrency=1, queue_size=3))
        order: list[int] = []
        gate = asyncio.Event()

        async def one(number: int) -> None:
            async with places.taken():
                order.append(number)
                await gate.wait()

        tasks = [asyncio.create_task(one(number)) for number in range(4)]
        await asyncio.sleep(0)
        assert (places.under_way, places.waiting) == (1, 3)
        with pytest.raises(GatewayError) as caught:
            await one(9)
        assert caught.value.code is ErrorCode.QUEUE_FULL
        tasks[2].cancel()
        await asyncio.sleep(0)
        assert places.waiting == 2
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [0, 1, 3]
        assert (places.under_way, places.waiting) == (0, 0)

    asyncio.run(work())


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30), st.integers(1, 3), st.integers(0, 4))
def test_places_are_never_lost(work: list[tuple[int, bool]], concurrency: int, queue: int):
    """Whatever comes, waits, is cut off or goes: at the end all places are free, and never were too many taken."""

    async def main() -> None:
        places = Places(LimitsConfig(concurrency=concurrency, queue_size=queue))
        inside = 0

        async def one(turns: int) -> None:
            nonlocal inside
            async with places.taken():
                inside += 1
                assert inside <= concurrency
                try:
                    for _ in range(turns):
                        await asyncio.sleep(0)
                finally:
                    inside -= 1

        tasks: list[asyncio.Task[None]] = []
        for turns, cancel in work:
            tasks.append(asyncio.create_task(one(turns)))
            await asyncio.sleep(0)
            if cancel:
                tasks[len(tasks) // 2].cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(one is None or isinstance(one, GatewayError | asyncio.CancelledError) for one in ended)
        assert (places.under_way, places.waiting) == (0, 0)

    asyncio.run(main())


def test_a_place_is_not_waited_for_beyond_the_deadline():
    async def work() -> None:
        places = Places(LimitsConfig(concurrency=1))
        async with Place(places, asyncio.get_running_loop().time() + 60):
            with pytest.raises(GatewayError) as caught:
                async with Place(places, 0.0):
                    raise AssertionError
            assert caught.value.code is ErrorCode.DEADLINE
            assert places.waiting == 0
        assert places.under_way == 0

    asyncio.run(work())


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400)), max_size=60))
def test_recent_runs_stay_within_both_limits_and_the_last_is_there_where_it_fits(kept: list[tuple[int, int]]):
    recent = RecentRuns(most=5, most_bytes=2000)
    for number, size in kept:
        run = RunResponse(run_id=f"r-{number}", query="x" * size, status=RunState.RUNNING)
        recent.keep(run)
        held = [found for n in range(10) if (found := recent.get(f"r-{n}")) is not None]
        assert len(held) == len(recent) <= 5
        assert sum(len(one.model_dump_json()) for one in held) <= 2000
        assert recent.get(run.run_id) == run
