"""The example domain: its generator, its catalog and its rows written by hand hold what their README promises."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.plan import FORMAT, FROM, WITH, Plan, dumps, references
from plansmith.contract.prompt import render_catalog
from plansmith.contract.records import Candidate
from plansmith.contract.store import read_rows
from plansmith.data.config import ScriptSource
from plansmith.data.sources.script import load_script

FOLDER = Path(__file__).parents[2] / "examples" / "assistant"
CATALOG = Catalog.load(FOLDER / "catalog.json")
GENERATED_COUNT = 3000
MAX_SHARED_4GRAMS = 0.2
MAX_SHARED_3GRAMS = 0.34


@cache
def generated(seed: int = 0, count: int = GENERATED_COUNT) -> tuple[Candidate, ...]:
    """Rows as the data stage loads them."""
    source = ScriptSource(kind="script", path=FOLDER / "queries.py", count=count)
    loaded = load_script(source, seed=seed)
    assert loaded.rejects == []
    return tuple(loaded.candidates)


@cache
def handwritten() -> tuple[Candidate, ...]:
    return tuple(read_rows(FOLDER / "handwritten.jsonl", Candidate))


def words(query: str) -> list[str]:
    return re.findall(r"\w+", query.casefold())


def grams(query: str, size: int) -> set[tuple[str, ...]]:
    found = words(query)
    return {tuple(found[i : i + size]) for i in range(len(found) - size + 1)}


def literals(value: Any) -> Iterator[Any]:
    """Values of arguments that are no references; of a template, its text without fields."""
    if isinstance(value, dict):
        if FORMAT in value:
            yield re.sub(r": \{0\}$", "", value[FORMAT])
            yield from (item for part in value[WITH] for item in literals(part))
        elif FROM not in value:
            yield from (item for part in value.values() for item in literals(part))
    elif isinstance(value, list):
        yield from (item for part in value for item in literals(part))
    else:
        yield value


def invented(row: Candidate) -> list[Any]:
    """Literals that stand neither in the query, as written, nor in an enum of their parameter."""
    found: list[Any] = []
    for step in row.plan:
        worker = CATALOG.get(step["type"])
        assert worker is not None
        for name, value in step["args"].items():
            allowed = worker.properties[name].get("enum", [])
            for item in literals(value):
                whole = rf"(?<!\w){re.escape(item if isinstance(item, str) else dumps(item))}(?!\w)"
                if item not in allowed and not re.search(whole, row.query):
                    found.append(item)
    return found


def unused_numbers(row: Candidate) -> list[str]:
    """Numbers of the query that its plan does not hold."""
    held = set(re.findall(r"\d+", " ".join(str(item) for step in row.plan for item in literals(step["args"]))))
    return [number for number in re.findall(r"\d+", row.query) if number not in held]


def test_the_catalog_is_closed_prefixed_and_short_in_the_prompt() -> None:
    assert 10 <= len(CATALOG.workers) <= 12
    assert len(render_catalog(CATALOG)) < 1500
    for worker in CATALOG.workers:
        assert re.fullmatch(r"(fin|weather|shop|cal|med|msg)(_[a-z]+)+", worker.name)
        assert worker.returns is not None
        assert worker.args["additionalProperties"] is worker.returns["additionalProperties"] is False


def test_every_generated_plan_passes_the_checker_without_a_finding_and_is_canonical() -> None:
    for row in generated():
        assert check_plan(row.plan, CATALOG).findings == (), row
        assert Plan.from_json(row.plan).canonical(CATALOG) == dumps(row.plan)


def test_generation_depends_on_the_seed_alone() -> None:
    assert generated.__wrapped__(5, 300) == generated.__wrapped__(5, 300)
    assert generated.__wrapped__(5, 100) == generated.__wrapped__(5, 300)[:100]
    assert {row.query for row in generated(5, 300)} != {row.query for row in generated(6, 300)}


def test_no_query_comes_twice_and_no_query_has_two_plans_whatever_the_seed() -> None:
    assert len({" ".join(words(row.query)) for row in generated()}) == GENERATED_COUNT
    plans: dict[str, str] = {}
    for row in [*generated(), *generated(1, 1500), *generated(2, 1500)]:
        plan = dumps(row.plan).casefold()
        assert plans.setdefault(" ".join(words(row.query)), plan) == plan, row.query


def test_generated_rows_use_every_worker_and_every_kind_of_plan() -> None:
    rows = generated()
    workers = Counter(step["type"] for row in rows for step in row.plan)
    assert set(workers) == set(CATALOG.names)
    assert min(workers.values()) > 0.03 * len(rows)
    lengths = Counter(len(row.plan) for row in rows)
    assert set(lengths) == {0, 1, 2, 3, 4}
    assert 0.10 <= lengths[0] / len(rows) <= 0.14
    texts = [dumps(row.plan) for row in rows]
    for operator, least in (('"$from"', 0.2), ('"$format"', 0.05), ('"after"', 0.005)):
        assert sum(operator in text for text in texts) > least * len(rows)
    assert sum(map(len, texts)) / len(rows) < 180


def test_families_are_many_and_each_has_many_wordings() -> None:
    by_family: dict[str, list[tuple[str, ...]]] = {}
    for row in generated():
        by_family.setdefault(row.family, []).append(tuple(words(row.query)[:3]))
    assert len(by_family) > 150
    for family, openings in by_family.items():
        assert len(set(openings)) >= min(8, len(openings) / 3), family


def test_each_family_can_be_held_out_because_its_workers_stand_in_other_families() -> None:
    families: dict[str, set[str]] = {}
    for row in generated():
        for step in row.plan:
            families.setdefault(step["type"], set()).add(row.family)
    assert min(len(names) for names in families.values()) >= 8


@pytest.mark.parametrize("rows", [generated, handwritten])
def test_no_literal_is_invented_and_no_number_of_the_query_is_forgotten(rows: Any) -> None:
    for row in rows():
        assert invented(row) == [], row
        assert not row.plan or unused_numbers(row) == [], row


def test_the_grounding_check_finds_what_is_invented() -> None:
    row = generated()[0].model_copy(
        update={
            "query": "weather in Paris, and refund 5 on B-1",
            "plan": [
                {"type": "weather_get_forecast", "args": {"city": "paris", "date": "today"}},
                {"type": "shop_refund", "args": {"order_id": "B-1", "amount": 5, "reason": "late"}},
                {
                    "type": "msg_send",
                    "args": {"to": "Ana", "text": {FORMAT: "Rome: {0}", WITH: [{FROM: "/0"}]}},
                },
            ],
        }
    )
    assert invented(row) == ["paris", "today", "Ana", "Rome"]
    assert unused_numbers(row.model_copy(update={"plan": row.plan[:1]})) == ["5", "1"]


def test_an_optional_date_or_time_is_in_the_plan_exactly_when_the_query_states_it() -> None:
    stated = re.compile(r"\b(today|tomorrow|tonight|weekend|\w+day|\d{4}-\d\d-\d\d)\b", re.IGNORECASE)
    for row in generated():
        if [step["type"] for step in row.plan] == ["weather_get_forecast"]:
            query = re.sub(r"Busy day today\.", "", row.query, flags=re.IGNORECASE)
            if "date" not in row.plan[0]["args"]:
                assert not stated.search(query), row
    for row in generated():
        for step in row.plan:
            if step["type"] == "cal_add_event" and "/free_time" not in dumps(step):
                clock = re.search(r"\bat (\d|noon)", row.query) is not None
                assert not ("time" in step["args"] and not clock), row


def test_handwritten_rows_are_valid_and_cover_the_domain() -> None:
    rows = handwritten()
    assert len(rows) == len({row.id for row in rows}) == len({row.query for row in rows}) == 60
    for row in rows:
        assert row.part == "handwritten"
        assert check_plan(row.plan, CATALOG).findings == (), row
        assert Plan.from_json(row.plan).canonical(CATALOG) == dumps(row.plan)
    workers = Counter(step["type"] for row in rows for step in row.plan)
    assert set(workers) == set(CATALOG.names)
    assert min(workers.values()) >= 2
    assert 5 <= sum(not row.plan for row in rows) <= 9
    assert sum(any(True for step in row.plan for _ in references(step["args"])) for row in rows) >= 15
    assert sum("after" in step for row in rows for step in row.plan) >= 2


def test_handwritten_queries_are_in_other_words_than_the_generator() -> None:
    texts = {" ".join(words(row.query)) for row in generated()}
    for size, limit in ((4, MAX_SHARED_4GRAMS), (3, MAX_SHARED_3GRAMS)):
        known = set[tuple[str, ...]]().union(*(grams(row.query, size) for row in generated()))
        for row in handwritten():
            own = grams(row.query, size)
            assert " ".join(words(row.query)) not in texts
            assert len(own & known) <= limit * len(own), row.query


def test_the_data_stage_reads_the_example_with_its_handwritten_rows() -> None:
    source = ScriptSource(kind="script", path=FOLDER / "queries.py", count=50, extra=(FOLDER / "handwritten.jsonl",))
    loaded = load_script(source, seed=0)
    assert loaded.rejects == []
    assert Counter(row.part for row in loaded.candidates) == {None: 50, "handwritten": 60}
    assert json.loads((FOLDER / "catalog.json").read_text(encoding="utf-8"))["name"] == loaded.catalog.name
