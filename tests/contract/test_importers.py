"""Importers of JSON forms: what they make of each, and what they note and refuse."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog, Effect
from plansmith.contract.check import check_plan
from plansmith.contract.errors import CatalogError, InputError
from plansmith.contract.importers import CatalogSource, detect_source, import_catalog, import_value
from plansmith.contract.importers.bfcl import TYPES, from_bfcl
from plansmith.contract.importers.mcp import from_mcp
from plansmith.contract.importers.openai import from_openai

GOLDEN = Path(__file__).parents[1] / "golden" / "importers"
FILES = {
    "openai_chat.json": CatalogSource.OPENAI,
    "openai_responses.json": CatalogSource.OPENAI,
    "openai_legacy.json": CatalogSource.OPENAI,
    "mcp_response.json": CatalogSource.MCP,
    "bfcl_rows.jsonl": CatalogSource.BFCL,
    "bfcl_java.json": CatalogSource.BFCL,
}
JSON_KINDS = [kind for kind in CatalogSource if kind is not CatalogSource.PYTHON]


def openai_tool(parameters: Any, name: str = "a_b") -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}]


def faults(catalog: Catalog, args: dict[str, Any]) -> list[str]:
    return [finding.fault.value for finding in check_plan([{"type": "a_b", "args": args}], catalog).findings]


@pytest.mark.parametrize("file", FILES)
def test_a_file_becomes_the_catalog_and_the_notes_that_are_recorded(file: str) -> None:
    result = import_catalog(GOLDEN / file)
    expected = json.loads((GOLDEN / file).with_suffix(".expected.json").read_text(encoding="utf-8"))
    assert {"catalog": result.catalog.to_json(), "notes": list(result.notes)} == expected


@pytest.mark.parametrize(("file", "kind"), FILES.items())
def test_the_kind_is_found_from_the_content(file: str, kind: CatalogSource) -> None:
    assert import_catalog(GOLDEN / file, kind).catalog == import_catalog(GOLDEN / file).catalog


def test_a_catalog_file_of_our_own_comes_back_with_its_name_and_hash(tmp_path: Path) -> None:
    catalog = import_catalog(GOLDEN / "openai_chat.json").catalog
    catalog.save(tmp_path / "other.json")
    result = import_catalog(tmp_path / "other.json")
    assert (result.catalog.hash, result.catalog.name, result.notes) == (catalog.hash, "openai_chat", ())
    assert import_catalog(tmp_path / "other.json", name="renamed").catalog.name == "renamed"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([{"name": "f", "parameters": {"type": "object", "properties": {}}}], ["'openai'", "'bfcl'", "kind"]),
        ({"tools": [{"inputSchema": {"type": "object"}, "type": "function", "name": "f"}]}, ["'openai' or 'mcp'"]),
        ([], ["no known form", "'mcp'"]),
        ("text", ["no known form"]),
        ({"a": 1}, ["no known form"]),
    ],
)
def test_an_unclear_form_is_an_error_that_names_the_kinds(value: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        detect_source(value)
    assert all(word in str(error.value) for word in words)


def test_an_unknown_kind_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown kind of catalog 'xml'; expected one of 'python', 'openai'"):
        import_value([], "xml")


def test_files_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"absent\.json' cannot be read: No such file"):
        import_catalog(tmp_path / "absent.json")
    for name, data, words in [
        ("bad.json", b"{'a': 1}", "is not JSON"),
        ("nan.json", b'[{"name": NaN}]', "NaN is not JSON"),
        ("latin.json", b'["\xe9"]', "is not UTF-8"),
        ("twice.json", b'[{"name": "a", "name": "b"}]', "the key 'name' twice"),
        ("deep.json", b"[" * 100_000, "nested deeper"),
        ("rows.jsonl", b'{"a": 1}\n{"a": \n', "line 2, is not JSON"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=words):
            import_catalog(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        import_catalog(tmp_path, "openai")
    monkeypatch.setattr("plansmith.contract.importers.result.MAX_BYTES", 5)
    with pytest.raises(InputError, match="is larger than"):
        import_catalog(tmp_path / "bad.json")


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + (GOLDEN / "openai_legacy.json").read_bytes())
    assert import_catalog(tmp_path / "bom.json").catalog.names == ("order_cancel",)


def test_names_with_spaces_brackets_dots_and_other_scripts_stay_as_they_are() -> None:
    names = ["RentalCars.GetCarsAvailable", "Get_Hotel_Reviews(Tips)", "a b", "天気", "🌧", "'\"\\{}"]
    tools = [tool for name in names for tool in openai_tool({}, name)]
    assert from_openai(tools, name="n").catalog.names == tuple(names)


def test_a_name_twice_and_every_bad_entry_are_reported_together() -> None:
    with pytest.raises(CatalogError, match="duplicate name 'a_b'"):
        from_openai(openai_tool({}) * 2, name="n")
    tools = [
        {"type": "function", "name": 3},
        {"type": "function", "name": "x", "parameters": []},
        {"type": "function", "name": "y", "parameters": {"type": "array"}},
        {"type": "function", "name": "z", "description": ["no"]},
    ]
    with pytest.raises(CatalogError) as error:
        from_openai(tools, name="n")
    assert all(word in str(error.value) for word in ["entry 0", "'x'", "'y'", "entry 3", "description of 'z'"])


@pytest.mark.parametrize("target", ["https://example.com/s.json", "other.json", "#/$defs/absent", "#absent"])
def test_nothing_outside_the_schema_is_fetched(target: str) -> None:
    for parameters in ({"type": "object", "properties": {"a": {"$ref": target}}}, {"$ref": target}):
        with pytest.raises(CatalogError) as error:
            from_openai(openai_tool(parameters), name="n")
        assert target.split("/")[-1].strip("#") in str(error.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"oneOf": [{"type": "object", "if": {"$ref": "#"}}]},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
    ],
)
def test_references_in_a_circle_are_refused_at_once(schema: dict[str, Any]) -> None:
    with pytest.raises(CatalogError, match="leads"):
        from_openai(openai_tool({"type": "object", **schema}), name="n")


def test_recursive_types_are_no_circle() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}, "n": {"type": "integer"}}}
    parameters = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/T"}}, "$defs": {"T": tree}}
    catalog = from_openai(openai_tool(parameters), name="n").catalog
    assert catalog.workers[0].args["$defs"] == {"T": tree}
    assert faults(catalog, {"tree": {"next": {"next": {"n": 1}}}}) == []
    assert faults(catalog, {"tree": {"next": {"next": {"n": "x"}}}}) == ["bad_value"]


@pytest.mark.parametrize(
    "parameters",
    [
        {
            "$ref": "#/$defs/P",
            "$defs": {"P": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
        },
        {"allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "object"}]},
        {"properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"type": ["object", "null"], "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string", "required": True}}},
    ],
)
def test_parameters_stand_at_the_top_whatever_the_schema_looked_like(parameters: dict[str, Any]) -> None:
    result = from_openai(openai_tool(parameters), name="n")
    worker = result.catalog.workers[0]
    assert (list(worker.properties), worker.required) == (["a"], {"a"})
    assert [faults(result.catalog, args)[:1] for args in ({"a": "x"}, {}, {"a": 1}, {"a": "x", "b": 1})] == [
        [],
        ["missing_arg"],
        ["bad_value"],
        ["unknown_arg"],
    ]
    assert result.notes


def test_alternatives_at_the_top_are_declared_and_still_checked() -> None:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    place = {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}}
    result = from_openai(openai_tool({"anyOf": [city, {**place, "required": ["lat", "lon"]}]}), name="n")
    assert list(result.catalog.workers[0].properties) == ["city", "lat", "lon"]
    assert [faults(result.catalog, args) for args in ({"city": "x"}, {"lat": 1, "lon": 2}, {"lat": 1})] == [
        [],
        [],
        ["bad_value"],
    ]
    assert "declared at the top" in result.notes[0]


def test_keywords_of_older_drafts_get_their_meaning_in_2020_12() -> None:
    parameters = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {
            "pair": {"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "integer"}},
            "above": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            "below": {"type": "number", "maximum": 9, "exclusiveMaximum": False},
            "size": {"type": "string", "enum": ["s", "l"], "nullable": True},
            "link": {"$ref": "#/definitions/L", "nullable": True},
            "plain": {"type": "string", "enum": None, "default": None},
        },
        "definitions": {"L": {"type": "string"}},
        "dependencies": {"above": ["below"], "size": {"required": ["pair"]}},
    }
    result = from_openai(openai_tool(parameters), name="n")
    properties = result.catalog.workers[0].properties
    assert properties["plain"] == {"type": "string", "default": None}
    good = [{"pair": ["a", 1]}, {"above": 1, "below": 9}, {"size": None, "pair": []}, {"link": None}, {"link": "x"}]
    bad = [
        {"pair": [1]},
        {"pair": ["a", "b"]},
        {"above": 0, "below": 1},
        {"above": 1},
        {"size": "s", "link": "", "plain": ""},
        {"link": 1},
    ]
    assert [faults(result.catalog, args) for args in good] == [[]] * len(good)
    assert [faults(result.catalog, args) for args in bad] == [["bad_value"]] * len(bad)
    assert len(result.notes) == 7


def test_a_parameter_may_have_the_name_of_a_keyword() -> None:
    names = ["type", "items", "properties", "required", "$defs"[1:], "enum", "anyOf", "nullable", "optional"]
    parameters = {"type": "object", "properties": {name: {"type": "boolean"} for name in names}}
    result = from_openai(openai_tool(parameters), name="n")
    assert result.catalog.workers[0].properties == parameters["properties"]
    assert result.notes == ()
    result = from_bfcl([{"name": "f", "description": "", "parameters": {**parameters, "type": "dict"}}], name="n")
    assert result.catalog.workers[0].properties == parameters["properties"]


def test_the_source_is_not_changed_by_an_import() -> None:
    value = json.loads((GOLDEN / "mcp_response.json").read_text(encoding="utf-8"))
    before = json.dumps(value)
    import_value(value)
    assert json.dumps(value) == before


def test_hints_of_an_mcp_server_change_nothing_unless_it_is_trusted() -> None:
    value = json.loads((GOLDEN / "mcp_response.json").read_text(encoding="utf-8"))
    plain = from_mcp(value, name="n")
    assert {(worker.effect, worker.idempotent) for worker in plain.catalog.workers} == {(Effect.WRITE, False)}
    assert any("not used" in note for note in plain.notes)
    trusted = from_mcp(value, name="n", trust_hints=True).catalog
    assert [(worker.effect.value, worker.idempotent) for worker in trusted.workers] == [
        ("read", True),
        ("write", True),
        ("write", False),
    ]


def test_mcp_pages_are_one_catalog_and_a_missing_page_is_noted(tmp_path: Path) -> None:
    def page(name: str, **more: Any) -> dict[str, Any]:
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}}], **more}

    first, second = page("a_one", nextCursor="2"), {"jsonrpc": "2.0", "id": 2, "result": page("a_two")}
    result = from_mcp([first, second], name="n")
    assert (result.catalog.names, result.notes) == (("a_one", "a_two"), ())
    assert "nextCursor" in from_mcp([second, first], name="n").notes[0]
    (tmp_path / "pages.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n", encoding="utf-8")
    assert import_catalog(tmp_path / "pages.jsonl").catalog.names == ("a_one", "a_two")


def test_an_mcp_error_is_told_with_its_reason() -> None:
    with pytest.raises(InputError, match=r"answered with an error .*no such method"):
        import_value({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no such method"}})
    with pytest.raises(CatalogError, match="'x' has no 'inputSchema'"):
        from_mcp({"tools": [{"name": "x"}]}, name="n")


def test_every_bfcl_type_name_means_a_json_schema_type() -> None:
    assert set(TYPES.values()) <= {"object", "array", "string", "integer", "number", "boolean", "null", ""}
    for name, meaning in TYPES.items():
        parameters = {
            "type": "dict",
            "properties": {"a": {"type": name}, "b": {"type": "array", "items": {"type": name}}},
        }
        properties = from_bfcl([{"name": "f", "parameters": parameters}], name="n").catalog.workers[0].properties
        expected = {"type": meaning} if meaning else {}
        assert properties == {"a": expected, "b": {"type": "array", "items": expected}}


def test_two_bfcl_docs_of_one_name_are_an_error_and_rows_alone_are_not() -> None:
    def row(kind: str) -> dict[str, Any]:
        doc = {"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": kind}}}}
        return {"id": "1", "question": [], "function": [doc]}

    with pytest.raises(CatalogError, match="duplicate name 'f'"):
        from_bfcl([row("float"), row("integer")], name="n")
    assert from_bfcl(row("float"), name="n").catalog.hash != from_bfcl(row("integer"), name="n").catalog.hash
    empty = from_bfcl({"id": "1", "function": []}, name="n")
    assert (empty.catalog.names, len(empty.notes)) == ((), 1)


def test_a_value_nested_without_end_is_refused() -> None:
    value: Any = {"type": "object"}
    for _ in range(10_000):
        value = {"type": "object", "properties": {"a": value}}
    for kind in JSON_KINDS:
        with pytest.raises(InputError, match="nested deeper than 64"):
            import_value(openai_tool(value), kind)
    value.clear()


@pytest.mark.parametrize("name", ["", "x" * 129, "\ud800"])
def test_a_bad_name_of_the_catalog_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="name"):
        import_value(openai_tool({}), name=name)


@pytest.mark.network
@pytest.mark.slow
def test_every_single_turn_bfcl_row_converts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path), "bfcl-eval==2026.3.23"]
    subprocess.run(command, check=True, timeout=200)
    counts: dict[str, int] = {}
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        for member in wheel.namelist():
            category = Path(member).stem.removeprefix("BFCL_v4_")
            if member.startswith("bfcl_eval/data/BFCL_v4_") and category in BFCL_ROWS:
                rows = [json.loads(line) for line in wheel.read(member).decode().splitlines()]
                for row in rows:
                    catalog = from_bfcl(row, name=row["id"]).catalog
                    assert catalog.names == tuple(doc["name"] for doc in row["function"])
                counts[category] = len(rows)
    assert counts == BFCL_ROWS


BFCL_ROWS = {
    "simple_python": 400,
    "simple_java": 100,
    "simple_javascript": 50,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "irrelevance": 240,
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "live_irrelevance": 884,
    "live_relevance": 16,
}
