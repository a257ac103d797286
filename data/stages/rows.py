"""The checks of one row, alone: static check, grounding, execution on recorded results, outcome.

The same code runs in this process, in others, and on other machines (`runners.py`, `on_ray.py`): a `RowChecker` is
made from a picklable `CheckSettings`, takes chunks of rows, and gives for each row one line of JSON with what became of
it, in order. A row on which the code itself fails is a reject `check_failed` and never the end of a build. What needs
other rows (votes, duplicates) is not here.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import DEFAULT_MAX_STEPS, CheckResult, Severity, check_plan
from plansmith.contract.parse import MAX_DEPTH, deeper_than
from plansmith.contract.plan import Plan, canonical_json
from plansmith.contract.records import Candidate, Reject
from plansmith.data.stages.execution import (
    Execution,
    Executors,
    Record,
    Replays,
    execute_plan,
    executor_of,
    final_results,
    same_results,
)
from plansmith.data.stages.grounding import ground
from plansmith.data.stages.tally import Stage, Tallies
from plansmith.data.verify_config import Rule, Rules

SPLIT_PARTS = frozenset({"train", "val", "seen", "unseen", "unseen_workers", "unseen_sequences", "overall"})
"""Parts that the split gives; a source may not."""
EXECUTION, WRONG_OUTCOME, CHECK_FAILED = "execution", "wrong_outcome", "check_failed"
BAD_RESULTS = "bad_results"
_MAX_DEPTH = 2 * MAX_DEPTH
"""Deepest nesting of what comes with a plan: more cannot be read back by every reader of a data set."""


class Item(NamedTuple):
    """A row to check."""

    row: Candidate
    record: Record | None = None
    """A recorded plan for the same query, to run the row's plan on; None: the row's own results, where it has any."""


@dataclass(frozen=True)
class CheckSettings:
    """Everything that the checks depend on beside the row; can be sent to other processes."""

    catalog: Catalog
    rules: Rules
    max_steps: int | None = None
    executors: Executors | None = None
    """What runs plans; None: replays of recorded results."""


class Kind(StrEnum):
    """What became of a row."""

    KEPT = "kept"
    """it passed; the line holds it"""
    DROPPED = "dropped"
    """a check rejected it; the line holds the reject"""
    UNREADABLE = "unreadable"
    """the source rejected it; the line holds the reject"""


class Line(NamedTuple):
    """What became of one row, ready to be stored."""

    kind: Kind
    reserved: bool
    """Whether the source reserves the row for testing."""
    group: int
    """64-bit hash of the query's text: answers to the same query have the same."""
    text: bytes
    """Of a kept row: its warnings as a JSON list, a tab, the row as JSON. Of others: the reject as JSON."""


class Checked(NamedTuple):
    """What became of a chunk of rows."""

    lines: list[Line]
    tallies: Tallies


