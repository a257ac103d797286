"""One row alone: literals that become references, plans that are run on records, and the results they end with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.check import check_plan
from plansmith.contract.plan import Plan, Step, resolve
from plansmith.contract.records import Candidate, Reject
from plansmith.contract.replay import Replay, recorded_calls
from plansmith.data.stages import rows as rows_module
from plansmith.data.stages.execution import Record, execute_plan, final_results, same_results
from plansmith.data.stages.grounding import Grounded, ground
from plansmith.data.stages.rows import CheckSettings, Item, Kind, RowChecker
from plansmith.data.stages.tally import Stage
from plansmith.data.verify_config import Rule, Rules

from .stage_kit import CAT, FOUND, ROOMS, good, ref, step

ALL = Rules(Rule.REJECT, True, Rule.REJECT, False, Rule.REJECT)


class Fate:
    """What became of one row."""

    def __init__(self, row: dict[str, Any], record: Record | None = None, rules: Rules = ALL, **settings: Any) -> None:
        candidate = Candidate.model_validate({"id": "r", "family": "f", "source": "s"} | row)
        checked = RowChecker(CheckSettings(CAT, rules, **settings)).check([Item(candidate, record)])
        [line] = checked.lines
        self.tallies = checked.tallies
        self.kept: Candidate | None = None
        self.reject: Reject | None = None
        if line.kind is Kind.KEPT:
            self.kept = Candidate.model_validate_json(line.text.partition(b"\t")[2])
        else:
            self.reject = Reject.model_validate_json(line.text)

    @property
    def reason(self) -> str | None:
        return self.reject.reason if self.reject is not None else None

    def counted(self, stage: Stage) -> dict[str, int]:
        return {name: number for name, number in self.tallies[stage].counted.items() if number}


def grounded(place: Any, results: dict[int, Any], query: str = "A stay in lisbon") -> Grounded:
    return ground([step("find", text="lisbon"), step("stay", place=place)], query, CAT, results, link=True)


def reasons(found: Grounded) -> list[str]:
    return [one.reason for one in found.left]


def test_a_literal_that_an_earlier_result_holds_at_one_place_becomes_a_reference():
    found = grounded("p-771", {0: FOUND})
    assert (found.linked, found.left) == (1, ())
    assert found.plan[1]["args"] == {"place": ref("/0/id")}


def test_a_result_that_is_the_value_itself_is_referred_to_as_a_whole():
    assert grounded("p-771", {0: "p-771"}).plan[1]["args"] == {"place": ref("/0")}


def test_a_value_that_the_query_names_stays_a_literal_though_a_result_holds_it():
    found = grounded("p-771", {0: FOUND}, query="A stay in p-771, lisbon")
    assert (found.linked, found.left) == (0, ())
    assert found.plan[1]["args"] == {"place": "p-771"}


def test_a_value_that_nothing_holds_is_invented():
    found = grounded("p-999", {0: FOUND})
    assert reasons(found) == ["invented"]
    assert "/1/args/place" in found.left[0].sentence()


def test_values_are_compared_with_their_type():
    assert reasons(grounded("4711", {0: {"id": 4711}})) == ["invented"]
    assert reasons(grounded("p-771", {0: {"id": "P-771"}})) == ["invented"]


def test_results_of_the_same_or_a_later_step_do_not_ground_a_literal():
    assert reasons(grounded("p-771", {1: FOUND})) == ["invented"]
    assert reasons(grounded("p-771", {2: FOUND})) == ["invented"]


def test_of_several_places_the_one_with_the_parameters_name_counts_and_otherwise_none():
    named = grounded("p-771", {0: {"id": "p-771", "place": "p-771"}})
    assert named.plan[1]["args"] == {"place": ref("/0/place")}
    assert reasons(grounded("p-771", {0: {"id": "p-771", "code": "p-771"}})) == ["ambiguous_literal"]


def test_later_entries_of_a_list_are_a_choice_and_the_first_is_not():
    assert reasons(grounded("q-2", {0: FOUND})) == ["data_dependent_choice"]
    assert grounded("q-1", {0: FOUND}).plan[1]["args"] == {"place": ref("/0/near/0/id")}


def test_the_earliest_result_that_decides_is_referred_to():
    plan = [step("find", text="lisbon"), step("now"), step("stay", place="p-771")]
    twice = {0: {"id": "p-771"}, 1: {"id": "p-771"}}
    assert ground(plan, "lisbon", CAT, twice, link=True).plan[2]["args"] == {"place": ref("/0/id")}
    unclear_first = {0: {"a": "p-771", "b": "p-771"}, 1: {"id": "p-771"}}
    assert ground(plan, "lisbon", CAT, unclear_first, link=True).plan[2]["args"] == {"place": ref("/1/id")}


def test_keys_that_pointers_escape_are_linked_and_found_again():
    result = {"a/b": {"~x": "p-771"}}
    plan = grounded("p-771", {0: result}).plan
    assert resolve(plan[1]["args"], [result]) == {"place": "p-771"}


values = st.sampled_from(["p-1", "p-2", "p-3", "q/4", 4711, 4711.5, None, True])
results_drawn = st.recursive(
    values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~0", max_size=3), inner, max_size=3)
)


@given(st.sampled_from(["p-1", "p-2", "q/4", "zz-9"]), results_drawn, results_drawn)
def test_a_link_changes_no_value_and_every_literal_is_linked_or_named(value: str, first: Any, second: Any):
    """The one rule that counts: what the worker gets after linking is what it got before."""
    plan = [step("now"), step("now"), step("stay", place=value, note=value)]
    results = {0: first, 1: second}
    found = ground(plan, "a stay", CAT, results, link=True)
    assert resolve(found.plan[2]["args"], [first, second]) == plan[2]["args"]
    assert found.linked + len(found.left) == 2
    assert check_plan(found.plan, CAT).valid
    assert ground(plan, "a stay", CAT, results, link=False).plan == plan


def test_a_good_row_passes_every_stage_and_is_counted_in_each():
    fate = Fate(good())
    assert fate.kept is not None
    assert fate.counted(Stage.EXECUTION) == {"exact_calls": 2, "executed_exactly": 1}
    assert fate.counted(Stage.OUTCOME) == {"right": 1}


def test_a_recorded_literal_is_linked_in_the_kept_row_and_counted():
    row = good() | {"plan": [step("find", text="lisbon"), step("stay", place="p-771")]}
    fate = Fate(row)
    assert fate.kept is not None
    assert fate.kept.plan[1]["args"] == {"place": ref("/0/id")}
    assert fate.counted(Stage.GROUNDING) == {"linked": 1}
    assert fate.counted(Stage.OUTCOME) == {"right": 1}


def test_grounding_that_only_counts_leaves_the_row_as_it_is():
    rules = ALL._replace(grounding=Rule.COUNT, outcome=Rule.OFF)
    row = good() | {"plan": [step("find", text="porto"), step("stay", place="p-771")]}
    fate = Fate(row, rules=rules)
    assert fate.kept is not None
    assert fate.kept.plan[1]["args"] == {"place": "p-771"}
    assert fate.counted(Stage.GROUNDING) == {"invented": 1, "linkable": 1}


def test_without_linking_every_such_literal_is_invented():
    row = good() | {"plan": [step("find", text="lisbon"), step("stay", place="p-771")]}
    assert Fate(row, rules=ALL._replace(link=False)).reason == "invented"


RECORD = Record(good()["plan"], [FOUND, ROOMS])
ASKED = {"query": "A stay in lisbon"}


def test_an_executed_result_links_a_teachers_literal_and_its_results_are_kept():
    fate = Fate(ASKED | {"plan": [step("find", text="lisbon"), step("stay", place="p-771")]}, RECORD)
    assert fate.kept is not None
    assert fate.kept.plan == RECORD.plan
    assert fate.kept.results == [FOUND, ROOMS]


def test_a_call_that_nobody_recorded_ends_the_plan():
    fate = Fate(ASKED | {"plan": [step("find", text="A"), step("stay", place=ref("/0/id"))]}, RECORD)
    assert fate.reason == "execution"
    assert fate.reject is not None
    assert "no call of 'find'" in fate.reject.detail


def test_exact_and_nearest_calls_are_told_apart():
    plan = [step("find", text="lisbon", most=3), step("stay", place=ref("/0/id"))]
    assert Fate(ASKED | {"plan": plan}, RECORD).reason == "execution"
    near = Fate(ASKED | {"plan": plan}, RECORD, ALL._replace(nearest=True))
    assert near.kept is not None
    assert near.counted(Stage.EXECUTION) == {"nearest_calls": 1, "exact_calls": 1, "executed_nearly": 1}
    assert near.kept.results is None, "guessed results are no recorded ones"


def test_a_reference_into_nowhere_of_a_result_ends_the_plan():
    fate = Fate(ASKED | {"plan": [step("find", text="lisbon"), step("stay", place=ref("/0/code"))]}, RECORD)
    assert fate.reason == "execution"


def test_an_argument_from_a_result_is_checked_against_the_schema():
    fate = Fate(ASKED | {"plan": [step("find", text="lisbon"), step("stay", place=ref("/0/near"))]}, RECORD)
    assert fate.reason == "execution"
    assert fate.reject is not None
    assert "'place' from an earlier result" in fate.reject.detail


class Watching:
    """An executor that notes who was called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def execute(self, step: Step, args: dict[str, Any]) -> Any:
        self.called.append(step.type)
        return {"id": "x", "to": "x"}


