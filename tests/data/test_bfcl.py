"""BFCL rows become items with their own functions, and data sets of rows whose functions go together."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.check import check_plan
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.contract.records import Candidate
from plansmith.data.build import build_data, load_data
from plansmith.data.config import BfclCategory, BfclSource, DataConfig
from plansmith.data.packages import read_member_lines
from plansmith.data.sources import bfcl_items
from plansmith.data.sources.bfcl import load_bfcl, share_catalog
from plansmith.data.sources.bfcl_items import BfclItem, BfclItems, add_row, bfcl_wheel, read_bfcl
from plansmith.data.sources.bfcl_plans import UnanswerableError, plan_of

SIMPLE, IRRELEVANCE = BfclCategory.SIMPLE_PYTHON, BfclCategory.IRRELEVANCE


def doc(name: str = "f", required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "dict", "properties": properties, "required": list(required)}}


def row(*docs: dict[str, Any], row_id: str = "r-0", messages: Any = None) -> dict[str, Any]:
    return {"id": row_id, "question": [messages or [{"role": "user", "content": "Ask."}]], "function": list(docs)}


def converted(given: dict[str, Any], allowed: Any, category: BfclCategory = SIMPLE) -> BfclItems:
    found = BfclItems()
    add_row(found, given, category, allowed)
    return found


def item(given: dict[str, Any], allowed: Any, category: BfclCategory = SIMPLE) -> BfclItem:
    return converted(given, allowed, category).items[0]


def args_of(function: dict[str, Any], allowed: dict[str, list[Any]]) -> dict[str, Any]:
    return item(row(function), [{"f": allowed}]).plan[0]["args"]


NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def test_the_plan_has_the_first_value_and_leaves_out_what_may_be_left_out():
    function = doc(required=("a",), a=NUMBER, b=TEXT, c=TEXT, d=TEXT)
    assert args_of(function, {"a": [1, 2], "b": ["x", ""], "c": ["", "y"], "d": ["z"]}) == {"a": 1, "d": "z"}


def test_a_required_parameter_is_given_even_where_the_answer_allows_to_leave_it_out():
    function = doc(required=("a", "b"), a=NUMBER, b=TEXT)
    assert args_of(function, {"b": [""], "a": ["", 5]}) == {"a": 5, "b": ""}


def test_objects_take_a_value_under_each_key_also_inside_a_list():
    inner = {"type": "dict", "properties": {"x": NUMBER, "y": TEXT, "z": TEXT}, "required": ["z"]}
    function = doc(a=inner, b={"type": "array", "items": inner})
    answer = {"x": [1, 2], "y": ["", "k"], "z": ["", "m"]}
    plain = {"x": 1, "z": "m"}
    assert args_of(function, {"a": [answer], "b": [[answer, answer]]}) == {"a": plain, "b": [plain, plain]}


def test_an_object_where_none_is_declared_stays_as_it_is():
    assert args_of(doc(a={"type": "any"}), {"a": [{"x": [1]}]}) == {"a": {"x": [1]}}


def test_calls_keep_their_order_and_arguments_get_the_order_of_the_function():
    given = row(doc("f", a=NUMBER, b=NUMBER), doc("g.h"))
    made = item(given, [{"g.h": {}}, {"f": {"b": [1], "a": [2]}}])
    assert json.dumps(made.plan) == '[{"type": "g.h", "args": {}}, {"type": "f", "args": {"a": 2, "b": 1}}]'
    assert made.catalog.names == ("f", "g.h")
    assert made.catalog.name == "r-0"


@pytest.mark.parametrize(
    ("reason", "allowed"),
    [
        ("unknown_function", [{"g": {}}]),
        ("unknown_parameter", [{"f": {"a": [1], "z": [2]}}]),
        ("no_allowed_value", [{"f": {"a": []}}]),
        ("no_allowed_value", [{"f": {}}]),
        ("no_allowed_value", [{"f": {"a": [1], "b": [{"k": 1}]}}]),
        ("no_allowed_value", [{"f": {"a": [1], "b": [{"k": []}]}}]),
    ],
)
def test_a_row_that_nothing_is_right_for_is_dropped_with_its_reason(reason: str, allowed: Any):
    function = doc(required=("a",), a=NUMBER, b={"type": "dict", "properties": {}})
    found = converted(row(function), allowed)
    assert found.items == []
    assert [(reject.id, reject.query, reject.reason) for reject in found.rejects] == [("r-0", "Ask.", reason)]
    with pytest.raises(UnanswerableError):
        plan_of(allowed, item(row(function), [{"f": {"a": [1]}}]).catalog)


def test_an_answer_that_may_leave_out_what_the_function_does_not_have_is_no_reason():
    assert args_of(doc(a=NUMBER), {"a": [1], "z": ["", 2]}) == {"a": 1}


def test_where_no_function_fits_the_plan_is_empty():
    made = item(row(doc()), None, IRRELEVANCE)
    assert (made.plan, made.allowed) == ([], [])
    without = converted(row(), None, IRRELEVANCE)
    assert (without.items[0].catalog.names, without.notes["rows_without_functions"]) == ((), 1)


def test_a_row_without_an_answer_is_dropped():
    found = converted(row(doc()), None, BfclCategory.LIVE_RELEVANCE)
    assert [reject.reason for reject in found.rejects] == ["no_possible_answer"]


def test_a_function_that_no_catalog_can_hold_drops_its_row():
    found = converted(row(doc(**{"$a": NUMBER})), [{"f": {}}])
    assert [reject.reason for reject in found.rejects] == ["bad_function_doc"]


def messages(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


def test_a_system_message_and_several_user_messages_become_one_query():
    system = row(doc(), messages=messages(("system", " Today is Monday.\n"), ("user", "When?")))
    found = converted(system, [{"f": {}}])
    assert found.items[0].query == "Today is Monday.\n\nWhen?"
    assert found.notes == Counter({"system_messages_joined": 1})
    twice = converted(row(doc(), messages=messages(("user", "One."), ("user", "Two."))), [{"f": {}}])
    assert (twice.items[0].query, twice.notes["user_messages_joined"]) == ("One.\n\nTwo.", 1)


def test_a_conversation_is_dropped():
    talk = row(doc(), messages=messages(("user", "A"), ("assistant", "B"), ("user", "C")))
    assert [reject.reason for reject in converted(talk, [{"f": {}}]).rejects] == ["conversation"]
    two_turns = row(doc()) | {"question": [messages(("user", "A")), messages(("user", "B"))]}
    assert [reject.reason for reject in converted(two_turns, [{"f": {}}]).rejects] == ["conversation"]


def test_a_plan_that_the_function_doc_refuses_is_kept_and_counted():
    found = converted(row(doc(a=TEXT)), [{"f": {"a": [2]}}])
    assert (len(found.items), found.notes["plans_against_the_function_docs"]) == (1, 1)


def make(row_id: str, *docs: dict[str, Any], category: BfclCategory = SIMPLE) -> BfclItem:
    return item(row(*docs, row_id=row_id), [{docs[0]["name"]: {}}], category)


def test_a_shared_catalog_takes_the_functions_that_bring_the_most_rows():
    items = [make("a", doc("lone")), make("b", doc("f"), doc("g")), make("c", doc("g"), doc("f")), make("d", doc("f"))]
    shared = share_catalog(items, 2)
    assert shared.catalog.names == ("lone", "f")
    assert [kept.id for kept in shared.kept] == ["a", "d"]
    more = [*items, make("e", doc("f"), doc("g")), make("g", doc("g"))]
    assert share_catalog(more, 2).catalog.names == ("f", "g")
    assert [kept.id for kept in share_catalog(more, 2).kept] == ["b", "c", "d", "e", "g"]
    assert len(share_catalog(more, 3).kept) == 6


def test_one_name_has_one_meaning_in_a_shared_catalog():
    items = [make("a", doc("f", a=NUMBER)), make("b", doc("f", a=TEXT)), make("c", doc("f", a=NUMBER))]
    shared = share_catalog(items, 10)
    assert [kept.id for kept in shared.kept] == ["a", "c"]
    assert [(reject.id, reject.reason) for reject in shared.rejects] == [("b", "other_function_of_that_name")]


def test_every_row_is_kept_or_rejected_with_its_reason():
    items = [make("a", doc("f")), make("b", doc("g"))]
    items += [make(row_id, doc("h"), category=IRRELEVANCE) for row_id in "cd"]
    shared = share_catalog(items, 1)
    assert shared.catalog.names == ("f",), "functions that fit nothing take no room"
    assert [kept.id for kept in shared.kept] == ["a"]
    reasons = {reject.id: reject.reason for reject in shared.rejects}
    assert reasons == {"b": "catalog_full", "c": "needs_own_catalog", "d": "needs_own_catalog"}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with three rows in the place of the real one."""
    path = tmp_path / "small.whl"
    rows = [
        row(doc(a=NUMBER), row_id=f"simple_python_{i}") | {"question": [messages(("user", f"{i}?"))]} for i in "012"
    ]
    found = [{"id": given["id"], "ground_truth": [{"f": {"a": [int(given["id"][-1])]}}]} for given in rows]
    with zipfile.ZipFile(path, "w") as archive:
        for folder, lines in (("", rows), ("possible_answer/", found)):
            text = "\n".join(map(json.dumps, lines)) + "\n"
            archive.writestr(f"bfcl_eval/data/{folder}BFCL_v4_simple_python.json", text)
    monkeypatch.setattr(bfcl_items, "check_wheel", lambda *_: None)
    return path


