"""The page's text and data: what is embedded, how plans face each other, and that no text of a model is markup."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.errors import InputError
from plansmith.contract.plan import Plan
from plansmith.eval import html as page_module
from plansmith.eval.html import content_policy, html, number, safe_json, size, visible, write_html
from plansmith.eval.html_items import (
    MAX_PLAN,
    MAX_STEPS,
    MAX_TEXT,
    MAX_VALUE,
    PageAnswer,
    embed,
    page_plan,
    value_parts,
)
from plansmith.eval.html_plots import measures, parts_of, plots
from plansmith.eval.html_text import FAULTS, LOWER_IS_BETTER, MEANING
from plansmith.eval.metrics import METRICS, FirstFault
from tests.eval.pages import HUGE, IMAGE, SCRIPT, Evaluation, chain, evaluation, many, quote


@pytest.fixture(scope="module")
def trial() -> Evaluation:
    return evaluation()


@pytest.fixture(autouse=True)
def _short_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plots' library takes seconds to bundle; the tests with a browser use the real one."""
    monkeypatch.setattr(page_module, "_library", lambda: "/* library */")


def page(trial: Evaluation, **options: Any) -> str:
    return html(trial.report, trial.items, catalogs=trial.catalogs, **options)


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def answer(trial: Evaluation, item: str, system: str = "small") -> PageAnswer:
    found = {row.id: row for row in embed(trial.items, max_items=2000).items}
    return next(given for given in found[item].answers if given.system == system)


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_loads_nothing_and_runs_only_its_own_scripts(trial: Evaluation):
    text = page(trial)
    elements = Elements(text).found
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert (len(scripts), len(styles)) == (2, 1)
    assert content_policy(scripts, styles) == policy
    links = [value for _, a in elements for key in ("src", "href", "action") if (value := a.get(key)) is not None]
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not any(name.startswith("on") or name == "style" for _, a in elements for name in a)


def test_what_models_and_catalogs_say_is_never_markup(trial: Evaluation):
    hostile = evaluation(name=f"{IMAGE}{SCRIPT}")
    for text in (page(trial), page(hostile)):
        tags = [tag for tag, _ in Elements(text).found]
        assert "img" not in tags
        assert tags.count("script") == 3
        assert "pwned" in text
        rows = {item["id"]: item for item in data_of(text)["items"]}
        assert SCRIPT in rows["item-1"]["query"]


@given(st.recursive(st.text() | st.integers(), st.lists, max_leaves=8))
def test_embedded_json_holds_any_text_and_ends_no_element(value: Any):
    text = safe_json(value)
    assert not set("<>&\u2028\u2029\u202e") & set(text)
    assert text.encode()
    assert json.loads(text) == value


def test_embedded_json_holds_lone_surrogates_and_null_bytes():
    value = ["\ud800", "\x00", "\udfff\u2028</script><!--"]
    text = safe_json(value)
    assert text.encode()
    assert "</" not in text
    assert "<!--" not in text
    assert json.loads(text) == value


