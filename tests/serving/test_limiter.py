"""The limiter: never more slots than the limit, halved once for each round of refusals, and grown again by answers."""

from __future__ import annotations

import asyncio
import random

import pytest

from plansmith.serving.limiter import AdaptiveLimiter, Slot


def test_slots_are_bounded_and_given_first_come_first_served():
    async def main() -> tuple[list[int], int]:
        limiter = AdaptiveLimiter(3)
        order: list[int] = []
        most = 0

        async def hold(number: int) -> None:
            nonlocal most
            async with limiter.slot():
                order.append(number)
                most = max(most, limiter.under_way)
                await asyncio.sleep(0.001)

        await asyncio.gather(*(hold(number) for number in range(20)))
        assert limiter.under_way == 0
        return order, most

    assert asyncio.run(main()) == (list(range(20)), 3)


def test_a_round_of_refusals_halves_once_and_answers_bring_the_limit_back():
    limiter = AdaptiveLimiter(16)
    for _ in range(16):
        limiter.throttled(Slot(epoch=0))
    assert limiter.limit == 8
    limiter.throttled(Slot(epoch=1))
    limiter.throttled(Slot(epoch=0))
    assert limiter.limit == 4
    for _ in range(5):
        limiter.succeeded()
    assert limiter.limit == 5
    for _ in range(1000):
        limiter.succeeded()
    assert limiter.limit == 16
    for epoch in range(2, 30):
        limiter.throttled(Slot(epoch))
    assert limiter.limit == 1


def test_a_pause_holds_back_all_slots():
    async def main() -> float:
        limiter = AdaptiveLimiter(4)
        limiter.throttled(Slot(0), pause_seconds=0.2)
        limiter.throttled(Slot(0), pause_seconds=0.05)
        begun = asyncio.get_running_loop().time()
        async with limiter.slot():
            return asyncio.get_running_loop().time() - begun

    assert asyncio.run(main()) >= 0.19


@pytest.mark.parametrize("seed", range(5))
def test_cancelled_waiters_and_holders_lose_no_slot(seed: int):
    rng = random.Random(seed)

    async def main() -> AdaptiveLimiter:
        limiter = AdaptiveLimiter(3)

        async def hold() -> None:
            async with limiter.slot() as slot:
                assert limiter.under_way <= 3
                await asyncio.sleep(rng.choice([0, 0.001]))
                if rng.random() < 0.1:
                    limiter.throttled(slot)
                limiter.succeeded()

        tasks = [asyncio.create_task(hold()) for _ in range(200)]
        while not all(task.done() for task in tasks):
            rng.choice(tasks).cancel()
            await asyncio.sleep(rng.choice([0, 0, 0.001]))
        await asyncio.gather(*tasks, return_exceptions=True)
        return limiter

    limiter = asyncio.run(main())
    assert limiter.under_way == 0

    async def again() -> None:
        async with limiter.slot():
            pass

    asyncio.run(asyncio.wait_for(again(), 1))


def test_the_limit_is_learnt_where_a_server_takes_only_so_many():
    async def main() -> tuple[int, int]:
        limiter = AdaptiveLimiter(64)
        refused = served = at_once = 0

        async def request() -> None:
            nonlocal refused, served, at_once
            while True:
                async with limiter.slot() as slot:
                    at_once += 1
                    full = at_once > 10
                    await asyncio.sleep(0.001)
                    at_once -= 1
                    if not full:
                        served += 1
                        limiter.succeeded()
                        return
                    refused += 1
                    limiter.throttled(slot)

        await asyncio.gather(*(request() for _ in range(500)))
        return served, refused

    served, refused = asyncio.run(main())
    assert served == 500
    assert refused < 150, "one in three requests was refused: the limit was not kept down"


def test_a_limiter_that_allows_nothing_is_refused():
    with pytest.raises(ValueError, match="maximum of 0"):
        AdaptiveLimiter(0)
