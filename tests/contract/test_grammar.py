"""Grammar and checker agree: what the grammar accepts has no structural fault, and every canonical plan is accepted."""

from __future__ import annotations

import json
import random
from typing import Any

import llguidance
import pytest
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract import Catalog, Fault, Plan, Worker, check_plan, plan_schema
from plansmith.contract.grammar import POSITIONAL_LIMIT, STRUCTURAL, is_positional
from tests.contract.strategies import catalogs, catalogs_with_plans, mutated
from tests.contract.test_check import DEMO

COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
BYTES = llguidance.LLTokenizer("byte")
XGRAMMAR = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo(
        [bytes([value]) for value in range(256)] + [b"</s>"], xgrammar.VocabType.RAW, stop_token_ids=[256]
    )
)


def llguidance_matcher(schema: dict[str, Any]) -> llguidance.LLMatcher:
    matcher = llguidance.LLMatcher(BYTES, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), COMPACT))
    assert not matcher.get_error()
    return matcher


def xgrammar_matcher(schema: dict[str, Any]) -> xgrammar.GrammarMatcher:
    compiled = XGRAMMAR.compile_json_schema(json.dumps(schema), any_whitespace=False, separators=(",", ":"))
    return xgrammar.GrammarMatcher(compiled)


def accepted_by_llguidance(schema: dict[str, Any], text: str) -> bool:
    matcher = llguidance_matcher(schema)
    tokens = BYTES.tokenize_bytes(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def accepted_by_xgrammar(schema: dict[str, Any], text: str) -> bool:
    matcher = xgrammar_matcher(schema)
    return matcher.accept_string(text) and matcher.is_completed()


def structural(text: str, catalog: Catalog, positional: bool) -> list[str]:
    faults = STRUCTURAL | ({Fault.FORWARD_REFERENCE} if positional else set())
    return [f.message for f in check_plan(text, catalog).findings if f.fault in faults]


def keywords(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {key for item in schema for key in keywords(item)}
    if not isinstance(schema, dict):
        return set()
    found = set(schema) - {"properties", "$defs", "const", "enum"}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            found |= {inner for item in value.values() for inner in keywords(item)}
        elif key not in ("const", "enum"):
            found |= keywords(value)
    return found


def any_ofs(schema: Any) -> list[dict[str, Any]]:
    items = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    here = [schema] if isinstance(schema, dict) and isinstance(schema.get("anyOf"), list) else []
    return here + [node for item in items for node in any_ofs(item)]


@given(catalogs())
@settings(max_examples=25, deadline=None)
def test_a_plan_schema_uses_only_what_both_engines_take_whole(catalog: Catalog) -> None:
    schema = plan_schema(catalog, max_steps=3)
    allowed = {"$ref", "type", "prefixItems", "items", "minItems", "maxItems", "anyOf", "required", "pattern"}
    assert keywords(schema) <= allowed | {"additionalProperties"}
    assert all(set(node) == {"anyOf"} for node in any_ofs(schema))


def test_no_length_keyword_of_the_catalog_reaches_the_grammar() -> None:
    text = {"type": "string", "maxLength": 500, "pattern": "^a+$", "minLength": 1}
    catalog = Catalog("c", [Worker(name="w", args={"type": "object", "properties": {"t": text}})])
    assert "Length" not in json.dumps(plan_schema(catalog))
    assert accepted_by_xgrammar(plan_schema(catalog), '[{"type":"w","args":{"t":"b"}}]')


@given(catalogs_with_plans())
@settings(max_examples=60, deadline=None)
def test_every_canonical_plan_is_accepted_by_llguidance_in_both_forms(
    made: tuple[Catalog, list[dict[str, Any]]],
) -> None:
    catalog, plan = made
    text = Plan.from_json(plan).canonical(catalog)
    for positional in (True, False):
        assert accepted_by_llguidance(plan_schema(catalog, max_steps=4, positional=positional), text), text


@given(catalogs_with_plans())
@settings(max_examples=25, deadline=None)
def test_every_canonical_plan_is_accepted_by_xgrammar(made: tuple[Catalog, list[dict[str, Any]]]) -> None:
    catalog, plan = made
    text = Plan.from_json(plan).canonical(catalog)
    assert accepted_by_xgrammar(plan_schema(catalog, max_steps=4), text), text


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_mutated_plan_with_a_structural_fault_is_refused_by_both_engines(data: st.DataObject) -> None:
    catalog, plan = data.draw(catalogs_with_plans())
    text = json.dumps(data.draw(mutated(plan)), ensure_ascii=False, separators=(",", ":"))
    faults = structural(text, catalog, positional=True)
    schema = plan_schema(catalog, max_steps=4)
    if faults:
        assert not accepted_by_llguidance(schema, text), (text, faults)
        assert not accepted_by_xgrammar(schema, text), (text, faults)


def random_text(matcher: llguidance.LLMatcher, rng: random.Random, limit: int = 3000) -> str | None:
    """A text that the grammar accepts, drawn byte by byte with a taste for ending strings; None over the limit."""
    made: list[int] = []
    while len(made) < limit:
        allowed = [i for i, bias in enumerate(matcher.compute_logit_bias()) if bias > 0]
        if matcher.is_accepting() and (matcher.is_stopped() or len(allowed) == 1 or rng.random() < 0.3):
            return bytes(made).decode()
        usual = [byte for byte in allowed if byte < 128]
        closing = [byte for byte in allowed if byte in b'"]},']
        choice = rng.choice(closing if closing and rng.random() < 0.5 else usual or allowed)
        if choice >= 256:
            return bytes(made).decode()
        matcher.consume_token(choice)
        made.append(choice)
    return None


@given(catalogs(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_the_grammar_generates_has_no_structural_fault(
    catalog: Catalog, rng: random.Random, positional: bool
) -> None:
    text = random_text(llguidance_matcher(plan_schema(catalog, max_steps=3, positional=positional)), rng)
    if text is not None:
        assert structural(text, catalog, positional) == [], text


def test_forward_references_cannot_be_decoded_where_positions_have_their_own_patterns() -> None:
    text = '[{"type":"time_now","args":{}},{"type":"weather_forecast","args":{"city":{"$from":"/%d/iso"},"date":"d"}}]'
    schema = plan_schema(DEMO, max_steps=3, positional=True)
    assert accepted_by_llguidance(schema, text % 0)
    assert not accepted_by_llguidance(schema, text % 1)
    assert not accepted_by_xgrammar(schema, text % 1)
    assert accepted_by_llguidance(plan_schema(DEMO, max_steps=3, positional=False), text % 1)


def test_the_positional_form_is_chosen_by_steps_times_workers() -> None:
    workers = [Worker(name=f"w{i}", args={"type": "object"}) for i in range(POSITIONAL_LIMIT // 4 + 1)]
    assert is_positional(Catalog("c", workers[:-1]), 4)
    assert not is_positional(Catalog("c", workers), 4)
    assert "items" in plan_schema(Catalog("c", workers), max_steps=4)


@pytest.mark.parametrize("text", ["[] ", " []", "[\n]", '[ {"type":"time_now","args":{}}]', "[],"])
def test_whitespace_is_never_accepted(text: str) -> None:
    schema = plan_schema(DEMO, max_steps=2)
    assert not accepted_by_llguidance(schema, text)
    assert not accepted_by_xgrammar(schema, text)


def test_step_limits_hold_in_both_forms() -> None:
    step = '{"type":"time_now","args":{}}'
    for positional in (True, False):
        schema = plan_schema(DEMO, max_steps=2, min_steps=1, positional=positional)
        accepted = [accepted_by_llguidance(schema, "[" + ",".join([step] * n) + "]") for n in range(4)]
        assert accepted == [False, True, True, False]


def test_a_hundred_workers_with_lengths_compile_in_both_engines() -> None:
    text = {"type": "string", "maxLength": 500}
    properties = {name: text for name in ("a", "b", "c", "d")}
    workers = [Worker(name=f"w{i}", args={"type": "object", "properties": properties}) for i in range(100)]
    schema = plan_schema(Catalog("c", workers))
    plan = '[{"type":"w99","args":{"a":"x","d":"y"}}]'
    assert accepted_by_llguidance(schema, plan)
    assert accepted_by_xgrammar(schema, plan)
