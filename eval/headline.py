"""Teacher against students in one run: who is right, who agrees, and what the student saves.

Reads scored items and what was measured of each system; gives the report's teacher table and the headline in its usual
form: accuracy difference, times faster, memory saved. Ratios compare systems that were asked on the same machine in the
same run; where one of both was not measured there is no ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plansmith.eval.agreement import agreement, self_agreement
from plansmith.eval.items import ScoredItem, SystemInfo
from plansmith.eval.stats import Metric, paired_rate, quantile, rate
from plansmith.eval.tables import Headline, TeacherRow, TeacherTable

METRIC = "equivalent"


class Draws(NamedTuple):
    """How bootstrap intervals are made."""

    seed: int
    resamples: int


def teacher_table(
    teacher: str,
    items: Mapping[str, Sequence[ScoredItem]],
    parts: Mapping[str, Sequence[str]],
    info: Mapping[str, SystemInfo],
    draws: Draws,
) -> TeacherTable:
    """Agreement and correctness of every other system beside the teacher.

    Args:
        teacher: name of the teacher's system.
        items: scored items of each system.
        parts: rows of the table: name, and the parts that it sums up.
        info: temperature of each system.
        draws: of the bootstrap.

    """
    sampled = _sampled_teacher(teacher, items, info)
    students = [name for name in items if name not in (teacher, sampled)]
    rows = [
        _teacher_row(label, student, teacher, sampled, items, set(names), draws)
        for label, names in parts.items()
        for student in students
        if _was_asked(items[student], names) and _was_asked(items[teacher], names)
    ]
    temperature = info[sampled].temperature if sampled is not None and sampled in info else None
    return TeacherTable(teacher=teacher, sampled=sampled, temperature=temperature, rows=tuple(rows))


def _was_asked(items: Sequence[ScoredItem], parts: Sequence[str]) -> bool:
    """Whether a system has items in some of the parts; one that was not asked has no numbers there."""
    return any(item.part in parts for item in items)


def _sampled_teacher(
    teacher: str, items: Mapping[str, Sequence[ScoredItem]], info: Mapping[str, SystemInfo]
) -> str | None:
    """The system whose samples stand for the teacher: itself, or one of the same model with several samples."""
    several = [name for name, rows in items.items() if any(row.sample for row in rows)]
    if teacher in several or teacher not in info:
        return teacher if teacher in several else None
    ours = info[teacher]
    alike = [n for n in several if n in info and (info[n].model, info[n].model_hash) == (ours.model, ours.model_hash)]
    return alike[0] if alike else None


def _teacher_row(
    part: str,
    student: str,
    teacher: str,
    sampled: str | None,
    items: Mapping[str, Sequence[ScoredItem]],
    names: set[str],
    draws: Draws,
) -> TeacherRow:
    teachers = [item for item in items[teacher] if item.part in names]
    students = [item for item in items[student] if item.part in names]
    samples = [item for item in items[sampled] if item.part in names] if sampled is not None else []
    first = [item for item in teachers if item.sample == 0]
    return TeacherRow(
        part=part,
        student=student,
        items=len(first),
        teacher_correct=_correct(first),
        student_correct=_correct([item for item in students if item.sample == 0]),
        agreement=agreement(students, teachers),
        teacher_unreadable=sum(item.plan is None for item in first),
        self_agreement=self_agreement(samples, seed=draws.seed, resamples=draws.resamples),
    )


def _correct(items: Sequence[ScoredItem]) -> Metric:
    outcomes = [item.outcomes[METRIC] for item in items]
    return rate([None if outcome is None else bool(outcome) for outcome in outcomes])


def headlines(
    teacher: str, items: Mapping[str, Sequence[ScoredItem]], info: Mapping[str, SystemInfo], draws: Draws
) -> list[Headline]:
    """Every other greedy system against the teacher, over the items that both were scored on."""
    return [
        _headline(teacher, student, items, info, draws)
        for student in items
        if student != teacher and not (student in info and info[student].temperature)
    ]


def _headline(
    teacher: str,
    student: str,
    items: Mapping[str, Sequence[ScoredItem]],
    info: Mapping[str, SystemInfo],
    draws: Draws,
) -> Headline:
    theirs, ours = _outcomes(items[teacher]), _outcomes(items[student])
    both = [name for name in theirs if name in ours]
    found = paired_rate([theirs[i] for i in both], [ours[i] for i in both], seed=draws.seed, resamples=draws.resamples)
    a, b = info.get(teacher), info.get(student)
    return Headline(
        teacher=teacher,
        student=student,
        items=len(both),
        metric=METRIC,
        difference=found.difference,
        low=found.low,
        high=found.high,
        p_value=found.p_value,
        times_faster=_ratio(plans_per_second(b), plans_per_second(a)),
        latency_ratio=_ratio(_median_seconds(items[teacher]), _median_seconds(items[student])),
        memory_saved=_saved(a and a.peak_memory_bytes, b and b.peak_memory_bytes),
        bytes_saved=_saved(a and a.model_bytes, b and b.model_bytes),
    )


def _outcomes(items: Sequence[ScoredItem]) -> dict[str, bool]:
    return {
        item.id: bool(outcome) for item in items if item.sample == 0 and (outcome := item.outcomes[METRIC]) is not None
    }


def plans_per_second(info: SystemInfo | None) -> float | None:
    """Answers over the time in which the system was asked; None where nothing was timed."""
    return info.answered / info.wall_seconds if info is not None and info.wall_seconds > 0 else None


def _median_seconds(items: Sequence[ScoredItem]) -> float | None:
    return quantile([item.seconds for item in items if item.finish_reason is not None], 0.5)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _saved(teacher: int | None, student: int | None) -> float | None:
    return 1 - student / teacher if teacher and student is not None else None