plans = st.lists(
    st.tuples(st.sampled_from(["find", "stay", "send", "now"]), st.integers(0, 8)), min_size=1, max_size=9
).map(
    lambda drawn: [
        step(name, **({} if name == "now" else {key: ref(f"/{to}/id") if to < at else "x"}))
        for at, (name, to) in enumerate(drawn)
        for key in [{"find": "text", "stay": "place", "send": "to"}.get(name, "")]
    ]
)


@given(plans)
def test_workers_that_write_and_what_needs_them_are_never_run(plan: list[dict[str, Any]]):
    import asyncio

    watching, typed = Watching(), Plan.from_json(plan)
    done = asyncio.run(execute_plan(typed, watching, CAT))
    held: set[int] = set()
    for index, (one, needed) in enumerate(zip(typed.steps, typed.dependencies(), strict=True)):
        if one.type == "send" or held & set(needed):
            held.add(index)
    assert done.not_run == held
    assert watching.called == [one.type for index, one in enumerate(typed.steps) if index not in held]
    assert done.writes == sum(one.type == "send" for one in typed.steps)
    assert done.complete == (not held)


def test_a_plan_that_writes_is_kept_as_run_in_part_even_where_the_write_is_recorded():
    watching = Watching()
    plan = [step("find", text="lisbon"), step("send", to="lisbon"), step("stay", place=ref("/1/id"))]
    record = Record(plan, [FOUND, {"id": "sent"}, ROOMS])
    fate = Fate(ASKED | {"plan": plan}, record, executors=lambda record: watching)
    assert watching.called == ["find"]
    assert fate.kept is not None
    assert fate.kept.results is None
    assert fate.counted(Stage.EXECUTION) == {"executed_in_part": 1, "not_run_write": 1}
    assert fate.counted(Stage.OUTCOME) == {"not_executed": 1}


