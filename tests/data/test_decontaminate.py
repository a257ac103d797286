"""Test texts stay out of training: equal, nearly equal, inside longer queries; test rows always stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract.errors import MissingExtraError
from plansmith.contract.records import Candidate, Example, Split
from plansmith.data import decontaminate, near
from plansmith.data.decontaminate import (
    Benchmark,
    ContaminationCounts,
    Decontaminator,
    Match,
    Removal,
    TestText,
    own_tests,
)
from plansmith.data.dedupe_config import DecontaminateConfig, NearRule

ASK = "Please tell me what the weather will be like in {} on Friday morning, and whether I need a coat."
LISBON = ASK.format("Lisbon")


def plan(city: str) -> list[dict[str, Any]]:
    return [{"type": "weather", "args": {"city": city}}]


def example(row_id: str, query: str, city: str = "Lisbon", split: Split = Split.TRAIN, part: str = "") -> Example:
    return Example(
        id=row_id,
        query=query,
        plan=plan(city),
        family="weather",
        source="test",
        split=split,
        part=part or split.value,
    )


def decided(
    rows: list[Example], *benchmarks: Benchmark, **config: Any
) -> tuple[list[Removal | None], ContaminationCounts]:
    with Decontaminator(benchmarks, DecontaminateConfig(**config), seed=1) as decontaminator:
        return decontaminator.decide(rows), decontaminator.counts


def test_each_kind_of_repetition_is_named_with_its_benchmark_and_text():
    benchmark = Benchmark("bfcl", ["Something else entirely", TestText("simple_7", LISBON)])
    rows = [
        example("equal", "  " + LISBON.upper()),
        example("near", LISBON.replace("Please", "So please")),
        example("holds", "First book a table for four at Ristorante Da Mario tonight, and then: " + LISBON),
        example("clean", "What does a taxi from the airport to the old town cost?"),
    ]
    found, counts = decided(rows, benchmark)
    assert [removal and (removal.id, removal.match) for removal in found] == [
        ("equal", Match.EQUAL),
        ("near", Match.NEAR),
        ("holds", Match.HOLDS),
        None,
    ]
    assert {(removal.benchmark, removal.text_id) for removal in found if removal} == {("bfcl", "simple_7")}
    assert [removal.similarity for removal in found if removal][::2] == [1.0, 1.0]
    assert counts.clean == 1
    assert counts.removed == {("bfcl", match): 1 for match in Match}
    assert found[1] is not None
    reject = found[1].reject(rows[1])
    assert (reject.id, reject.reason, reject.plan) == ("near", "contaminated", rows[1].plan)
    assert f"similarity {found[1].similarity:.2f}" in reject.detail
    assert "test text 'simple_7' in 'bfcl'" in reject.detail


def test_test_rows_are_never_removed_and_validation_rows_are():
    tests = [example("t", LISBON, split=Split.TEST, part="seen")]
    reserved = Candidate(id="r", query=LISBON, plan=plan("Lisbon"), family="f", source="s", part="handwritten")
    rows = [*tests, example("v", LISBON, split=Split.VAL), example("x", LISBON)]
    benchmarks = own_tests([*rows, example("h", "Handwritten one", split=Split.TEST, part="handwritten")])
    assert [benchmark.name for benchmark in benchmarks] == ["test handwritten", "test seen"]
    with Decontaminator(benchmarks, DecontaminateConfig(), seed=1) as decontaminator:
        assert [removal is not None for removal in decontaminator.decide([*rows, reserved])] == [
            False,
            True,
            True,
            False,
        ]
        assert decontaminator.counts.protected == 2
        assert decontaminator.counts.removed == {("test seen", Match.EQUAL): 2}


def test_rows_of_a_test_texts_template_with_other_plans_stay_and_are_counted():
    tests = own_tests([example("t", LISBON, split=Split.TEST, part="seen")])
    porto = example("p", ASK.format("Porto"), "Porto")
    found, counts = decided([porto], *tests)
    assert found == [None]
    assert counts.near_with_other_plan == 1
    found, counts = decided([porto], *tests, rule=NearRule.ANY_PLAN)
    assert found[0] is not None
    assert found[0].match is Match.NEAR
    assert counts.near_with_other_plan == 0


def test_texts_without_plans_count_whatever_the_rows_plan_is():
    found, _ = decided([example("p", ASK.format("Porto"), "Porto")], Benchmark("bfcl", [LISBON]))
    assert found[0] is not None
    assert (found[0].match, found[0].text_id) == (Match.NEAR, "0")


def test_an_equal_text_counts_whatever_the_plans_are():
    tests = own_tests([example("t", LISBON, "Lisbon", split=Split.TEST, part="seen")])
    assert decided([example("p", LISBON, "Porto")], *tests)[0][0] is not None


def test_without_a_rule_only_equal_texts_count_and_no_package_is_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(near, "find_spec", lambda _: None)
    rows = [example("1", LISBON), example("2", "So " + LISBON)]
    found, _ = decided(rows, Benchmark("b", [LISBON]), rule=NearRule.OFF)
    assert [removal is not None for removal in found] == [True, False]
    with pytest.raises(MissingExtraError, match=r"plansmith\[data\]"):
        decided(rows, Benchmark("b", [LISBON]))


def test_a_text_with_fewer_words_than_a_run_is_not_looked_for_inside_queries():
    row = example("1", "Book a table, call me a taxi to the station and send the bill to my office, please.")
    assert decided([row], Benchmark("b", ["Call me a taxi"]))[0] == [None]
    assert decided([row], Benchmark("b", ["Call me a taxi"]), words=4)[0] != [None]


def test_the_share_of_runs_decides_and_is_told():
    words = [f"word{at}" for at in range(20)]
    row = example("1", " ".join(["alpha"] * 30 + words[:16] + ["omega"] * 30))
    benchmark = Benchmark("b", [" ".join(words)])
    assert decided([row], benchmark)[0] == [None]
    [removal] = decided([row], benchmark, overlap=0.6)[0]
    assert removal is not None
    assert removal.similarity == 9 / 13


def test_benchmarks_may_be_generators_and_the_first_one_with_the_text_is_named():
    def texts() -> Iterator[str]:
        yield from (f"text number {at}" for at in range(5))

    found, _ = decided([example("1", "Text number 4!")], Benchmark("first", texts()), Benchmark("second", texts()))
    assert found[0] is not None
    assert (found[0].benchmark, found[0].text_id) == ("first", "4")


def test_many_texts_of_one_template_hide_none_of_them():
    """Buckets have a limit: a near copy of the last of 400 alike texts is found all the same."""
    cities = [f"{first}{second}{third}" for first in "bcdfghjk" for second in "aeiou" for third in "lmnprstvxz"]
    texts = [ASK.format(city * 3) for city in cities]
    rows = [
        example(str(at), text.replace("Please", "So please"), city)
        for at, (text, city) in enumerate(zip(texts, cities, strict=True))
    ]
    found, counts = decided(rows, Benchmark("b", texts))
    assert counts.clean == 0
    assert Counter(removal.match for removal in found if removal)[Match.NEAR] == 400


WORDS = ("rain", "wind", "sun", "snow", "fog", "hail")
sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)


@settings(deadline=None)
@given(
    st.lists(st.tuples(sentences, st.sampled_from(["Lisbon", "Porto"]), st.sampled_from(Split)), max_size=20),
    st.lists(sentences, max_size=12),
    st.sampled_from(NearRule),
    st.integers(1, 7),
)
def test_no_answer_depends_on_other_rows_and_the_counts_add_up(
    drawn: list[tuple[str, str, Split]], texts: list[str], rule: NearRule, size: int
):
    rows = [example(str(at), *row) for at, row in enumerate(drawn)]
    benchmarks = [*own_tests(rows), Benchmark("named", texts)]
    found, counts = decided(rows, *benchmarks, rule=rule)
    assert counts.protected == sum(row.split is Split.TEST for row in rows)
    assert counts.protected + counts.clean + counts.removed.total() == len(rows)
    assert counts.removed.total() == sum(removal is not None for removal in found)
    normal = {decontaminate.normalise_query(text) for text in texts}
    for row, removal in zip(rows, found, strict=True):
        assert removal is None or (row.split is not Split.TEST and removal.id == row.id)
        if row.split is not Split.TEST and decontaminate.normalise_query(row.query) in normal:
            assert removal is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decontaminate, "AT_ONCE", size)
        with Decontaminator(benchmarks, DecontaminateConfig(rule=rule), seed=1) as again:
            assert list(again.run(iter(rows))) == list(zip(rows, found, strict=True))
