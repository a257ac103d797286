"""Config of the data stage: where queries and plans come from, what is kept, how they are split.

Read by `plansmith data build` and by recipes. Light: pydantic only.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from plansmith.data.augment_config import AugmentConfig
from plansmith.data.dedupe_config import DecontaminateConfig, DedupeConfig
from plansmith.data.ray_config import RayConfig
from plansmith.data.verify_config import VerifyConfig

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Size = Count | Share
"""A whole number is a count of rows, a number with a point is a share (`1` is one row, `1.0` is all)."""


def _lone_number(value: Any) -> Any:
    """The command line gives what may be a list as a list: a single text that is a number there is a size."""
    texts = cast("list[Any]", value) if isinstance(value, list) else []
    text = str(texts[0]) if len(texts) == 1 else ""
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        return cast("Any", value)
    return float(text) if "." in text else int(text)


NamesOrSize = Annotated[tuple[str, ...] | Size, BeforeValidator(_lone_number)]
"""Names, or how many of them; a list of one number counts as the number."""


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


class BfclCategory(StrEnum):
    """Single-turn categories of BFCL v4 for Python: one query, a list of functions of its own, an answer or none."""

    SIMPLE_PYTHON = "simple_python"
    """one function, one call"""
    MULTIPLE = "multiple"
    """several functions, one call"""
    PARALLEL = "parallel"
    """one function, several calls that do not need each other"""
    PARALLEL_MULTIPLE = "parallel_multiple"
    """several functions, several calls"""
    LIVE_SIMPLE = "live_simple"
    """as `simple_python`, from users' functions and queries"""
    LIVE_MULTIPLE = "live_multiple"
    """as `multiple`, from users"""
    LIVE_PARALLEL = "live_parallel"
    """as `parallel`, from users"""
    LIVE_PARALLEL_MULTIPLE = "live_parallel_multiple"
    """as `parallel_multiple`, from users"""
    IRRELEVANCE = "irrelevance"
    """no function fits: the plan is `[]`"""
    LIVE_IRRELEVANCE = "live_irrelevance"
    """no function fits, from users"""
    LIVE_RELEVANCE = "live_relevance"
    """some function fits, but BFCL does not say how it is to be called: every row is dropped"""


class BfclSource(Section):
    """Single-turn rows of the Berkeley Function Calling Leaderboard (BFCL v4), in a package (Apache-2.0).

    Each row has functions of its own, but a data set has one catalog. So rows are chosen whose functions go together.
    """

    kind: Literal["bfcl"]
    categories: tuple[BfclCategory, ...] = (
        BfclCategory.SIMPLE_PYTHON,
        BfclCategory.MULTIPLE,
        BfclCategory.PARALLEL,
        BfclCategory.PARALLEL_MULTIPLE,
        BfclCategory.LIVE_SIMPLE,
        BfclCategory.LIVE_MULTIPLE,
        BfclCategory.LIVE_PARALLEL,
        BfclCategory.LIVE_PARALLEL_MULTIPLE,
    )
    """Categories to read. Rows of the irrelevance categories are dropped: another row's function may fit them."""
    max_workers: int = Field(default=64, ge=1)
    """Most functions in the shared catalog; rows are chosen that bring the most rows for each function they add."""
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


class TeacherSource(Section):
    """A teacher's answers: what `plansmith data queries` and `plansmith data teach` left in a run directory."""

    kind: Literal["teacher"]
    run: Path | None = None
    """The run directory, with the queries, their catalog and the answers; None: that of the data set."""
    keep_repaired: bool = True
    """Whether answers that had to be mended to be read are used; false rejects them under `repaired`."""
    licence: str = ""
    """Licence of the rows, as it shall stand in the manifest; empty: those of the queries."""


Source = Annotated[NestfulSource | BfclSource | ScriptSource | JsonlSource | TeacherSource, Field(discriminator="kind")]


class FileBenchmark(Section):
    """Texts of a file: JSONL, CSV, TSV, or one text a line."""

    kind: Literal["file"]
    path: Path
    """The file, UTF-8; its name is the benchmark's."""
    field: str = "query"
    """Key (JSONL) or column (CSV, TSV) that holds the text."""


