"""What each stage of verification counts: rows read, rows dropped by reason, and what it saw on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from pydantic import model_validator

from plansmith.contract.records import Record


class Stage(StrEnum):
    """The stages, in the order in which a row goes through them."""

    SOURCE = "source"
    """the row can be read"""
    CHECK = "check"
    """the plan is valid for the catalog and short enough"""
    GROUNDING = "grounding"
    """every literal argument comes from somewhere"""
    EXECUTION = "execution"
    """the plan runs to its end on recorded results"""
    OUTCOME = "outcome"
    """its last results are the given ones"""
    VOTE = "vote"
    """it agrees with the other answers to its query"""
    JUDGE = "judge"
    """another model finds it right"""
    CHOICE = "choice"
    """of the answers to a query that are left, this one is kept"""
    DEDUPE = "dedupe"
    """no earlier row has its id or its query"""
    DECONTAMINATE = "decontaminate"
    """no test text is repeated by it"""
    AUGMENT = "augment"
    """training rows that were copied for changed catalogs"""


class StageCounts(Record):
    """One stage in the manifest; the counts add up."""

    stage: Stage
    read: int
    kept: int
    rejected: dict[str, int]
    """By reason."""
    counted: dict[str, int]
    """What it saw, by kind (`linked`: literals that became references)."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.read != self.kept + sum(self.rejected.values()):
            raise ValueError(f"{self.read} rows were read by {self.stage.value!r}, but kept and rejected are others")
        return self


@dataclass(slots=True)
class Tally:
    """Counts of one stage so far."""

    read: int = 0
    rejected: Counter[str] = field(default_factory=Counter[str])
    counted: Counter[str] = field(default_factory=Counter[str])

    def add(self, more: Tally) -> None:
        """Take over what another tally of the same stage has counted."""
        self.read += more.read
        self.rejected.update(more.rejected)
        self.counted.update(more.counted)

    def counts(self, stage: Stage) -> StageCounts:
        """The counts as the manifest has them."""
        counted = {name: number for name, number in sorted(self.counted.items()) if number}
        rejected = dict(sorted(self.rejected.items()))
        kept = self.read - sum(rejected.values())
        return StageCounts(stage=stage, read=self.read, kept=kept, rejected=rejected, counted=counted)


class Tallies(dict[Stage, Tally]):
    """Tallies by stage; a stage is there once something asked for it."""

    def __missing__(self, stage: Stage) -> Tally:
        return self.setdefault(stage, Tally())

    def add(self, more: Mapping[Stage, Tally]) -> None:
        """Take over what others counted."""
        for stage, tally in more.items():
            self[stage].add(tally)

    def counts(self) -> list[StageCounts]:
        """All stages in their order."""
        return [self[stage].counts(stage) for stage in Stage if stage in self]
