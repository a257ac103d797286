"""Advice on catalogs: each note has its cause, and a tidy catalog has none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.check import check_plan
from plansmith.contract.lint import MAX_ENUM, MAX_SENTENCE, LintCode, LintNote, lint_catalog

CLOSED = {"type": "object", "properties": {"price": {"type": "number"}}, "additionalProperties": False}
TIDY: dict[str, Any] = {
    "name": "fin_get_quote",
    "description": "Latest price of a stock.",
    "args": {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]},
    "returns": CLOSED,
    "effect": "read",
    "idempotent": True,
}


def codes(**changes: Any) -> list[tuple[str, str]]:
    """Code and path of each note on one worker."""
    notes = lint_catalog(Catalog("n", [Worker(**{**TIDY, **changes})]))
    return [(note.code.value, note.path) for note in notes]


def codes_of(parameter: Any, **more: Any) -> list[tuple[str, str]]:
    """Code and path below the parameter of each note on one parameter."""
    args = {"type": "object", "properties": {"p": parameter}, "required": ["p"], **more}
    return [(code, path.removeprefix("/args/properties/p")) for code, path in codes(args=args)]


def test_a_tidy_worker_has_no_notes() -> None:
    assert codes() == []
    assert codes(effect="write", permission="orders") == []
    assert codes(effect="pure", idempotent=False) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "getQuote"}, ("name_style", "/name")),
        ({"name": "quote"}, ("name_style", "/name")),
        ({"name": "Get_Hotel_Reviews(Tips)"}, ("name_style", "/name")),
        ({"description": " "}, ("no_description", "/description")),
        ({"description": "x" * (MAX_SENTENCE + 1)}, ("long_sentence", "/description")),
        ({"returns": None}, ("no_returns", "/returns")),
        ({"returns": {"type": "object", "properties": {"a": {"type": "string"}}}}, ("open_returns", "/returns")),
        ({"returns": {"type": "array", "items": {"type": "object"}}}, ("open_returns", "/returns/items")),
        ({"effect": "write", "idempotent": False, "permission": "p"}, ("unguarded_write", "/effect")),
        ({"effect": "write", "idempotent": True}, ("unguarded_write", "/effect")),
        ({"args": {"type": "object", "additionalProperties": True}}, ("open_object", "/args")),
        ({"args": {"type": "object", "required": ["a"]}}, ("undeclared_required", "/args")),
    ],
)
def test_a_worker_gets_the_note_that_it_earns(changes: dict[str, Any], expected: tuple[str, str]) -> None:
    assert codes(**changes) == [expected]


def test_a_long_description_with_a_short_first_sentence_is_fine() -> None:
    assert codes(description="Latest price. " + "More. " * 200) == []


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ({}, [("untyped", "")]),
        (True, [("untyped", "")]),
        ({"description": "Anything."}, [("untyped", "")]),
        ({"type": "array"}, [("untyped", "")]),
        ({"type": "array", "items": {}}, [("untyped", "/items")]),
        ({"type": "array", "prefixItems": [{"type": "string"}, {}]}, [("untyped", "/prefixItems/1")]),
        ({"enum": ["a", 1]}, []),
        ({"const": "a"}, []),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, []),
        ({"anyOf": [{"type": "string"}, {}]}, [("untyped", "")]),
        ({"type": "object"}, [("open_object", "")]),
        ({"type": ["object", "null"]}, [("open_object", "")]),
        ({"type": "object", "additionalProperties": {"type": "string"}}, [("open_object", "")]),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, []),
        ({"type": "object", "properties": {}, "additionalProperties": False}, []),
        ({"type": "object", "properties": {"a": {}}}, [("untyped", "/properties/a")]),
        ({"type": "object", "properties": {"$id": {"type": "string"}}}, [("dollar_property", "")]),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b"]}, [("undeclared_required", "")]),
        ({"type": "string", "enum": [str(n) for n in range(MAX_ENUM)]}, []),
        ({"type": "string", "enum": [str(n) for n in range(MAX_ENUM + 1)]}, [("large_enum", "")]),
        ({"type": "string", "maxLength": 9, "pattern": "^a"}, [("unchecked_keyword", "")]),
        ({"type": "string", "format": "date"}, [("unchecked_keyword", "")]),
        ({"type": "integer", "minimum": 1}, [("unchecked_keyword", "")]),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, []),
        ({"type": "string", "default": None}, [("bad_default", "")]),
        ({"type": ["string", "null"], "default": None}, []),
        ({"type": "integer", "default": 3}, []),
        ({"type": "integer", "default": "3"}, [("bad_default", "")]),
    ],
)
def test_a_parameter_gets_the_note_that_it_earns(parameter: Any, expected: list[tuple[str, str]]) -> None:
    assert codes_of(parameter) == expected


def test_definitions_are_looked_at_once_and_references_are_followed_for_types() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "tag": {}}}
    args = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/Node"}, "b": {"$ref": "#/$defs/Any"}, "c": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": node, "Any": {}},
    }
    assert codes(args=args) == [("untyped", "/args/properties/b"), ("untyped", "/args/$defs/Node/properties/tag")]


def test_a_default_is_checked_against_definitions_too() -> None:
    defs = {"$defs": {"Color": {"enum": ["red", "blue"]}}}
    assert codes_of({"$ref": "#/$defs/Color", "default": "red"}, **defs) == []
    assert codes_of({"$ref": "#/$defs/Color", "default": "green"}, **defs) == [("bad_default", "")]


def test_a_worker_whose_notes_say_no_value_can_be_valid_has_none() -> None:
    catalog = Catalog("n", [Worker(**{**TIDY, "args": {"type": "object", "required": ["a"]}})])
    for args in ({}, {"a": 1}):
        assert not check_plan([{"type": "fin_get_quote", "args": args}], catalog).valid
    assert "no value can be valid" in str(lint_catalog(catalog)[0])


@pytest.mark.parametrize(
    ("names", "is_noted"),
    [
        (("fin_get_quote", "fin_get_quotes"), True),
        (("fin_get_quote", "fin_quote_get"), True),
        (("fin_get_quote", "FinGetQuote"), True),
        (("order_cancel", "orders_cancel"), True),
        (("fin_get_quote", "fin_analyze"), False),
        (("mail_send", "mail_read"), False),
        (("home_get_invoice", "med_get_invoice"), False),
        (("fin_getquote", "fin_get_quote"), True),
        (("天气", "地图"), False),
    ],
)
def test_names_that_are_easily_confused_are_noted_in_pairs(names: tuple[str, str], is_noted: bool) -> None:
    catalog = Catalog("n", [Worker(**{**TIDY, "name": name}) for name in names])
    found = [note for note in lint_catalog(catalog) if note.code is LintCode.CONFUSABLE_NAMES]
    assert [note.worker for note in found] == ([names[1]] if is_noted else [])
    assert all(repr(names[0]) in note.message for note in found)


def test_the_whole_prompt_is_measured() -> None:
    catalog = Catalog("n", [Worker(**TIDY)])
    assert lint_catalog(catalog, max_prompt=10_000) == []
    (note,) = lint_catalog(catalog, max_prompt=50)
    assert (note.code, note.worker, note.path) == (LintCode.LONG_PROMPT, None, "")
    assert "more than 50" in note.message


def test_a_note_is_frozen_and_reads_as_one_line() -> None:
    note = lint_catalog(Catalog("n", [Worker(**{**TIDY, "name": "quote"})]))[0]
    assert (
        str(note)
        == "quote /name: the name is not snake_case with a domain prefix, such as 'fin_get_quote'. [name_style]"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        note.code = LintCode.UNTYPED  # type: ignore[misc]
    assert str(LintNote(LintCode.LONG_PROMPT, None, "", "Long.")) == "Long. [long_prompt]"


def test_every_code_can_be_earned() -> None:
    """The catalog of everything at once: a code that no cause gives would be dead."""
    bad: dict[str, Any] = {
        "name": "Bad",
        "description": "",
        "args": {
            "type": "object",
            "properties": {
                "a": {},
                "b": {"type": "object"},
                "c": {"type": "object", "properties": {"$x": {"type": "null"}}, "required": ["y"]},
                "d": {"type": "integer", "default": "", "minimum": 1},
                "e": {"enum": list(range(MAX_ENUM + 1))},
            },
        },
    }
    worse = {**bad, "name": "bad", "description": "x" * 400, "returns": {"type": "object"}}
    notes = lint_catalog(Catalog("n", [Worker(**bad), Worker(**worse)]), max_prompt=100)
    assert {note.code for note in notes} == set(LintCode)


def test_three_hundred_workers_are_linted_with_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are compared letter by letter only where names differ in one, so work stays far below all pairs."""
    import difflib

    calls = 0
    ratio = difflib.SequenceMatcher.ratio

    def counted(self: Any) -> float:
        nonlocal calls
        calls += 1
        return ratio(self)

    monkeypatch.setattr(difflib.SequenceMatcher, "ratio", counted)
    domains = ["fin", "med", "travel", "mail", "order", "home", "music", "sport", "news", "law"]
    nouns = ["quote", "ticket", "invoice", "doctor", "hotel", "letter"]
    verbs = ["get", "list", "create", "delete", "search"]
    names = [f"{domain}_{verb}_{noun}" for domain in domains for verb in verbs for noun in nouns]
    lint_catalog(Catalog("n", [Worker(**{**TIDY, "name": name}) for name in names]))
    assert len(names) == 300
    assert 0 < calls < len(names) * len(names) / 20


def test_the_demo_catalog_gets_the_notes_that_a_reader_expects() -> None:
    path = Path(__file__).parents[1] / "golden" / "demo_catalog.json"
    catalog = Catalog.from_json(json.loads(path.read_text(encoding="utf-8")))
    found = {(note.worker, note.code.value) for note in lint_catalog(catalog)}
    assert ("fin_analyze", "open_object") in found
    assert ("Get_Reviews(Tips)", "name_style") in found
    assert not {code for worker, code in found if worker == "fin_get_quote"}
