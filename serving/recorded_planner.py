"""A planner that answers from a file: plans made elsewhere, by anything, go through the same evaluation.

Reads JSONL, one object a line: `{"id" | "query", "text" | "plan"}`, optionally with `prompt_tokens`,
`completion_tokens`, `seconds`, `finish_reason` and `sample` (which of several answers, from 0); further keys are left
aside, so that our own run rows of one system are such a file. A row is found by its query (in Unicode NFC, runs of
white space as one space) or, after `for_examples`, by the id of the item. Two answers for one key and sample are
refused, since either could be meant. A query without a row is a failed draft, counted as `missing`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import InputError
from plansmith.contract.parse import ParseError, duplicate_places, parse_json
from plansmith.contract.plan import dumps
from plansmith.contract.records import Example, FinishReason

_BOM = b"\xef\xbb\xbf"


class RecordedEvent(StrEnum):
    """What is counted about a file of answers."""

    ANSWERED = "answered"
    """queries that had an answer"""
    MISSING = "missing"
    """queries without a row"""
    FAILED = "failed"
    """queries whose row says that the request failed"""
    NOT_ASKED = "not_asked"
    """ids for none of the items"""


class _Row(BaseModel):
    """What a row holds."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    id: str | int | None = None
    query: str | None = None
    text: str | None = None
    plan: Any = None
    prompt_tokens: int = Field(default=0, ge=0, lt=1 << 53)
    completion_tokens: int = Field(default=0, ge=0, lt=1 << 53)
    seconds: float = Field(default=0.0, ge=0, lt=1e9)
    finish_reason: str = FinishReason.STOP.value
    error: str | None = None
    sample: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A row, ready to be handed out."""

    line: int
    id: str | None
    query: str | None
    """As the key, not as written."""
    text: str
    row: _Row

    @property
    def failed(self) -> bool:
        return self.row.finish_reason == FinishReason.ERROR


_Samples = Mapping[int, _Answer]
"""The answers to one item, by sample."""


class RecordedPlanner:
    """A `Planner` over a file of answers; whether they were made under a grammar is not its to know."""

    def __init__(
        self,
        path: Path,
        by_id: Mapping[str, _Samples],
        by_query: Mapping[str, _Samples],
        joined: Mapping[str, _Samples] | None = None,
    ) -> None:
        """Made by `load` and `for_examples`."""
        self.path = path
        self.counts: Counter[str] = Counter()
        """How often each `RecordedEvent` happened."""
        self._by_id = by_id
        self._by_query = by_query
        self._joined = joined

    @classmethod
    def load(cls, path: str | Path) -> RecordedPlanner:
        """Read a file of answers.

        Raises:
            InputError: it cannot be read, a row is none, or two rows have the same key; the message names file and
                line.

        """
        path = Path(path)
        answers = list(_read(path))
        by_id = _index(path, "id", ((answer.id, answer) for answer in answers if answer.id is not None))
        without_id = ((a.query, a) for a in answers if a.id is None and a.query is not None)
        return cls(path, by_id, _index(path, "query", without_id))

    def for_examples(self, examples: Iterable[Example]) -> RecordedPlanner:
        """A planner that also finds the rows by id, for these items; the file is not read again.

        Items that share a query may share their answers, or have none.

        Raises:
            InputError: a row's query is not its item's, or two items have the same query and different answers, so
                that a planner, which is only told the query, cannot know which is meant.

        """
        joined: dict[str, _Samples] = {}
        owners: dict[str, str] = {}
        ids: set[str] = set()
        for example in examples:
            ids.add(example.id)
            key = _key(example.query)
            answers = self._answers_to(example, key)
            if key in owners and _texts(joined[key]) != _texts(answers):
                raise InputError(
                    f"{str(self.path)!r}: the items {owners[key]!r} and {example.id!r} have the same query "
                    f"({example.query!r:.80}) and different answers. Ask for them apart, as items of two suites."
                )
            owners[key], joined[key] = example.id, answers
        made = RecordedPlanner(self.path, self._by_id, self._by_query, joined)
        if left := len(self._by_id.keys() - ids):
            made.counts[RecordedEvent.NOT_ASKED] = left
        return made

    async def plan(self, query: str, catalog: Catalog, *, constrained: bool = True, sample: int = 0) -> Draft:
        """The recorded answer to a query, checked against the catalog; a failed draft where there is none.

        Args:
            query: the user's words.
            catalog: the workers that may be called.
            constrained: of no effect; what is recorded is recorded.
            sample: which of several answers.

        Raises:
            InputError: the file has rows by id, and `for_examples` was not called.

        """
        del constrained
        key = _key(query)
        if self._joined is None and self._by_id:
            first = min(answer.line for samples in self._by_id.values() for answer in samples.values())
            raise InputError(
                f"{str(self.path)!r}, line {first}: the row is found by its id, but a planner is only told the "
                "query. Join the rows to the items first (for_examples)."
            )
        answer = ((self._joined or {}).get(key) or self._by_query.get(key, {})).get(sample)
        if answer is None:
            which = f" and sample {sample}" if sample else ""
            found = f"{str(self.path)!r} has no row for this query{which}."
            return self._nothing(query, catalog, RecordedEvent.MISSING, found)
        row = answer.row
        if answer.failed:
            reason = row.error or "it does not say why"
            found = f"{str(self.path)!r}, line {answer.line}: the request failed when it was recorded: {reason}"
            return self._nothing(query, catalog, RecordedEvent.FAILED, found)
        self.counts[RecordedEvent.ANSWERED] += 1
        return Draft(
            query=query,
            text=answer.text,
            check=check_plan(answer.text, catalog),
            prompt_tokens=row.prompt_tokens,
            completion_tokens=row.completion_tokens,
            seconds=row.seconds,
            finish_reason=FinishReason.LENGTH if row.finish_reason == FinishReason.LENGTH else FinishReason.STOP,
        )

    def _nothing(self, query: str, catalog: Catalog, event: RecordedEvent, reason: str) -> Draft:
        self.counts[event] += 1
        return Draft(query, "", check_plan("", catalog), 0, 0, 0.0, FinishReason.ERROR, reason)

    def _answers_to(self, example: Example, key: str) -> _Samples:
        by_id, by_query = self._by_id.get(example.id, {}), self._by_query.get(key, {})
        for answer in by_id.values():
            if answer.query not in (None, key):
                raise InputError(
                    f"{str(self.path)!r}, line {answer.line}: the row of {example.id!r} has the query "
                    f"{answer.query!r:.80}, but the item's is {example.query!r:.80}. The file answers other data."
                )
        if by_id and by_query and _texts(by_id) != _texts(by_query):
            lines = [min(answer.line for answer in answers.values()) for answers in (by_id, by_query)]
            raise InputError(
                f"{str(self.path)!r}: line {lines[0]} answers the item {example.id!r} by its id and line {lines[1]} by "
                "its query, in another way. Keep one."
            )
        return by_id or by_query


def _key(query: str) -> str:
    return " ".join(unicodedata.normalize("NFC", query).split())


def _texts(answers: _Samples) -> dict[int, str | None]:
    return {sample: None if answer.failed else answer.text for sample, answer in answers.items()}


def _index(path: Path, what: str, answers: Iterable[tuple[str, _Answer]]) -> dict[str, dict[int, _Answer]]:
    """Answers by key and sample; a failed request counts only where no answer came before or after it."""
    found: dict[str, dict[int, _Answer]] = {}
    for key, answer in answers:
        samples = found.setdefault(key, {})
        earlier = samples.get(answer.row.sample)
        if earlier is not None and not earlier.failed and not answer.failed:
            raise InputError(
                f"{str(path)!r}, line {answer.line}: the {what} {key!r:.80} stands in line {earlier.line} already. "
                "Keep one row for each item; answers of several systems need a file each, and several answers of one "
                "system a 'sample' each."
            )
        if earlier is None or not answer.failed:
            samples[answer.row.sample] = answer
    return found


def _read(path: Path) -> Iterator[_Answer]:
    """The rows of the file; a last line without newline is a row too, since others wrote the file."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if (content := line.removeprefix(_BOM) if number == 1 else line).strip():
                    yield _answer(content, number, f"{str(path)!r}, line {number}")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error


