"""Teacher and students, variants and prices in the report."""

from __future__ import annotations

import json

import pytest

from plansmith.contract.errors import InputError
from plansmith.contract.records import Example, Run
from plansmith.eval.items import PlannerKind, SystemInfo
from plansmith.eval.render import markdown
from plansmith.eval.report import build_report
from plansmith.eval.results import Report, ReportMeta
from plansmith.eval.scoring import score_runs
from plansmith.eval.suites import Suite
from tests.eval.cases import CATALOG, EXAMPLES, RIGHT, run

META = ReportMeta(name="trial", seed=1, resamples=200, code_version="0.1.0", machine="a machine")
WRONG = '[{"type":"now","args":{}}]'


def info(system: str, **changes: object) -> SystemInfo:
    values: dict[str, object] = {"system": system, "kind": PlannerKind.OPENAI, "constrained": False, "concurrency": 4}
    return SystemInfo.model_validate(values | {"model": "big"} | changes)


def teacher_rows() -> list[Run]:
    """The teacher is right on 4 of 6, gives no plan on one, and is wrong on one; two samples differ on two items."""
    texts = [*(RIGHT[e.query] for e in EXAMPLES[:4]), "no plan", WRONG]
    rows = [run(e, "teacher", text) for e, text in zip(EXAMPLES, texts, strict=True)]
    for sample in range(2):
        drawn = [text if sample == 0 or index > 1 else WRONG for index, text in enumerate(texts)]
        rows += [run(e, "teacher/warm", text, sample=sample) for e, text in zip(EXAMPLES, drawn, strict=True)]
    return rows


def student_rows() -> list[Run]:
    """The student agrees with the teacher on 3 right items and on its wrong one, and is right where it gave none."""
    texts = [*(RIGHT[e.query] for e in EXAMPLES[:3]), WRONG, RIGHT[EXAMPLES[4].query], WRONG]
    return [run(e, "student", text, seconds=0.1) for e, text in zip(EXAMPLES, texts, strict=True)]


def report_of(runs: list[Run], systems: dict[str, SystemInfo], *suites: Suite, teacher: str | None = None) -> Report:
    suites = suites or (Suite("plain", CATALOG, tuple(EXAMPLES)),)
    return build_report(score_runs(runs, suites).items, suites, meta=META, systems=systems, teacher=teacher)


def infos() -> dict[str, SystemInfo]:
    teacher = info("teacher", peak_memory_bytes=1000, model_bytes=800, answered=6, wall_seconds=6.0)
    student = info("student", model="small", peak_memory_bytes=240, model_bytes=200, answered=6, wall_seconds=1.25)
    return {"teacher": teacher, "student": student, "teacher/warm": info("teacher/warm", temperature=0.7)}


def test_agreement_correctness_and_self_agreement_are_three_numbers():
    table = report_of([*teacher_rows(), *student_rows()], infos(), teacher="teacher").teacher
    assert table is not None
    assert (table.sampled, table.temperature) == ("teacher/warm", 0.7)
    row = next(row for row in table.rows if row.part == "overall")
    assert (row.items, row.teacher_unreadable, row.student) == (6, 1, "student")
    assert (row.teacher_correct.hits, row.student_correct.hits) == (4, 4)
    assert (row.agreement.hits, row.agreement.scored) == (4, 6)
    assert row.self_agreement is not None
    assert row.self_agreement.value == pytest.approx(3 / 6)


def test_without_samples_the_ceiling_is_said_to_be_unknown():
    runs = [row for row in teacher_rows() if row.system == "teacher"]
    report = report_of([*runs, *student_rows()], infos(), teacher="teacher")
    assert report.teacher is not None
    assert all(row.self_agreement is None for row in report.teacher.rows)
    assert "the ceiling of agreement is unknown" in markdown(report)