def test_rows_without_records_are_counted_and_go_on():
    fate = Fate(ASKED | {"plan": [step("find", text="lisbon")]})
    assert fate.kept is not None
    assert fate.counted(Stage.EXECUTION) == {"without_results": 1}
    assert fate.counted(Stage.OUTCOME) == {"without_answer": 1}


def test_a_plan_that_ends_with_other_results_is_rejected_and_order_does_not_matter():
    assert Fate(good() | {"answer": [{"rooms": ["red"]}]}).reason == "wrong_outcome"
    two = {"query": "lisbon porto", "plan": [step("find", text="lisbon"), step("find", text="porto")]}
    assert Fate(two | {"results": [1, 2], "answer": [2, 1.0]}).kept is not None
    assert Fate(two | {"results": [1, 2], "answer": [1]}).reason == "wrong_outcome"
    assert Fate(two | {"results": [1, 1], "answer": [1]}).reason == "wrong_outcome"


def test_a_teachers_plan_must_end_as_the_recorded_one():
    assert Fate(ASKED | {"plan": RECORD.plan[:1]}, RECORD).reason == "wrong_outcome"
    assert Fate(ASKED | {"plan": []}, RECORD).reason == "wrong_outcome"
    assert Fate(ASKED | {"plan": []}, Record([], [])).kept is not None
    wrong = Fate(ASKED | {"plan": RECORD.plan[:1]}, RECORD, ALL._replace(outcome=Rule.COUNT))
    assert wrong.kept is not None
    assert wrong.counted(Stage.OUTCOME) == {"wrong": 1}


