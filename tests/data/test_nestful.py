"""Recorded calls become plans: what is a literal, what is a reference, what nobody could know."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog, Effect
from plansmith.contract.check import check_plan
from plansmith.contract.importers.nestful import from_nestful, looks_like_nestful
from plansmith.contract.plan import references, resolve
from plansmith.contract.progress import Silent
from plansmith.contract.records import Candidate
from plansmith.data.build import build_data, load_data
from plansmith.data.config import DataConfig, NestfulSource
from plansmith.data.packages import read_member
from plansmith.data.sources.nestful import load_nestful, wheel_path
from plansmith.data.sources.nestful_catalog import show_referenced, widen_args
from plansmith.data.sources.nestful_plans import Habits, RecordedPlan, decide, read_plan


def parameter(kind: str, *, required: bool = True, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": "", "required": required, "enum": [], "default": None} | more


SPECS: list[dict[str, Any]] = [
    {
        "id": None,
        "name": "Find(Place)",
        "description": "Find a place.",
        "query_parameters": {"lang": parameter("string", required=False), "query": parameter("string")},
        "output_parameters": {"id": {"type": "string"}, "pos": {"type": "object", "properties": {}}},
        "sample_responses": [[{"id": "x"}], []],
    },
    {
        "id": None,
        "name": "Stay",
        "description": "Find a stay.",
        "query_parameters": {
            "place_id": parameter("string"),
            "lat": parameter("string", required=False),
            "day": parameter("string"),
            "time": parameter("string", required=False),
            "guests": parameter("number", required=False),
            "sort": parameter("string", required=False, enum=["price", "rank"]),
            "legs": parameter("array", required=False),
        },
        "output_parameters": {"rooms": {"type": "array"}},
        "sample_responses": [{"rooms": []}],
    },
]
CATALOG = from_nestful(SPECS, name="demo", effect=Effect.READ).catalog
PLACES = [{"id": "p-1", "pos": {"lat": 48.5}, "name": "Spa", "n": 2}, {"id": "p-2", "pos": {"lat": 9.25}}]


def call(name: str, response: Any, label: int, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "label": f"var{label}", "response": response, "errors": []}


def row(query: str, *, response: Any = None, **arguments: Any) -> dict[str, Any]:
    first = call("Find(Place)", PLACES if response is None else response, 1, query="Paris")
    stay = {"place_id": "$var1.id$", "day": "2024-11-05"} | arguments
    return {"input": f" {query} in Paris on November 5th, 2024.", "output": [first, call("Stay", {}, 2, **stay)]}


def converted(*rows: dict[str, Any], reworded: bool = True) -> list[RecordedPlan]:
    plans = [read_plan(copy.deepcopy(r)) for r in rows]
    habits = Habits(plans)
    for plan in plans:
        decide(plan, CATALOG, habits, reworded=reworded)
    return plans


def second_args(recorded: RecordedPlan) -> dict[str, Any]:
    return recorded.plan()[1]["args"]


def unknowable(recorded: RecordedPlan) -> list[Any]:
    return [leaf.value for leaf in recorded.leaves if leaf.unknowable]


def choices(recorded: RecordedPlan) -> list[Any]:
    return [leaf.value for leaf in recorded.leaves if leaf.choice]


def test_a_recorded_reference_gets_its_step_and_its_list_index():
    [plan] = converted(row("A stay"))
    assert plan.plan() == [
        {"type": "Find(Place)", "args": {"query": "Paris"}},
        {"type": "Stay", "args": {"place_id": {"$from": "/0/0/id"}, "day": "2024-11-05"}},
    ]
    [recorded] = [leaf.recorded for leaf in plan.leaves if leaf.recorded is not None]
    assert (recorded.step, recorded.tokens) == (0, (0, "id"))


def test_a_data_wrapper_that_the_reference_skips_is_put_back_in():
    [plan] = converted(row("A stay", response={"data": [{"id": "p-1"}]}))
    assert second_args(plan)["place_id"] == {"$from": "/0/data/0/id"}


def test_a_reference_that_leads_nowhere_is_broken():
    [plan] = converted(row("A stay", place_id="$var1.nothing$"))
    assert plan.broken is not None
    assert "$var1.nothing$" in plan.broken


def test_a_literal_that_only_a_response_tells_becomes_a_reference_also_as_text_and_inside_lists():
    [plan] = converted(row("A stay", place_id="p-1", lat="48.5", legs=[{"to": "p-1"}]))
    assert second_args(plan) == {
        "place_id": {"$from": "/0/0/id"},
        "day": "2024-11-05",
        "lat": {"$from": "/0/0/pos/lat"},
        "legs": [{"to": {"$from": "/0/0/id"}}],
    }


def test_a_value_that_the_query_names_stays_a_literal():
    [plan] = converted(row("A Spa stay", place_id="Spa"))
    assert second_args(plan)["place_id"] == "Spa"
    [plan] = converted(row("A stay at 48.50", lat=48.5))
    assert second_args(plan)["lat"] == 48.5


def test_a_parameter_mostly_filled_from_responses_is_a_reference_even_where_the_query_has_the_word():
    usual = [row(f"Stay {i}", place_id="p-1") for i in range(3)]
    plans = converted(*usual, row("A stay, p-1", place_id="p-1"))
    assert second_args(plans[-1])["place_id"] == {"$from": "/0/0/id"}


def test_small_numbers_dates_and_enum_values_are_literals_even_where_a_response_has_them():
    [plan] = converted(row("Two guests stay", guests="$var1.n$", sort="price", response=[{"id": "price", "n": 2}]))
    expected = {"day": "2024-11-05", "guests": 2, "sort": "price", "place_id": {"$from": "/0/0/id"}}
    assert second_args(plan) == expected


def test_a_later_entry_of_a_list_is_a_choice_that_depends_on_the_data():
    [plan] = converted(row("The cheapest stay", place_id="p-2"))
    assert choices(plan) == ["p-2"]
    assert second_args(plan)["place_id"] == {"$from": "/0/1/id"}


def test_a_value_that_neither_query_nor_response_tells_is_unknowable():
    [plan] = converted(row("A stay", place_id="v-77"))
    assert unknowable(plan) == ["v-77"]


def test_rewordings_are_known_or_not_as_asked():
    sample = row("A stay near the Colosseum", place_id="Colosseum, Italy")
    assert unknowable(converted(sample)[0]) == []
    assert unknowable(converted(sample, reworded=False)[0]) == ["Colosseum, Italy"]


@pytest.mark.parametrize("offer", [[{"day": "2024-11-07"}], [{"free": {"2024-11-07": 220}}]])
def test_a_date_that_only_a_response_offers_is_a_choice(offer: list[Any]):
    [plan] = converted(row("The cheapest stay", place_id="p-1", day="2024-11-07", response=[{"id": "p-1"}, *offer]))
    assert choices(plan) == ["2024-11-07"]
    [plan] = converted(row("Two days later: a stay", place_id="p-1", day="2024-11-07"))
    assert choices(plan) == []


def test_a_time_that_the_query_does_not_name_is_a_choice_once_a_response_told_times():
    landing = [{"id": "p-1", "lands": "2024-11-05T09:40:00"}]
    [plan] = converted(row("An hour after landing", time="10:40", response=landing))
    assert choices(plan) == ["10:40"]
    for text in ("At 10:40 am", "From 10:40"):
        assert choices(converted(row(text, time="10:40", response=landing))[0]) == []
    assert choices(converted(row("An hour after nine", time="10:00"))[0]) == []


def test_the_place_used_most_for_a_parameter_is_referred_to():
    both = {"id": "p-1", "also": "p-1"}
    usual = [row(f"Stay {i}", place_id="p-1", response=[{"x": 1, "also": "p-1"}]) for i in range(3)]
    plans = converted(*usual, row("A stay", response=[both]))
    assert second_args(plans[-1])["place_id"] == {"$from": "/0/0/also"}


def test_the_catalog_accepts_what_was_recorded_and_shows_what_is_referred_to():
    plans = converted(row("A stay", lat="48.5", legs=[{"to": "p-1", "n": 3}]))
    wider, changed = widen_args(CATALOG, plans)
    stay = wider.get("Stay")
    assert stay is not None
    assert changed == 2
    assert stay.properties["lat"]["type"] == ["string", "number"]
    assert stay.properties["legs"]["items"]["required"] == ["to", "n"]
    shown = show_referenced(wider, plans)
    find, stay = shown.get("Find(Place)"), shown.get("Stay")
    assert find is not None
    assert stay is not None
    assert stay.returns is None
    fields = {"id": {"type": "string"}, "pos": {"type": "object", "properties": {"lat": {"type": "number"}}}}
    assert find.returns == {"type": "array", "items": {"type": "object", "properties": fields}}
    assert check_plan(plans[0].plan(), shown).findings == ()


def test_specs_become_workers_with_required_parameters_first():
    find, stay = CATALOG.workers
    assert list(find.properties) == ["query", "lang"]
    assert find.required == {"query"}
    assert find.returns is not None
    assert find.returns["type"] == "array"
    assert stay.returns is not None
    assert stay.returns["type"] == "object"
    assert stay.properties["sort"] == {"type": "string", "enum": ["price", "rank"]}
    assert (find.effect, find.idempotent) == (Effect.READ, True)
    assert looks_like_nestful(SPECS)
    assert not looks_like_nestful([{"name": "x", "parameters": {}}])


def nestful_value(reference: str, memory: dict[str, Any]) -> Any:
    """What a recorded reference means by NESTFUL's own rules: of a list the first entry, of an object its `data`."""
    label, *fields = reference.strip("$").split(".")
    value = memory[label]
    value = value[0] if isinstance(value, list) else value.get("data", value)
    value = value[0] if isinstance(value, list) else value
    for name in fields:
        value = value[name]
    return value


