"""Queries that a teacher invents: which workers fit each other, which mix is asked for, what is usable."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.endpoint import Message, Text
from plansmith.contract.errors import InputError, ServiceError
from plansmith.contract.progress import Silent
from plansmith.contract.records import FinishReason, Query
from plansmith.contract.store import read_rows
from plansmith.data.budget import BudgetReachedError
from plansmith.data.mix import compare_mix
from plansmith.data.queries import (
    QUERIES,
    Collected,
    collect_queries,
    load_queries,
)
from plansmith.data.query_sources.fitting import Fit, find_chains, find_fits
from plansmith.data.query_sources.grown import GROWN, Grower
from plansmith.data.query_sources.growth_prompt import growth_fault, growth_messages, read_growth
from plansmith.data.query_sources.slots import Cell, Chooser, Kind, Slot, share_out
from plansmith.data.teacher_config import Budget, FitRule, GrownQueries, LogQueries, Mix, QueriesConfig
from tests.data.conftest import CATALOG as CATALOG_JSON

DEMO = Catalog.from_json(CATALOG_JSON)


def collect(out: Path, *sources: Any, grower: Grower) -> Collected:
    config = QueriesConfig(sources=sources)
    return collect_queries(config, TRAVEL, out, Silent(), seed=1, grower=grower)


def worker(name: str, args: dict[str, Any], returns: dict[str, Any] | None = None) -> Worker:
    schema = {"type": "object", "properties": args, "required": list(args)}
    result = {"type": "object", "properties": returns} if returns is not None else None
    return Worker(name=name, description=f"Does {name}.", args=schema, returns=result)


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
HOTELS = {"type": "array", "items": {"type": "object", "properties": {"id": TEXT, "price": NUMBER}}}
CURRENCY, COLOUR = {"enum": ["EUR", "USD"]}, {"type": ["string", "null"]}
TRAVEL = Catalog(
    "travel",
    [
        worker("search_hotels", {"city": TEXT}, {"hotels": HOTELS}),
        worker(
            "book_hotel",
            {"hotel_id": TEXT, "nights": {"type": "integer"}},
            {"confirmation": TEXT, "total_price": NUMBER},
        ),
        worker("convert_money", {"price": NUMBER, "currency": CURRENCY}, {"amount": NUMBER, "currency": CURRENCY}),
        worker("say", {"anything": {}}, None),
        worker("mood", {"colour": {"enum": ["red", "blue"]}}, {"colour": COLOUR, "flag": {"type": "boolean"}}),
    ],
)


def pairs(fits: Sequence[Fit]) -> set[tuple[str, str, str, str]]:
    return {(fit.giver, fit.pointer, fit.taker, fit.parameter) for fit in fits}


def test_results_fit_parameters_whose_types_and_names_fit():
    assert pairs(find_fits(TRAVEL)) == {
        ("search_hotels", "/hotels/0/id", "book_hotel", "hotel_id"),
        ("search_hotels", "/hotels/0/price", "convert_money", "price"),
        ("book_hotel", "/total_price", "convert_money", "price"),
    }


def test_types_alone_fit_more_but_never_other_types_or_values():
    fits = pairs(find_fits(TRAVEL, FitRule.TYPED))
    assert ("book_hotel", "/confirmation", "search_hotels", "city") in fits
    assert ("convert_money", "/amount", "book_hotel", "nights") in fits, "a number may happen to be whole"
    assert not any(parameter == "colour" for _, _, _, parameter in fits), "a free text is not among listed values"
    assert not any("say" in (giver, taker) for giver, _, taker, _ in fits), "what says nothing fits nothing"
    assert not any(pointer == "/flag" for _, pointer, _, _ in fits)
    listed = Catalog("c", [worker("a", {"x": TEXT}, {"c": {"enum": ["EUR"]}}), *TRAVEL.workers[2:3]])
    assert ("a", "/c", "convert_money", "currency") in pairs(find_fits(listed, FitRule.TYPED))


def test_where_no_names_fit_types_alone_do():
    plain = Catalog("c", [worker("a", {"x": TEXT}, {"y": TEXT}), worker("b", {"z": TEXT}, {"w": TEXT})])
    assert pairs(find_fits(plain)) == {("a", "/y", "b", "z"), ("b", "/w", "a", "x")}
    assert find_fits(Catalog("c", [worker("a", {"x": TEXT}), worker("b", {"z": TEXT})])) == []


def test_chains_have_different_workers_each_fed_by_the_one_before():
    fits = find_fits(TRAVEL)
    assert [[fit.giver for fit in chain] + [chain[-1].taker] for chain in find_chains(fits, 3, seed=1)] == [
        ["search_hotels", "book_hotel", "convert_money"]
    ]
    assert find_chains(fits, 4, seed=1) == []
    many = find_chains(find_fits(TRAVEL, FitRule.TYPED), 3, seed=1)
    assert many == find_chains(find_fits(TRAVEL, FitRule.TYPED), 3, seed=1)
    for chain in many:
        names = [chain[0].giver, *(fit.taker for fit in chain)]
        assert len(set(names)) == 3
        assert [fit.giver for fit in chain] == names[:-1]


@given(
    count=st.integers(1, 500),
    abstain=st.floats(0, 1),
    independent=st.floats(0, 1),
    steps=st.dictionaries(st.integers(1, 6), st.floats(0.1, 5), min_size=1, max_size=4),
    languages=st.dictionaries(st.sampled_from(["en", "de", "zh"]), st.floats(0.1, 5), min_size=1),
)
def test_the_mix_is_shared_out_to_the_last_query(
    count: int, abstain: float, independent: float, steps: dict[int, float], languages: dict[str, float]
):
    mix = Mix(abstain=abstain, independent=independent, steps=steps, languages=languages)
    cells = share_out(count, mix)
    assert sum(cells.values()) == count
    assert all(size > 0 for size in cells.values())
    none = sum(size for cell, size in cells.items() if cell.kind is Kind.NONE)
    assert abs(none - count * abstain) <= len(languages) + 1e-6


def test_workers_are_used_as_often_as_they_weigh():
    chooser = Chooser(DEMO, Mix(workers={"one": 3.0}), FitRule.NAMED, seed=1)
    slots = list(chooser.slots({Cell(Kind.ONE, 1, "en"): 100}, per_request=2, number=0))
    used = Counter(name for slot in slots for name in slot.workers)
    assert used == {"one": 30, "two": 10, "three": 10}
    with pytest.raises(InputError, match="'four'"):
        Chooser(DEMO, Mix(workers={"four": 1.0}), FitRule.NAMED, seed=1)


def test_a_chain_that_no_types_fit_becomes_separate_wishes_and_is_counted():
    silent = Catalog("c", [worker(name, {"x": TEXT}) for name in ("a", "b", "c")])
    chooser = Chooser(silent, Mix(), FitRule.NAMED, seed=1)
    (slot,) = chooser.slots({Cell(Kind.CHAIN, 2, "en"): 3}, per_request=8, number=0)
    assert slot.cell.kind is Kind.SEPARATE
    assert len(set(slot.workers)) == 2
    assert chooser.notes == {"chains_that_no_types_fit": 1}


def slot(kind: Kind, *workers: str, language: str = "en", fits: tuple[Fit, ...] = (), number: int = 0) -> Slot:
    return Slot(Cell(kind, len(workers), language), workers, fits, number, 0, 5)


def test_the_request_says_workers_language_and_what_is_given_on():
    (chain,) = find_chains(find_fits(TRAVEL), 3, seed=1)
    names = (chain[0].giver, *(fit.taker for fit in chain))
    system, user = growth_messages(slot(Kind.CHAIN, *names, language="pt-BR", fits=chain), TRAVEL)
    assert all(name in system["content"] for name in TRAVEL.names)
    assert "5 different requests in the language Portuguese (pt-BR)" in user["content"]
    assert "hotel_id of book_hotel is /hotels/0/id of what search_hotels gives" in user["content"]
    unserved = {growth_messages(slot(Kind.NONE, number=n), TRAVEL)[1]["content"].split(".")[0] for n in range(3)}
    assert len(unserved) == 3
    assert growth_messages(slot(Kind.ONE, "say"), TRAVEL)[0] == system, "the prefix is the same for all requests"


@pytest.mark.parametrize(
    ("text", "found", "repaired"),
    [
        ('{"queries":["a","b"]}', ["a", "b"], False),
        ('["a"]', ["a"], False),
        ('Here:\n```json\n{"queries":["a"]}\n```', ["a"], True),
        ('{"queries":["a","b"', ["a", "b"], True),
        ("no list", None, False),
        ('{"other":["a"]}', None, False),
        ("7", None, False),
    ],
)
def test_answers_with_queries_are_read(text: str, found: list[str] | None, repaired: bool):
    read = read_growth(text)
    assert (read and (read.queries, read.repaired)) == (found and (found, repaired))


@pytest.mark.parametrize(
    ("query", "language", "reason"),
    [
        ("a hotel in Rome", "en", None),
        ("", "en", "no_query"),
        (7, "en", "no_query"),
        ({"query": "x"}, "en", "no_query"),
        ("x" * 101, "en", "too_long"),
        ("a hotel in [city]", "en", "blank"),
        ("a hotel in <City Name>", "en", "blank"),
        ("use search_hotels for Rome", "en", "names_worker"),
        ("say it", "en", None),
        ("half \ud83d", "en", "not_utf8"),
        ("a hotel in Rome", "zh", "wrong_script"),
        ("\u7f57\u9a6c\u7684\u9152\u5e97", "zh", None),
        ("\u0433\u043e\u0441\u0442\u0438\u043d\u0438\u0446\u0430", "ru", None),
    ],
)
def test_unusable_inventions_are_found(query: Any, language: str, reason: str | None):
    fault = growth_fault(query, slot(Kind.ONE, "search_hotels", language=language), TRAVEL, 100)
    assert (fault and fault[0]) == reason


class Inventor:
    """A text model that invents numbered queries; `answer` may replace what it writes."""

    def __init__(self, answer: Any = None) -> None:
        self.asked: list[tuple[str, int | None]] = []
        self.counts: dict[str, int] = {}
        self._answer = answer
        self._number = 0

    async def write(
        self,
        messages: Sequence[Message],
        *,
        temperature: float | None = None,
        seed: int | None = None,
        max_tokens: int | None = None,
        schema: dict[str, Any] | None = None,
    ) -> Text:
        assert schema is not None
        self.asked.append((messages[-1]["content"], seed))
        if self._answer is not None:
            text = self._answer(messages[-1]["content"], seed)
        else:
            size = int(messages[-1]["content"].split()[1])
            text = json.dumps({"queries": [f"wish {seed} number {n}" for n in range(size)]})
        return Text(text, 50, 20, 0.001, FinishReason.STOP)


def grown(out: Path, model: Any, **options: Any) -> Collected:
    grower = Grower(model, "inventor", {})
    return collect(out, GrownQueries(kind="grown", **options), grower=grower)


def test_grown_queries_come_in_the_wanted_mix(tmp_path: Path):
    mix = Mix(abstain=0.2, steps={1: 0.5, 2: 0.25, 3: 0.25}, independent=0.5, languages={"en": 3, "de": 1})
    manifest = grown(tmp_path, Inventor(), count=200, mix=mix, per_request=5).manifest
    rows = read_rows(tmp_path / QUERIES, Query)
    assert (manifest.queries, len(rows)) == (200, 200)
    steps = Counter(row.wanted.steps for row in rows if row.wanted is not None)
    assert steps == {0: 40, 1: 80, 2: 40, 3: 40}
    assert Counter(row.language for row in rows) == {"en": 150, "de": 50}
    shares = {(row.what, row.name): (row.wanted, row.queries, row.plans) for row in manifest.mix}
    assert shares["steps", "0"] == (0.2, 0.2, None)
    assert shares["steps", "3"] == (0.2, 0.2, None)
    assert shares["language", "de"] == (0.25, 0.25, None)
    assert all(abs((got or 0) - 0.2) < 0.15 for (what, _), (_, got, _) in shares.items() if what == "worker")


def test_growing_again_asks_nothing_and_gives_the_same(tmp_path: Path):
    grown(tmp_path, Inventor(), count=40)
    before = (tmp_path / QUERIES).read_bytes()
    again = Inventor()
    grown(tmp_path, again, count=40)
    assert again.asked == []
    assert (tmp_path / QUERIES).read_bytes() == before
    lines = (tmp_path / GROWN).read_bytes().splitlines(keepends=True)
    (tmp_path / GROWN).write_bytes(b"".join(lines[:-2]) + lines[-1][:30])
    grown(tmp_path, again, count=40)
    assert len(again.asked) == 2
    assert (tmp_path / QUERIES).read_bytes() == before


def test_what_is_repeated_or_unusable_is_counted_and_asked_for_anew(tmp_path: Path):
    first: set[int | None] = set()

    def lazy(content: str, seed: int | None) -> str:
        size = int(content.split()[1])
        texts = [f"wish {seed} number {n}" for n in range(size)]
        if len(first) < 4:
            first.add(seed)
            texts[:2] = ["always the same", "to [city]"]
        return json.dumps({"queries": [*texts, "one too many"]})

    collected = grown(tmp_path, Inventor(lazy), count=40, per_request=8, concurrency=1)
    (source,) = collected.manifest.sources
    assert collected.manifest.queries == 40
    assert source.rejects == {"blank": 4, "duplicate": 3}
    assert source.read == 47
    assert source.notes["queries_too_many"] >= 5


def test_an_inventor_that_repeats_itself_ends_with_what_there_is(tmp_path: Path):
    model = Inventor(lambda content, seed: '{"queries":["the only wish"]}')
    manifest = grown(tmp_path, model, count=20, rounds=2).manifest
    assert manifest.queries == 1
    assert manifest.sources[0].notes["queries_not_grown"] == 19


def test_unreadable_and_failing_answers_are_counted_and_failures_asked_again(tmp_path: Path):
    down = True

    def flaky(content: str, seed: int | None) -> str:
        if down and seed is not None and seed % 2:
            raise ServiceError("it is down.")
        return (
            "I would rather not." if "small talk" in content else json.dumps({"queries": [f"w {seed} {content[:40]}"]})
        )

    grown(tmp_path, Inventor(flaky), count=10, per_request=1, rounds=1, mix=Mix(abstain=0.5))
    rows = (tmp_path / GROWN).read_bytes().count(b"\n")
    down = False
    again = Inventor(flaky)
    collected = grown(tmp_path, again, count=10, per_request=1, rounds=1, mix=Mix(abstain=0.5))
    assert len(again.asked) == 10 - rows > 0
    notes = collected.manifest.sources[0].notes
    assert notes["unreadable_answers"] == notes["queries_not_grown"] == 10 - collected.manifest.queries > 0


def test_a_budget_ends_growing_and_keeps_what_there_is(tmp_path: Path):
    collected = grown(tmp_path, Inventor(), count=100, per_request=5, budget=Budget(requests=4), concurrency=1)
    assert isinstance(collected.stopped, BudgetReachedError)
    assert collected.manifest.queries == 20
    assert load_queries(tmp_path).manifest.sources[0].notes["queries_not_grown"] == 80


def test_a_query_that_a_log_has_is_repeated_and_another_is_asked_for(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the only wish\n")
    log = LogQueries(kind="log", path=tmp_path / "a.txt")
    answers = iter(['{"queries":["the  only wish","another"]}', '{"queries":["a third"]}'])
    growth = GrownQueries(kind="grown", count=2, rounds=2, mix=Mix(abstain=0, steps={1: 1}))
    grower = Grower(Inventor(lambda content, seed: next(answers)), "m", {})
    collected = collect(tmp_path / "out", log, growth, grower=grower)
    rows = read_rows(tmp_path / "out" / QUERIES, Query)
    assert [row.query for row in rows] == ["the only wish", "another", "a third"]
    assert collected.manifest.sources[1].rejects == {"duplicate": 1}


def test_the_mix_of_plans_stands_beside_the_wanted_one(tmp_path: Path):
    mix = Mix(abstain=0.5, steps={1: 1.0})
    grown(tmp_path, Inventor(), count=20, mix=mix)
    rows = read_rows(tmp_path / QUERIES, Query)
    plans = {row.id: [{"type": "say", "args": {}}] * 2 if n < 5 else [] for n, row in enumerate(rows[:10])}
    log = Query(id="x", query="y", source="log")
    shares = {(row.what, row.name): row for row in compare_mix(mix, TRAVEL, [*rows, log], plans)}
    assert (shares["steps", "0"].wanted, shares["steps", "0"].queries, shares["steps", "0"].plans) == (0.5, 0.5, 0.5)
    assert (shares["steps", "2"].wanted, shares["steps", "2"].queries, shares["steps", "2"].plans) == (0.0, 0.0, 0.5)
    assert shares["worker", "say"].plans == 1.0
    assert shares["language", "en"].queries == 1.0
