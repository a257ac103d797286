"""Answers calls from a record: what a worker returned when it was called with these arguments before.

Reads plans with the recorded result of each step (`Candidate.results`); calls no worker. `recorded_calls` works out the
arguments that each step was called with, `Replay` looks calls up among them, as a plain method or as an `Executor`.
Evaluation runs candidate plans on it, the data factory verifies plans with it, an orchestrator can be tried on it.

Arguments are compared by value (`values.same_value`: 1 is 1.0, key order aside), nothing is converted, and an argument
left out is not its default. Results are handed out as they were recorded, not copied: do not change them. Not covered:
workers whose answer depends on the time or on earlier calls, beyond what `Replay` says about equal calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, cast

from plansmith.contract.errors import PlansmithError
from plansmith.contract.plan import Json, Plan, Step, dumps, resolve
from plansmith.contract.values import value_key


class Match(StrEnum):
    """How a call was found in the record."""

    EXACT = "exact"
    """a recorded call of the worker has equal arguments"""
    NEAREST = "nearest"
    """none has; the answer is that of the recorded call that shares most arguments"""


class RecordedCall(NamedTuple):
    """One call that was made."""

    worker: str
    args: dict[str, Json]
    """Arguments as the worker got them: no operators left."""
    result: Json


class Answer(NamedTuple):
    """What the record says to a call."""

    result: Json
    match: Match
    call: RecordedCall
    """The recorded call that it comes from."""


class UnrecordedCallError(PlansmithError):
    """The record has no answer to a call."""


def recorded_calls(plan: Plan, results: Sequence[Json]) -> tuple[RecordedCall, ...]:
    """The calls of a plan that was run: each step's arguments with its references resolved over the results.

    Args:
        plan: a plan whose references point to earlier steps.
        results: recorded result of each of its steps.

    Raises:
        ResolutionError: a reference leads nowhere in the results before its step.
        ValueError: there is not one result for each step.

    """
    if len(results) != len(plan.steps):
        raise ValueError(f"found {len(results)} recorded results for {len(plan.steps)} steps; expected one each.")
    return tuple(
        RecordedCall(step.type, cast("dict[str, Json]", resolve(step.args, results[:index])), results[index])
        for index, step in enumerate(plan.steps)
    )


class Replay:
    """A record that is asked call by call.

    Equal calls may be recorded with several results (`now()` called twice). Then the first asked gets the first of
    them, the next the next, and all further ones the last: the only state. `counts` says how many calls were answered
    by which kind of match, `missing` how many were not.
    """

    def __init__(self, calls: Iterable[RecordedCall], *, nearest: bool = False) -> None:
        """Make a replay of recorded calls.

        Args:
            calls: of one plan or of many.
            nearest: answer a call that nobody made with the recorded call of the same worker that shares most
                arguments; of several the one with fewest arguments besides, then the first. One that shares none is
                no answer.

        """
        self.counts: Counter[Match] = Counter()
        self.missing = 0
        self._nearest = nearest
        self._calls = tuple(calls)
        self._workers = Counter(call.worker for call in self._calls)
        self._equal: dict[Hashable, list[RecordedCall]] = {}
        self._asked: Counter[Hashable] = Counter()
        self._shared: dict[Hashable, list[int]] = {}
        for index, call in enumerate(self._calls):
            self._equal.setdefault(_key(call.worker, call.args), []).append(call)
            if nearest:
                for argument in _arguments(call.worker, call.args):
                    self._shared.setdefault(argument, []).append(index)

    def find(self, worker: str, args: dict[str, Json]) -> Answer | None:
        """The answer to a call, or None where the record has none; counts it either way."""
        key = _key(worker, args)
        found = self._equal.get(key)
        if found is not None:
            call = found[min(self._asked[key], len(found) - 1)]
            self._asked[key] += 1
            answer = Answer(call.result, Match.EXACT, call)
        else:
            near = self._most_alike(worker, args) if self._nearest else None
            answer = Answer(near.result, Match.NEAREST, near) if near is not None else None
        if answer is None:
            self.missing += 1
        else:
            self.counts[answer.match] += 1
        return answer

    def call(self, worker: str, args: dict[str, Json]) -> Json:
        """The recorded result of a call; raises `UnrecordedCallError` where there is none."""
        answer = self.find(worker, args)
        if answer is None:
            known = self._workers[worker]
            raise UnrecordedCallError(
                f"the record has no call of {worker!r} with the arguments {_short(args)}; it has {known} calls of that "
                f"worker with other arguments. Give the arguments of a recorded call, or record this one."
            )
        return answer.result

    async def execute(self, step: Step, args: dict[str, Any]) -> Any:
        """As `call`, for a step whose references are resolved (the `Executor` protocol)."""
        return self.call(step.type, args)

    def _most_alike(self, worker: str, args: dict[str, Json]) -> RecordedCall | None:
        shared: Counter[int] = Counter()
        for argument in _arguments(worker, args):
            shared.update(self._shared.get(argument, ()))
        if not shared:
            return None
        best = min(shared, key=lambda index: (-shared[index], len(self._calls[index].args), index))
        return self._calls[best]


def _key(worker: str, args: dict[str, Json]) -> Hashable:
    return worker, value_key(args)


def _arguments(worker: str, args: dict[str, Json]) -> list[Hashable]:
    return [(worker, name, value_key(value)) for name, value in args.items()]


def _short(args: dict[str, Json]) -> str:
    text = dumps(args)
    return text if len(text) <= 200 else text[:197] + "..."