def original(arguments: Any, memory: dict[str, Any]) -> Any:
    if isinstance(arguments, str) and arguments.startswith("$var") and arguments.endswith("$"):
        return nestful_value(arguments, memory)
    if isinstance(arguments, dict):
        return {key: original(value, memory) for key, value in arguments.items()}
    if isinstance(arguments, list):
        return [original(value, memory) for value in arguments]
    return arguments


def as_texts(value: Any) -> Any:
    """Numbers as their texts: a response may have the number where the recorded call has its text, and back."""
    if isinstance(value, dict):
        return {key: as_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_texts(item) for item in value]
    return str(value)


@pytest.fixture(scope="module")
def nestful() -> tuple[Catalog, list[Candidate], list[dict[str, Any]]]:
    source = NestfulSource.model_validate({"kind": "nestful", "data_dependent": "part"})
    loaded = load_nestful(source, Silent())
    rows = read_member(wheel_path(source, Silent()), "data_v1/complexfuncbench/complexfuncbench-data.json")
    return loaded.catalog, loaded.candidates, rows


@pytest.mark.network
@pytest.mark.slow
def test_every_converted_plan_resolves_to_the_recorded_arguments(
    nestful: tuple[Catalog, list[Candidate], list[dict[str, Any]]],
):
    catalog, candidates, rows = nestful
    assert len(candidates) > 900
    checked = 0
    for candidate in candidates:
        recorded = rows[int(candidate.id.removeprefix("cfb-"))]["output"]
        assert candidate.results is not None
        memory = {step["label"]: step["response"] for step in recorded}
        for index, (step, was) in enumerate(zip(candidate.plan, recorded, strict=True)):
            assert step["type"] == was["name"]
            resolved = resolve(step["args"], candidate.results[:index])
            assert as_texts(resolved) == as_texts(original(was["arguments"], memory)), candidate.id
            checked += sum(1 for _ in references(step["args"]))
        result = check_plan(candidate.plan, catalog)
        assert [finding for finding in result.findings if finding.fault.value != "unknown_arg"] == []
    assert checked > 5000


