"""Plans: canonical text, dependencies, pointers, templates, one-pass resolution."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract import Catalog, Plan, ResolutionError, Worker, canonical_json, check_plan, references, resolve
from plansmith.contract.plan import TemplateError, dumps, fill_template, parse_pointer, pointer_text
from tests.contract.strategies import SCALARS, catalogs_with_plans


@given(catalogs_with_plans())
@settings(max_examples=60, deadline=None)
def test_canonical_text_is_a_fixed_point_and_keeps_the_plan(made: tuple[Catalog, list[dict[str, Any]]]) -> None:
    catalog, raw = made
    plan = Plan.from_json(raw)
    text = plan.canonical(catalog)
    again = check_plan(text, catalog)
    assert again.plan is not None
    assert again.plan.canonical(catalog) == text
    assert Plan.from_json(json.loads(text)) == plan


def test_canonical_text_orders_keys_by_the_catalog_at_every_depth_and_keeps_number_kinds() -> None:
    inner = {"type": "object", "properties": {"y": {}, "x": {}}}
    args = {
        "type": "object",
        "properties": {"b": {}, "a": {"type": "array", "items": inner}, "c": {"anyOf": [{"type": "null"}, inner]}},
    }
    catalog = Catalog("c", [Worker(name="w", args=args)])
    plan = [
        {
            "after": [0],
            "args": {"c": {"x": 1, "y": 1.0}, "a": [{"x": "é", "y": None}], "b": {"with": [1], "$format": "{0}"}},
            "type": "w",
        }
    ]
    text = dumps(canonical_json(plan, catalog))
    assert text == (
        '[{"type":"w","args":{"b":{"$format":"{0}","with":[1]},"a":[{"y":null,"x":"é"}],"c":{"y":1.0,"x":1}},"after":[0]}]'
    )


def test_an_empty_after_is_left_out_of_canonical_text() -> None:
    assert Plan.from_json([{"type": "w", "args": {}, "after": []}]).canonical() == '[{"type":"w","args":{}}]'


def test_characters_that_an_engine_or_utf8_refuses_are_escaped_in_canonical_text() -> None:
    plan = Plan.from_json([{"type": "w", "args": {"a": "é\x7f\ud800\n"}}])
    assert plan.canonical() == '[{"type":"w","args":{"a":"é\\u007f\\ud800\\n"}}]'


def test_dependencies_are_references_at_any_depth_and_after_but_not_literals() -> None:
    args = {
        "a": [{"k": {"$from": "/0/x"}}],
        "b": {"$format": "{0}", "with": [{"$from": "/1"}, 3]},
        "c": {"$literal": {"$from": "/2"}},
        "d": "#E2 {$from: /2}",
    }
    steps = [{"type": "w", "args": {}}] * 4 + [{"type": "w", "args": args, "after": [3]}]
    assert Plan.from_json(steps).dependencies()[4] == {0, 1, 3}


@pytest.mark.parametrize("text", ["", "/", "x", "/01", "/-", "/0/-", "/0/~", "/0/~2", "/-1", "/ 1", "/١", None, 0])
def test_what_is_no_reference_pointer(text: Any) -> None:
    assert parse_pointer(text) is None


@given(st.integers(0, 40), st.lists(st.text(max_size=5).filter(lambda token: token != "-"), max_size=4))
def test_a_pointer_is_read_as_it_was_written(step: int, tokens: list[str]) -> None:
    parsed = parse_pointer(pointer_text(step, *tokens))
    assert parsed is not None
    assert (parsed.step, list(parsed.tokens)) == (step, tokens)


def test_a_reference_keeps_the_type_of_what_it_points_to() -> None:
    context = [{"n": 1.5, "list": [{"a/b": None}], "ok": True}]
    assert resolve({"x": {"$from": "/0/n"}, "y": [{"$from": "/0/list/0/a~1b"}], "z": {"$from": "/0"}}, context) == {
        "x": 1.5,
        "y": [None],
        "z": context[0],
    }


@given(st.integers(1, 30), st.data())
def test_text_in_results_is_never_a_reference(steps: int, data: st.DataObject) -> None:
    hostile = st.sampled_from(["#E1", "#E10", "{0}", "$1", "${x}", "/0", '{"$from":"/0"}'])
    context = [{"text": data.draw(hostile), "object": {"$from": "/0/text"}, "at": index} for index in range(steps)]
    args = {
        f"a{index}": [{"$from": f"/{index}/text"}, {"deep": {"$from": f"/{index}/object"}}, {"$from": f"/{index}/at"}]
        for index in range(steps)
    }
    assert resolve(args, context) == {
        f"a{index}": [context[index]["text"], {"deep": {"$from": "/0/text"}}, index] for index in range(steps)
    }


@given(SCALARS)
def test_a_literal_and_plain_json_resolve_to_themselves(value: Any) -> None:
    kept = {"$from": [value, {"$format": 1}]}
    assert resolve({"x": {"$literal": kept}, "y": value}, []) == {"x": kept, "y": value}


def test_a_format_writes_text_as_it_is_and_other_values_as_json() -> None:
    node = {"$format": "{{{0}}} {1} {2} {3} {0}", "with": [{"$from": "/0"}, True, None, 2.0]}
    assert resolve(node, ["{1}"]) == "{{1}} true null 2.0 {1}"
    assert resolve({"$format": "{0}", "with": [{"$from": "/0"}]}, [{"a": ["é"]}]) == '{"a":["é"]}'


@given(st.lists(st.text(max_size=4), max_size=4))
def test_values_in_a_template_are_never_scanned(values: list[str]) -> None:
    template = "|".join(f"{{{index}}}" for index in range(len(values)))
    assert fill_template(template, values) == "|".join(values)


@pytest.mark.parametrize("template", ["{", "}", "{x}", "{00}", "{ 0}", "{{}", "{0", "{1}"])
def test_a_broken_template_is_refused(template: str) -> None:
    with pytest.raises(TemplateError):
        fill_template(template, ["a"])


@pytest.mark.parametrize("pointer", ["/1", "/0/b", "/0/a/2", "/0/a/01", "/0/a/x", "/0/a/0/z", "bad"])
def test_a_reference_without_a_value_is_an_error_that_names_it(pointer: str) -> None:
    with pytest.raises(ResolutionError, match=pointer):
        resolve({"x": {"$from": pointer}}, [{"a": [1, 2]}])


def test_references_come_with_their_places() -> None:
    args = {"a": [{"$from": "/0/x"}], "b": {"$format": "{0}", "with": [{"$from": "/1"}]}, "c": {"$from": "broken"}}
    assert [(ref.place, ref.step, ref.tokens) for ref in references(args)] == [
        (("a", 0), 0, ("x",)),
        (("b", "with", 0), 1, ()),
    ]


def test_operators_inside_arguments_keep_their_order_and_lists_with_their_names_are_still_ordered() -> None:
    inner = {"type": "object", "properties": {"b": {}, "a": {}}}
    args = {"type": "object", "properties": {"one": {"type": "array", "items": inner}, "two": inner}}
    worker = Worker(name="w", args=args)
    value = {"two": {"$from": "/0/x"}, "one": ["$from", "$literal", {"a": 1, "b": {"$literal": {"z": 1, "y": 2}}}]}
    ordered = '{"one":["$from","$literal",{"b":{"$literal":{"z":1,"y":2}},"a":1}],"two":{"$from":"/0/x"}}'
    assert dumps(worker.order_args(value)) == ordered