def test_a_data_set_carries_what_is_allowed(wheel: Path, tmp_path: Path):
    source = {"kind": "bfcl", "categories": ["simple_python"], "wheel": str(wheel)}
    config = DataConfig.model_validate({"source": source, "split": {"val": 0, "seen": 1, "unseen": 0}})
    manifest = build_data(config, tmp_path / "out", seed=1, progress=Silent())
    data = load_data(tmp_path / "out")
    assert (manifest.source, manifest.licence, len(data.train), len(data.test)) == ("bfcl/v4", "Apache-2.0", 2, 1)
    for example in [*data.train, *data.test]:
        assert example.source == "bfcl/v4/simple_python"
        assert example.allowed == [{"f": {"a": [example.plan[0]["args"]["a"]]}}]


def test_a_category_that_the_wheel_lacks_is_refused(wheel: Path):
    with pytest.raises(InputError, match="BFCL_v4_multiple"):
        read_bfcl(wheel, [BfclCategory.MULTIPLE], Silent())


def test_another_wheel_is_refused(tmp_path: Path):
    other = tmp_path / "other.whl"
    other.write_bytes(b"x")
    with pytest.raises(InputError, match="has sha256"):
        bfcl_wheel(other, Silent())


@pytest.fixture(scope="module")
def everything() -> BfclItems:
    return read_bfcl(bfcl_wheel(None, Silent()), BfclCategory, Silent())