@pytest.mark.network
@pytest.mark.slow
def test_what_the_worker_gets_after_resolving_fits_its_schema(
    nestful: tuple[Catalog, list[Candidate], list[dict[str, Any]]],
):
    catalog, candidates, _ = nestful
    for candidate in candidates:
        assert candidate.results is not None
        resolved = [step | {"args": resolve(step["args"], candidate.results)} for step in candidate.plan]
        findings = check_plan(json.loads(json.dumps(resolved)), catalog).findings
        assert [finding for finding in findings if finding.fault.value != "unknown_arg"] == [], candidate.id


@pytest.mark.network
@pytest.mark.slow
def test_complexfuncbench_is_built_with_these_counts(tmp_path: Path):
    """The figures of the documentation; a change of the conversion shows here."""
    config = {
        "source": {"kind": "nestful"},
        "max_steps": 4,
        "catalog": "used",
        "split": {"val": 20, "seen": 40, "unseen": 40},
    }
    manifest = build_data(DataConfig.model_validate(config), tmp_path, seed=1, progress=Silent())
    assert manifest.counts.rejects == {"data_dependent_choice": 366, "too_long": 273, "unknowable_literal": 56}
    data = load_data(tmp_path)
    rows = [*data.train, *data.val, *data.test]
    assert (len(rows), len(data.catalog.workers), len({row.family for row in rows})) == (305, 26, 30)
    parts = Counter(row.part for row in rows)
    assert (parts["val"], parts["seen"] + parts["unseen"]) == (20, 80)
    assert manifest.licence == "Apache-2.0"