def test_control_characters_of_names_are_shown_by_number(trial: Evaluation):
    assert visible("a\u202eb\x00\ud800") == "a⟨U+202E⟩b⟨U+0000⟩⟨U+D800⟩"
    assert "a⟨U+202E⟩b" in page(evaluation(name="a\u202eb"))


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(page_module, "find_spec", lambda name: None if name == "vl_convert" else object())
    with pytest.raises(InputError, match=r"'vl_convert'.*pip install 'plansmith\[report\]'"):
        write_html(evaluation().report, [], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_every_metric_and_fault_has_its_words():
    assert set(MEANING) == set(METRICS)
    assert next(iter(FAULTS)) is FirstFault.RIGHT
    assert set(FAULTS) == set(FirstFault)
    assert set(METRICS) > LOWER_IS_BETTER


def test_tables_say_what_the_report_says(trial: Evaluation):
    text = page(trial)
    metric = trial.report.systems[0].parts["overall"].metrics["equivalent"]
    assert metric.value is not None
    assert f'<span class="value">{100 * metric.value:.1f}</span>' in text
    assert f'title="{metric.hits} of {metric.scored}, 0 not scored"' in text
    assert parts_of(trial.report) == ["overall", "seen", "unseen", "renamed"]
    for words in (
        "Teacher and student",
        "Against the teacher" if len(trial.report.headline) > 1 else "against the teacher",
    ):
        assert words in text
    for words in ("Peak memory", "Plans a second", "A solved query, USD", "under another catalog"):
        assert words in text


def test_what_a_report_does_not_have_is_not_shown():
    text = page(evaluation(teacher=None, variants=False))
    for words in (
        "Teacher",
        "Peak memory",
        "Plans a second",
        "A solved query",
        "under another catalog",
        "points</span>",
    ):
        assert words not in text.split('<script type="application/json"')[0]


def test_a_report_without_any_answer_makes_a_page(trial: Evaluation):
    empty = trial.report.model_copy(
        update={"systems": (), "comparisons": (), "variants": (), "teacher": None, "headline": ()}
    )
    text = html(empty, [])
    assert data_of(text)["items"] == []
    assert data_of(text)["plots"] == []


def test_steps_face_each_other_and_differences_are_named_by_argument(trial: Evaluation):
    found = answer(trial, "item-0")
    assert [(pair.reference, pair.candidate, pair.changed) for pair in found.pairs] == [
        (0, 0, ()),
        (1, 1, ("target",)),
        (2, 2, ()),
        (3, 3, ()),
    ]
    assert found.plan is not None
    assert found.plan.steps[3].worker == "sned"


def test_a_reference_to_another_step_is_a_difference(trial: Evaluation):
    found = answer(trial, "item-4")
    assert found.pairs[1].changed == ("amount",)
    assert found.plan is not None
    assert [(e.source, e.target, e.label) for e in found.plan.edges] == [(1, 1, "amount")]


def test_a_step_too_many_stands_on_its_own_line(trial: Evaluation):
    lines = [(pair.reference, pair.candidate) for pair in answer(trial, "item-4", "large").pairs]
    assert lines == [(0, 0), (1, 1), (None, 2)]
    lines = [(pair.reference, pair.candidate) for pair in answer(trial, "item-8").pairs]
    assert lines == [(0, None), (1, 0)]


def test_right_answers_have_no_difference(trial: Evaluation):
    for item in embed(trial.items, max_items=2000).items:
        for given_answer in item.answers:
            if given_answer.fault is FirstFault.RIGHT:
                assert all(not pair.changed and not pair.after_differs for pair in given_answer.pairs)
                assert all(pair.reference is not None and pair.candidate is not None for pair in given_answer.pairs)


def test_a_plan_keeps_its_dependencies_and_the_kind_of_its_numbers():
    plan = page_plan(Plan.from_json(chain("A", "EUR")))
    assert [(e.source, e.target, e.kind.value, e.label) for e in plan.edges] == [
        (0, 1, "reference", "amount"),
        (0, 1, "reference", "source"),
        (1, 3, "reference", "text"),
        (2, 3, "after", ""),
    ]
    assert value_parts([1, 1.0, {"$from": "/0/a"}, "x"]) == ("[1, 1.0, ", ("/0/a",), ', "x"]')
    assert value_parts({"$literal": {"$from": "/0/a"}}) == ('{"$literal":{"$from":"/0/a"}}',)


def test_a_plan_whose_arguments_are_one_reference_can_be_drawn():
    plan = page_plan(Plan.from_json([quote("A"), {"type": "quote", "args": {"$from": "/0"}}]))
    assert [(e.source, e.target, e.label) for e in plan.edges] == [(0, 1, "args")]


def test_a_large_answer_is_cut_and_the_cut_is_told(trial: Evaluation):
    found = answer(trial, "item-3")
    assert (len(found.text or ""), found.length) == (MAX_TEXT, len(HUGE))
    assert found.plan is not None
    assert sum(map(len, found.plan.steps[0].args[0][1])) <= MAX_VALUE + 1
    many_steps = page_plan(Plan.from_json([quote("A")] * 10_000))
    assert (len(many_steps.steps), many_steps.cut) == (MAX_STEPS, 10_000 - MAX_STEPS)
    wide = page_plan(Plan.from_json([{"type": "q", "args": {str(i): "v" * 300 for i in range(20)}}] * 5))
    assert len(json.dumps(wide.model_dump())) < 2 * MAX_PLAN
    assert wide.cut == 4


def test_all_answers_to_an_item_are_embedded_together_and_every_fault_of_every_system_has_its_turn():
    items = many(3000)
    found = embed(items, max_items=201)
    assert found.answers == 200
    assert all(len(item.answers) == 2 for item in found.items)
    kinds = {(a.system, a.fault) for item in found.items for a in item.answers}
    assert kinds >= {("a", fault) for fault in FirstFault} | {("b", FirstFault.UNPARSEABLE)}
    assert found.total == 6000
    assert sum(found.left_out.values()) == found.total - found.answers


def test_wrong_answers_come_before_right_ones():
    found = embed(many(2000, ["a"]), max_items=30)
    wrong = [any(a.fault is not FirstFault.RIGHT for a in item.answers) for item in found.items]
    assert wrong == sorted(wrong, reverse=True)
    assert 14 <= sum(wrong) < 30


def test_further_samples_of_an_item_are_no_answers_of_the_page(trial: Evaluation):
    again = [item.model_copy(update={"sample": 1}) for item in trial.items]
    assert embed([*trial.items, *again], max_items=2000) == embed(trial.items, max_items=2000)
    assert measures([*trial.items, *again]) == measures(trial.items)


def test_one_hundred_thousand_items_make_a_page_that_says_what_it_leaves_out(trial: Evaluation):
    items = many(50_000)
    started = time.perf_counter()
    text = html(trial.report, items, max_items=2000)
    assert time.perf_counter() - started < 30
    assert len(text) < 4_000_000
    assert "2,000 of 100,000 answers are in this page" in text
    assert "eval/items.jsonl" in text
    assert len(data_of(text)["items"]) == 1000


def test_plots_are_made_of_the_reports_numbers(trial: Evaluation):
    drawn = {plot.id: plot for plot in plots(trial.report, measures(trial.items), METRICS)}
    assert list(drawn) == ["accuracy", "faults", "latency", "cost"]
    faults = drawn["faults"].choices[0].spec["data"]["values"]
    assert sum(row["share"] for row in faults) == pytest.approx(2)
    names = [choice.label for choice in drawn["cost"].choices]
    assert {"price of a solved query", "peak memory (bytes)", "model (bytes)"} < set(names)
    rows = next(c for c in drawn["accuracy"].choices if c.label == "equivalent").spec["data"]["values"]
    row = next(r for r in rows if (r["part"], r["system"]) == ("unseen", "large"))
    metric = trial.report.systems[[s.system for s in trial.report.systems].index("large")].parts["unseen"].metrics
    assert (row["value"], row["low"], row["high"]) == tuple(
        getattr(metric["equivalent"], k) for k in ("value", "low", "high")
    )
    for plot in drawn.values():
        assert all(choice.spec["width"] == "container" for choice in plot.choices)


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "–"), (21.0, "21"), (20.96, "21.0"), (0.0312, "0.0312"), (123456.7, "123,457"), (128, "128")],
)
def test_numbers_have_three_digits_that_count(value: float | None, words: str):
    assert number(value) == words


def test_bytes_are_told_in_words():
    assert [size(v) for v in (None, 900, 2**20, 17.2 * 2**30)] == ["–", "900 B", "1 MiB", "17.2 GiB"]
    assert [size(v * 2**20) for v in (999.4, 1020)] == ["999 MiB", "0.996 GiB"]