ITEMS = {
    "simple_python": 400,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "live_simple": 256,
    "live_multiple": 1051,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "irrelevance": 240,
    "live_irrelevance": 876,
}
REJECTS = {"no_possible_answer": 16, "conversation": 8, "no_allowed_value": 2, "unknown_parameter": 2}


@pytest.mark.network
@pytest.mark.slow
def test_every_row_of_bfcl_is_an_item_or_a_reject_with_these_counts(everything: BfclItems):
    """The figures of the documentation; a change of the conversion shows here."""
    assert Counter(found.category.value for found in everything.items) == ITEMS
    assert Counter(reject.reason for reject in everything.rejects) == REJECTS
    assert everything.notes == {
        "system_messages_joined": 89,
        "user_messages_joined": 1,
        "rows_without_functions": 4,
        "plans_against_the_function_docs": 18,
    }
    read = Counter(found.id for found in [*everything.items, *everything.rejects])
    wheel = bfcl_wheel(None, Silent())
    rows = [given for c in BfclCategory for given in read_member_lines(wheel, f"bfcl_eval/data/BFCL_v4_{c}.json")]
    assert read == Counter(given["id"] for given in rows)


@pytest.mark.network
@pytest.mark.slow
def test_the_functions_of_every_row_keep_their_names_types_and_required_parameters(everything: BfclItems):
    wheel = bfcl_wheel(None, Silent())
    rows = [given for c in BfclCategory for given in read_member_lines(wheel, f"bfcl_eval/data/BFCL_v4_{c}.json")]
    docs = {given["id"]: given["function"] for given in rows}
    types = {"dict": "object", "float": "number", "tuple": "array", "any": None}
    other_required: list[str] = []
    for found in everything.items:
        assert found.catalog.names == tuple(function["name"] for function in docs[found.id])
        for function, worker in zip(docs[found.id], found.catalog.workers, strict=True):
            declared = function["parameters"]["properties"]
            assert list(worker.properties) == list(declared)
            for name, schema in declared.items():
                assert worker.properties[name].get("type") == types.get(schema["type"], schema["type"])
            if worker.required != set(function["parameters"]["required"]):
                other_required.append(found.id)
    assert other_required == ["irrelevance_173"]  # 'optional' inside the parameter and 'required' beside it


@pytest.mark.network
@pytest.mark.slow
def test_a_data_set_of_bfcl_has_these_counts(everything: BfclItems):
    loaded = load_bfcl(BfclSource.model_validate({"kind": "bfcl"}), Silent())
    assert (len(loaded.candidates), len(loaded.catalog.workers)) == (268, 64)
    reasons = Counter(reject.reason for reject in loaded.rejects)
    assert reasons == {
        "catalog_full": 1383,
        "other_function_of_that_name": 696,
        "no_allowed_value": 2,
        "unknown_parameter": 2,
    }
    refused = [row.id for row in loaded.candidates if not valid(row, loaded.catalog)]
    assert len(refused) == 2
    assert all(row.allowed for row in loaded.candidates)


def valid(candidate: Candidate, catalog: Any) -> bool:
    return check_plan(candidate.plan, catalog).valid
