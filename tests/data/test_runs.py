"""Texts that a row may hold are never missed by the index of runs of words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.records import Candidate
from plansmith.data.decontaminate import Benchmark, Decontaminator, Match, TestText, word_runs
from plansmith.data.dedupe_config import DecontaminateConfig
from plansmith.data.runs import RunIndex

TEXTS = st.lists(st.text("abc ", max_size=24), max_size=12)


@given(TEXTS, st.text("abc ", max_size=40), st.sampled_from([0.01, 0.3, 0.5, 0.75, 0.8, 1.0]))
def test_every_text_whose_share_is_held_is_a_candidate(texts: list[str], row: str, overlap: float):
    index = RunIndex(overlap)
    runs = [word_runs(text, 2) for text in texts]
    for number, own in enumerate(runs):
        index.add(number, own)
    held = word_runs(row, 2)
    wanted = {number for number, own in enumerate(runs) if own and len(own & held) / len(own) >= overlap}
    found = index.candidates(held)
    assert wanted <= set(found)
    assert found == sorted(set(found))
    assert all(runs[number] & held for number in found), "a text without a shared run is no candidate"


def test_a_wording_that_all_texts_share_leads_to_none_of_them():
    index = RunIndex(0.8)
    common = [f"common {number}" for number in range(6)]
    for number in range(1000):
        index.add(number, {*common, *(f"own {number} {at}" for at in range(4))})
    assert index.candidates(common) == []
    assert index.candidates({*common, *(f"own 7 {at}" for at in range(4))}) == [7]


def test_of_texts_that_a_row_holds_equally_the_first_is_named():
    shared = "one two three four five six seven eight nine ten"
    texts = [TestText("a", f"{shared} eleven twelve"), TestText("b", shared), TestText("c", shared + "!")]
    query = f"please {shared} and quite a lot of further words that make the query another one"
    row = Candidate(id="row", query=query, plan=[], family="f", source="s")
    with Decontaminator([Benchmark("named", texts)], DecontaminateConfig(), seed=0) as decontaminator:
        [removal] = decontaminator.decide([row])
    assert removal is not None
    assert (removal.text_id, removal.match, removal.similarity) == ("b", Match.HOLDS, 1.0)