class _RejectedError(Exception):
    """A check said no to a row."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class RowChecker:
    """Checks rows, one chunk at a time."""

    def __init__(self, settings: CheckSettings) -> None:
        self.settings = settings
        self._executors = settings.executors or Replays(settings.rules.nearest)
        self._tallies = Tallies()
        self._stage = Stage.CHECK
        self._why = list[str]()

    def check(self, items: Iterable[Item | Reject]) -> Checked:
        """Check rows; rejects of the source pass through as they are."""
        self._tallies = Tallies()
        lines = asyncio.run(self._check(items))
        return Checked(lines, self._tallies)

    async def _check(self, items: Iterable[Item | Reject]) -> list[Line]:
        return [self._unreadable(item) if isinstance(item, Reject) else await self._one(item) for item in items]

    def _unreadable(self, reject: Reject) -> Line:
        tally = self._tallies[Stage.SOURCE]
        tally.read += 1
        tally.rejected[reject.reason] += 1
        return Line(Kind.UNREADABLE, False, query_key(reject.query), reject_json(reject))

    async def _one(self, item: Item) -> Line:
        self._tallies[Stage.SOURCE].read += 1
        row, reserved = item.row, item.row.part is not None
        try:
            row, warnings = await self._passed(item)
            text = json.dumps(warnings).encode() + b"\t" + _json(row)
            return Line(Kind.KEPT, reserved, query_key(row.query), text)
        except _RejectedError as error:
            reject = rejected(row, error.reason, str(error))
        except Exception as error:  # whatever a row does to the code, it must not end the build
            reject = rejected(row, CHECK_FAILED, f"checking the row failed with {type(error).__name__}: {error}")
        self._tallies[self._stage].rejected[reject.reason] += 1
        return Line(Kind.DROPPED, reserved, query_key(row.query), reject_json(reject))

    def _enter(self, stage: Stage) -> Counter[str]:
        """Begin a stage; gives its counts."""
        self._stage = stage
        tally = self._tallies[stage]
        tally.read += 1
        return tally.counted

    async def _passed(self, item: Item) -> tuple[Candidate, list[str]]:
        """The row as it is kept, and its warnings; raises where a check says no."""
        settings, rules = self.settings, self.settings.rules
        self._enter(Stage.CHECK)
        result = check_plan(item.row.plan, settings.catalog, max_steps=max(settings.max_steps or 0, DEFAULT_MAX_STEPS))
        if (fault := static_fault(item.row, result, settings.max_steps)) is not None:
            raise _RejectedError(*fault)
        row = item.row.model_copy(update={"plan": canonical_json(item.row.plan, settings.catalog)})
        self._why = ["valid plan"]
        record = item.record or (None if row.results is None else Record(row.plan, row.results))
        fared = await self._execute(row, record) if _needs_execution(rules) else None
        if rules.grounding is not Rule.OFF:
            row, result = self._ground(row, result, fared if isinstance(fared, Execution) else None)
        if rules.execution is not Rule.OFF:
            row = self._require_execution(row, fared)
        if rules.outcome is not Rule.OFF:
            self._require_outcome(row, item.record, fared)
        row = row.model_copy(update={"why": tuple(self._why)})
        return row, [finding.fault.value for finding in result.findings]

    async def _execute(self, row: Candidate, record: Record | None) -> Execution | str | None:
        """How the plan fared; why it could not be tried; None where nothing is recorded."""
        if record is None:
            return None
        executor = executor_of(record, self._executors)
        if isinstance(executor, str):
            return executor
        return await execute_plan(Plan.from_json(row.plan), executor, self.settings.catalog)

    def _ground(self, row: Candidate, result: CheckResult, fared: Execution | None) -> tuple[Candidate, CheckResult]:
        """The row with its literals linked, as far as they can be."""
        counted = self._enter(Stage.GROUNDING)
        settings, rules = self.settings, self.settings.rules
        results = dict(enumerate(row.results)) if row.results is not None else fared.results if fared else {}
        found = ground(row.plan, row.query, settings.catalog, results, link=rules.link)
        if rules.grounding is Rule.COUNT:
            counted["linkable"] += found.linked
            counted.update(one.reason for one in found.left)
            return row, result
        if found.left:
            raise _RejectedError(found.left[0].reason, found.left[0].sentence())
        self._why.append("every literal is known")
        if found.linked:
            self._why.append(f"{found.linked} literals became references")
            counted["linked"] += found.linked
            row = row.model_copy(update={"plan": canonical_json(found.plan, settings.catalog)})
            result = check_plan(row.plan, settings.catalog, max_steps=len(row.plan))
        return row, result

    def _require_execution(self, row: Candidate, fared: Execution | str | None) -> Candidate:
        """The row, with its results where it was run on another plan's record and nothing was guessed."""
        counted = self._enter(Stage.EXECUTION)
        if fared is None:
            counted["without_results"] += 1
            self._why.append("no recorded results to run it on")
            return row
        if isinstance(fared, str):
            fared = Execution(fault=fared)
        counted["not_run_write"] += fared.writes
        counted.update({f"{match.value}_calls": number for match, number in fared.matches.items()})
        if fared.fault is not None:
            if self.settings.rules.execution is Rule.REJECT:
                raise _RejectedError(EXECUTION, fared.fault)
            counted["failed"] += 1
            self._why.append("fails on recorded results")
        else:
            how = "in part" if fared.not_run else "exactly" if fared.exact else "nearly"
            counted[f"executed_{how.replace(' ', '_')}"] += 1
            self._why.append(f"executed {how} on recorded results")
        if row.results is None and fared.exact:
            return row.model_copy(update={"results": [fared.results[index] for index in range(len(row.plan))]})
        return row

    def _require_outcome(self, row: Candidate, record: Record | None, fared: Execution | str | None) -> None:
        counted = self._enter(Stage.OUTCOME)
        expected = row.answer
        if expected is None and record is not None:
            expected = final_results(Plan.from_json(record.plan), dict(enumerate(record.results)))
        if expected is None:
            counted["without_answer"] += 1
        elif not isinstance(fared, Execution) or not fared.complete:
            counted["not_executed"] += 1
        elif same_results(final_results(Plan.from_json(row.plan), fared.results), expected):
            counted["right"] += 1
            self._why.append("ends with the given answer")
        elif self.settings.rules.outcome is Rule.REJECT:
            raise _RejectedError(WRONG_OUTCOME, "executing the plan ends with other results than the given answer")
        else:
            counted["wrong"] += 1


