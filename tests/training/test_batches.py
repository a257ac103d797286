"""Every row has its turn, a resumed run takes the same rows, and a micro-batch has one catalog."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from plansmith.training.batches import batch_of, micro_batches

groupings = st.lists(st.integers(0, 4), min_size=1, max_size=60)
sizes = st.integers(1, 17)


@given(groupings, sizes, sizes, st.integers(0, 3))
def test_no_row_has_a_second_turn_before_all_had_one(groups: list[int], batch_size: int, micro: int, seed: int):
    stream: list[int] = []
    for step in range(-(-3 * len(groups) // batch_size)):
        stream += batch_of(step, groups, batch_size, micro, seed=seed)
    for turn in range(3):
        rows = stream[turn * len(groups) : (turn + 1) * len(groups)]
        assert sorted(rows) == list(range(len(groups)))


@given(groupings, sizes, sizes, st.integers(0, 3), st.integers(0, 40))
def test_a_step_depends_on_nothing_but_its_number(groups: list[int], batch_size: int, micro: int, seed: int, step: int):
    first = batch_of(step, groups, batch_size, micro, seed=seed)
    batch_of(step + 7, groups, batch_size, micro, seed=seed + 1)
    assert batch_of(step, list(groups), batch_size, micro, seed=seed) == first
    assert len(first) == batch_size


@given(groupings, sizes, sizes, st.data())
def test_micro_batches_have_one_catalog_and_lose_no_row(
    groups: list[int], batch_size: int, micro: int, data: st.DataObject
):
    lengths = data.draw(st.lists(st.integers(1, 99), min_size=len(groups), max_size=len(groups)))
    rows = batch_of(0, groups, batch_size, micro, seed=1)
    cut = micro_batches(rows, groups, lengths, micro)
    assert Counter(row for part in cut for row in part) == Counter(rows)
    for part in cut:
        assert len({groups[row] for row in part}) == 1
        assert len(part) <= micro
        assert [lengths[row] for row in part] == sorted(lengths[row] for row in part)


def test_a_step_of_many_catalogs_runs_few_of_their_prompts():
    groups = [row % 16 for row in range(16 * 64)]
    lengths = [1] * len(groups)
    for step in range(20):
        cut = micro_batches(batch_of(step, groups, 32, 8, seed=3), groups, lengths, 8)
        assert len(cut) <= 5, "four blocks of eight, and one more where a block is cut by the step's end"


def test_two_turns_have_two_orders():
    first, second = islice((tuple(batch_of(step, [0] * 50, 50, 8, seed=1)) for step in range(2)), 2)
    assert first != second
