"""The stages that make a planner, data to adapter, each skipped where its output is complete for the same inputs.

Reads a recipe and the run directory; writes what the stages write, and beside it `recipe.json` (the resolved recipe,
versions, code hash) and `stages.json` (what each stage was made from). A stage's inputs are its settings and the
hashes of what it reads, so a changed setting remakes that stage and those that depend on it; what the earlier
settings made is moved aside. Torch is imported only where a stage has work to do.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plansmith import __version__
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Progress
from plansmith.contract.prompt import prompt_hash, render
from plansmith.contract.store import file_hash, write_text
from plansmith.fingerprint import code_hash, hash_json, package_versions
from plansmith.recipe import Recipe
from plansmith.rundir import RunDirectory, State

if TYPE_CHECKING:
    from plansmith.data.build import DataSet
    from plansmith.training.parallel import World


class Base(NamedTuple):
    """The base model that a run trains and is compared with."""

    path: Path
    hash: str
    """Sha256 over its weights, tokenizer and config."""


@dataclass(frozen=True)
class Line:
    """One run: what to do, where, and who is told."""

    recipe: Recipe
    run: RunDirectory
    progress: Progress

    @property
    def path(self) -> Path:
        return self.run.path


def open_line(recipe: Recipe, progress: Progress) -> Line:
    return Line(recipe, RunDirectory(recipe.directory), progress)


def write_recipe(line: Line, command: Sequence[str]) -> None:
    """Write `recipe.json`: with it and the data's sources the run can be made again."""
    record = {
        "version": 1,
        "recipe": line.recipe.model_dump(mode="json"),
        "plansmith": __version__,
        "code": code_hash("contract", "data", "training", "serving", "eval"),
        "python": platform.python_version(),
        "packages": package_versions("torch", "transformers", "peft", "llguidance", "pydantic"),
        "command": list(command),
    }
    write_text(line.path / "recipe.json", json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def build_data(line: Line) -> DataSet:
    """As `build_files`, with all rows loaded."""
    from plansmith.data.build import load_data

    build_files(line)
    return load_data(line.path)


def build_files(line: Line) -> None:
    """Stage 1: the verified train, val and test parts; the data stage itself skips a build from the same inputs."""
    from plansmith.contract.catalog import Catalog
    from plansmith.data.build import CATALOG
    from plansmith.data.build import build_data as build
    from plansmith.verifying import helpers_of

    recipe = line.recipe
    with helpers_of(recipe, line.progress) as helpers:
        manifest = build(recipe.data, line.path, seed=recipe.seed, progress=line.progress, helpers=helpers)
    counts = manifest.counts
    sizes = f"{counts.train} train, {counts.val} val, {sum(counts.test.values())} test"
    workers = len(Catalog.load(line.path / CATALOG).workers)
    line.progress.note(f"data: {sizes}; {workers} workers, catalog {manifest.catalog_hash[:12]}")


def load_built_data(line: Line) -> DataSet:
    """The data that an earlier command built; raises `InputError` where there is none."""
    from plansmith.data.build import load_data

    require_data(line.path)
    return load_data(line.path)


def require_data(folder: Path) -> None:
    """Raise `InputError` where a run has no data yet."""
    if not any((folder / name).exists() for name in ("manifest.json", ".data-complete")):
        raise InputError(f"{str(folder)!r} holds no data yet. Run: plansmith data build --config FILE")


def prepare_base(line: Line, data: DataSet) -> Base:
    """Stage 2: the base model as safetensors, kept in the user's cache."""
    texts = list(_texts(data))
    inputs = {
        "model": line.recipe.model.model_dump(mode="json"),
        "texts": hash_json(texts),
        "code": code_hash("training"),
    }
    stamp = line.run.stamps().get("base")
    result = stamp.result if stamp is not None else {}
    made = Path(result.get("path", "")).joinpath("config.json").is_file()
    if not enter(line, "base", inputs, made=made):
        return Base(Path(result["path"]), result["hash"])
    from plansmith.training.model import base_hash
    from plansmith.training.model import prepare_base as prepare

    path = Path(prepare(line.recipe.model, texts=texts, progress=line.progress))
    base = Base(path, base_hash(path))
    line.run.mark("base", inputs, done=True, result={"path": str(base.path.absolute()), "hash": base.hash})
    return base


def adapter_directory(line: Line) -> Path:
    return line.path / "train" / "adapter"


def _train_inputs(line: Line, data: DataSet, base: Base) -> dict[str, Any]:
    """What the adapter depends on."""
    return {
        "training": line.recipe.training.that_matter() | _more_inputs(line),
        "seed": line.recipe.seed,
        "train": file_hash(line.path / "train.jsonl"),
        "base": base.hash,
        "plansmith": __version__,
        **prompt_inputs(data),
    }


def _more_inputs(line: Line) -> dict[str, str]:
    """Hashes of the files that settings of training name."""
    training, more = line.recipe.training, dict[str, str]()
    if "metric" in training.that_matter():
        more["val_hash"] = file_hash(line.path / "val.jsonl")
    if training.teacher is not None and (drafts := Path(training.teacher).expanduser() / "drafts.jsonl").is_file():
        more["teacher_hash"] = file_hash(drafts)
    return more


def train(line: Line, data: DataSet, base: Base) -> Path:
    """Stage 3: the adapter's directory."""
    adapter = adapter_directory(line)
    inputs = _train_inputs(line, data, base)
    if enter(line, "train", inputs, made=(adapter / "adapter_model.safetensors").is_file(), aside="train"):
        from plansmith.held_out import judge_of
        from plansmith.training.trainer import train as run_training

        line.run.mark("train", inputs, done=False)
        recipe = line.recipe
        out = line.path / "train"
        judge = judge_of(recipe.engine.batch_size)
        told = line.progress
        run_training(recipe.model, recipe.training, data, base.path, out, seed=recipe.seed, progress=told, judge=judge)
        line.run.mark("train", inputs, done=True)
    return adapter


def train_together(line: Line, data: DataSet, base: Base, world: World) -> Path:
    """As `train`, in one of several processes: the first of them decides, writes and tells."""
    from plansmith.held_out import judge_of
    from plansmith.training.trainer import train as run_training

    adapter, recipe = adapter_directory(line), line.recipe
    inputs = _train_inputs(line, data, base)
    made = (adapter / "adapter_model.safetensors").is_file()
    work = world.leads and enter(line, "train", inputs, made=made, aside="train")
    if not world.sum_values([float(work)])[0]:
        return adapter
    if world.leads:
        line.run.mark("train", inputs, done=False)
    out = line.path / "train"
    run_training(
        recipe.model,
        recipe.training,
        data,
        base.path,
        out,
        seed=recipe.seed,
        progress=line.progress,
        world=world,
        judge=judge_of(recipe.engine.batch_size),
    )
    if world.leads:
        line.run.mark("train", inputs, done=True)
    return adapter


def trained_adapter(line: Line) -> Path:
    """The adapter that an earlier command trained; raises `InputError` where training is not finished."""
    adapter = adapter_directory(line)
    stamp = line.run.stamps().get("train")
    if not (adapter / "adapter_model.safetensors").is_file() or stamp is None or not stamp.done:
        raise InputError(f"{str(line.path)!r} holds no finished adapter. Run: plansmith train --config FILE")
    return adapter


def require_trained_on(line: Line, data: DataSet, base: Base) -> Path:
    """The adapter, where it was trained from exactly this data, base and settings.

    Raises:
        InputError: it was not; a test item may then have been among its training rows.

    """
    adapter = trained_adapter(line)
    changes = line.run.differences("train", _train_inputs(line, data, base))
    if changes:
        raise InputError(
            f"{str(adapter)!r} was trained from other inputs than this recipe and its data ({'; '.join(changes)}). "
            "Run plansmith train, or give the recipe that it was trained with."
        )
    return adapter


def prepared_base(line: Line) -> Base:
    """The base model that an earlier command prepared; made again where it has left the cache."""
    stamp = line.run.stamps().get("base")
    if stamp is not None and Path(stamp.result.get("path", "")).joinpath("config.json").is_file():
        return Base(Path(stamp.result["path"]), stamp.result["hash"])
    return prepare_base(line, load_built_data(line))


def enter(line: Line, stage: str, inputs: Mapping[str, Any], *, made: bool, aside: str = "") -> bool:
    """Whether a stage has work to do, said to the user; work made from other inputs is moved aside."""
    state = line.run.state(stage, inputs)
    if state is State.DONE and made:
        line.progress.note(f"{stage}: complete for the same inputs, skipped")
        return False
    if state is State.PARTIAL:
        line.progress.note(f"{stage}: begun earlier with the same inputs, going on")
    elif state is State.STALE:
        line.progress.note(f"{stage}: made anew, because {'; '.join(line.run.differences(stage, inputs))}")
    if aside and state in (State.STALE, State.NEW) and (moved := line.run.set_aside(aside)):
        line.progress.note(f"{stage}: earlier work is kept in {moved}")
    return True


def _texts(data: DataSet) -> Iterator[str]:
    """What the model reads and writes in training. Test items are not among it: nothing is fitted to them."""
    for catalog in (data.catalog, *data.catalogs.values()):
        yield render("", catalog).prefix
    for example in (*data.train, *data.val):
        yield render(example.query, data.catalog).suffix
        yield Plan.from_json(example.plan).canonical(data.catalog_of(example))


def prompt_inputs(data: DataSet) -> dict[str, str]:
    return {"catalog": data.catalog.hash, "prompt": prompt_hash(data.catalog)}
