"""The sequence penalty: one number for one answer, from -1 (no JSON) to 1 (equivalent to the reference).

Takes a text as generated, the reference plan and the catalog; pure. The penalties are those of the mission: -1 where
the text does not parse, -0.5 where a step names no registered worker, -0.25 for any other structural fault; a valid
plan gets its agreement with the reference. Parsing and validity are the contract's checker. Agreement is measured by a
scorer that the caller hands in, because the metrics belong to evaluation.

Not covered: partial credit inside a penalty (one fault costs as much as ten), length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple, Protocol

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.findings import unregistered
from plansmith.contract.records import PlanJson, Record


class Outcome(StrEnum):
    """What an answer is, decided in this order."""

    UNPARSEABLE = "unparseable"
    """the text is no strict JSON array"""
    UNREGISTERED = "unregistered"
    """a step names no worker of the catalog"""
    FAULTY = "faulty"
    """the checker finds another error: arguments, references, shape"""
    VALID = "valid"
    """the checker finds no error"""


PENALTY = {Outcome.UNPARSEABLE: -1.0, Outcome.UNREGISTERED: -0.5, Outcome.FAULTY: -0.25}
"""Reward of an answer that is not valid."""


class Agreement(NamedTuple):
    """How far a valid plan is the reference, each number from 0 to 1."""

    worker_f1: float
    argument_f1: float
    equivalent: bool
    """Whether the plans do the same."""

    @property
    def value(self) -> float:
        """1 for an equivalent plan, else the mean of both F1."""
        return 1.0 if self.equivalent else (self.worker_f1 + self.argument_f1) / 2


class Scorer(Protocol):
    """Measures a valid plan against its reference."""

    def __call__(self, text: str, reference: PlanJson, catalog: Catalog) -> Agreement:
        """Agreement of a plan, given as text that the checker found valid, with the reference."""
        ...


class Reward(NamedTuple):
    """The reward of one answer, and what it is made of."""

    value: float
    outcome: Outcome
    agreement: Agreement | None
    """None where the answer is not valid."""
    empty: bool
    """Whether the answer is the valid plan without steps: a policy that learns to say nothing shows here."""


class Tally(Record):
    """Rewards of several answers; shares are of all answers."""

    answers: int
    reward: float
    """Mean."""
    unparseable: float
    unregistered: float
    faulty: float
    valid: float
    empty: float
    """Share of answers that are the plan without steps."""
    equivalent: float
    worker_f1: float
    """Mean over all answers; 0 where an answer is not valid."""
    argument_f1: float
    """As `worker_f1`."""


def reward_of(text: str, reference: PlanJson, catalog: Catalog, scorer: Scorer) -> Reward:
    """The reward of one answer.

    Args:
        text: the answer as generated, special tokens visible, without the stop token.
        reference: the right plan.
        catalog: the workers that may be called.
        scorer: measures a valid plan against the reference.

    Raises:
        ValueError: the scorer gives a number outside 0 to 1.

    """
    check = check_plan(text, catalog)
    if not check.parsed:
        return _penalty(Outcome.UNPARSEABLE)
    if unregistered(check.findings):
        return _penalty(Outcome.UNREGISTERED)
    if not check.valid or check.plan is None:
        return _penalty(Outcome.FAULTY)
    agreement = scorer(text, reference, catalog)
    if not (0 <= agreement.worker_f1 <= 1 and 0 <= agreement.argument_f1 <= 1):
        raise ValueError(f"the scorer gave {agreement}; expected F1 values from 0 to 1.")
    return Reward(agreement.value, Outcome.VALID, agreement, empty=not check.plan.steps)


def _penalty(outcome: Outcome) -> Reward:
    return Reward(PENALTY[outcome], outcome, None, empty=False)


def tally(rewards: Sequence[Reward]) -> Tally:
    """Means and shares of at least one reward."""
    share = Counter(reward.outcome for reward in rewards)
    agreements = [reward.agreement for reward in rewards]
    return Tally(
        answers=len(rewards),
        reward=fmean(reward.value for reward in rewards),
        empty=fmean(reward.empty for reward in rewards),
        equivalent=fmean(found is not None and found.equivalent for found in agreements),
        worker_f1=fmean(found.worker_f1 if found is not None else 0.0 for found in agreements),
        argument_f1=fmean(found.argument_f1 if found is not None else 0.0 for found in agreements),
        **{outcome.value: share[outcome] / len(rewards) for outcome in Outcome},
    )