def test_the_headline_has_difference_speed_and_memory():
    (line,) = report_of([*teacher_rows(), *student_rows()], infos(), teacher="teacher").headline
    assert (line.difference, line.items, line.p_value) == (0, 6, 1.0)
    assert line.times_faster == pytest.approx(4.8)
    assert line.latency_ratio == pytest.approx(5)
    assert line.memory_saved == pytest.approx(0.76)
    assert line.bytes_saved == pytest.approx(0.75)
    page = markdown(report_of([*teacher_rows(), *student_rows()], infos(), teacher="teacher"))
    assert "| student | 6 | +0.0 [" in page
    assert "| 4.80x | 5.00x | 76% | 75% |" in page


def test_what_was_not_measured_gives_no_ratio():
    (line,) = report_of([*teacher_rows(), *student_rows()], {}, teacher="teacher").headline[-1:]
    assert (line.times_faster, line.memory_saved, line.bytes_saved) == (None, None, None)


def test_a_teacher_without_answers_is_refused():
    with pytest.raises(InputError, match="no answers of the teacher 'big'; systems: student"):
        report_of(student_rows(), {}, teacher="big")


def test_failed_and_wrong_requests_are_paid_and_only_solved_ones_divide():
    paid = info("student", price_prompt=2.0, price_completion=10.0, price_hour=3.6, answered=6, wall_seconds=60.0)
    cost = report_of(student_rows(), {"student": paid}).systems[0].parts["overall"].cost
    tokens = 6 * (50 * 2.0 + 20 * 10.0) / 1e6
    assert cost.price == pytest.approx(tokens + 60 / 3600 * 3.6)
    assert cost.price_per_solved == pytest.approx((tokens + 0.06) / 4)
    nothing = report_of([run(EXAMPLES[0], "student", WRONG)], {"student": paid}).systems[0].parts["overall"].cost
    assert nothing.price_per_solved is None
    assert report_of(student_rows(), {}).systems[0].parts["overall"].cost.price is None


def renamed(example: Example) -> Example:
    return example.model_copy(update={"id": f"{example.id}@renamed", "part": "renamed"})


def test_a_variant_is_a_part_of_its_own_and_is_compared_item_by_item():
    variant = Suite("renamed", CATALOG, tuple(map(renamed, EXAMPLES[:4])))
    wrong = [run(e, "student", WRONG) for e in variant.examples]
    report = report_of([*student_rows(), *wrong], {}, Suite("plain", CATALOG, tuple(EXAMPLES)), variant)
    assert report.parts == ("seen", "handwritten", "renamed")
    student = report.systems[0]
    assert (student.parts["overall"].items, student.parts["renamed"].items) == (6, 4)
    effect = next(c for c in report.variants if c.metric == "equivalent")
    assert (effect.first, effect.second, effect.items) == ("student", "student on renamed", 4)
    assert (effect.difference, effect.only_first) == (-0.75, 3)
    assert "## Variants of the catalog" in markdown(report)


def test_a_system_that_was_not_asked_a_variant_is_not_scored_there():
    variant = Suite("renamed", CATALOG, tuple(map(renamed, EXAMPLES)))
    report = report_of(student_rows(), {}, Suite("plain", CATALOG, tuple(EXAMPLES)), variant)
    assert "renamed" not in report.systems[0].parts
    assert "### renamed (0 items)" in markdown(report)


def test_a_student_that_was_not_asked_a_part_has_no_row_there():
    variant = Suite("renamed", CATALOG, tuple(map(renamed, EXAMPLES)))
    asked = [run(e, "teacher", RIGHT[e.query]) for e in variant.examples]
    suites = Suite("plain", CATALOG, tuple(EXAMPLES)), variant
    table = report_of([*teacher_rows(), *student_rows(), *asked], infos(), *suites, teacher="teacher").teacher
    assert table is not None
    assert {row.part for row in table.rows} == {"seen", "handwritten", "overall"}


def test_the_numbers_survive_json():
    report = report_of([*teacher_rows(), *student_rows()], infos(), teacher="teacher")
    assert Report.model_validate_json(json.dumps(json.loads(report.model_dump_json()))) == report
