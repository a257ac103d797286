"""Every row is kept or dropped with a reason, and sides of the split never touch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.contract.records import Candidate, Split
from plansmith.data.config import SplitConfig
from plansmith.data.manifest import count_rows
from plansmith.data.split import split_rows
from plansmith.data.verify import Verified, normalise_query, verify

from .conftest import CATALOG

CAT = Catalog.from_json(CATALOG)
ONE = [{"type": "one", "args": {"b": 1, "a": "x"}}]


def row(row_id: str, query: str, plan: list[dict[str, object]] | None = None, **more: str) -> Candidate:
    values = {"family": "f", "source": "s", "part": None} | more
    return Candidate.model_validate({"id": row_id, "query": query, "plan": ONE if plan is None else plan, **values})


def verified(*rows: Candidate, max_steps: int | None = None) -> Verified:
    return verify(list(rows), CAT, max_steps=max_steps, progress=Silent())


def test_kept_plans_are_canonical():
    [kept] = verified(row("1", "q", [{"args": {"b": 1, "a": "x"}, "type": "one"}])).kept
    assert list(kept.plan[0]) == ["type", "args"]
    assert list(kept.plan[0]["args"]) == ["a", "b"]


def test_each_reason_for_dropping_is_named():
    unknown = [{"type": "onee", "args": {}}]
    dangling = [*ONE, {"type": "two", "args": {"a": {"$from": "/0/y"}}}]
    found = verified(
        row("1", "first"),
        row("2", "unknown worker", unknown),
        row("3", "dangling", dangling),
        row("4", "  FIRST? "),
        row("1", "same id"),
        row("5", "long", ONE * 3),
        row("6", "own part", part="train"),
        max_steps=2,
    )
    assert [kept.id for kept in found.kept] == ["1"]
    assert {(reject.id, reject.reason) for reject in found.rejects} == {
        ("2", "check"),
        ("3", "check"),
        ("4", "duplicate"),
        ("1", "duplicate_id"),
        ("5", "too_long"),
        ("6", "bad_part"),
    }
    [unknown_reject] = [reject for reject in found.rejects if reject.id == "2"]
    assert "unknown_worker" in unknown_reject.detail
    assert "'one'" in unknown_reject.detail


def test_a_row_written_by_hand_wins_over_a_generated_one_with_the_same_query():
    found = verified(row("made", "Book it."), row("hand", "book  it", part="handwritten"))
    assert [kept.id for kept in found.kept] == ["hand"]
    assert [reject.reason for reject in found.rejects] == ["duplicate"]


def test_the_empty_plan_is_a_plan():
    assert len(verified(row("1", "nothing fits", [])).kept) == 1


def test_plans_longer_than_the_checkers_limit_are_kept_when_asked():
    assert len(verified(row("1", "q", ONE * 20), max_steps=20).kept) == 1
    assert [r.reason for r in verified(row("1", "q", ONE * 20)).rejects] == ["check"]


sizes = st.one_of(st.integers(0, 30), st.floats(0, 0.4))
splits = st.builds(SplitConfig, val=sizes, seen=sizes, unseen=sizes)
queries = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 9)), min_size=1, max_size=80, unique_by=lambda q: q[0]
)


def candidates(drawn: list[tuple[int, int]], reserved: int = 0) -> list[Candidate]:
    return [
        row(str(number), f"query {number}", family=f"family {family}", **({"part": "hand"} if i < reserved else {}))
        for i, (number, family) in enumerate(drawn)
    ]


@given(queries, splits, st.integers(0, 5), st.integers(0, 3))
def test_sides_are_disjoint_and_add_up(drawn: list[tuple[int, int]], config: SplitConfig, seed: int, reserved: int):
    rows = candidates(drawn, reserved)
    try:
        examples = split_rows(rows, config, seed=seed)
    except InputError:
        return
    assert [example.id for example in examples] == [r.id for r in rows]
    counts = count_rows(examples, [], read=len(rows))
    assert counts.train + counts.val + sum(counts.test.values()) == len(rows)
    train_families = {e.family for e in examples if e.split is Split.TRAIN}
    for example in examples:
        if example.part == "unseen":
            assert example.family not in train_families
        if example.part == "seen":
            assert example.family in train_families
    trained = {normalise_query(e.query) for e in examples if e.split is not Split.TEST}
    assert not trained & {normalise_query(e.query) for e in examples if e.split is Split.TEST}
    assert split_rows(rows, config, seed=seed) == examples


shares = st.floats(0, 0.4)


@given(queries, st.builds(SplitConfig, val=shares, seen=shares, unseen=shares), st.data())
def test_appended_rows_move_no_other_row_when_sizes_are_shares(
    drawn: list[tuple[int, int]], config: SplitConfig, data: st.DataObject
):
    rows = candidates(drawn)
    size = data.draw(st.integers(1, len(rows)))
    try:
        few = {e.id: e.split for e in split_rows(rows[:size], config, seed=3)}
        many = {e.id: e.split for e in split_rows(rows, config, seed=3)}
    except InputError:
        return
    assert {row_id: many[row_id] for row_id in few} == few


def test_counts_are_exact_and_families_are_held_out_whole():
    rows = candidates([(i, i % 10) for i in range(200)])
    examples = split_rows(rows, SplitConfig(val=13, seen=17, unseen=45), seed=1)
    assert Counter(e.part for e in examples) == {"train": 130, "val": 13, "seen": 17, "unseen": 40}
    held_out = {e.family for e in examples if e.part == "unseen"}
    assert len(held_out) == 2
    assert all((e.family in held_out) == (e.part == "unseen") for e in examples)


def test_another_seed_splits_otherwise():
    rows = candidates([(i, i % 10) for i in range(200)])
    sides = {tuple(e.split for e in split_rows(rows, SplitConfig(), seed=seed)) for seed in range(4)}
    assert len(sides) == 4


def test_a_test_row_whose_family_training_lacks_is_called_unseen():
    rows = candidates([(i, i) for i in range(10)])
    examples = split_rows(rows, SplitConfig(val=0, seen=5, unseen=0), seed=0)
    assert Counter(e.part for e in examples) == {"train": 5, "unseen": 5}


def test_a_split_that_leaves_nothing_for_training_is_refused():
    with pytest.raises(InputError, match="nothing is left for training"):
        split_rows(candidates([(i, 0) for i in range(5)]), SplitConfig(seen=10), seed=0)
