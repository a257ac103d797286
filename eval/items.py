"""What was found about one answer to one item, and about one system as it answered. Stored, so that systems can be
compared pair by pair later, by `plansmith compare` and in the report.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from plansmith.contract.records import FinishReason, Record
from plansmith.eval.metrics import Counts, FirstFault


class ScoredItem(Record):
    """One answer of one system to one item, scored. One JSONL row."""

    version: Literal[1] = 1
    system: str
    """Which planner in which mode, e.g. `tuned/grammar`."""
    id: str
    """Unique among the items; an item of a variant has the id of its origin, `@` and the variant's name."""
    part: str
    """The part that is reported apart, e.g. `seen`, or `renamed` for the items of that variant."""
    sample: int = 0
    """Which of several answers of the same system to the item; 0 where there is one."""
    query: str
    references: tuple[str, ...]
    """Right plans as canonical JSON text; none where the item has no reference."""
    candidate: str | None
    """The text as generated; None where there is no answer (missing, or the request failed)."""
    plan: str | None
    """The candidate as canonical JSON text, where it has the shape of a plan."""
    fault: FirstFault | None
    """First fault; None where the item has no reference."""
    finding: str | None
    """The checker's first error, or why there is no answer."""
    finish_reason: FinishReason | None
    """None where there is no row for the item."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    outcomes: dict[str, bool | float | None]
    """By metric name, for rates (true or false) and means (a number from 0 to 1); None: could not be scored."""
    counts: dict[str, Counts | None]
    """By metric name, for F1: true positives, false positives, false negatives."""
    invented: tuple[str, ...] = ()
    """Literal arguments that are neither in the query nor derivable, as JSON text with their place."""


class PlannerKind(StrEnum):
    """Where a system's answers come from."""

    LOCAL = "local"
    """the local engine, in the evaluator's process"""
    OPENAI = "openai"
    """an OpenAI-compatible endpoint"""
    RECORDED = "recorded"
    """a file of answers"""
    SERVED = "served"
    """the run's export behind a gateway that was started for it"""


class SystemInfo(Record):
    """How a system was asked and what that cost beyond its rows. Kept in `eval/systems.json`, by system name."""

    version: Literal[1] = 1
    system: str
    kind: PlannerKind
    model: str = ""
    """Name of the model, adapter included, in words or as the endpoint calls it. Never a path."""
    model_hash: str | None = None
    model_bytes: int | None = None
    """Bytes of weights (base and adapter) on disk; None where unknown."""
    peak_memory_bytes: int | None = None
    """Peak resident memory of the serving process (its GPU memory added) while it answered; None where unknown."""
    constrained: bool
    temperature: float = 0.0
    concurrency: int
    """Most requests under way at once."""
    answered: int = 0
    """Answers behind `wall_seconds`."""
    wall_seconds: float = 0.0
    """Time in which the system was being asked, over all sessions; gives plans a second."""
    price_prompt: float | None = None
    """Price of a million prompt tokens, in the report's currency; None where unknown."""
    price_completion: float | None = None
    """Price of a million completion tokens."""
    price_hour: float | None = None
    """Price of an hour of the machine, for a planner that is paid by time."""
