"""The gate: what passes, what fails, what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plansmith import cli
from plansmith.contract.errors import InputError
from plansmith.contract.records import FinishReason
from plansmith.contract.store import write_rows
from plansmith.eval.columns import Columns
from plansmith.eval.compare import Gate, Limits, compare
from plansmith.eval.items import ScoredItem
from plansmith.eval.metrics import F1S, MEANS, RATES, Counts, FirstFault
from plansmith.eval.score import score_files
from plansmith.eval.sides import ScoredWith, Side, read_side
from plansmith.eval.stats import paired_f1, paired_mean, paired_rate
from tests.eval.cases import CATALOG, plan_of

Captured = pytest.CaptureFixture[str]


def item(index: int | str, right: bool | None, *, system: str = "s", **more: Any) -> ScoredItem:
    """A scored item; `right` is its outcome in every metric that has no outcome of its own in `more`."""
    counts = None if right is None else Counts(1, 0, 0) if right else Counts(0, 1, 1)
    outcomes: dict[str, Any] = dict.fromkeys(RATES, right) | dict.fromkeys(
        MEANS, None if right is None else float(right)
    )
    held: dict[str, Any] = dict.fromkeys(F1S, counts)
    for name in [name for name in more if name in (*RATES, *MEANS, *F1S)]:
        (held if name in F1S else outcomes)[name] = more.pop(name)
    values: dict[str, Any] = {
        "system": system,
        "id": str(index),
        "part": "seen",
        "query": f"query {index}",
        "references": (json.dumps(plan_of(0)),),
        "candidate": "[]",
        "plan": "[]",
        "fault": FirstFault.RIGHT if right else FirstFault.ARGUMENTS,
        "finding": None,
        "finish_reason": FinishReason.STOP,
        "outcomes": outcomes,
        "counts": held,
    }
    return ScoredItem(**(values | more))


def items(outcomes: Sequence[bool | None], **more: Any) -> list[ScoredItem]:
    return [item(index, right, **more) for index, right in enumerate(outcomes)]


def rows(path: Path, found: Sequence[ScoredItem]) -> str:
    write_rows(path, found)
    return str(path)


def share(hits: int, count: int) -> list[bool]:
    return [index < hits for index in range(count)]


def gate(
    folder: Path,
    a: Sequence[ScoredItem],
    b: Sequence[ScoredItem],
    *names: str,
    max_drop: float = 0.02,
    max_unscored: float = 0.0,
    part: str | None = None,
    **more: Any,
) -> Gate:
    wanted = names or ("equivalent",)
    sides = [
        read_side(rows(folder / name, found), names=wanted, part=part)
        for name, found in (("a.jsonl", a), ("b.jsonl", b))
    ]
    return compare(sides[0], sides[1], wanted, Limits(max_drop, max_unscored), resamples=200, **more)


def printed(path: Path, hits: int, count: int, *, unscored: int = 0, **more: Any) -> str:
    """The JSON of `plansmith score` with one metric."""
    metric = {"value": hits / count if count else None, "hits": hits, "scored": count, "unscored": unscored}
    metrics = {"equivalent": {**metric, "low": 0.0, "high": 1.0}}
    score = {"items": count + unscored, "metrics": metrics, "only_in_reference": 0, "only_in_candidate": 0}
    path.write_text(json.dumps(score | more))
    return str(path)


def sides(*given: str, names: Sequence[str] = ("equivalent",), **more: Any) -> tuple[Side, Side]:
    first, second = (read_side(path, names=names, **more) for path in given)
    return first, second


# the drop


def test_a_drop_of_exactly_what_is_allowed_passes_although_floats_cannot_hold_it(tmp_path: Path):
    assert 0.90 - 0.88 > 0.02
    assert gate(tmp_path, items(share(90, 100)), items(share(88, 100))).passed
    assert not gate(tmp_path, items(share(90, 100)), items(share(87, 100))).passed
    pair = sides(printed(tmp_path / "a.json", 90, 100), printed(tmp_path / "b.json", 88, 100))
    assert compare(*pair, ["equivalent"], Limits(0.02)).passed
    assert not compare(*pair, ["equivalent"], Limits(0.0199)).passed


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, 400), st.integers(0, 100))
def test_the_verdict_is_that_of_exact_fractions(tmp_path: Path, data: st.DataObject, count: int, hundredths: int):
    first, second = (data.draw(st.integers(0, count)) for _ in range(2))
    pair = sides(printed(tmp_path / "a", first, count), printed(tmp_path / "b", second, count))
    found = compare(*pair, ["equivalent"], Limits(hundredths / 100))
    assert found.passed == (Fraction(first - second, count) <= Fraction(hundredths, 100))


def test_a_better_system_passes_with_nothing_allowed(tmp_path: Path):
    found = gate(tmp_path, items(share(3, 10)), items(share(9, 10)), max_drop=0)
    assert found.passed
    assert (found.checks[0].drop, found.checks[0].only_a, found.checks[0].only_b) == (pytest.approx(-0.6), 0, 6)


@pytest.mark.parametrize("name", ["repaired", "abstained_wrong"])
def test_where_lower_is_better_a_rise_is_a_drop(tmp_path: Path, name: str):
    worse = gate(tmp_path, items(share(0, 10)), items(share(5, 10)), name)
    assert not worse.passed
    assert (worse.checks[0].drop, worse.checks[0].a, worse.checks[0].b) == (0.5, 0.0, 0.5)
    assert worse.checks[0].low is not None
    assert worse.checks[0].low > 0
    assert gate(tmp_path, items(share(5, 10)), items(share(0, 10)), name).passed


def test_pairs_are_compared_by_id_with_interval_and_test_whatever_their_order(tmp_path: Path):
    rng = random.Random(3)
    outcomes = [(rng.random() < 0.7, rng.random() < 0.6) for _ in range(80)]
    a, b = items([x for x, _ in outcomes]), items([y for _, y in outcomes])
    wanted = ("equivalent", "nestful_partial_match", "worker_f1")
    found = gate(tmp_path, a, rng.sample(b, len(b)), *wanted, max_drop=1)
    expected = [
        paired_rate(*zip(*outcomes, strict=True), seed=0, resamples=200),
        paired_mean([float(x) for x, _ in outcomes], [float(y) for _, y in outcomes], seed=0, resamples=200),
        paired_f1(
            [one.counts["worker_f1"] or Counts(0, 0, 0) for one in a],
            [one.counts["worker_f1"] or Counts(0, 0, 0) for one in b],
            seed=0,
            resamples=200,
        ),
    ]
    for check, difference in zip(found.checks, expected, strict=True):
        assert check.drop == pytest.approx(-difference.difference)
        assert (check.low, check.high) == pytest.approx((-difference.high, -difference.low))
        assert (check.p_value, check.only_a, check.only_b) == (difference.p_value, *difference[4:6])
        assert check.scored == 80
        assert check.a is not None
        assert check.b is not None
        assert check.a - check.b == pytest.approx(check.drop)


def test_all_metrics_must_pass_and_each_says_why(tmp_path: Path):
    b = [item(index, True, exact=index > 0) for index in range(10)]
    found = gate(tmp_path, items(share(10, 10)), b, "equivalent", "exact", "equivalent")
    assert [(check.metric, check.passed) for check in found.checks] == [("equivalent", True), ("exact", False)]
    assert not found.passed
    assert "dropped by 0.1000; 0.02 is allowed; no difference shown" in found.checks[1].reason


def test_a_difference_that_is_shown_is_called_so(tmp_path: Path):
    found = gate(tmp_path, items(share(40, 40)), items(share(10, 40)), "equivalent", "argument_f1")
    assert all("a difference is shown" in check.reason for check in found.checks)


# what could not be scored


def test_items_without_reference_on_both_sides_do_not_count_as_unscored(tmp_path: Path):
    found = gate(tmp_path, items([True, True, None]), items([True, True, None]))
    assert found.passed
    assert (found.checks[0].scored, found.checks[0].unscored) == (2, 0)


def test_items_scored_on_one_side_only_fail_the_gate_unless_allowed_and_are_left_out_of_the_values(tmp_path: Path):
    a, b = items([True, False, None, True]), items([True, None, True, True])
    found = gate(tmp_path, a, b)
    assert (found.passed, found.checks[0].unscored, found.checks[0].scored) == (False, 2, 2)
    assert "2 of 4 items (50.00%) could not be scored" in found.checks[0].reason
    assert gate(tmp_path, a, b, max_unscored=0.5).passed
    assert not gate(tmp_path, a, b, max_unscored=0.49).passed
    assert (found.checks[0].a, found.checks[0].b) == (1.0, 1.0)


def test_failed_requests_of_either_side_fail_the_gate_and_are_counted(tmp_path: Path):
    failed: dict[str, Any] = {"candidate": None, "plan": None, "finish_reason": FinishReason.ERROR}
    whole, broken = items(share(10, 10)), [*items(share(9, 9)), item(9, False, **failed)]
    for a, b, name in ((whole, broken, "B"), (broken, whole, "A")):
        found = gate(tmp_path, a, b, max_drop=0.5)
        assert (found.passed, found.checks[0].unscored) == (False, 1)
        assert any(f"1 requests of {name} failed" in note for note in found.notes)
        assert gate(tmp_path, a, b, max_drop=0.5, max_unscored=0.1).passed


def test_answers_that_a_lacks_fail_the_gate_and_those_that_b_lacks_are_its_misses(tmp_path: Path):
    missing: dict[str, Any] = {"candidate": None, "plan": None, "finish_reason": None}
    whole, lacking = items(share(10, 10)), [*items(share(9, 9)), item(9, False, **missing)]
    assert not gate(tmp_path, lacking, whole).passed
    found = gate(tmp_path, whole, lacking, max_drop=0.1)
    assert (found.passed, found.checks[0].drop, found.checks[0].unscored) == (True, pytest.approx(0.1), 0)
    assert any("B has no answer to 1 items" in note for note in found.notes)


def test_a_metric_scored_nowhere_is_refused_and_one_scored_nowhere_in_common_fails(tmp_path: Path):
    with pytest.raises(InputError, match="no item could be scored in 'grounded'"):
        gate(tmp_path, items([None, None]), items([None, None]), "grounded")
    found = gate(tmp_path, items([True, True]), items([None, None]), max_drop=1, max_unscored=1)
    assert (found.passed, found.checks[0].drop, found.checks[0].reason) == (
        False,
        None,
        "no item was scored on both sides",
    )


# which items


def test_other_items_queries_or_references_are_refused_with_counts_and_left_out_where_allowed(tmp_path: Path):
    a = items(share(6, 6))
    b = [*items(share(2, 2)), item(2, True, query="another"), item(3, False, references=("[]",)), *items([False])]
    b[4] = item("other", False)
    with pytest.raises(InputError, match="2 items only in A, 1 only in B, 2 with another query") as caught:
        gate(tmp_path, a, b)
    assert "2 are the same" in str(caught.value)
    found = gate(tmp_path, a, b, allow_different_items=True)
    assert (found.passed, found.items, found.checks[0].b) == (True, 2, 1.0)
    assert any("2 items only in A, 1 only in B" in note for note in found.notes)
    with pytest.raises(InputError, match="no item in common"):
        gate(tmp_path, a[5:], b, allow_different_items=True)


def test_the_order_of_several_right_plans_and_an_absent_query_do_not_make_another_item(tmp_path: Path):
    a = [item(0, True, references=("[]", "[1]")), item(1, True)]
    b = [item(0, True, references=("[1]", "[]")), item(1, True, query="")]
    assert gate(tmp_path, a, b).items == 2


def test_one_system_of_several_is_named_after_a_colon_or_by_itself(tmp_path: Path):
    both = [*items(share(9, 10), system="base/free"), *items(share(2, 10), system="tuned/free")]
    path = rows(tmp_path / "a:b.jsonl", both)
    with pytest.raises(InputError, match=r"several systems.*'base/free', 'tuned/free'"):
        read_side(path, names=["equivalent"])
    with pytest.raises(InputError, match="no items of the system 'tuned'"):
        read_side(f"{path}:tuned", names=["equivalent"])
    pair = sides(f"{path}:base/free", f"{path}:tuned/free")
    assert compare(*pair, ["equivalent"], Limits(0.1)).checks[0].drop == pytest.approx(0.7)
    named = read_side(path, names=["equivalent"], system="tuned/free")
    assert (named.label, named.items) == (f"{path}:tuned/free", 10)
    with pytest.raises(InputError, match="keep one"):
        read_side(f"{path}:base/free", names=["equivalent"], system="tuned/free")


def test_parts_are_compared_apart_and_further_samples_are_left_aside(tmp_path: Path):
    a = [*items(share(4, 4)), *(item(f"u{i}", True, part="unseen") for i in range(4))]
    b = [*items(share(4, 4)), *(item(f"u{i}", i > 1, part="unseen") for i in range(4)), item(0, False, sample=1)]
    assert not gate(tmp_path, a, b, part="unseen", max_drop=0.3).passed
    seen = gate(tmp_path, a, b, part="seen")
    assert (seen.passed, seen.items) == (True, 4)
    assert any("1 are left aside" in note for note in seen.notes)
    with pytest.raises(InputError, match="no items of the part 'other'; its parts: 'seen', 'unseen'"):
        gate(tmp_path, a, b, part="other")


def test_a_run_directory_is_read_and_runs_for_other_catalogs_are_refused(tmp_path: Path):
    for name, count, catalog in (("one", 10, "c" * 64), ("two", 9, "c" * 64), ("three", 9, "d" * 64)):
        rows(tmp_path / name / "eval" / "items.jsonl", items(share(count, 10)))
        suites = [{"name": "plain", "catalog_hash": catalog, "parts": ["seen"], "items": 10}]
        (tmp_path / name / "report.json").write_text(json.dumps({"version": 2, "suites": suites}))
    one, two, three = (str(tmp_path / name) for name in ("one", "two", "three"))
    assert compare(*sides(one, two), ["equivalent"], Limits(0.1)).passed
    with pytest.raises(InputError, match=r"dddd.*cccc"):
        compare(*sides(one, three), ["equivalent"], Limits(0.1))
    (tmp_path / "three" / "report.json").write_text("{")
    assert compare(*sides(one, three), ["equivalent"], Limits(0.1)).passed
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no eval/items\.jsonl: run `plansmith eval`"):
        read_side(str(tmp_path / "empty"), names=["equivalent"])


def test_items_of_variants_are_compared_only_where_their_part_is_asked_for(tmp_path: Path):
    changed = [item(f"{index}@renamed", index > 1, part="renamed") for index in range(4)]
    a, b = items(share(4, 4)), [*items(share(4, 4)), *changed]
    plain = gate(tmp_path, a, b)
    assert (plain.passed, plain.items) == (True, 4)
    assert any("4 items of variants are left aside" in note for note in plain.notes)
    assert gate(tmp_path, [*a, *changed], b, part="renamed").items == 4
    with pytest.raises(InputError, match="no items of the part 'renamed'; its parts: 'seen'"):
        gate(tmp_path, a, b, part="renamed")


# files of plans and printed scores


def files(folder: Path) -> tuple[str, str, str]:
    """References, and two files of candidates of which the second has one answer less right."""
    names = ("r.jsonl", "old.jsonl", "new.jsonl")
    with (folder / names[0]).open("w") as right:
        right.writelines(json.dumps({"id": i, "plan": plan_of(i), "part": f"p{i % 2}"}) + "\n" for i in range(20))
    for name, wrong in ((names[1], {3}), (names[2], {4, 5})):
        with (folder / name).open("w") as given_rows:
            for i in reversed(range(20)):
                given_rows.write(json.dumps({"id": i, "plan": plan_of(i + 100 * (i in wrong))}) + "\n")
    reference, old, new = (str(folder / name) for name in names)
    return reference, old, new


def test_files_of_plans_items_and_printed_scores_give_the_same_values_in_any_combination(tmp_path: Path):
    reference, old, new = files(tmp_path)
    given: dict[str, tuple[str, str]] = {"plans": (old, new), "items": ("", ""), "printed": ("", "")}
    for position, path in enumerate((old, new)):
        found = score_files(CATALOG, reference, path, by_part=True, items=f"{path}.items", system="x", resamples=50)
        Path(f"{path}.json").write_text(json.dumps(found.to_json(), indent=2 * position))
    given["items"] = (f"{old}.items", f"{new}.items:x")
    given["printed"] = (f"{old}.json", f"{new}.json")
    for first in given.values():
        for second in given.values():
            for part, drop in ((None, 0.05), ("p0", 0.1), ("p1", 0.0)):
                pair = sides(
                    first[0],
                    second[1],
                    names=("exact", "worker_f1"),
                    part=part,
                    scored_with=ScoredWith(CATALOG, reference),
                )
                found = compare(*pair, ("exact", "worker_f1"), Limits(0.05), resamples=50)
                assert found.checks[0].drop == pytest.approx(drop)
                assert found.checks[1].drop == pytest.approx(0)
                assert found.passed == (part != "p0")
                paired = all(isinstance(side.scores, Columns) for side in pair)
                assert found.paired == paired == (found.checks[0].p_value is not None)
                assert paired or any("whether the items are the same cannot be seen" in note for note in found.notes)


def test_files_of_plans_need_catalog_and_references(tmp_path: Path):
    _, old, _ = files(tmp_path)
    with pytest.raises(InputError, match="not scored yet: give --catalog and --reference"):
        read_side(old, names=["exact"])
    with pytest.raises(InputError, match="leave 'x' away"):
        read_side(f"{old}:x", names=["exact"], scored_with=ScoredWith(CATALOG, "r"))


def test_printed_scores_over_other_numbers_of_items_are_refused_unless_allowed(tmp_path: Path):
    pair = sides(printed(tmp_path / "a", 9, 10), printed(tmp_path / "b", 9, 9))
    with pytest.raises(InputError, match="A has 10 items, B has 9"):
        compare(*pair, ["equivalent"], Limits(0))
    found = compare(*pair, ["equivalent"], Limits(0), allow_different_items=True)
    assert found.passed
    assert any("not over the same items" in note for note in found.notes)


def test_printed_scores_with_other_counts_of_unscored_or_a_lacking_answers_fail(tmp_path: Path):
    pair = sides(printed(tmp_path / "a", 8, 10), printed(tmp_path / "b", 8, 8, unscored=2))
    assert compare(*pair, ["equivalent"], Limits(0)).checks[0].unscored == 2
    assert not compare(*pair, ["equivalent"], Limits(0)).passed
    assert compare(*pair, ["equivalent"], Limits(0, 0.2)).passed
    lacking = sides(printed(tmp_path / "a", 8, 10, only_in_reference=1), printed(tmp_path / "b", 8, 10))
    assert not compare(*lacking, ["equivalent"], Limits(0)).passed
    assert compare(*reversed(lacking), ["equivalent"], Limits(0)).passed


@pytest.mark.parametrize(
    "change",
    [
        {"value": 0.95},
        {"value": 1.5},
        {"value": None},
        {"value": "0.9"},
        {"hits": 11},
        {"hits": -1},
        {"hits": True},
        {"scored": 12},
        {"unscored": 3},
        {"more": 1},
    ],
)
def test_printed_numbers_that_contradict_each_other_are_refused(tmp_path: Path, change: dict[str, Any]):
    path = printed(tmp_path / "a.json", 9, 10)
    score = json.loads(Path(path).read_text())
    score["metrics"]["equivalent"] |= change
    Path(path).write_text(json.dumps(score))
    with pytest.raises(InputError, match=r"a\.json"):
        read_side(path, names=["equivalent"])


def test_metrics_and_parts_that_a_printed_score_lacks_are_refused(tmp_path: Path):
    path = printed(tmp_path / "a", 9, 10)
    with pytest.raises(InputError, match="no metric 'exact'"):
        read_side(path, names=["exact"])
    with pytest.raises(InputError, match="printed without --by-part"):
        read_side(path, names=["equivalent"], part="seen")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outcomes": {"equivalent": 0.5}}, "no outcome of the metric 'equivalent'"),
        ({"outcomes": {"equivalent": "yes"}}, "no scored item"),
        ({"outcomes": {}}, "no 'equivalent'"),
        ({"extra": 1}, "no scored item"),
        ({"version": 2}, "no scored item"),
        ({"id": "0"}, "twice"),
    ],
)
def test_broken_items_are_refused_with_their_place(tmp_path: Path, change: dict[str, Any], reason: str):
    good, bad = (json.loads(item(index, True).model_dump_json()) for index in range(2))
    (tmp_path / "a.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(bad | change))
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: ") as caught:
        read_side(str(tmp_path / "a.jsonl"), names=["equivalent"])
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [("worker_f1", [1, 0, 0], True), ("worker_f1", [1, -1, 0], False), ("nestful_partial_match", 1.5, False)],
)
def test_counts_and_means_must_be_in_their_range(tmp_path: Path, name: str, value: Any, fits: bool):
    path = rows(tmp_path / "a.jsonl", [item(0, True, **{name: value})])
    if fits:
        assert read_side(path, names=[name]).items == 1
        return
    with pytest.raises(InputError, match="no outcome of the metric"):
        read_side(path, names=[name])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.text(max_size=40),
        st.dictionaries(
            st.sampled_from(["id", "outcomes", "metrics", "items", "text", "system", "only_in_reference"]),
            st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
        ).map(json.dumps),
    )
)
def test_any_file_is_read_or_refused(tmp_path: Path, content: str):
    (tmp_path / "any").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError):
        read_side(str(tmp_path / "any"), names=["equivalent"])


@pytest.mark.parametrize(
    "limits", [(-0.01, 0), (float("nan"), 0), (float("inf"), 0), (2, 0), (0, -1), (0, float("nan"))]
)
def test_limits_that_are_no_shares_are_refused(tmp_path: Path, limits: tuple[float, float]):
    pair = sides(printed(tmp_path / "a", 9, 10), printed(tmp_path / "b", 9, 10))
    with pytest.raises(InputError, match="must be a share from 0 to 1"):
        compare(*pair, ["equivalent"], Limits(*limits))


# the command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "compare", "the gate")


@pytest.mark.usefixtures("command")
def test_the_command_says_its_verdict_by_exit_code_table_and_json(tmp_path: Path, capsys: Captured):
    a, b = rows(tmp_path / "a.jsonl", items(share(90, 100))), rows(tmp_path / "b.jsonl", items(share(87, 100)))
    assert cli.main(["compare", a, b, "--max-drop", "0.03"]) == 0
    assert "gate: pass" in capsys.readouterr().out
    assert cli.main(["compare", a, b, "--max-drop", "0.02", "--metric", "exact", "--metric", "worker_f1"]) == 1
    out = capsys.readouterr().out
    assert "exact: FAIL: dropped by 0.0300; 0.02 is allowed" in out
    assert "gate: FAIL" in out
    assert cli.main(["compare", a, b, "--max-drop", "0.02", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["paired"], found["items"]) == (False, True, 100)
    assert found["metrics"]["equivalent"]["drop"] == pytest.approx(0.03)


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--max-drop", "nan"], "--max-drop must be a share"),
        (["--max-drop", "-0.1"], "--max-drop must be a share"),
        (["--max-drop", "2"], "--max-drop must be a share"),
        (["--max-drop", "0", "--max-unscored", "5"], "--max-unscored must be a share"),
        (["--max-drop", "0", "--metric", "accuracy"], "'accuracy' is no metric; expected one of: parsed"),
        (["--max-drop", "0", "--catalog", "c.json"], "--catalog and --reference together"),
        (["--max-drop", "0", "--part", "x"], "no items of the part 'x'"),
    ],
)
def test_the_command_refuses_what_it_cannot_use(tmp_path: Path, capsys: Captured, more: list[str], reason: str):
    path = rows(tmp_path / "a.jsonl", items(share(9, 10)))
    assert cli.main(["compare", path, path, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err


@pytest.mark.usefixtures("command")
def test_the_command_scores_files_of_plans(tmp_path: Path, capsys: Captured):
    reference, old, new = files(tmp_path)
    CATALOG.save(tmp_path / "catalog.json")
    scored_with = ["--catalog", str(tmp_path / "catalog.json"), "--reference", reference]
    assert cli.main(["compare", old, new, "--max-drop", "0.04", *scored_with]) == 1
    assert cli.main(["compare", old, new, "--max-drop", "0.05", *scored_with]) == 0
    assert cli.main(["compare", old, old, "--max-drop", "0", *scored_with]) == 0
    assert "A and B are the same" in capsys.readouterr().err