def _answer(line: bytes, number: int, place: str) -> _Answer:
    row = _row(line, place)
    if (row.id is None and row.query is None) or (row.text is None) == (row.plan is None):
        raise InputError(f"{place}: expected 'id' or 'query', and exactly one of 'text' and 'plan'.")
    try:
        text = row.text if row.text is not None else dumps(row.plan)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: the plan cannot be written as JSON ({error}); give it as 'text'.") from error
    return _Answer(
        line=number,
        id=str(row.id) if row.id is not None else None,
        query=_key(row.query) if row.query is not None else None,
        text=text.encode("utf-8", "backslashreplace").decode(),
        row=row,
    )


def _row(line: bytes, place: str) -> _Row:
    try:
        values = parse_json(line.decode())
        if not isinstance(values, dict):
            raise InputError(f"{place}: expected an object with 'id' or 'query', found {values!r:.40}.")
        if (twice := next(duplicate_places(values), None)) is not None:
            raise InputError(f"{place}: the key {twice[-1]!r} stands twice; keep one, or give the plan as 'text'.")
        return _Row.model_validate(values)
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8: {error.reason} at byte {error.start} of the line.") from error
    except ParseError as error:
        raise InputError(f"{place}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{place}: nested too deeply to be read; give the plan as 'text'.") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{place}: {'/'.join(map(str, first['loc']))}: {first['msg']}.") from error
