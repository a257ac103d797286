"""Metrics of one item: definitions, first faults, and what must hold between them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.plan import Plan
from plansmith.eval.metrics import Counts, FirstFault, ItemScore, score_item

Steps = list[dict[str, Any]]

QUOTE = {"type": "object", "properties": {"price": {"type": "number"}}, "additionalProperties": False}
CATALOG = Catalog(
    "test",
    [
        Worker(
            name="quote",
            args={"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]},
            returns=QUOTE,
        ),
        Worker(
            name="convert",
            args={
                "type": "object",
                "properties": {"amount": {"type": "number"}, "to": {"type": "string"}},
                "required": ["amount"],
            },
        ),
        Worker(name="now", args={"type": "object", "properties": {}}),
        Worker(name="note", args={"type": "object", "properties": {"value": {}}}),
    ],
)


def quote(symbol: Any) -> dict[str, Any]:
    return {"type": "quote", "args": {"symbol": symbol}}


def convert(amount: Any, to: str = "EUR") -> dict[str, Any]:
    return {"type": "convert", "args": {"amount": amount, "to": to}}


PRICE = {"$from": "/0/price"}
REFERENCE: Steps = [quote("AAPL"), convert(PRICE)]


def score(candidate: Any, *references: Steps) -> ItemScore:
    return score_item(candidate, references or [REFERENCE], CATALOG)


def test_the_reference_itself_is_right_in_every_metric():
    for candidate in (REFERENCE, json.dumps(REFERENCE), json.dumps(REFERENCE, indent=2)):
        found = score(candidate)
        rates = (found.parsed, found.repaired, found.registered, found.valid, found.exact, found.equivalent)
        assert rates == (True, False, True, True, True, True)
        assert (found.worker_f1, found.argument_f1) == (Counts(2, 0, 0), Counts(3, 0, 0))
        assert found.fault is FirstFault.RIGHT


@pytest.mark.parametrize(
    "text", [None, "", "no plan", "```json\n[]\n```", '{"type":"now","args":{}}', "[NaN]", "[[" * 99]
)
def test_no_answer_and_unreadable_text_are_misses_in_every_metric(text: str | None):
    for reference in (REFERENCE, []):
        found = score(text, reference)
        assert [found.parsed, found.registered, found.valid, found.exact, found.equivalent] == [False] * 5
        assert found.worker_f1 is not None
        assert found.argument_f1 is not None
        assert found.worker_f1.f1 == found.argument_f1.f1 == 0
        assert found.fault is FirstFault.UNPARSEABLE


def test_an_empty_plan_is_right_where_no_worker_fits_and_a_missing_step_where_one_does():
    found = score("[]", [])
    assert (found.valid, found.exact, found.equivalent, found.fault) == (True, True, True, FirstFault.RIGHT)
    assert found.worker_f1 == found.argument_f1 == Counts(0, 0, 0)
    assert score("[]").fault is FirstFault.MISSING_STEP
    assert score("[]").worker_f1 == Counts(0, 0, 2)
    assert score([{"type": "now", "args": {}}], []).fault is FirstFault.EXTRA_STEP


def test_exact_minds_the_kind_of_a_number_and_not_the_order_of_keys():
    reference: Steps = [convert(1)]
    assert score('[{"args":{"to":"EUR","amount":1},"type":"convert"}]', reference).exact is True
    other = score('[{"type":"convert","args":{"amount":1.0,"to":"EUR"}}]', reference)
    assert (other.exact, other.equivalent, other.fault) == (False, True, FirstFault.RIGHT)


def test_independent_steps_in_another_order_are_equivalent_and_not_exact():
    reference: Steps = [quote("A"), quote("B"), convert({"$from": "/1/price"})]
    moved: Steps = [quote("B"), quote("A"), convert({"$from": "/0/price"})]
    found = score(moved, reference)
    assert (found.exact, found.equivalent, found.argument_f1) == (False, True, Counts(4, 0, 0))


def test_several_references_are_alternatives():
    other: Steps = [convert(3)]
    assert score(other, REFERENCE, other).exact is True
    assert score([convert(4)], REFERENCE, other).fault is FirstFault.ARGUMENTS
    assert score([convert(4)], REFERENCE, other).argument_f1 == Counts(1, 1, 1)


def test_an_item_without_reference_is_neither_right_nor_wrong():
    found = score_item("[]", [], CATALOG)
    assert (found.parsed, found.registered, found.valid) == (True, True, True)
    assert (found.exact, found.equivalent, found.worker_f1, found.argument_f1, found.fault) == (None,) * 5


@pytest.mark.parametrize(
    ("candidate", "fault"),
    [
        ([quote("AAPL"), {"type": "Convert", "args": {}}], "unregistered"),
        ([quote("AAPL"), {"args": {}}], "unregistered"),
        ([quote("AAPL"), 1], "unregistered"),
        ([quote("AAPL"), {"type": None, "args": {}}], "unregistered"),
        ([quote("AAPL"), {"type": "convert"}], "arguments"),
        ([quote("AAPL"), {"type": "convert", "args": []}], "arguments"),
        ([quote("AAPL"), convert("many")], "arguments"),
        ([quote("AAPL"), convert(PRICE) | {"thought": "so"}], "arguments"),
        ('[{"type":"quote","args":{"symbol":"AAPL","symbol":"AAPL"}},' + json.dumps(convert(PRICE)) + "]", "arguments"),
        ([quote("AAPL"), convert({"$from": "/1/price"})], "references"),
        ([quote("AAPL"), convert({"$from": "/0/cost"})], "references"),
        ([quote("AAPL"), convert(PRICE) | {"after": [1]}], "references"),
        ([quote("AAPL"), convert(PRICE) | {"after": "0"}], "references"),
        ([quote("AAPL"), quote("MSFT")], "wrong worker"),
        ([{"type": "now", "args": {}}], "wrong worker"),
        ([quote("AAPL")], "missing step"),
        ([*REFERENCE, {"type": "now", "args": {}}], "extra step"),
        ([{"type": "now", "args": {}}] * 17, "extra step"),
        ([quote("AAPL"), convert(1)], "arguments"),
        ([quote("MSFT"), convert(PRICE)], "arguments"),
        ([quote("AAPL"), convert(PRICE) | {"after": [0]}], "references"),
        (REFERENCE, "right"),
    ],
)
def test_each_wrong_plan_is_named_by_its_first_fault(candidate: Any, fault: str):
    found = score(candidate)
    assert found.fault == fault
    assert found.parsed is True
    assert found.registered is (fault != "unregistered")
    assert found.equivalent is (fault == "right")


def test_a_reference_to_the_wrong_one_of_two_steps_is_a_reference_fault():
    reference: Steps = [quote("A"), quote("B"), convert({"$from": "/1/price"})]
    found = score([quote("A"), quote("B"), convert({"$from": "/0/price"})], reference)
    assert found.fault is FirstFault.REFERENCES
    assert found.argument_f1 == Counts(3, 1, 1)


def test_arguments_are_matched_within_aligned_steps_only():
    reference: Steps = [quote("A"), convert(1, "EUR"), convert(2, "USD")]
    crossed: Steps = [quote("A"), convert(1, "USD"), convert(2, "EUR")]
    assert score(crossed, reference).argument_f1 == Counts(3, 2, 2)
    swapped: Steps = [quote("A"), convert(2, "USD"), convert(1, "EUR")]
    assert score(swapped, reference).argument_f1 == Counts(5, 0, 0)
    assert score([convert(1, "EUR")], reference).argument_f1 == Counts(2, 0, 3)


def test_references_count_after_the_indices_are_mapped():
    reference: Steps = [quote("A"), convert(PRICE)]
    shifted: Steps = [{"type": "now", "args": {}}, quote("A"), convert({"$from": "/1/price"})]
    assert score(shifted, reference).argument_f1 == Counts(3, 0, 0)
    to_nothing: Steps = [{"type": "now", "args": {}}, quote("A"), convert({"$from": "/0/price"})]
    assert score(to_nothing, reference).argument_f1 == Counts(2, 1, 1)


def test_names_and_arguments_of_a_misshapen_plan_count_as_far_as_they_can_be_read():
    found = score([quote("AAPL") | {"thought": "so"}, {"type": "convert"}, 7])
    assert found.worker_f1 == Counts(2, 1, 0)
    assert found.argument_f1 == Counts(1, 0, 2)
    assert (found.exact, found.equivalent) == (False, False)


def test_a_plan_that_is_right_but_for_a_key_twice_is_not_exact():
    found = score('[{"type":"now","args":{},"args":{}}]', [{"type": "now", "args": {}}])
    assert (found.parsed, found.valid, found.exact, found.equivalent) == (True, False, False, False)


@st.composite
def valid_plans(draw: st.DrawFn) -> Steps:
    steps: Steps = []
    for index in range(draw(st.integers(0, 5))):
        values: list[Any] = ["EUR", 1, 1.0, True, None, [1, {"k": "v"}]]
        values += [{"$from": f"/{i}"} for i in range(index) if steps[i]["type"] != "quote"]
        symbol, value = st.sampled_from("AB"), st.sampled_from(values)
        step = st.one_of(
            symbol.map(quote),
            st.just({"type": "now", "args": {}}),
            value.map(lambda v: {"type": "note", "args": {"value": v}}),
        )
        steps.append(draw(step))
    return steps


@settings(max_examples=60, deadline=None)
@given(valid_plans(), valid_plans())
def test_exact_implies_equivalent_and_f1_is_one_for_equal_multisets(plan: Steps, other: Steps):
    found = score(plan, other)
    assert found.worker_f1 is not None
    assert found.argument_f1 is not None
    assert found.valid is True
    assert not (found.exact and not found.equivalent)
    if found.equivalent:
        assert found.parsed is True
        assert found.argument_f1.f1 == 1
    assert (found.worker_f1.f1 == 1) is (sorted(s["type"] for s in plan) == sorted(s["type"] for s in other))
    assert (found.fault is FirstFault.RIGHT) is found.equivalent
    assert 0 <= found.argument_f1.f1 <= 1


@settings(max_examples=60, deadline=None)
@given(valid_plans())
def test_a_plan_written_as_text_scores_as_its_value(plan: Steps):
    text = Plan.from_json(plan).canonical(CATALOG)
    found = score(text, plan)
    assert found == score(plan, plan)
    assert found.exact is True
    assert found.equivalent is True


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "args", "after", "$from", "$literal", "$format", "with", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.text() | anything | st.lists(st.fixed_dictionaries({"type": st.just("note"), "args": anything}), max_size=3))
def test_no_answer_at_all_raises_and_its_counts_add_up(candidate: Any):
    found = score(candidate)
    assert found.worker_f1 is not None
    assert found.argument_f1 is not None
    assert found.worker_f1.tp + found.worker_f1.fn == 2
    assert found.argument_f1.tp + found.argument_f1.fn == 3
    assert found.valid <= found.registered <= found.parsed
    assert (found.fault is FirstFault.UNPARSEABLE) is not found.parsed


@pytest.mark.parametrize(
    "text", ["```json\n[]\n```", "Here you are: []", "[{'type': 'now', 'args': {}}]", '[{"type":"now","args":{}},]']
)
def test_text_that_only_the_lenient_parser_reads_is_repaired_and_still_a_miss(text: str):
    for reference in ([], [{"type": "now", "args": {}}]):
        found = score(text, reference)
        assert (found.repaired, found.parsed, found.equivalent) == (True, False, False)
        assert not found.abstained_right
        assert not found.abstained_wrong


@pytest.mark.parametrize("text", ["I cannot help", "", "{}", "[]"])
def test_what_has_no_array_to_repair_or_needs_none_is_not_repaired(text: str):
    assert score(text).repaired is False


def test_an_empty_plan_is_a_right_or_a_wrong_abstention_by_its_references():
    one: Steps = [{"type": "now", "args": {}}]
    for answer, empty in (("[]", True), (one, False), ("no worker fits", False), (None, False)):
        right, wrong, either = score(answer, []), score(answer, one), score(answer, one, [])
        assert (right.abstained_right, right.abstained_wrong) == (empty, None)
        assert (wrong.abstained_right, wrong.abstained_wrong) == (None, empty)
        assert (either.abstained_right, either.abstained_wrong) == (empty, None)


def test_bfcl_is_scored_where_its_possible_answer_is_known():
    plan: Steps = [quote("AAPL")]
    without = score(plan, plan)
    assert (without.bfcl_ast, without.bfcl_ast_greedy) == (None, None)
    for answer, right in ((plan, True), ([quote("MSFT")], False), ("no plan", False), (None, False)):
        found = score_item(answer, [plan], CATALOG, allowed=[{"quote": {"symbol": ["AAPL", "Apple"]}}])
        assert (found.bfcl_ast, found.bfcl_ast_greedy) == (right, right)


def test_sixteen_equal_steps_are_counted_one_by_one():
    alike: Steps = [quote("A")] * 16
    assert score(alike, alike).argument_f1 == Counts(16, 0, 0)
    found = score([*alike[:15], quote("B")], alike)
    assert (found.equivalent, found.worker_f1, found.argument_f1) == (False, Counts(16, 0, 0), Counts(15, 1, 1))
    assert score(alike[:4], alike).worker_f1 == Counts(4, 0, 12)
    waits: Steps = [quote("A"), *[quote("A") | {"after": [0]}] * 15]
    assert score(waits, alike).equivalent is False
    assert score([*waits[:2], *reversed(waits[2:])], waits).equivalent is True


def test_after_counts_for_equivalence_and_is_no_argument():
    waits: Steps = [quote("A"), quote("B") | {"after": [0]}]
    found = score([quote("A"), quote("B")], waits)
    assert (found.equivalent, found.argument_f1, found.fault) == (False, Counts(2, 0, 0), FirstFault.REFERENCES)
    assert score([quote("B"), quote("A") | {"after": [0]}], waits).equivalent is False
    assert score([quote("A"), quote("B") | {"after": [0, 0]}], waits).equivalent is True
