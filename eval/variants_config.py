"""Settings of the variants under which a planner is tested. Light: pydantic and names of the contract only."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from plansmith.contract.variants import Descriptions, NameStyle


class VariantKind(StrEnum):
    """How the catalog is changed; the value is also the part that the items of the variant are reported under."""

    SHUFFLED = "shuffled"
    """the same workers and parameters in another order"""
    RENAMED = "renamed"
    """other names for workers and parameters"""
    DISTRACTORS = "distractors"
    """workers of another catalog put between"""
    CONFUSABLE = "confusable"
    """near copies of the workers that plans call, each with a purpose for which no user asks"""
    NO_WORKER = "no_worker"
    """all workers of the item's plan taken out: the right plan is `[]`"""


class VariantsConfig(BaseModel):
    """Which variants are tested beside the plain items, and how far they go."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kinds: tuple[VariantKind, ...] = ()
    """Variants to test; none by default."""
    parts: tuple[str, ...] | None = None
    """Test parts whose items are varied; None: all."""
    limit: int | None = Field(default=40, ge=1)
    """Most items of each variant, picked by the hash of their id (the same ones for all variants where they fit);
    None: all."""
    seen_queries: int = Field(default=0, ge=0)
    """Rows of training, picked by hash, that are asked too, in the part `train`: what was memorised."""
    worker_rate: float = Field(default=1.0, ge=0, le=1)
    """`renamed`: share of the workers with a new name."""
    parameter_rate: float = Field(default=1.0, ge=0, le=1)
    """`renamed`: share of each worker's parameters with a new name."""
    name_style: NameStyle = NameStyle.MASKED
    """`renamed`: what new names look like."""
    descriptions: Descriptions = Descriptions.EXPLAIN
    """`renamed`: what becomes of descriptions."""
    distractor_catalog: Path | None = None
    """`distractors`: catalog file whose workers are put in. None of them may do what a query asks for: take another
    domain."""
    distractor_count: int = Field(default=10, ge=1)
    """`distractors`: how many workers are put in."""
    confusable_count: int = Field(default=8, ge=1)
    """`confusable`: most near copies; fewer where the varied items call few workers (three copies of each at most)."""
    no_worker_groups: int = Field(default=2, ge=1)
    """`no_worker`: most catalogs; each lacks up to half of the workers, and together they serve as many items as
    they can."""

    @model_validator(mode="after")
    def _kinds_have_what_they_need(self) -> Self:
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError("a kind is named twice")
        if VariantKind.DISTRACTORS in self.kinds and self.distractor_catalog is None:
            raise ValueError("the kind 'distractors' needs a catalog file to take workers from: distractor_catalog")
        return self
