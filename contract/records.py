"""Rows that cross stages, each a frozen, versioned pydantic model that rejects unknown keys.

`plan` fields hold the plan as JSON (`plansmith.contract.plan.Plan.from_json` gives the typed form), so that numbers
keep their kind and rows with different argument keys round-trip unchanged.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

PlanJson = list[dict[str, Any]]
AllowedCalls = list[dict[str, dict[str, list[Any]]]]
"""BFCL's `ground_truth`: `[{worker: {parameter: [allowed values]}}]`; `""` among the values makes it optional."""


class Record(BaseModel):
    """Base of all rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Split(StrEnum):
    """Which side of the split a row is on."""

    TRAIN = "train"
    """seen by training"""
    VAL = "val"
    """seen by model selection only"""
    TEST = "test"
    """seen by nobody before the report"""


class Candidate(Record):
    """A query with a recorded plan, as a source gives it, before any check."""

    version: Literal[1] = 1
    id: str
    query: str
    plan: PlanJson
    family: str
    """What makes rows alike: the template of a generated query, or the sequence of workers of a recorded plan."""
    source: str
    """Where the row comes from, with its licence in the source's own documentation."""
    part: str | None = None
    """A part that the source reserves for testing (`handwritten`), or None: the split decides."""
    results: list[Any] | None = None
    """Recorded result of each step, where the source has them."""
    allowed: AllowedCalls | None = None
    """BFCL's possible answer, where the row comes from there: for each call the values that each parameter may have."""
    answer: list[Any] | None = None
    """Results that executing the plan must end with, in any order, where the source knows them: those of the steps that
    no other step uses."""
    why: tuple[str, ...] = ()
    """What the checks of the row found, in words; filled in by verification."""


class Wanted(Record):
    """What a grown query was asked to need. Whether it does, the teacher's plan shows."""

    workers: tuple[str, ...]
    """Workers in order of use; empty where no worker shall fit."""

    @property
    def steps(self) -> int:
        """Steps of the plan; 0: the plan is `[]`."""
        return len(self.workers)


class Query(Record):
    """What a teacher is asked: a user's words, from a log, a benchmark, or a teacher that invented them."""

    version: Literal[1] = 1
    id: str
    """Stable: made from the text, or the source's own."""
    query: str
    source: str
    """Where it comes from: a file, a benchmark, `grown`."""
    family: str | None = None
    """What makes rows alike, where the source says so; None: the sequence of workers of the plan."""
    language: str | None = None
    """As BCP 47 names it (`en`, `pt-BR`), where it is known."""
    wanted: Wanted | None = None
    """What a grown query was asked to need."""
    reference: PlanJson | None = None
    """The source's own plan, where it has one; the teacher never sees it."""
    results: list[Any] | None = None
    """Recorded result of each step of `reference`, where the source has them."""


class Example(Record):
    """A verified query and plan, ready for training or testing."""

    version: Literal[1] = 1
    id: str
    query: str
    plan: PlanJson
    family: str
    source: str
    split: Split
    part: str
    """The part that is reported apart: `train`, `val`, a part of the split (`seen`, `unseen`, `unseen_workers`,
    `unseen_sequences`), one that the source reserves (`handwritten`), or a variant of the catalog (`renamed`)."""
    results: list[Any] | None = None
    """Recorded result of each step of `plan`, where the source has them."""
    allowed: AllowedCalls | None = None
    """BFCL's possible answer, where the row comes from there."""
    why: tuple[str, ...] = ()
    """Why the row was kept: what each check found, in words."""
    catalog: str | None = None
    """Hash of the catalog that the plan is for, where that is a variant (augmentation); None: the data set's own."""


class Reject(Record):
    """A row that was dropped, with the reason that the manifest counts."""

    version: Literal[1] = 1
    id: str
    query: str
    plan: Any
    reason: str
    """A short code: `check`, `unknowable_literal`, `duplicate`, ..."""
    detail: str
    """One sentence that says what was found."""
    source: str


class FinishReason(StrEnum):
    """Why generation ended."""

    STOP = "stop"
    """the model wrote its stop token (or the grammar was complete)"""
    LENGTH = "length"
    """the token limit cut the text"""
    ERROR = "error"
    """no text came back; `error` says why"""


class Run(Record):
    """One answer of one system to one test item."""

    version: Literal[1] = 1
    id: str
    part: str
    system: str
    """Which model in which mode, e.g. `tuned/grammar`."""
    query: str
    sample: int = 0
    """Which of several answers of the same system to the item; 0 where there is one."""
    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    finish_reason: FinishReason
    error: str | None = None


LogprobRow = tuple[str, float, tuple[tuple[str, float], ...]]
"""A token, its log-probability, and the likeliest tokens in its place with theirs."""


class TeacherDraft(Record):
    """One answer of a teacher, as it came. A request that failed is none: it is kept apart and asked again."""

    version: Literal[1] = 1
    key: str
    """Sha256 over what was asked: `settings`, the query and `sample`. No two rows of a file have the same."""
    settings: str
    """Sha256 over everything that is the same for all queries: catalog, prompt with its examples, model, sampling."""
    id: str
    """Of the query."""
    query: str
    sample: int = 0
    """Which of several answers to the query, from 0."""
    model: str
    """The model that was asked."""
    text: str
    """The answer before any reading; `plansmith.contract.teaching.read_answer` finds the plan in it."""
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    logprobs: tuple[LogprobRow, ...] | None = None
    """Of the text's tokens, where they were asked for and given."""
