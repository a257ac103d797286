"""Asks a service many things at once: bounded, within a budget, and not for ever where it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from plansmith.contract.errors import ServiceError
from plansmith.data.budget import BudgetReachedError, Purse

_STARTED_AT_ONCE = 8
"""Tasks that begin in one turn of the event loop; hundreds would keep it from everything else."""

Job = TypeVar("Job")
_Job = TypeVar("_Job", contravariant=True)


class Used(NamedTuple):
    """Tokens of one answer."""

    prompt_tokens: int
    completion_tokens: int


class Desk(Protocol[_Job]):
    """Asks for one thing at a time and keeps what comes."""

    async def ask(self, job: _Job) -> Used:
        """Ask and keep the answer; raises `ServiceError` where there is none."""
        ...

    def failed(self, job: _Job, error: ServiceError) -> None:
        """Keep what is known of a request that brought no answer."""
        ...


async def ask_all(jobs: Sequence[Job], desk: Desk[Job], purse: Purse, *, concurrency: int, give_up_after: int) -> None:
    """Ask for everything, in order of the jobs as far as they do not overtake each other.

    Raises:
        BudgetReachedError: a limit was reached before all was asked; what was under way then has come in.
        ServiceError: the last `give_up_after` requests all failed.

    """
    rounds = _Rounds(jobs, desk, purse, give_up_after)
    tasks = [asyncio.create_task(rounds.work(turn // _STARTED_AT_ONCE)) for turn in range(min(concurrency, len(jobs)))]
    try:
        if tasks:
            finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in finished:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if rounds.next < len(jobs):
        raise BudgetReachedError(
            f"the budget of {purse.reached} is used up; {len(jobs) - rounds.next} of {len(jobs)} requests were not "
            "made. What came so far is kept: raise the limit and run the same command to go on."
        )


class _Rounds(Generic[Job]):
    """What the tasks share."""

    def __init__(self, jobs: Sequence[Job], desk: Desk[Job], purse: Purse, give_up_after: int) -> None:
        self.jobs = jobs
        self.desk = desk
        self.purse = purse
        self.give_up_after = give_up_after
        self.next = 0
        self.failures = 0
        """One after the other, up to now."""

    async def work(self, turn: int) -> None:
        """Ask for one thing after the other, from that turn of the event loop on."""
        for _ in range(turn):
            await asyncio.sleep(0)
        while self.next < len(self.jobs) and self.purse.take():
            job = self.jobs[self.next]
            self.next += 1
            await self._one(job)

    async def _one(self, job: Job) -> None:
        try:
            used = await self.desk.ask(job)
        except ServiceError as error:
            self.purse.failed()
            self.desk.failed(job, error)
            self.failures += 1
            if self.failures >= self.give_up_after:
                raise ServiceError(
                    f"the last {self.failures} requests all failed, so the rest is not asked. Answers so far are "
                    f"kept; run the same command to go on. The last one: {error}"
                ) from error
        else:
            self.purse.answered(*used)
            self.failures = 0
