"""Config of augmentation: which catalogs training rows are also shown with, and what changes in the rows. Light."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from plansmith.contract.settings import Settings
from plansmith.contract.variants.naming import NameStyle
from plansmith.contract.variants.renamed import Descriptions

Share = Annotated[float, Field(ge=0, le=1)]


class AugmentConfig(Settings):
    """Copies of training rows for changed catalogs, so that the student reads the catalog instead of learning it.

    `catalogs` variants of the catalog are made; each copy of a row belongs to one of them. The prompt of a catalog runs
    once a micro-batch of training, so fewer catalogs train faster and more of them teach more. Shares of catalogs are
    exact, not drawn: of 8 catalogs, `rename: 0.5` renames in 4. Rows for validation and testing stay as they
    are.
    """

    catalogs: int = Field(default=8, ge=1, le=1024)
    """How many variants of the catalog are made."""
    copies: float = Field(default=1.0, gt=0, le=1000)
    """Copies of each training row, each for another variant as far as there are enough; 0.5 copies every other row."""
    keep: bool = True
    """Whether the rows themselves stay beside their copies."""
    shuffle: Share = 1.0
    """Share of the variants whose workers and parameters stand in another order."""
    rename: Share = 0.5
    """Share of the variants with other names."""
    worker_rate: Share = 0.5
    """In these: share of the workers that get another name."""
    parameter_rate: Share = 0.5
    """In these: share of each worker's parameters that get another name."""
    style: NameStyle = NameStyle.MASKED
    """What other names look like; `masked` is that of Hammer (Lin et al. 2024)."""
    descriptions: Descriptions = Descriptions.EXPLAIN
    """What becomes of descriptions where names are other ones."""
    distract: Share = 0.0
    """Share of the variants with workers of another catalog between their own."""
    distractors: int = Field(default=4, ge=1)
    """In these: how many; each variant has others."""
    distractor_catalog: Path | None = None
    """Catalog that distracting workers are taken from. It must be of another domain: its workers are never right."""
    confuse: Share = 0.0
    """Share of the variants with near copies of their own workers, which the description tells apart."""
    near_copies: int = Field(default=4, ge=1)
    """In these: how many, as far as there are workers."""
    remove: Share = 0.25
    """Share of the variants that lack some workers: the plan of a row that needs nothing but these becomes `[]`."""
    removed_rate: Share = 0.25
    """In these: share of the workers that are gone, other ones in each as far as possible. Rows that need some of them
    and others too go to another variant, since a part of their plan could still be defended."""
    substitute: Share = 0.5
    """Share of the copies in which a value is exchanged, in query and plan alike, for one that another training row has
    for the same parameter. Only values that stand in the query once, word for word, of rows with nothing invented."""

    @model_validator(mode="after")
    def _has_distractors(self) -> Self:
        if self.distract > 0 and self.distractor_catalog is None:
            raise ValueError("'distract' needs 'distractor_catalog', a catalog of another domain")
        return self
