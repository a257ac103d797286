"""The checker: the conformance cases, faults by rule, and properties over arbitrary input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract import Catalog, Worker, check_plan
from plansmith.contract.findings import Fault, Severity
from plansmith.contract.plan import dumps
from tests.contract.strategies import catalogs_with_plans, json_values, mutated

GOLDEN = Path(__file__).parent.parent / "golden"
DEMO = Catalog.load(GOLDEN / "demo_catalog.json")


def cases() -> list[Any]:
    files = ("check_cases.jsonl", "more_check_cases.jsonl")
    rows = [json.loads(line) for name in files for line in (GOLDEN / name).read_text().splitlines()]
    return [pytest.param(row, id=row["id"]) for row in rows]


def found(plan: Any, catalog: Catalog = DEMO, **options: Any) -> list[tuple[str, str, str]]:
    return [(f.fault.value, f.severity.value, f.path) for f in check_plan(plan, catalog, **options).findings]


@pytest.mark.parametrize("row", cases())
def test_a_conformance_case_gives_exactly_its_findings(row: dict[str, Any]) -> None:
    result = check_plan(row["text"], DEMO)
    got = [{k: v for k, v in f.to_json().items() if k != "message"} for f in result.findings]
    assert got == row["findings"]
    assert result.valid == (not any(f["severity"] == "error" for f in row["findings"]))


def test_the_golden_cases_cover_every_fault() -> None:
    seen = {finding["fault"] for case in cases() for finding in case.values[0]["findings"]}
    by_size = {"too_large", "too_deep", "too_many_steps"}
    assert seen | by_size == {fault.value for fault in Fault}


def test_text_over_256_kib_is_too_large_and_at_the_limit_is_read() -> None:
    limit = 256 * 1024
    assert found("[" + " " * (limit - 2) + "]") == []
    assert found("[" + " " * (limit - 1) + "]") == [("too_large", "error", "")]
    assert found('["' + "é" * (limit // 2) + '"]') == [("too_large", "error", "")]


def test_nesting_of_64_is_read_and_65_is_too_deep() -> None:
    # [ step { args { value: 61 more levels } } ]
    def text(levels: int) -> str:
        return '[{"type":"fin_analyze","args":{"quote":{"a":' + "[" * (levels - 4) + "]" * (levels - 4) + "}}}]"

    assert found(text(64)) == []
    assert found(text(65)) == [("too_deep", "error", "")]
    assert found("[" * 100_000 + "]" * 100_000) == [("too_deep", "error", "")]


def test_more_than_max_steps_is_reported_beside_the_faults_of_the_steps() -> None:
    steps = [{"type": "time_now", "args": {}}] * 16 + [{"type": "nobody", "args": {}}]
    assert found(steps) == [("too_many_steps", "error", ""), ("unknown_worker", "error", "/16/type")]
    assert found(steps[:16]) == []
    assert found(steps[:3], max_steps=2) == [("too_many_steps", "error", "")]


@pytest.mark.parametrize("digits", ["1e999", "-1e999", "9" * 5000])
def test_a_number_that_no_program_holds_is_a_bad_value(digits: str) -> None:
    text = '[{"type":"weather_forecast","args":{"city":"P","date":"d","days":DIGITS}}]'.replace("DIGITS", digits)
    assert found(text) == [("bad_value", "error", "/0/args/days")]
    inside = '[{"type":"fin_analyze","args":{"quote":{"a":[1,DIGITS]}}}]'.replace("DIGITS", digits)
    assert found(inside) == [("bad_value", "error", "/0/args/quote/a/1")]
    beside = '[{"type":"time_now","args":{}},{"type":"fin_analyze","args":{"quote":{"a":[{"$from":"/0"},DIGITS]}}}]'
    assert found(beside.replace("DIGITS", digits)) == [("bad_value", "error", "/1/args/quote/a/1")]
    literal = '[{"type":"fin_analyze","args":{"quote":{"$literal":{"a":DIGITS}}}}]'.replace("DIGITS", digits)
    assert found(literal) == [("bad_value", "error", "/0/args/quote/$literal/a")]


def test_a_lone_surrogate_is_a_bad_value_and_its_messages_can_be_written() -> None:
    text = '[{"type":"weather_forecast","args":{"city":"\\ud800","date":"d","\\udfff":1}}]'
    result = check_plan(text, DEMO)
    assert [f.fault for f in result.findings] == [Fault.BAD_VALUE, Fault.UNKNOWN_ARG]
    for finding in result.findings:
        dumps(finding.to_json()).encode()


def test_a_python_value_that_json_cannot_hold_is_not_json() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    for value in ([float("nan")], [{1: 2}], [{"type": {1}, "args": {}}], {"a": object()}):
        assert found(value) == [("not_json", "error", "")]
    assert found(cyclic) == [("too_deep", "error", "")]


def test_every_fault_of_a_plan_is_reported_at_once() -> None:
    plan = [
        {"type": "fin_get_quote", "args": {"ticker": "A", "exchange": "LSE"}, "why": 1},
        {"type": "nobody", "args": {"x": {"$from": "/7"}, "y": {"$oops": 1}}},
        7,
        {"type": "mail_send", "args": {"to": [1, {"$from": "/0/price"}], "subject": {"$from": "x"}}, "after": [3]},
    ]
    assert found(plan) == [
        ("unknown_key", "error", "/0/why"),
        ("unknown_arg", "error", "/0/args/ticker"),
        ("bad_value", "error", "/0/args/exchange"),
        ("missing_arg", "error", "/0/args/symbol"),
        ("unknown_worker", "error", "/1/type"),
        ("forward_reference", "error", "/1/args/x"),
        ("unknown_operator", "error", "/1/args/y"),
        ("step_not_object", "error", "/2"),
        ("reference_type", "error", "/3/args/to/1"),
        ("bad_value", "error", "/3/args/to/0"),
        ("malformed_reference", "error", "/3/args/subject"),
        ("missing_arg", "error", "/3/args/body"),
        ("forward_reference", "error", "/3/after/0"),
    ]


def one_worker(args: dict[str, Any], returns: dict[str, Any] | None = None) -> Catalog:
    return Catalog("one", [Worker(name="w", args=args, returns=returns)])


def test_rules_around_an_operator_still_hold() -> None:
    item = {"anyOf": [{"type": "integer"}, {"enum": ["a"]}]}
    catalog = one_worker(
        {"type": "object", "properties": {"x": {"type": "array", "items": item, "minItems": 2}, "y": {"const": [1]}}}
    )
    first = {"type": "w", "args": {"x": [1, 2]}}
    ref = {"$from": "/0/n"}
    assert found([first, {"type": "w", "args": {"x": [ref, 3]}}], catalog) == []
    assert found([first, {"type": "w", "args": {"x": [ref]}}], catalog) == [("bad_value", "error", "/1/args/x")]
    assert found([first, {"type": "w", "args": {"x": [ref, "b"]}}], catalog) == [("bad_value", "error", "/1/args/x/1")]
    assert found([first, {"type": "w", "args": {"x": [1, 2], "y": [ref]}}], catalog) == []
    assert found([first, {"type": "w", "args": {"x": [1, 2], "y": "t"}}], catalog) == [
        ("bad_value", "error", "/1/args/y")
    ]


def test_what_a_literal_holds_is_checked_like_the_value_and_never_scanned() -> None:
    catalog = one_worker({"type": "object", "properties": {"n": {"type": "integer"}, "o": {"type": "object"}}})
    assert found([{"type": "w", "args": {"n": {"$literal": 3}, "o": {"$literal": {"$from": "kept"}}}}], catalog) == []
    wrong = [{"type": "w", "args": {"n": {"$literal": "3"}}}]
    assert found(wrong, catalog) == [("bad_value", "error", "/0/args/n/$literal")]


def test_schema_references_are_followed_for_values_and_for_results() -> None:
    defs = {"P": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}}
    args = {"type": "object", "properties": {"p": {"$ref": "#/$defs/P"}}, "$defs": defs}
    catalog = one_worker(args, {"$ref": "#/$defs/P", "$defs": defs})
    good = {"type": "w", "args": {"p": {"n": 1}}}
    assert found([good, {"type": "w", "args": {"p": {"n": {"$from": "/0/n"}}}}], catalog) == []
    assert found([{"type": "w", "args": {"p": {"n": "x"}}}], catalog) == [("bad_value", "error", "/0/args/p/n")]
    assert found([good, {"type": "w", "args": {"p": {"n": {"$from": "/0/m"}}}}], catalog) == [
        ("dangling_reference", "error", "/1/args/p/n")
    ]
    assert found([good, {"type": "w", "args": {"p": {"n": {"$from": "/0"}}}}], catalog) == [
        ("reference_type", "error", "/1/args/p/n")
    ]


def test_rules_over_several_arguments_are_bad_values_of_args() -> None:
    catalog = one_worker(
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}, "minProperties": 1}
    )
    assert found([{"type": "w", "args": {"a": 1}}], catalog) == [("bad_value", "error", "/0/args")]
    assert found([{"type": "w", "args": {"a": 1, "b": 1}}], catalog) == []


def test_free_parameters_are_allowed_where_the_schema_says_so() -> None:
    catalog = one_worker({"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}})
    assert found([{"type": "w", "args": {"x": 1}}], catalog) == []
    assert found([{"type": "w", "args": {"x": "1"}}], catalog) == [("bad_value", "error", "/0/args/x")]


def test_lenient_reading_lists_each_repair_and_never_counts_as_parsed() -> None:
    for text in (
        '```json\n[{"type":"time_now","args":{}}]\n```',
        'The plan: [{"type":"time_now","args":{}}] Done.',
        "[{'type':'time_now','args':{}}]",
        '[{"type":"time_now","args":{}},]',
        '[{"type":"time_now","args":{}}',
    ):
        strict, lenient = check_plan(text, DEMO), check_plan(text, DEMO, lenient=True)
        assert not strict.valid
        assert lenient.valid, text
        assert lenient.repairs, text
        assert not lenient.parsed
    clean = check_plan("[]", DEMO, lenient=True)
    assert (clean.valid, clean.parsed, clean.repairs) == (True, True, ())
    assert not check_plan("no plan here", DEMO, lenient=True).valid


@given(st.text() | st.text(alphabet='[]{}",:$from/0 \\ntrue-1e9'))
@settings(max_examples=300, deadline=None)
def test_arbitrary_text_gives_a_result(text: str) -> None:
    for lenient in (False, True):
        result = check_plan(text, DEMO, lenient=lenient)
        assert result.valid == (result.plan is not None)


@given(json_values(30))
@settings(max_examples=200, deadline=None)
def test_arbitrary_json_gives_the_same_result_as_value_and_as_text(value: Any) -> None:
    as_value = check_plan(value if not isinstance(value, str) else [value], DEMO)
    as_text = check_plan(json.dumps(value if not isinstance(value, str) else [value]), DEMO)
    assert as_value.findings == as_text.findings


@given(catalogs_with_plans())
@settings(max_examples=50, deadline=None)
def test_a_valid_plan_has_no_error_and_a_mutation_never_raises(made: tuple[Catalog, list[dict[str, Any]]]) -> None:
    catalog, plan = made
    result = check_plan(plan, catalog)
    assert [f for f in result.findings if f.severity is Severity.ERROR] == []


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_findings_point_into_the_plan_and_each_place_has_one(data: st.DataObject) -> None:
    catalog, plan = data.draw(catalogs_with_plans())
    result = check_plan(data.draw(mutated(plan)), catalog)
    paths = [finding.path for finding in result.findings]
    assert len(paths) == len(set(paths))
    for finding in result.findings:
        assert finding.path == "" or finding.path.startswith("/")
        assert finding.step is None or finding.path.split("/")[1] == str(finding.step)
        assert finding.message