def test_final_results_are_those_that_no_step_uses():
    plan = Plan.from_json([step("now"), step("stay", place=ref("/0/id")), step("now")])
    assert final_results(plan, {0: "a", 1: "b", 2: "c"}) == ["b", "c"]
    assert same_results([1, {"a": [1]}], [{"a": [1.0]}, 1])
    assert not same_results([True], [1])


def test_a_record_that_does_not_fit_its_results_is_said_and_not_the_builds_end():
    fate = Fate(ASKED | {"plan": RECORD.plan}, Record(RECORD.plan, [FOUND]))
    assert fate.reason == "execution"
    assert fate.reject is not None
    assert "recorded plan does not fit its results" in fate.reject.detail
    assert Fate(ASKED | {"plan": RECORD.plan}, Record(RECORD.plan, [{}, ROOMS])).reason == "execution"


@pytest.mark.parametrize("results", [[], [FOUND], [FOUND, ROOMS, ROOMS]])
def test_a_row_with_more_or_fewer_results_than_steps_is_rejected(results: list[Any]):
    fate = Fate(good() | {"results": results}, rules=Rules(Rule.OFF, True, Rule.OFF, False, Rule.OFF))
    assert fate.reason == "bad_results"


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [100, 127, 128, 200, 253, 400, 900])
@pytest.mark.parametrize("rules", [ALL, Rules(Rule.OFF, True, Rule.OFF, False, Rule.OFF)])
def test_results_of_any_depth_are_kept_or_rejected_and_can_be_read_again(depth: int, rules: Rules):
    fate = Fate({"query": "lisbon", "plan": [step("find", text="lisbon")], "results": [nested(depth)]}, rules=rules)
    assert fate.reason == (None if depth < 128 else "bad_results")


@pytest.mark.parametrize("depth", [60, 150, 220, 600])
def test_a_deep_plan_is_a_reject_that_can_be_read_again(depth: int):
    fate = Fate({"query": "lisbon", "plan": [step("find", text=nested(depth))]})
    assert fate.reject is not None
    assert fate.reject.reason == "check"
    assert (fate.reject.plan is None) == (depth > 128)


def test_code_that_fails_on_a_row_rejects_the_row_alone(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(rows_module, "ground", broken)
    fate = Fate(good())
    assert fate.reason == "check_failed"
    assert fate.tallies[Stage.GROUNDING].rejected == {"check_failed": 1}


def failing(error: Exception) -> Callable[[Record], Any]:
    class Failing:
        async def execute(self, step: Step, args: dict[str, Any]) -> Any:
            raise error

    return lambda record: Failing()


@pytest.mark.parametrize("error", [ValueError("no such place"), RecursionError(), TimeoutError()])
def test_whatever_an_executor_raises_is_the_plans_failure(error: Exception):
    fate = Fate(good(), executors=failing(error))
    assert fate.reason == "execution"
    assert fate.reject is not None
    assert "step 0, 'find'" in fate.reject.detail


def test_lone_surrogates_in_a_row_end_in_a_reject_that_is_utf8():
    fate = Fate({"id": "\ud800", "query": "a \udc00 b", "plan": [step("find", text="\ud800")]})
    assert fate.reason == "check"
    assert fate.reject is not None
    assert fate.reject.query == "a \\udc00 b"
    kept = Fate({"query": "lisbon \udc00", "plan": [step("find", text="lisbon")]})
    assert kept.reason == "check_failed"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_calls_that_are_recorded_twice_are_answered_in_turn(order: list[int]):
    plan = Plan.from_json([step("now") for _ in order])
    replay = Replay(recorded_calls(plan, list(order)))
    assert [replay.call("now", {}) for _ in order] == order
