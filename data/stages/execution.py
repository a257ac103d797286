"""Runs plans on recorded results: does a plan come to its end, and does it end with the right results.

Reads a valid plan and an `Executor`; the usual one is a `Replay` of the calls of one recorded plan. Steps run in order;
references are resolved over the results so far, and arguments that came from results are validated again. A worker that
writes is never run, nor is a step that needs one that was not run; the rest of the plan goes on. Whatever an executor
raises is the plan's failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from plansmith.contract.catalog import Catalog, Effect
from plansmith.contract.compiled import compile_catalog
from plansmith.contract.endpoint import Executor
from plansmith.contract.errors import PlansmithError
from plansmith.contract.execution import ArgumentError, last_steps, prepare_args
from plansmith.contract.plan import Json, Plan
from plansmith.contract.records import PlanJson
from plansmith.contract.replay import Match, Replay, recorded_calls
from plansmith.contract.values import value_key


class Record(NamedTuple):
    """A plan that was run, with the recorded result of each step."""

    plan: PlanJson
    results: list[Json]


Executors = Callable[[Record], Executor]
"""Gives the executor for the plans of one query; raises a `PlansmithError` or `ValueError` where the record is none."""


class Replays(NamedTuple):
    """The usual executors: each query's own recorded calls."""

    nearest: bool = False

    def __call__(self, record: Record) -> Executor:
        """Make one; raises where the recorded plan does not fit its own results."""
        return Replay(recorded_calls(Plan.from_json(record.plan), record.results), nearest=self.nearest)


@dataclass(slots=True)
class Execution:
    """How a plan fared."""

    results: dict[int, Json] = field(default_factory=dict[int, Json])
    """By step, as far as it was run."""
    not_run: set[int] = field(default_factory=set[int])
    """Steps whose worker writes, and those that need such a step."""
    writes: int = 0
    """Steps whose worker writes."""
    fault: str | None = None
    """Why the plan did not come to its end."""
    matches: Counter[Match] = field(default_factory=Counter[Match])
    """How calls were found, where the executor says so."""

    @property
    def complete(self) -> bool:
        """Whether every step was run."""
        return self.fault is None and not self.not_run

    @property
    def exact(self) -> bool:
        """Whether every step was run, with the arguments that were recorded."""
        return self.complete and not self.matches[Match.NEAREST]


async def execute_plan(plan: Plan, executor: Executor, catalog: Catalog) -> Execution:
    """Run a valid plan."""
    done = Execution()
    context: list[Json] = []
    compiled = compile_catalog(catalog)
    for index, (step, needed) in enumerate(zip(plan.steps, plan.dependencies(), strict=True)):
        context.append(None)
        worker = catalog.get(step.type)
        writes = worker is not None and worker.effect is Effect.WRITE
        if writes or not done.not_run.isdisjoint(needed):
            done.writes += writes
            done.not_run.add(index)
            continue
        try:
            args = prepare_args(step, context, compiled.get(step.type))
            context[index] = done.results[index] = await executor.execute(step, args)
        except ArgumentError as error:
            done.fault = str(error)
        except Exception as error:
            done.fault = f"step {index}, {step.type!r}: {str(error).rstrip('.') or type(error).__name__}"
        if done.fault is not None:
            break
    if isinstance(executor, Replay):
        done.matches = executor.counts
    return done


def final_results(plan: Plan, results: Mapping[int, Json]) -> list[Json]:
    """Results of the steps that no other step refers to or waits for, in the order of the plan."""
    return [results[index] for index in last_steps(plan) if index in results]


def same_results(left: Sequence[Json], right: Sequence[Json]) -> bool:
    """Whether two lists hold the same values, in any order."""

    def counted(values: Sequence[Json]) -> Counter[Hashable]:
        return Counter(value_key(value) for value in values)

    return counted(left) == counted(right)


def executor_of(record: Record, executors: Executors) -> Executor | str:
    """The executor of a record, or why there is none."""
    try:
        return executors(record)
    except (PlansmithError, ValueError, KeyError, TypeError) as error:
        return f"the recorded plan does not fit its results: {str(error).rstrip('.')}"
