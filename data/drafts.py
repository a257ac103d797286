"""A teacher's answers on disk, and what becomes of each: a candidate, a reject with its reason, or nothing yet.

Reads and writes `drafts.jsonl` (answers, one settings a file) and `failed.jsonl` (requests without an answer). Answers
to other settings (another model, prompt, catalog or sampling) are moved to `drafts.jsonl.N` and taken back when those
settings return, so nothing is asked for twice. Whether a plan is right is not judged here: `verify` does that.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast

from pydantic import model_validator

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import DEFAULT_MAX_STEPS, check_plan
from plansmith.contract.errors import InputError
from plansmith.contract.findings import Fault, Severity
from plansmith.contract.parse import ParseError
from plansmith.contract.plan import Json
from plansmith.contract.progress import Progress
from plansmith.contract.records import Candidate, FinishReason, PlanJson, Query, Record, Reject, TeacherDraft
from plansmith.contract.store import StorageError, iter_rows
from plansmith.contract.teaching import Answer, read_answer_leniently
from plansmith.data.sources.base import family_of
from plansmith.data.teacher_config import Repaired

DRAFTS, FAILED = "drafts.jsonl", "failed.jsonl"
CUT_OFF = "cut_off"
"""Reject reason of answers that the token limit cut."""
REPAIRED = "repaired"


class Failure(Record):
    """A request that brought no answer; it is made again by the next run."""

    version: Literal[1] = 1
    key: str
    """As in `TeacherDraft`."""
    settings: str
    id: str
    query: str
    sample: int
    error: str
    attempts: int = 1
    """Runs of the command in which it failed."""


def request_key(settings: str, query: str, sample: int) -> str:
    """Sha256 (64 hex digits) over everything that one answer depends on."""
    text = json.dumps([settings, query, sample], ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def open_drafts(out: Path, settings: str, progress: Progress) -> None:
    """Make `drafts.jsonl` the file of these settings (or no file): others are moved aside, earlier ones taken back.

    Raises:
        InputError: a file of drafts cannot be read.
        StorageError: a file cannot be moved.

    """
    current = _settings_of(out / DRAFTS)
    if current == settings:
        return
    try:
        if current is not None:
            number = _set_aside(out)
            progress.note(f"teacher: the settings changed; earlier answers are kept in {out / f'{DRAFTS}.{number}'}")
        for path in sorted(out.glob(f"{DRAFTS}.*")):
            if _settings_of(path) == settings:
                _take_back(out, path.name.removeprefix(f"{DRAFTS}."))
                progress.note(f"teacher: answers to these settings are taken back from {path}")
                return
    except OSError as error:
        raise StorageError(f"cannot move answers in {str(out)!r}: {error.strerror or error}.") from error


def _settings_of(path: Path) -> str | None:
    """The settings of a file's first row; None where it has no row."""
    first = next(iter_rows(path, TeacherDraft), None) if path.is_file() else None
    return first.settings if first is not None else None


def _set_aside(out: Path) -> int:
    number = 1
    while (out / f"{DRAFTS}.{number}").exists():
        number += 1
    for name in (FAILED, DRAFTS):
        if (out / name).exists():
            (out / name).rename(out / f"{name}.{number}")
    return number


def _take_back(out: Path, number: str) -> None:
    for name in (FAILED, DRAFTS):
        if (out / f"{name}.{number}").exists():
            (out / f"{name}.{number}").replace(out / name)


def iter_drafts(out: Path, settings: str | None = None) -> Iterator[TeacherDraft]:
    """The answers of a run directory, in the order in which they came; none where nothing was asked.

    Raises:
        InputError: the file cannot be read, or holds an answer to other settings than these.

    """
    path = out / DRAFTS
    if not path.exists():
        return
    for draft in iter_rows(path, TeacherDraft):
        if settings is not None and draft.settings != settings:
            raise InputError(
                f"{str(path)!r} holds an answer to {draft.query!r:.60} that was asked with other settings "
                f"({draft.settings[:12]}) than the rest ({settings[:12]}). Files were joined; move it away."
            )
        yield draft


def read_failures(out: Path, settings: str) -> dict[str, Failure]:
    """The requests that failed with these settings, by key; the last row of each counts."""
    path = out / FAILED
    rows = iter_rows(path, Failure) if path.exists() else iter(())
    return {row.key: row for row in rows if row.settings == settings}


class FromDraft(NamedTuple):
    """What became of one answer."""

    row: Candidate | Reject
    note: str | None
    """The teacher's note, where it wrote one."""
    repairs: tuple[str, ...]
    """What was mended to read it."""


@dataclass(slots=True)
class Drafted:
    """What became of all answers; every one is in `candidates` or in `rejects`."""

    candidates: list[Candidate] = field(default_factory=list[Candidate])
    rejects: list[Reject] = field(default_factory=list[Reject])
    repaired: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """By candidate: what was mended to read it. Such a text does not count as strictly parsed."""
    notes: dict[str, str] = field(default_factory=dict[str, str])
    """By candidate: the teacher's note."""


def candidates_from(
    drafts: Iterable[TeacherDraft], queries: Iterable[Query], *, repaired: Repaired = Repaired.KEEP
) -> Drafted:
    """Turn answers into candidates for verification; answers to queries that are not given are left out."""
    found = Drafted()
    for row, note, repairs in iter_candidates(drafts, {query.query: query for query in queries}, repaired=repaired):
        if isinstance(row, Reject):
            found.rejects.append(row)
            continue
        found.candidates.append(row)
        if repairs:
            found.repaired[row.id] = repairs
        if note:
            found.notes[row.id] = note
    return found


