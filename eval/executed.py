"""`executed` and `answer_match`: a plan run by the orchestrator on the recorded results of the reference plan.

Reads a valid plan, the reference plan and the recorded result of each of its steps; calls no worker's code. The workers
are replays (`serving/workers/replayed.py`): the record answers a call whose worker and arguments (references resolved)
equal a recorded call's; any other call fails, and the plan does not come to its end. So an argument may be given as a
literal where the reference refers to an equal result, and the other way round; a result that the next worker does not
take fails the plan, as it would in any run. One step runs at a time, in the order of the plan, with no time limit that
could be met: the same plan fares the same everywhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.compiled import compile_catalog
from plansmith.contract.errors import PlansmithError
from plansmith.contract.execution import bad_argument, last_steps
from plansmith.contract.plan import Json, Plan
from plansmith.contract.replay import RecordedCall, Replay, recorded_calls
from plansmith.contract.values import value_key
from plansmith.serving.runs.config import ApprovalMode, RunConfig
from plansmith.serving.runs.events import RunResult, RunStatus
from plansmith.serving.runs.orchestrator import Orchestrator
from plansmith.serving.workers.registry import Registry
from plansmith.serving.workers.replayed import ReplayedWorker

_NEVER_S = 24 * 3600.0


class Execution(NamedTuple):
    """How a plan fared on the record."""

    executed: bool
    """Every reference was resolved and every call is in the record. The empty plan comes to its end at once."""
    answer_match: bool
    """Executed, and the results of its last steps, as a multiset, equal the reference plan's. Last are steps that no
    other step refers to or waits for."""


MISS = Execution(False, False)
REACHED = Execution(True, True)


def record_of(reference: Plan, results: Sequence[Json], catalog: Catalog) -> tuple[RecordedCall, ...] | None:
    """The recorded calls of the reference plan; None where it cannot have been run with these results.

    That is where its own references lead nowhere in them, or to values that the workers of the catalog do not take.
    """
    try:
        calls = recorded_calls(reference, results)
    except (PlansmithError, ValueError):
        return None
    compiled = compile_catalog(catalog)
    pairs = zip(reference.steps, calls, strict=True)
    faults = (bad_argument(step, call.args, compiled.get(step.type)) for step, call in pairs)
    return None if any(fault is not None for fault in faults) else calls


def run_on_record(plan: Plan, reference: Plan, record: Sequence[RecordedCall], catalog: Catalog) -> Execution:
    """Run a valid plan on the record of the reference plan."""
    ran = _completed(_run(plan, record, catalog))
    if ran.status is not RunStatus.COMPLETE:
        return MISS
    recorded = dict(enumerate(call.result for call in record))
    return Execution(True, _last(plan, ran.results) == _last(reference, recorded))


async def _run(plan: Plan, record: Sequence[RecordedCall], catalog: Catalog) -> RunResult:
    replay = Replay(record)
    entries = [entry for name in dict.fromkeys(step.type for step in plan.steps) if (entry := catalog.get(name))]
    registry = Registry(catalog.name, [ReplayedWorker(entry, replay) for entry in entries])
    config = RunConfig(
        max_steps=max(1, len(plan.steps)),
        concurrency=1,
        deadline_s=_NEVER_S,
        permissions=frozenset(entry.permission for entry in entries if entry.permission is not None),
        approval=ApprovalMode.GRANT,
        max_result_bytes=1 << 40,
    )
    return await Orchestrator(registry, config, catalog=catalog).run(plan)


def _completed(running: Coroutine[Any, Any, RunResult]) -> RunResult:
    """What it comes to; where a loop runs in this thread already (a notebook), on a loop in another."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(running)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, running).result()


def _last(plan: Plan, outputs: Mapping[int, Json]) -> Counter[Hashable]:
    return Counter(value_key(outputs[index]) for index in last_steps(plan))
