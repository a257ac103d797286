"""Every row is kept or dropped with a reason, and sides of the split never touch."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.contract.records import Candidate, Example, Split
from plansmith.contract.settings import load_settings
from plansmith.data.config import DataConfig, SplitConfig
from plansmith.data.manifest import count_families, count_rows
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


def steps(workers: str) -> list[dict[str, object]]:
    """A plan of one-letter workers: `"aab"` has three steps."""
    return [{"type": name, "args": {}} for name in workers]


sizes = st.one_of(st.integers(0, 30), st.floats(0, 0.4))
few = st.one_of(st.integers(0, 3), st.floats(0, 0.4))
splits = st.builds(
    SplitConfig, val=sizes, seen=sizes, unseen=sizes, unseen_workers=few | st.just(("a",)), unseen_sequences=few
)
Drawn = tuple[int, int, str]
"""Number of the query, of its family, and the plan's workers."""
queries = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 9), st.text("abcdef", max_size=3)),
    min_size=1,
    max_size=80,
    unique_by=lambda q: q[0],
)


def candidates(drawn: Sequence[tuple[int, int] | Drawn], reserved: int = 0) -> list[Candidate]:
    return [
        row(
            str(number),
            f"query {number}",
            steps("".join(workers)),
            family=f"family {family}",
            **({"part": "hand"} if i < reserved else {}),
        )
        for i, (number, family, *workers) in enumerate(drawn)
    ]


def names_of(example: Example | Candidate) -> tuple[str, ...]:
    return tuple(step["type"] for step in example.plan)


@given(queries, splits, st.integers(0, 5), st.integers(0, 3))
def test_sides_are_disjoint_and_add_up(drawn: list[Drawn], config: SplitConfig, seed: int, reserved: int):
    rows = candidates(drawn, reserved)
    try:
        examples = split_rows(rows, config, seed=seed)
    except InputError:
        return
    assert [example.id for example in examples] == [r.id for r in rows]
    counts = count_rows(examples, [], read=len(rows))
    assert counts.train + counts.val + sum(counts.test.values()) == len(rows)
    train_families = {e.family for e in examples if e.split is Split.TRAIN}
    learnt = [names_of(e) for e in examples if e.split is not Split.TEST]
    for example in examples:
        if example.part == "unseen_workers" and config.unseen_sequences == 0:
            assert any(name not in {n for names in learnt for n in names} for name in names_of(example))
        if example.part == "unseen_sequences":
            assert names_of(example) not in learnt
            assert {*names_of(example)} <= {n for e in examples if e.part == "train" for n in names_of(e)}
        if example.part == "unseen":
            assert example.family not in train_families
        if example.part == "seen":
            assert example.family in train_families
    trained = {normalise_query(e.query) for e in examples if e.split is not Split.TEST}
    assert not trained & {normalise_query(e.query) for e in examples if e.split is Split.TEST}
    assert split_rows(rows, config, seed=seed) == examples


shares = st.floats(0, 0.4)


by_share = st.builds(
    SplitConfig, val=shares, seen=shares, unseen=shares, unseen_workers=shares | st.just(()), unseen_sequences=shares
)


@given(queries, by_share, st.data())
def test_appended_rows_move_no_other_row_when_sizes_are_shares(
    drawn: list[Drawn], config: SplitConfig, data: st.DataObject
):
    rows = candidates(drawn)
    size = data.draw(st.integers(1, len(rows)))
    try:
        some = {e.id: e.split for e in split_rows(rows[:size], config, seed=3)}
        many = {e.id: e.split for e in split_rows(rows, config, seed=3)}
    except InputError:
        return
    assert {row_id: many[row_id] for row_id in some} == some


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


def workers_row(number: int, workers: str, **more: str) -> Candidate:
    return row(str(number), f"query {number}", steps(workers), family=f"family {number % 7}", **more)


def parts_of(rows: list[Candidate], **config: object) -> dict[str, set[str]]:
    """The plans (as letters) of each part."""
    parts: dict[str, set[str]] = {}
    for example in split_rows(rows, SplitConfig.model_validate({"val": 0, "seen": 0, "unseen": 0} | config), seed=1):
        parts.setdefault(example.part, set()).add("".join(names_of(example)))
    return parts


PLANS = ["a", "b", "ab", "ba", "abc", "c", "cd", ""]