def iter_candidates(
    drafts: Iterable[TeacherDraft], queries: Mapping[str, Query], *, repaired: Repaired = Repaired.KEEP
) -> Iterator[FromDraft]:
    """As `candidates_from`, one at a time; `queries` by their text."""
    for draft in drafts:
        query = queries.get(draft.query)
        if query is not None:
            yield read_draft(draft, query, repaired)


def read_draft(draft: TeacherDraft, query: Query, repaired: Repaired = Repaired.KEEP) -> FromDraft:
    """One answer as a candidate; as a reject where it was cut off or holds no plan."""
    if draft.finish_reason is FinishReason.LENGTH:
        end = f"the token limit cut the answer after {draft.completion_tokens} tokens"
        return FromDraft(_reject(draft, query, CUT_OFF, end), None, ())
    try:
        answer = read_answer_leniently(draft.text)
    except ParseError as error:
        return FromDraft(_reject(draft, query, error.fault.value, str(error)), None, ())
    problem = _problem(answer)
    if problem is None and answer.repairs and repaired is Repaired.REJECT:
        problem = REPAIRED, "; ".join(answer.repairs)
    if problem is not None:
        return FromDraft(_reject(draft, query, *problem), answer.note, answer.repairs)
    plan = cast("PlanJson", answer.plan.value)
    candidate = Candidate(
        id=candidate_id(query.id, draft.sample),
        query=draft.query,
        plan=plan,
        family=query.family if query.family is not None else family_of(plan),
        source=query.source,
    )
    return FromDraft(candidate, answer.note, answer.repairs)


def candidate_id(query_id: str, sample: int) -> str:
    """The query's own id for its first answer, `ID~1` for the second."""
    return f"{query_id}~{sample}" if sample else query_id


def _reject(draft: TeacherDraft, query: Query, reason: str, detail: str) -> Reject:
    return Reject(
        id=candidate_id(query.id, draft.sample),
        query=draft.query,
        plan=draft.text,
        reason=reason,
        detail=detail.rstrip(".") + ".",
        source=query.source,
    )


def _problem(answer: Answer) -> tuple[str, str] | None:
    """Why a plan cannot be a candidate's, though it could be read; with what a row cannot hold."""
    value: Json = answer.plan.value
    if not isinstance(value, list):
        return Fault.NOT_ARRAY.value, f"the plan is of type {type(value).__name__}; expected an array of steps"
    for index, step in enumerate(cast("list[Any]", value)):
        if not isinstance(step, dict):
            return Fault.STEP_NOT_OBJECT.value, f"step {index} is of type {type(step).__name__}; expected an object"
    if answer.plan.duplicates:
        return Fault.DUPLICATE_KEY.value, f"the key {answer.plan.duplicates[0][-1]!r} stands twice in its object"
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        return Fault.BAD_VALUE.value, f"the plan holds what JSON in UTF-8 cannot: {error}"
    return None


def static_fault(row: Candidate, catalog: Catalog, *, max_steps: int | None = None) -> tuple[str, str] | None:
    """The first fault that the checker finds in a candidate, with its sentence; None where it is valid."""
    result = check_plan(row.plan, catalog, max_steps=max_steps or DEFAULT_MAX_STEPS)
    first = next((finding for finding in result.findings if finding.severity is Severity.ERROR), None)
    return (first.fault.value, f"{first.path or '/'}: {first.message}") if first is not None else None


class Outcomes(Record):
    """What became of every answer that was wanted; the counts add up."""

    wanted: int
    """Queries times samples."""
    kept: int
    """Read strictly, and not rejected."""
    repaired: int
    """Mended to be read, and not rejected."""
    rejected: dict[str, int]
    """By reason."""
    failed: int
    """Asked for, but no answer came; the next run asks again."""
    missing: int
    """Not asked for yet."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        total = self.kept + self.repaired + sum(self.rejected.values()) + self.failed + self.missing
        if total != self.wanted or self.missing < 0:
            raise ValueError(f"{self.wanted} answers were wanted, but the outcomes add up to {total}")
        return self


class OutcomeCounter:
    """Counts what becomes of answers, one at a time."""

    def __init__(self) -> None:
        self._kept = 0
        self._repaired = 0
        self._rejected: Counter[str] = Counter()

    def add(self, found: FromDraft, rejected: str | None = None) -> None:
        """Count an answer; `rejected` is the reason why its candidate was rejected later, if it was."""
        reason = found.row.reason if isinstance(found.row, Reject) else rejected
        if reason is not None:
            self._rejected[reason] += 1
        elif found.repairs:
            self._repaired += 1
        else:
            self._kept += 1

    def outcomes(self, wanted: int, failed: int) -> Outcomes:
        """The counts, where so many answers were wanted and so many requests failed."""
        return Outcomes(
            wanted=wanted,
            kept=self._kept,
            repaired=self._repaired,
            rejected=dict(sorted(self._rejected.items())),
            failed=failed,
            missing=wanted - failed - self._kept - self._repaired - self._rejected.total(),
        )


def count_outcomes(wanted: int, failed: int, drafted: Drafted, verify_rejects: Sequence[Reject] = ()) -> Outcomes:
    """Count what became of the answers.

    Args:
        wanted: queries times samples.
        failed: requests without an answer.
        drafted: what `candidates_from` made of the answers.
        verify_rejects: candidates among those that were rejected later.

    """
    counter = OutcomeCounter()
    later = {row.id: row.reason for row in verify_rejects}
    for row in (*drafted.rejects, *drafted.candidates):
        counter.add(FromDraft(row, None, drafted.repaired.get(row.id, ())), later.get(row.id))
    return counter.outcomes(wanted, failed)