def given_up(items: Iterable[Item | Reject], detail: str) -> Checked:
    """Rows that could not be checked at all, as rejects `check_failed`; rejects of the source stay what they are."""
    lines: list[Line] = []
    tallies = Tallies()
    for item in items:
        tallies[Stage.SOURCE].read += 1
        if isinstance(item, Reject):
            tallies[Stage.SOURCE].rejected[item.reason] += 1
            lines.append(Line(Kind.UNREADABLE, False, query_key(item.query), reject_json(item)))
            continue
        tallies[Stage.CHECK].read += 1
        tallies[Stage.CHECK].rejected[CHECK_FAILED] += 1
        reject = rejected(item.row, CHECK_FAILED, detail)
        lines.append(Line(Kind.DROPPED, item.row.part is not None, query_key(item.row.query), reject_json(reject)))
    return Checked(lines, tallies)


def _needs_execution(rules: Rules) -> bool:
    """Whether a check looks at what executing a plan gives; linking does."""
    looks = rules.grounding is not Rule.OFF and rules.link
    return looks or rules.execution is not Rule.OFF or rules.outcome is not Rule.OFF


def static_fault(row: Candidate, result: CheckResult, max_steps: int | None) -> tuple[str, str] | None:
    """Reason code and sentence for a row whose part, plan or results cannot be used."""
    if row.part in SPLIT_PARTS:
        return "bad_part", f"part {row.part!r} is given by the split; a source may name others, such as 'handwritten'"
    if max_steps is not None and len(row.plan) > max_steps:
        return "too_long", f"{len(row.plan)} steps, at most {max_steps} are kept"
    errors = [finding for finding in result.findings if finding.severity is Severity.ERROR]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return "check", f"{errors[0].fault.value} at {errors[0].path or '/'}: {errors[0].message}{more}"
    return _results_fault(row)


def _results_fault(row: Candidate) -> tuple[str, str] | None:
    """What is wrong with what comes beside the plan."""
    if row.results is not None and len(row.results) != len(row.plan):
        return BAD_RESULTS, f"{len(row.results)} recorded results for {len(row.plan)} steps; expected one each"
    for name in ("results", "answer", "allowed"):
        value = getattr(row, name)
        if value is not None and deeper_than(value, _MAX_DEPTH):
            return BAD_RESULTS, f"{name!r} is nested deeper than {_MAX_DEPTH} levels"
    return None


def rejected(row: Candidate, reason: str, detail: str) -> Reject:
    """The row as a reject."""
    return Reject(
        id=row.id, query=row.query, plan=row.plan, reason=reason, detail=detail.rstrip(".") + ".", source=row.source
    )


def query_key(query: str) -> int:
    """64-bit hash of a query's text."""
    return int.from_bytes(blake2b(query.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _json(row: Candidate | Reject) -> bytes:
    return row.model_dump_json().encode()


def reject_json(reject: Reject) -> bytes:
    """A reject as JSON; what JSON in UTF-8 cannot hold is written as escapes, and such a plan or a very deep one is
    left out: rejects must be readable again.
    """
    try:
        text = _json(reject)
        if text.count(b"[") + text.count(b"{") > _MAX_DEPTH and deeper_than(reject.plan, _MAX_DEPTH):
            raise ValueError("nested too deep")
        return text
    except (ValueError, RecursionError):
        texts = {
            name: str(getattr(reject, name)).encode("utf-8", "backslashreplace").decode()
            for name in ("id", "query", "reason", "detail", "source")
        }
        return _json(reject.model_copy(update={**texts, "plan": None}))
