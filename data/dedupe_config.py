"""Config of the two steps that compare queries: dropping near duplicates, and keeping test texts out of training.

Light: pydantic only. The sections stand in a `DataConfig` and are used by `dedupe.py` and `decontaminate.py`.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from plansmith.contract.settings import Settings


class NearRule(StrEnum):
    """When a query that is nearly the same as another one counts as a repetition."""

    SAME_PLAN = "same_plan"
    """where both have the same plan: queries of one template with other arguments (Lisbon, Porto) are kept"""
    ANY_PLAN = "any_plan"
    """whatever the plans are"""
    OFF = "off"
    """never: only queries that are equal after normalising count"""


class NearConfig(Settings):
    """What makes two queries nearly the same: how many of their runs of characters they share."""

    rule: NearRule = NearRule.SAME_PLAN
    """Whether the plans decide too."""
    threshold: float = Field(default=0.8, gt=0, le=1)
    """Least similarity (Jaccard index over shingles of the normalised queries); 1 means the same shingles."""
    shingle: int = Field(default=5, ge=1, le=64)
    """Length of a shingle in characters."""
    permutations: int = Field(default=96, ge=8, le=1024)
    """Length of a MinHash signature. More find nearly all pairs at the threshold with fewer comparisons in vain."""


class DedupeConfig(NearConfig):
    """Which rows repeat an earlier one. Equal queries always do."""


class DecontaminateConfig(NearConfig):
    """Which training rows repeat a text of a test split or of a benchmark. Equal texts always do."""

    words: int = Field(default=8, ge=2, le=64)
    """Length in words of the runs that are looked for inside longer queries; shorter texts are not looked for so."""
    overlap: float = Field(default=0.8, gt=0, le=1)
    """Share of a test text's runs of words that a training query must hold to be dropped."""
