"""Real rows: a teacher that answers NESTFUL's queries with the recorded plans, but for faults planted one a query.

Every planted fault must end where it belongs, and every query keeps its right answer.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.plan import Plan, parse_pointer, resolve
from plansmith.contract.progress import Silent
from plansmith.contract.records import Query
from plansmith.contract.store import write_rows
from plansmith.data.build import Helpers, build_data
from plansmith.data.drafts import DRAFTS
from plansmith.data.queries import collect_queries, load_queries
from plansmith.data.stages.tally import Stage
from plansmith.data.teacher_config import NestfulQueries, QueriesConfig
from plansmith.verifying import equivalent

from .stage_kit import Built, add_up, configured
from .test_stages_teacher import draft

PlanJson = list[dict[str, Any]]


def shifted(value: Any, moved: dict[int, int]) -> Any:
    """A plan's value whose references follow the steps that moved."""
    if isinstance(value, dict):
        if value.keys() == {"$from"}:
            first, _, rest = value["$from"][1:].partition("/")
            return {"$from": f"/{moved[int(first)]}" + (f"/{rest}" if rest else "")}
        return {key: shifted(item, moved) for key, item in value.items()}
    return [shifted(item, moved) for item in value] if isinstance(value, list) else value


def wrong_worker(query: Query, plan: PlanJson) -> PlanJson:
    plan[-1]["type"] += "_v2"
    return plan


def invented_literal(query: Query, plan: PlanJson) -> PlanJson | None:
    for step in plan:
        for name, value in step["args"].items():
            if isinstance(value, str) and value.casefold() in query.query.casefold() and len(value) > 3:
                step["args"][name] = "Zzyzx Qwfp"
                return plan
    return None


def first_reference(plan: PlanJson) -> tuple[int, str, tuple[str | int, ...]] | None:
    """Step, argument and tokens of the first argument that is a reference into a result."""
    for index, step in enumerate(plan):
        for name, value in step["args"].items():
            if isinstance(value, dict) and value.keys() == {"$from"}:
                tokens = parse_pointer(value["$from"])
                assert tokens is not None
                return index, name, (tokens.step, *tokens.tokens)
    return None


def wrong_reference(query: Query, plan: PlanJson) -> PlanJson | None:
    """A place of the same result that holds another value of the same type."""
    if (found := first_reference(plan)) is None or query.results is None:
        return None
    index, name, (step, *tokens) = found
    around = query.results[int(step)]
    for token in tokens[:-1]:
        around = around[int(token)] if isinstance(around, list) else around[token]
    if not isinstance(around, dict) or not tokens:
        return None
    right = around[str(tokens[-1])]
    for key, value in around.items():
        if type(value) is type(right) and value != right and "/" not in key and "~" not in key:
            pointer = plan[index]["args"][name]["$from"]
            plan[index]["args"][name] = {"$from": pointer.rpartition("/")[0] + f"/{key}"}
            return plan
    return None


def literal_for_reference(query: Query, plan: PlanJson) -> PlanJson | None:
    if (found := first_reference(plan)) is None or query.results is None:
        return None
    index, name, _ = found
    value = resolve(plan[index]["args"][name], query.results)
    if not isinstance(value, str) or value.casefold() in query.query.casefold():
        return None
    plan[index]["args"][name] = value
    return plan


def swapped_steps(query: Query, plan: PlanJson) -> PlanJson | None:
    """Two steps beside each other that do not need each other, in the other order."""
    for index in range(len(plan) - 1):
        needed = Plan.from_json(plan).dependencies()[index + 1]
        if index not in needed and plan[index] != plan[index + 1]:
            order = list(range(len(plan)))
            order[index], order[index + 1] = index + 1, index
            moved = {old: new for new, old in enumerate(order)}
            return [shifted(plan[old], moved) for old in order]
    return None


def half(query: Query, plan: PlanJson) -> PlanJson | None:
    return plan[:-1] if len(plan) > 1 else None


Fault = Callable[[Query, PlanJson], PlanJson | None]
FAULTS: dict[Fault, set[str]] = {
    wrong_worker: {"check"},
    invented_literal: {"invented"},
    wrong_reference: {"execution", "check"},
    literal_for_reference: {"same_answer", "ambiguous_literal", "data_dependent_choice", "outvoted"},
    swapped_steps: {"same_answer"},
    half: {"wrong_outcome"},
}


@pytest.mark.network
@pytest.mark.slow
def test_planted_faults_in_recorded_plans_end_where_they_belong(tmp_path: Path):
    queries_config = QueriesConfig(sources=(NestfulQueries(kind="nestful"),))
    collect_queries(queries_config, None, tmp_path, Silent(), seed=0)
    queries = [query for query in load_queries(tmp_path).queries if query.reference is not None][:300]
    verify = {"outcome": "reject", "vote": {}}
    config = configured({"kind": "teacher", "run": tmp_path}, verify=verify)
    helpers = Helpers(equivalent=equivalent)

    def run(name: str) -> Built:
        return Built(tmp_path / name, build_data(config, tmp_path / name, seed=0, progress=Silent(), helpers=helpers))

    write_rows(tmp_path / DRAFTS, [draft(query, query.reference) for query in queries])
    whole = run("whole")
    add_up(whole, len(queries))
    assert set(whole.reasons) <= {"invented", "ambiguous_literal", "data_dependent_choice", "duplicate"}, whole.reasons
    fits = {row.id for row in whole.kept}
    assert len(fits) > 120

    drafts, planted = [], dict[str, Fault]()
    faults, turn = list(FAULTS), 0
    for query in (one for one in queries if one.id in fits):
        fault = faults[turn % len(faults)]
        turn += 1
        assert query.reference is not None
        faulty = fault(query, copy.deepcopy(query.reference))
        if faulty is None:
            drafts.append(draft(query, query.reference))
            continue
        planted[query.id] = fault
        drafts += [draft(query, query.reference), draft(query, faulty, sample=1)]
    write_rows(tmp_path / DRAFTS, drafts)
    found = run("planted")
    add_up(found, len(drafts))

    assert {row.id for row in found.kept} == fits, "each query keeps its right answer"
    assert {row.id: row.plan for row in found.kept} == {row.id: row.plan for row in whole.kept}
    assert {row.id for row in found.rejects} == {f"{query_id}~1" for query_id in planted}
    ends: dict[Fault, Counter[str]] = {fault: Counter() for fault in FAULTS}
    for row in found.rejects:
        ends[planted[row.id.removesuffix("~1")]][row.reason] += 1
    for fault, allowed in FAULTS.items():
        assert ends[fault].total() >= 10, (fault.__name__, ends[fault])
        assert set(ends[fault]) <= allowed, (fault.__name__, ends[fault])
    elsewhere = ends[literal_for_reference]["outvoted"]  # the value stands in two results; the earlier one was taken
    assert 10 * elsewhere < ends[literal_for_reference].total()
    linked = found.stage(Stage.GROUNDING).counted["linked"] - whole.stage(Stage.GROUNDING).counted.get("linked", 0)
    assert linked >= ends[literal_for_reference]["same_answer"] >= 10
    assert found.stage(Stage.EXECUTION).counted.keys() <= {"exact_calls", "executed_exactly"}
