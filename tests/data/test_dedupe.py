"""Repeated queries: equal ones, nearly equal ones, and what templates with other arguments do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from plansmith.contract.errors import MissingExtraError
from plansmith.contract.records import Candidate
from plansmith.contract.store import StorageError
from plansmith.data import dedupe, near
from plansmith.data.dedupe import DedupeCounts, Deduper, Duplicate, Repeat, plan_key
from plansmith.data.dedupe_config import DedupeConfig, NearRule
from plansmith.data.near import Bands, KeyMap, SortedRuns, bands_for, grams, jaccard
from plansmith.data.verify import normalise_query

WEATHER = "Please tell me what the weather will be like in {} on Friday morning, and whether I need a coat."


def plan(city: str) -> list[dict[str, Any]]:
    return [{"type": "weather", "args": {"city": city}}]


def row(row_id: str, query: str, city: str = "Lisbon") -> Candidate:
    return Candidate(id=row_id, query=query, plan=plan(city), family="weather", source="test")


def decided(*rows: Candidate, **config: Any) -> tuple[list[Duplicate | None], DedupeCounts]:
    with Deduper(DedupeConfig(**config), seed=1) as deduper:
        return deduper.decide(rows), deduper.counts


def test_equal_queries_are_one_whatever_their_plans():
    found, counts = decided(row("1", "Book  a table."), row("2", "book a TABLE"), row("3", "Book a table!", "Porto"))
    assert found == [None, Duplicate(Repeat.EQUAL, "1", 1.0), Duplicate(Repeat.EQUAL, "1", 1.0)]
    assert counts == DedupeCounts(kept=1, equal=2)


def test_a_nearly_equal_query_with_the_same_plan_is_dropped_and_the_kept_row_is_named():
    first, second = row("1", WEATHER.format("Lisbon")), row("2", "so, " + WEATHER.format("Lisbon"))
    found, counts = decided(first, second)
    expected = jaccard(grams(normalise_query(first.query), 5), grams(normalise_query(second.query), 5))
    assert 0.8 < expected < 1
    assert found == [None, Duplicate(Repeat.NEAR, "1", expected)]
    assert counts == DedupeCounts(kept=1, near=1)
    reject = found[1].reject(second) if found[1] else None
    assert reject is not None
    assert (reject.id, reject.reason, reject.plan) == ("2", "near_duplicate", second.plan)
    assert "row '1'" in reject.detail
    assert f"{expected:.2f}" in reject.detail


def test_queries_of_one_template_with_other_arguments_are_kept_and_counted():
    rows = [row(city, WEATHER.format(city), city) for city in ("Lisbon", "Porto", "Lagos")]
    found, counts = decided(*rows)
    assert found == [None, None, None]
    assert (counts.kept, counts.near_with_other_plan) == (3, 2)


def test_plans_can_be_left_out_of_the_decision():
    rows = [row(city, WEATHER.format(city), city) for city in ("Lisbon", "Porto", "Lagos")]
    found, counts = decided(*rows, rule=NearRule.ANY_PLAN)
    assert [duplicate and (duplicate.repeat, duplicate.kept) for duplicate in found] == [
        None,
        (Repeat.NEAR, "Lisbon"),
        (Repeat.NEAR, "Lisbon"),
    ]
    assert (counts.kept, counts.near, counts.near_with_other_plan) == (1, 2, 0)


def test_without_a_rule_only_equal_queries_count_and_no_package_is_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(near, "find_spec", lambda _: None)
    rows = [
        row("1", WEATHER.format("Lisbon")),
        row("2", "so, " + WEATHER.format("Lisbon")),
        row("3", "x"),
        row("4", "X"),
    ]
    assert decided(*rows, rule=NearRule.OFF)[1] == DedupeCounts(kept=3, equal=1)
    with pytest.raises(MissingExtraError, match=r"plansmith\[data\]"):
        decided(*rows)


def test_a_dropped_row_drops_no_others():
    """Similarity is no chain: the third row is near to the second, which is not kept, but not to the first."""
    first = "a weather report for the whole of next week in lisbon please and thanks"
    second, third = "xyz " + first + " abc", "xyzu vw xyz " + first + " abc defg"
    rows = [row("1", first), row("2", second), row("3", third)]
    texts = [grams(r.query, 5) for r in rows]
    assert jaccard(texts[0], texts[2]) < 0.8 < min(jaccard(texts[0], texts[1]), jaccard(texts[1], texts[2]))
    assert [duplicate and duplicate.kept for duplicate in decided(*rows)[0]] == [None, "1", None]


def test_other_kinds_of_numbers_make_another_plan_but_the_order_of_keys_does_not():
    assert plan_key([{"a": 1, "b": 2}]) == plan_key([{"b": 2, "a": 1}])
    assert len({plan_key([{"a": value}]) for value in (1, 1.0, "1", True, None, [1])}) == 6
    assert plan_key([]) != 0


WORDS = ("rain", "wind", "sun", "snow", "fog", "hail")
drawn_rows = st.lists(
    st.tuples(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9), st.sampled_from(["Lisbon", "Porto"])),
    max_size=40,
)


@settings(deadline=None)
@given(drawn_rows, st.sampled_from(NearRule), st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any))
def test_how_rows_are_cut_into_calls_changes_nothing(
    drawn: list[tuple[list[str], str]], rule: NearRule, sizes: list[int]
):
    rows = [row(str(at), "will there be " + " and ".join(words), city) for at, (words, city) in enumerate(drawn)]
    found, counts = decided(*rows, rule=rule)
    with Deduper(DedupeConfig(rule=rule), seed=1) as deduper:
        pieces: list[Duplicate | None] = []
        left = list(rows)
        for size in cycle(sizes):
            if not left:
                break
            pieces += deduper.decide(left[:size])
            del left[:size]
        assert pieces == found
        assert deduper.counts == counts
        assert counts.kept + counts.equal + counts.near == len(rows)
    with Deduper(DedupeConfig(rule=rule), seed=1) as deduper:
        assert list(deduper.run(iter(rows))) == list(zip(rows, found, strict=True))


def typed_rows(number: int) -> list[Candidate]:
    """Rows over few sentences and plans, with typing errors, so that many pairs are near the threshold."""
    rng = random.Random(5)
    vocabulary = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 8))) for _ in range(200)]
    sentences = [" ".join(rng.choices(vocabulary, k=rng.randint(6, 14))) for _ in range(number // 10)]

    def typed(sentence: str) -> str:
        letters = list(sentence)
        for _ in range(rng.randint(0, 3)):
            letters[rng.randrange(len(letters))] = rng.choice("abcdefghij ")
        return "".join(letters)

    return [row(str(at), typed(rng.choice(sentences)), rng.choice(["Lisbon", "Porto"])) for at in range(number)]


@pytest.mark.parametrize("rule", [NearRule.SAME_PLAN, NearRule.ANY_PLAN])
def test_nearly_every_pair_that_comparing_all_would_find_is_found_and_no_other(rule: NearRule):
    rows = typed_rows(900)
    found, counts = decided(*rows, rule=rule)
    kept: list[tuple[frozenset[tuple[str, ...]], Candidate]] = []
    missed = dropped = 0
    for one, duplicate in zip(rows, found, strict=True):
        text = grams(normalise_query(one.query), 5)
        same = {
            other.id: jaccard(text, other_text)
            for other_text, other in kept
            if rule is NearRule.ANY_PLAN or other.plan == one.plan
        }
        if duplicate is None:
            kept.append((text, one))
            missed += max(same.values(), default=0) >= 0.8
        else:
            dropped += 1
            assert duplicate.repeat is Repeat.EQUAL or same[duplicate.kept] == duplicate.similarity >= 0.8
    assert dropped > 200
    assert missed <= 0.01 * (dropped + missed)
    assert counts.cut_short == 0


def test_bands_are_the_widest_that_find_ninety_nine_of_a_hundred_pairs_at_the_threshold():
    assert bands_for(0.8, 96) == Bands(16, 6)
    assert bands_for(0.8, 96).found(0.8) > 0.99 > Bands(13, 7).found(0.8)
    assert bands_for(0.8, 96).found(0.9) > 0.9999
    assert bands_for(1.0, 96) == Bands(1, 96)
    assert bands_for(0.01, 8) == Bands(8, 1)


def test_texts_share_a_band_as_often_as_the_formula_says():
    rng = random.Random(0)
    cut = bands_for(0.8, 96)
    hits: list[bool] = []
    expected: list[float] = []
    for number in range(300):
        words = ["".join(rng.choices("abcdefghijklmnop", k=6)) for _ in range(12)]
        others = [word if rng.random() > 0.12 else word[::-1] for word in words]
        texts = [" ".join(words), " ".join(others)]
        keys = near.Signer(DedupeConfig(), seed=number).keys(texts)
        hits.append(bool((keys[0] == keys[1]).any()))
        expected.append(cut.found(jaccard(grams(texts[0], 5), grams(texts[1], 5))))
    assert 0.3 < sum(expected) / 300 < 0.8
    assert abs(sum(hits) - sum(expected)) < 4 * sum(p * (1 - p) for p in expected) ** 0.5


def test_signatures_are_the_same_on_every_machine_and_in_every_version():
    texts = ["", "hi", "what is the weather", "qu\u00e9 tiempo hace \U0001f326", "\ud800 alone"]
    keys = near.Signer(DedupeConfig(), seed=7).keys(texts)
    assert keys.shape == (5, 16)
    assert [int(key) for key in keys[:, 0]] == GOLDEN
    assert (near.Signer(DedupeConfig(), seed=7).keys(texts[2:3]) == keys[2:3]).all()
    assert (near.Signer(DedupeConfig(), seed=8).keys(texts) != keys).all()


GOLDEN = [12042394214102707469, 3795993468487734429, 14543174646657695491, 8661942287460519844, 12025625797871372489]


@given(st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1)), max_size=12), max_size=8), st.integers(1, 5))
def test_sorted_runs_give_the_first_rows_of_every_key(batches: list[list[tuple[int, int]]], limit: int):
    runs = SortedRuns()
    expected: dict[int, list[int]] = {}
    number = 0
    for batch in batches:
        rows: list[tuple[int, int]] = []
        for key, step in batch:
            number += step
            rows.append((key * 2**60, number))
            expected.setdefault(key, []).append(number)
        runs.add(np.array([key for key, _ in rows], np.uint64), np.array([r for _, r in rows], np.uint32))
    wanted = [5, 0, 12, 5, 13, *range(13)]
    found = runs.first(np.array([key * 2**60 for key in wanted], np.uint64), limit)
    assert [list(found.get(at, ())) for at in range(len(wanted))] == [expected.get(key, [])[:limit] for key in wanted]


def test_rows_that_share_most_keys_come_first_and_a_full_key_takes_no_more():
    index = KeyMap(limit=2)
    for number, keys in enumerate([[1, 2, 3], [1, 5, 6], [1, 5, 3], [9, 5, 3]]):
        batch = index.open(np.array([keys], np.uint64))
        batch.add(0, number)
        index.close(batch)
    assert index.open(np.array([[1, 5, 6]], np.uint64)).rows(0) == [1, 0, 2]
    crowd = index.open(np.full((50, 1), 7, np.uint64))
    for at in range(50):
        crowd.add(at, 10 + at)
    assert crowd.rows(0) == [10, 11]
    assert crowd.added()[1].tolist() == [10, 11]
    index.close(crowd)
    assert index.open(np.array([[1]], np.uint64)).rows(0) == [0, 1]


def test_a_bucket_that_never_ends_costs_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch):
    """Rows that share bands but are not near: each is compared with so many others at most, and that is counted."""
    monkeypatch.setattr(near, "TRIES", 2)
    rng = random.Random(2)
    head = "please find the cheapest direct train connection from the main station of the old town "
    rows = [row(str(at), head + "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=45))) for at in range(60)]
    compared: list[int] = []
    real = near.jaccard
    monkeypatch.setattr(near, "jaccard", lambda one, other: compared.append(1) or real(one, other))
    _, counts = decided(*rows)
    assert counts.kept == 60
    assert 20 < counts.cut_short < 60
    assert len(compared) <= 2 * 60


def test_rows_are_read_only_as_they_are_needed():
    taken: list[int] = []

    def endless() -> Iterator[Candidate]:
        at = 0
        while True:
            taken.append(at)
            yield row(str(at), f"query number {at * 7919} of a stream without end")
            at += 1

    with Deduper(DedupeConfig(), seed=0) as deduper:
        stream = deduper.run(endless())
        next(stream)
    assert len(taken) == dedupe.AT_ONCE


def test_a_full_temporary_folder_is_one_clear_error(monkeypatch: pytest.MonkeyPatch):
    def full(**_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(near.tempfile, "TemporaryFile", full)
    with pytest.raises(StorageError, match=r"No space left on device\. Make room"):
        Deduper(DedupeConfig(), seed=0)


@pytest.mark.parametrize("wrong", [{"threshold": 0}, {"threshold": 1.1}, {"shingle": 0}, {"permutations": 4}, {"x": 1}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        DedupeConfig(**wrong)
