"""The report: counts, tables and files."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plansmith.contract.records import Example, FinishReason, Run
from plansmith.eval.metrics import MAIN_METRICS, METRICS, FirstFault
from plansmith.eval.provenance import code_version, machine_description
from plansmith.eval.render import markdown, terminal_table
from plansmith.eval.report import build_report, write_report
from plansmith.eval.results import Report, ReportMeta
from plansmith.eval.scoring import score_runs
from plansmith.eval.suites import Suite
from tests.eval.cases import CATALOG, EXAMPLES, RIGHT, run

META = ReportMeta(
    name="trial_1",
    seed=1,
    resamples=1000,
    code_version="0.1.0",
    machine="a machine",
    command="plansmith eval",
    data_hashes={"test.jsonl": "ab" * 32},
    left_out={"seen": 3},
)


def rows() -> list[Run]:
    base = [run(e, "base/free", "nothing ``` | here") for e in EXAMPLES]
    tuned = [run(e, "tuned/free", RIGHT[e.query]) for e in EXAMPLES[:3]]
    tuned.append(run(EXAMPLES[3], "tuned/free", '[{"type":"qoute","args":{}}]', completion_tokens=40, seconds=1.5))
    tuned.append(run(EXAMPLES[4], "tuned/free", "", error="no planner", completion_tokens=0, seconds=0.0))
    return [*tuned, *base]


def report_of(runs: Sequence[Run], examples: Sequence[Example] = EXAMPLES, *further: Suite, **options: Any) -> Report:
    suites = [Suite("plain", CATALOG, tuple(examples)), *further]
    scored = score_runs(runs, suites)
    return build_report(scored.items, suites, left_aside=scored.left_aside, **({"meta": META} | options))


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(rows())


def test_all_items_are_in_the_denominators_whatever_came_back(report: Report):
    assert [system.system for system in report.systems] == ["base/free", "tuned/free"]
    for system in report.systems:
        for part, items in (("seen", 4), ("handwritten", 2), ("overall", 6)):
            numbers = system.parts[part]
            assert numbers.items == items
            assert sum(numbers.first_faults.values()) == items
            assert set(numbers.metrics) == set(METRICS)
            assert all(numbers.metrics[name].scored == items for name in MAIN_METRICS)
            assert all(m.scored + m.unscored == items for m in numbers.metrics.values())


def test_missing_and_failed_items_are_misses_and_named(report: Report):
    tuned = report.systems[1].parts["overall"]
    assert (tuned.missing, tuned.failed, tuned.cut) == (1, 1, 0)
    hits = {name: tuned.metrics[name].hits for name in MAIN_METRICS}
    assert hits == dict.fromkeys(MAIN_METRICS, 3) | {"parsed": 4}
    assert tuned.metrics["worker_f1"].value == pytest.approx(6 / (6 + 1 + 3))
    assert tuned.first_faults[FirstFault.UNPARSEABLE] == 2
    assert tuned.first_faults[FirstFault.UNREGISTERED] == 1
    assert [f.finding and f.finding[:16] for f in report.systems[1].failures] == [
        "unknown_worker: ",
        "the request fail",
        "there is no row ",
    ]


def test_text_of_a_failed_request_is_no_answer():
    rows = [run(e, "tuned/free", RIGHT[e.query], error="connection lost") for e in EXAMPLES]
    numbers = report_of(rows).systems[0].parts["overall"]
    assert numbers.failed == 6
    assert all(metric.hits == 0 for metric in numbers.metrics.values())


def test_costs_hold_failed_requests(report: Report):
    cost = report.systems[1].parts["overall"].cost
    assert (cost.requests, cost.completion_tokens.total, cost.completion_tokens.p50) == (5, 100, 20)
    assert cost.completion_tokens_per_second == pytest.approx(100 / 3)
    assert cost.seconds.p95 == pytest.approx(1.3)


def test_base_and_tuned_are_compared_pair_by_pair(report: Report):
    found = {c.metric: c for c in report.comparisons}
    assert set(MAIN_METRICS) <= set(found) <= set(METRICS)
    assert (found["exact"].difference, found["exact"].only_second, found["exact"].p_value) == (0.5, 3, 0.25)
    assert found["worker_f1"].p_value is None
    assert found["exact"].low > 0
    assert not found["exact"].shown


def test_the_same_rows_and_seed_give_the_same_report(report: Report):
    assert report_of(rows()) == report
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_hashes_change_with_the_items(report: Report):
    other = report_of(rows(), EXAMPLES[:5])
    assert other.suites[0].examples_hash != report.suites[0].examples_hash
    assert other.suites[0].catalog_hash == report.suites[0].catalog_hash == CATALOG.hash
    assert (report.other_runs, other.other_runs) == (0, 1)


def test_the_terminal_table_fits_eighty_columns_and_groups_by_part(report: Report):
    text = io.StringIO()
    Console(file=text, width=80, color_system=None).print(terminal_table(report))
    lines = text.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in text.getvalue()
    assert sum(line.rstrip().endswith(("100.0", "0.0", "100-100", "0-0")) for line in lines) >= 4
    assert any(line.rstrip().endswith("argument") for line in lines)
    order = [line.split()[0] for line in lines if line.startswith((" base", " tuned"))]
    assert order == ["base/free", "tuned/free"] * 3
    assert [line.strip() for line in lines if line.rstrip().endswith("items")] == ["4 items", "2 items", "6 items"]
    assert "50.0" in text.getvalue()
    assert "19-81" in text.getvalue()


def test_the_page_has_tables_hashes_and_wrong_items(report: Report):
    page = markdown(report)
    assert "# trial\\_1: evaluation" in page
    assert CATALOG.hash in page
    assert "ab" * 32 in page
    assert "| tuned/free | 66.7 [30.0, 90.3] (4/6) |" in page
    assert "not asked because of the limit: 3 items of seen" in page
    assert "### base/free: 6 of 6 wrong" in page
    assert "**item-3** (seen): unregistered (unknown\\_worker: " in page
    assert 'reference: [{"type":"quote","args":{"symbol":"S3"}}]' in page
    assert "tuned/free: 1 items without a row, 1 failed requests, 0 answers cut" in page
    assert "````text\nquery:     price of S0 | now" in page


def test_long_lists_and_long_answers_are_cut_in_the_page_and_say_so():
    rows = [run(e, "base/free", "x" * 5000, finish_reason=FinishReason.LENGTH) for e in EXAMPLES]
    report = report_of(rows, meta=META.model_copy(update={"failures": 2}))
    page = markdown(report)
    assert "6 of 6 wrong, the first 2 of them here" in page
    assert "(5000 characters in all)" in page
    assert "x" * 2001 not in page
    assert report.systems[0].failures[0].candidate == "x" * 5000
    assert "the token limit cut the text" in page


def test_both_files_are_written_and_replaced(report: Report, tmp_path: Path):
    for _ in range(2):
        json_file, page = write_report(report, tmp_path / "run")
    assert json.loads(json_file.read_text())["systems"][0]["system"] == "base/free"
    assert page.read_text() == markdown(report)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["report.json", "report.md"]


def test_a_report_without_rows_or_items_can_be_made_and_drawn():
    for examples in (EXAMPLES, []):
        report = report_of([], examples)
        assert report.systems == ()
        assert "no two systems" in markdown(report)
        terminal_table(report)


def test_a_report_of_one_part_has_no_second_table_for_all_items():
    page = markdown(report_of(rows(), EXAMPLES[:4]))
    assert "### seen (4 items)" in page
    assert "### overall" not in page


def test_provenance_names_code_and_machine():
    assert code_version().startswith("0.")
    assert "cores" in machine_description(accelerator="one GPU")
    assert "one GPU" in machine_description(accelerator="one GPU")
