"""Catalogs: loading, refusals that list every problem, content hash."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from plansmith.contract import Catalog, CatalogError, CatalogMismatchError, InputError, Worker
from tests.contract.strategies import catalogs, json_values
from tests.contract.test_check import DEMO, GOLDEN

GOOD = {"name": "w", "args": {"type": "object"}}


def load(*workers: Any, **more: Any) -> Catalog:
    return Catalog.from_json({"version": 1, "name": "c", "workers": list(workers), **more})


def test_the_hash_is_of_the_content_and_changes_with_it() -> None:
    text = json.loads((GOLDEN / "demo_catalog.json").read_text())
    assert Catalog.from_json(text) == DEMO
    assert len(DEMO.hash) == 64
    text["workers"][0]["args"]["properties"]["symbol"]["type"] = "integer"
    assert Catalog.from_json(text).hash != DEMO.hash


def test_property_order_is_part_of_the_content() -> None:
    a = load({"name": "w", "args": {"type": "object", "properties": {"a": {}, "b": {}}}})
    b = load({"name": "w", "args": {"type": "object", "properties": {"b": {}, "a": {}}}})
    assert a.hash != b.hash


@given(catalogs())
@settings(max_examples=30, deadline=None)
def test_a_saved_catalog_is_the_same_when_loaded(tmp_path_factory: Any, catalog: Catalog) -> None:
    path = tmp_path_factory.mktemp("catalog") / "c.json"
    catalog.save(path)
    assert Catalog.load(path) == catalog


def test_args_are_closed_unless_the_schema_says_otherwise() -> None:
    closed, opened = load(GOOD).workers[0], load(GOOD | {"args": {"type": "object", "additionalProperties": True}})
    assert closed.args["additionalProperties"] is False
    assert opened.workers[0].args["additionalProperties"] is True


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        (GOOD | {"name": ""}, "bad name"),
        (GOOD | {"name": "a\nb"}, "bad name"),
        (GOOD | {"name": "x" * 129}, "bad name"),
        (GOOD | {"args": {"type": "string"}}, "type 'object'"),
        (GOOD | {"args": {}}, "type 'object'"),
        (GOOD | {"args": {"type": "object", "properties": {"a": {"type": "text"}}}}, "not a usable JSON Schema"),
        (GOOD | {"args": {"type": "object", "properties": {"a": {"pattern": "("}}}}, "not a usable JSON Schema"),
        (GOOD | {"args": {"type": "object", "properties": {"a": {"$ref": "http://x.org/s"}}}}, "outside"),
        (GOOD | {"args": {"type": "object", "properties": {"$a": {}}}}, "starts with '\\$'"),
        (GOOD | {"returns": {"type": 3}}, "'returns' of 'w'"),
        (GOOD | {"colour": "red"}, "colour"),
        (GOOD | {"effect": "magic"}, "effect"),
        (GOOD | {"timeout_s": 0}, "timeout_s"),
        ({"name": "w"}, "args"),
        ("w", "valid dictionary"),
    ],
)
def test_a_bad_worker_is_refused_by_name_and_reason(worker: Any, words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        load(worker)


def test_every_problem_is_in_the_message() -> None:
    with pytest.raises(CatalogError) as error:
        load(GOOD, GOOD, GOOD | {"name": "v", "args": {"type": "object", "properties": {"$a": {}}}})
    assert "duplicate name 'w'" in str(error.value)
    assert "'$a' of 'v'" in str(error.value)


def test_unknown_keys_and_versions_of_the_file_are_refused() -> None:
    with pytest.raises(CatalogError, match="more"):
        load(GOOD, more=1)
    with pytest.raises(CatalogError, match="version"):
        Catalog.from_json({"version": 2, "name": "c", "workers": []})


@given(json_values())
@settings(max_examples=100, deadline=None)
def test_arbitrary_json_is_a_catalog_or_a_catalog_error(value: Any) -> None:
    with suppress(CatalogError):
        assert Catalog.from_json(value).to_json()["version"] == 1


@pytest.mark.parametrize(
    "content", [b'{"version":NaN}', b'{"version":1,"version":1}', b"", b"{", b"\xff\xfe", b"[" * 100_000]
)
def test_a_file_that_is_no_catalog_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"broken\.json"):
        Catalog.load(path)
    with pytest.raises(InputError, match=r"absent\.json"):
        Catalog.load(tmp_path / "absent.json")


def test_another_catalogs_work_is_refused_with_both_hashes() -> None:
    DEMO.require_hash(DEMO.hash, what="the adapter")
    with pytest.raises(CatalogMismatchError, match=f"the adapter .*{'0' * 64}.*{DEMO.hash}"):
        DEMO.require_hash("0" * 64, what="the adapter")


def test_a_subset_keeps_the_order_and_refuses_unknown_names() -> None:
    assert DEMO.subset(["time_now", "fin_analyze"]).names == ("fin_analyze", "time_now")
    with pytest.raises(CatalogError, match="'nobody'"):
        DEMO.subset(["nobody"])


def test_workers_are_careful_by_default() -> None:
    worker = Worker(name="w", args={"type": "object"})
    assert (worker.effect, worker.idempotent) == ("write", False)
