"""Config of the data stage: where queries and plans come from, what is kept, how they are split.

Read by `plansmith data build` and by recipes. Light: pydantic only.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Size = Count | Share
"""A whole number is a count of rows, a number with a point is a share (`1` is one row, `1.0` is all)."""


class Section(BaseModel):
    """Base of the data stage's config classes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DataDependent(StrEnum):
    """What happens to a recorded plan that picks by what a result holds (the cheapest, the nearest)."""

    REJECT = "reject"
    """it is dropped and counted under `data_dependent_choice`: no planner can know the choice beforehand"""
    PART = "part"
    """it is kept for testing only, in a part of its own, `data_dependent`"""
    KEEP = "keep"
    """it is treated like any other row"""


class Returns(StrEnum):
    """How much of the specs' output parameters the catalog shows."""

    REFERENCED = "referenced"
    """the places that recorded plans refer to: a short prompt"""
    DECLARED = "declared"
    """everything that the specs declare (up to sixty fields a worker)"""


class CatalogScope(StrEnum):
    """Which workers the catalog of the data set has."""

    ALL = "all"
    """every worker of the source"""
    USED = "used"
    """only workers that a kept plan calls: a shorter prompt"""


class NestfulSource(Section):
    """ComplexFuncBench of IBM's NESTFUL: 1,000 travel queries with recorded calls, in a package (Apache-2.0)."""

    kind: Literal["nestful"]
    data_dependent: DataDependent = DataDependent.REJECT
    """What happens to plans that pick by what a result holds."""
    reworded: bool = True
    """Whether a rewording of the query's words ("Colosseum, Italy") counts as known; false drops such rows."""
    returns: Returns = Returns.REFERENCED
    """How much of the results' shape the catalog shows."""
    wheel: Path | None = None
    """The package's wheel where it is already on this machine; None fetches it once into the user's cache."""


class ScriptSource(Section):
    """A module of the user with `candidates(seed, count) -> Iterator[dict]`, beside a `catalog.json`."""

    kind: Literal["script"]
    path: Path
    """The Python file."""
    catalog: Path | None = None
    """The catalog file; None takes `catalog.json` beside the script."""
    count: int = Field(default=800, ge=1)
    """How many rows to ask the script for."""
    extra: tuple[Path, ...] = ()
    """JSONL files of rows `{"query","plan"}` for testing only, in the part `handwritten` unless a row names another."""
    licence: str = ""
    """Licence of the rows, as it shall stand in the manifest."""


class JsonlSource(Section):
    """A JSONL file of rows `{"query","plan"}` with optional `id`, `family`, `part`."""

    kind: Literal["jsonl"]
    path: Path
    """The JSONL file, UTF-8."""
    catalog: Path
    """The catalog file."""
    licence: str = ""
    """Licence of the rows, as it shall stand in the manifest."""


Source = Annotated[NestfulSource | ScriptSource | JsonlSource, Field(discriminator="kind")]


class SplitConfig(Section):
    """Sizes of the sides. Which side a row is on depends on the seed and its own text (or family) alone for shares,
    so appended rows never move others; a count takes the rows (or whole families) with the lowest hashes, so appended
    rows may take the place of earlier ones.
    """

    val: Size = 0.05
    """Rows for model selection: a share of all rows, or a count."""
    seen: Size = 0.1
    """Test rows of families that training has too: a share of all rows, or a count."""
    unseen: Size = 0.1
    """Test rows of held-out families: a share of the families, or a count of rows (whole families up to it)."""


class DataConfig(Section):
    """What the data stage builds."""

    source: Source
    """Where queries and plans come from; `kind` is `nestful`, `script` or `jsonl`."""
    max_steps: int | None = Field(default=None, ge=0)
    """Longest plan that is kept, in steps; longer ones are counted as `too_long`. None: the checker's limit (16)."""
    catalog: CatalogScope = CatalogScope.ALL
    """Which workers the catalog has."""
    split: SplitConfig = SplitConfig()
    """Sizes of validation and test parts; training gets the rest."""