class BfclBenchmark(Section):
    """All single-turn queries of BFCL v4, in a package (Apache-2.0)."""

    kind: Literal["bfcl"]
    wheel: Path | None = None
    """The package's wheel where it is already on this machine; None fetches it once into the user's cache."""


class NestfulBenchmark(Section):
    """All queries of the four parts of IBM's NESTFUL, in a package (Apache-2.0)."""

    kind: Literal["nestful"]
    wheel: Path | None = None
    """The package's wheel where it is already on this machine; None fetches it once into the user's cache."""


BenchmarkConfig = Annotated[FileBenchmark | BfclBenchmark | NestfulBenchmark, Field(discriminator="kind")]


class SplitConfig(Section):
    """Sizes of the sides. Which side a row is on depends on the seed and its own text, family and plan alone for shares
    and lists of names, so appended rows never move others; a count takes the rows (families, workers, sequences) with
    the lowest hashes, so appended rows may take the place of earlier ones.

    A row that could be in several parts is in the first of these: a part reserved by the source, `unseen_workers`,
    `unseen_sequences`, `unseen`, `seen`, `val`; training gets the rest.
    """

    val: Size = 0.05
    """Rows for model selection: a share of all rows, or a count."""
    seen: Size = 0.1
    """Test rows of families that training has too: a share of all rows, or a count."""
    unseen: Size = 0.1
    """Test rows of held-out families: a share of the families, or a count of rows (whole families up to it)."""
    unseen_workers: NamesOrSize = 0
    """Workers that no training plan calls, while the catalog still shows them: their names, a share of the workers, or
    a count of workers. Every row whose plan calls one of them is a test row."""
    unseen_sequences: Size = 0
    """Sequences of workers that no training plan has, of two steps or more: a share of the sequences, or a count of
    sequences. Every row whose plan has one of them is a test row."""


class DataConfig(Section):
    """What the data stage builds."""

    source: Source
    """Where queries and plans come from; `kind` is `nestful`, `bfcl`, `script`, `jsonl` or `teacher`."""
    max_steps: int | None = Field(default=None, ge=0)
    """Longest plan that is kept, in steps; longer ones are counted as `too_long`. None: the checker's limit (16)."""
    catalog: CatalogScope = CatalogScope.ALL
    """Which workers the catalog has."""
    verify: VerifyConfig = VerifyConfig()
    """Checks beyond the static one, which every plan goes through."""
    dedupe: DedupeConfig | None = None
    """Drops rows whose query is nearly another row's (needs the extra `data`); None: only equal queries are dropped."""
    decontaminate: DecontaminateConfig | None = None
    """Drops training and validation rows that are nearly a test row (needs the extra `data`); None: nothing is, unless
    benchmarks are named."""
    benchmarks: tuple[BenchmarkConfig, ...] = ()
    """Texts besides the data set's own test rows that training and validation must not repeat; `kind` is `file`, `bfcl`
    or `nestful`."""
    split: SplitConfig = SplitConfig()
    """Sizes of validation and test parts; training gets the rest."""
    augment: AugmentConfig | None = None
    """Copies of training rows for changed catalogs; None: none are made."""
    processes: int | None = Field(default=None, ge=1)
    """Processes that check rows; they change no outcome. None: one, or one a core for 20,000 rows and more."""
    ray: RayConfig | None = None
    """Have workers of Ray check rows, on several machines where it has them; changes no outcome. None: no Ray."""

    @model_validator(mode="after")
    def _one_runner(self) -> Self:
        if self.ray is not None and self.processes is not None:
            raise ValueError("'processes' and 'ray' both say who checks rows; unset one of them")
        return self

    def in_run(self, out: Path) -> DataConfig:
        """The config with the run directory of a teacher's answers filled in, where the config leaves it open."""
        if not isinstance(self.source, TeacherSource) or self.source.run is not None:
            return self
        return self.model_copy(update={"source": self.source.model_copy(update={"run": out})})