def test_named_workers_are_in_no_training_plan():
    rows = [workers_row(i, plan) for i, plan in enumerate(PLANS * 5)]
    parts = parts_of(rows, unseen_workers=["c"])
    assert parts == {"unseen_workers": {"abc", "c", "cd"}, "train": {"a", "b", "ab", "ba", ""}}
    with pytest.raises(InputError, match=r"unseen_workers names 'x'.*'a', 'b', 'c', 'd'"):
        parts_of(rows, unseen_workers=["x", "a"])


def test_a_count_of_workers_holds_out_as_many():
    rows = [workers_row(i, plan) for i, plan in enumerate("abcdefgh" * 3)]
    parts = parts_of(rows, unseen_workers=3)
    assert len(parts["unseen_workers"]) == 3
    assert len(parts["train"]) == 5
    assert parts_of(rows, unseen_workers=0.0) == {"train": set("abcdefgh")}


def test_held_out_sequences_have_several_steps_and_known_workers():
    rows = [workers_row(i, plan) for i, plan in enumerate(PLANS * 5)]
    parts = parts_of(rows, unseen_sequences=2)
    assert len(parts["unseen_sequences"] | parts.get("unseen_workers", set())) == 2
    everything = parts_of(rows, unseen_sequences=1.0)
    assert everything == {
        "unseen_sequences": {"ab", "ba", "abc"},
        "unseen_workers": {"cd"},
        "train": {"a", "b", "c", ""},
    }


def test_a_row_is_in_the_first_part_that_takes_it():
    rows = [workers_row(i, plan) for i, plan in enumerate(PLANS * 20)]
    held_out = {"unseen_workers": ["d"], "unseen_sequences": 1.0}
    by_id = {e.id: e for e in split_rows(rows, SplitConfig.model_validate(held_out | {"unseen": 0.3}), seed=1)}
    for candidate in rows:
        part, plan = by_id[candidate.id].part, "".join(names_of(candidate))
        assert (part == "unseen_workers") == ("d" in plan)
        assert (part == "unseen_sequences") == (plan in ("ab", "ba", "abc"))
    assert {e.part for e in by_id.values()} == {"unseen_workers", "unseen_sequences", "unseen", "seen", "val", "train"}


def test_reserved_rows_stay_where_the_source_put_them():
    rows = [workers_row(i, plan) for i, plan in enumerate(PLANS * 3)]
    reserved = [workers_row(100 + i, plan, part="handwritten") for i, plan in enumerate(PLANS)]
    examples = split_rows([*rows, *reserved], SplitConfig(unseen_workers=("c",), unseen_sequences=1.0), seed=1)
    assert {e.id for e in examples if e.part == "handwritten"} == {r.id for r in reserved}
    with pytest.raises(InputError, match="'c'"):
        split_rows(
            [workers_row(0, "a"), workers_row(1, "c", part="handwritten")], SplitConfig(unseen_workers=("c",)), seed=1
        )


def test_the_new_parts_are_counted_and_by_default_there_are_none():
    rows = [workers_row(i, plan) for i, plan in enumerate(PLANS * 20)]
    config = SplitConfig(unseen_workers=("c",), unseen_sequences=1)
    for seed in range(6):
        examples = split_rows(rows, config, seed=seed)
        counts = count_rows(examples, [], read=len(rows))
        assert counts.test["unseen_workers"] == 60
        assert counts.test["unseen_sequences"] == 20
        assert set(count_families(examples).test) == set(counts.test)
    plain = split_rows(rows, SplitConfig(), seed=2)
    assert {e.part for e in plain} <= {"train", "val", "seen", "unseen"}


def test_a_split_that_holds_out_every_worker_is_refused_and_says_why():
    with pytest.raises(InputError, match=r"nothing is left for training.*unseen_workers=1\.0"):
        split_rows([workers_row(i, "a") for i in range(5)], SplitConfig(unseen_workers=1.0), seed=0)


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("0.25", 0.25), ("1.0", 1.0), ("a", ("a",)), ('["a","b"]', ("a", "b"))]
)
def test_held_out_workers_are_given_as_names_a_share_or_a_count(text: str, value: object):
    flags = ["--split.unseen_workers", text, "--source.kind", "nestful"]
    found = load_settings(DataConfig, None, flags).split.unseen_workers
    assert found == value
    assert type(found) is type(value)


@given(st.text() | st.text("a .?!\t\n\x1c\x85\xa0\u2003\u200b\ufeff"))
def test_what_makes_queries_equal_is_form_case_space_and_the_end(query: str):
    text = unicodedata.normalize("NFKC", query).casefold()
    assert normalise_query(query) == re.sub(r"\s+", " ", text).strip().rstrip(".?! ")
