"""Evaluation of any planner on a file of examples, without a recipe's run.

Reads a config with `examples`, `catalog` and `eval.systems` (or the flags of `plansmith eval`); the results lie in
`out/<name>` like those of a run. Rows of the examples file are those that `plansmith data build` writes, or
`{"query","plan"}` with optional `id`, `part`, `family`, `results`. A row that cannot be used ends the command with its
place: a test set with holes would give numbers of something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.errors import InputError
from plansmith.contract.findings import Severity
from plansmith.contract.records import Example, Split
from plansmith.contract.settings import Settings
from plansmith.eval.config import EvalConfig, LocalSystem, System
from plansmith.judging import Model
from plansmith.serving.config import EngineConfig

NO_PART = "test"
"""Part of rows that name none."""


class Evaluation(Settings):
    """What is evaluated: systems on examples with a catalog."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the evaluation: its directory is `out/name`."""
    out: Path = Path("out")
    """Directory that holds the runs."""
    seed: int = Field(default=1, ge=0)
    """Seed of variants, samples and bootstrap."""
    examples: Path
    """JSONL file of test items."""
    catalog: Path
    """The workers that plans may call."""
    engine: EngineConfig = Field(default_factory=EngineConfig)
    eval: EvalConfig

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.out / self.name


def read_examples(path: Path, catalog: Catalog) -> list[Example]:
    """Test items of a file.

    Raises:
        InputError: the file cannot be read, or a row is none, is given twice, or holds a plan that is not valid.

    """
    from plansmith.eval.rows import iter_rows

    examples: list[Example] = []
    seen: dict[str, str] = {}
    for row in iter_rows(path):
        example = _example(row.values, row.place, f"{path.stem}-{row.number}")
        if example.id in seen:
            raise InputError(f"{row.place}: the id {example.id!r} stands already in {seen[example.id]}.")
        errors = [f for f in check_plan(example.plan, catalog).findings if f.severity is Severity.ERROR]
        if errors:
            raise InputError(
                f"{row.place}: the plan is not valid against the catalog {catalog.name!r}: {errors[0].message} "
                "An invalid reference cannot be reached by any planner; mend the row or give its catalog."
            )
        seen[example.id] = row.place
        examples.append(example)
    if not examples:
        raise InputError(f"{str(path)!r} holds no rows; expected one object a line with 'query' and 'plan'.")
    return examples


def _example(row: Mapping[str, Any], place: str, name: str) -> Example:
    given = dict(row)
    if "plan" not in given or not isinstance(given.get("query"), str):
        raise InputError(f"{place}: expected 'query' (a string) and 'plan', found the keys {sorted(given)}.")
    defaults = {"id": name, "family": "", "source": "", "part": NO_PART}
    values = defaults | {key: value for key, value in given.items() if value is not None}
    try:
        return Example.model_validate(values | {"split": Split.TEST})
    except ValueError as error:
        raise InputError(f"{place}: this is no test item: {' '.join(str(error).split())}") from error


def models_of(systems: tuple[System, ...]) -> dict[tuple[str, str | None], Model]:
    """The local models that systems name by directory.

    Raises:
        InputError: a system means the run's own model, though there is no run, or a directory holds no model.

    """
    from plansmith.contract.store import file_hash
    from plansmith.eval.config import RUN
    from plansmith.training.model import base_hash

    found: dict[tuple[str, str | None], Model] = {}
    for system in systems:
        if not isinstance(system, LocalSystem) or (system.base, system.adapter) in found:
            continue
        if RUN in (system.base, system.adapter):
            raise InputError(
                f"system {system.name!r} means the model of a run, but this evaluation belongs to none; give 'base' "
                "and 'adapter' as directories."
            )
        base, adapter = Path(system.base), Path(system.adapter) if system.adapter else None
        if not (base / "config.json").is_file():
            raise InputError(f"{str(base)!r} holds no model (no config.json); expected a directory of transformers.")
        weights = adapter / "adapter_model.safetensors" if adapter is not None else None
        if weights is not None and not weights.is_file():
            raise InputError(f"{str(adapter)!r} holds no adapter (no adapter_model.safetensors).")
        digest = base_hash(base) + (file_hash(weights) if weights is not None else "")
        name = base.resolve().name + (f" + {adapter.resolve().name}" if adapter is not None else "")
        found[system.base, system.adapter] = Model(name, base, adapter, digest)
    return found
