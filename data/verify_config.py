"""Config of verification: which checks a row goes through, and what each does with a row that does not pass.

Light: pydantic only. The sections stand in a `DataConfig`; the stages that they name are in `plansmith.data.stages`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from plansmith.contract.settings import Settings


class Rule(StrEnum):
    """What a check does."""

    OFF = "off"
    """nothing: rows are not looked at"""
    COUNT = "count"
    """it counts what it finds and leaves every row as it is"""
    REJECT = "reject"
    """it drops the rows that do not pass, each with its reason"""


class Tie(StrEnum):
    """What happens where two plans of a query have equally many votes, and no other has more."""

    FIRST = "first"
    """the one that came first wins, as greedy decoding would have it; counted as `ties`"""
    REJECT = "reject"
    """all answers to the query are dropped under `tied`"""


class Unjudged(StrEnum):
    """What happens to a row on which the judge gave no usable verdict."""

    REJECT = "reject"
    """it is dropped under `unjudged`"""
    KEEP = "keep"
    """it is kept, and counted as `unjudged`"""


class GroundingConfig(Settings):
    """Whether every literal argument comes from somewhere: the query, the worker's schema, or an earlier result."""

    rule: Rule | None = None
    """What happens to plans with other literals; None: `reject` for a teacher's plans, `off` for other sources."""
    link: bool = True
    """Under `reject`: whether a literal that an earlier recorded result holds becomes a reference to it. Never for
    NESTFUL, whose importer has done so with knowledge of all rows."""


class ExecutionConfig(Settings):
    """Whether a plan runs to its end on recorded results. Workers that write are never run."""

    rule: Rule | None = None
    """What happens to plans that do not; None: `reject` for a teacher's plans, `off` for other sources. Rows without
    recorded results are counted and go on."""
    nearest: bool = False
    """Whether a call that was never recorded is answered by the recorded call that shares most arguments."""


class VoteConfig(Settings):
    """Agreement among the answers to one query. Rows are answers to the same query where its text is the same."""

    min_share: float = Field(default=0.0, ge=0, le=1)
    """Least share of all answers to the query (those rejected before are answers too) that must agree with the one
    that is kept. Otherwise all are dropped under `no_agreement`."""
    tie: Tie = Tie.FIRST
    """What happens where two plans have equally many votes."""


class JudgeConfig(Settings):
    """How another model is asked whether a plan does what its query wants."""

    unjudged: Unjudged = Unjudged.REJECT
    """What happens to rows without a usable verdict."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """Sampling temperature; None: the endpoint's own."""
    max_tokens: int = Field(default=512, ge=1)
    """Token limit of one verdict."""
    concurrency: int = Field(default=8, ge=1, le=4096)
    """Requests under way at once."""
    give_up_after: int = Field(default=20, ge=1)
    """Requests that may fail one after the other before the service counts as gone."""
    budget_requests: int | None = Field(default=None, ge=1)
    """Most requests, those of earlier runs included; None: no limit."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of prompts and verdicts together; None: no limit."""


class VerifyConfig(Settings):
    """Which checks rows go through after the static one, in this order."""

    grounding: GroundingConfig = GroundingConfig()
    execution: ExecutionConfig = ExecutionConfig()
    outcome: Rule = Rule.OFF
    """Whether the plan's last results must be the row's given answer (`answer`), or for a teacher's plan those of the
    query's own plan where it has recorded results. Plans that did not run to their end are counted and go on."""
    vote: VoteConfig | None = None
    """Agreement among the answers to one query; None: none is looked for, and the first answer is kept."""
    judge: JudgeConfig | None = None
    """A second model's verdict; None: none is asked."""
    likeliest: bool = False
    """Whether of several answers that passed the one is kept that the student finds likeliest; otherwise the first."""


class Rules(NamedTuple):
    """The checks of one row, with the source's defaults filled in."""

    grounding: Rule
    link: bool
    execution: Rule
    nearest: bool
    outcome: Rule


def rules_for(config: VerifyConfig, source_kind: str) -> Rules:
    """What is checked of rows of a kind of source (`teacher`, `nestful`, ...)."""
    usual = Rule.REJECT if source_kind == "teacher" else Rule.OFF
    return Rules(
        grounding=config.grounding.rule or usual,
        link=config.grounding.link and source_kind != "nestful",
        execution=config.execution.rule or usual,
        nearest=config.execution.nearest,
        outcome=config.outcome,
    )
