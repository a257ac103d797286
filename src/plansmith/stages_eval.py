"""The stages that judge a planner: answers of the systems to the test items, and the report.

For a recipe's run the systems are its base and tuned model unless the config names others; for an evaluation of files
they are whatever the config or the command line names. The work itself is in `judging.py`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.contract.progress import Progress
from plansmith.contract.store import file_hash
from plansmith.eval.config import RUN, EvalConfig, LocalSystem, ServedSystem
from plansmith.judging import Bench, Export, Model, ask_systems, write_reports
from plansmith.rundir import RunDirectory
from plansmith.stages import Base, Line, adapter_directory

if TYPE_CHECKING:
    from rich.table import Table

    from plansmith.contract.catalog import Catalog
    from plansmith.contract.records import Example
    from plansmith.data.build import DataSet
    from plansmith.eval.results import ReportMeta
    from plansmith.eval.suites import Suite
    from plansmith.evaluation import Evaluation
    from plansmith.recipe import ServeStage


def evaluate(line: Line, data: DataSet, base: Base, adapter: Path) -> Bench:
    """Stage 4: what the systems answer to the test items."""
    recipe = line.recipe
    bench = Bench(
        run=line.run,
        progress=line.progress,
        suites=_suites(data.test, data.train, data.catalog, recipe.eval, recipe.seed),
        config=_with_served(recipe.eval, recipe.serve),
        engine=recipe.engine,
        seed=recipe.seed,
        models=_run_models(line, base, adapter),
        export=_export(line, base, adapter),
    )
    ask_systems(bench)
    return bench


def _with_served(config: EvalConfig, stage: ServeStage | None) -> EvalConfig:
    """The systems, with the served export among them where it is served."""
    if stage is None or any(isinstance(system, ServedSystem) for system in config.systems):
        return config
    served = ServedSystem(kind="served", name="served", constrained=True)
    return config.model_copy(update={"systems": (*config.systems, served)})


def _export(line: Line, base: Base, adapter: Path) -> Export | None:
    stage = line.recipe.serve
    if stage is None:
        return None
    from plansmith.stages_serve import served

    form, export = line.recipe.export, line.path / "export"
    model = Model(
        f"{form} export behind plansmith serve ({stage.by})",
        export if form == "merged" else base.path,
        None if form == "merged" else export,
        base.hash + file_hash(adapter / "adapter_model.safetensors"),
    )
    settings = {"form": form, **stage.model_dump(mode="json", include={"by", "vllm"})}
    return Export(model, settings, stage.limits.concurrency, partial(served, line, stage, base))


def _suites(
    test: Sequence[Example], train: Sequence[Example], catalog: Catalog, config: EvalConfig, seed: int
) -> list[Suite]:
    from plansmith.eval.run import choose_examples
    from plansmith.eval.suites import build_suites

    return build_suites([*choose_examples(test, config), *train], catalog, config.variants, seed=seed)


def _run_models(line: Line, base: Base, adapter: Path) -> dict[tuple[str, str | None], Model]:
    """The run's own models, and those that systems name by directory."""
    from plansmith.evaluation import models_of

    recipe = line.recipe
    name = recipe.model.base if "/" not in recipe.model.base else Path(recipe.model.base).name
    tuned = f"{name} + LoRA of rank {recipe.training.rank}"
    weights = file_hash(adapter / "adapter_model.safetensors")
    own = {
        (RUN, None): Model(name, base.path, None, base.hash),
        (RUN, RUN): Model(tuned, base.path, adapter, base.hash + weights),
    }
    others = [s for s in recipe.eval.systems if isinstance(s, LocalSystem) and (s.base, s.adapter) not in own]
    return own | models_of(tuple(others))


def report(line: Line, data: DataSet, base: Base, bench: Bench, command: Sequence[str]) -> Table:
    """Stage 5: scored items and the report's files; returns the table for the terminal."""
    recipe = line.recipe
    steps = f"{recipe.training.steps} steps of {recipe.training.batch_size}"
    model = f"{recipe.model.base}, LoRA of rank {recipe.training.rank}, {steps}"
    return write_reports(bench, _meta(recipe.name, bench, data.test, command, _read_hashes(line, base), model))


def _meta(
    name: str,
    bench: Bench,
    examples: Sequence[Example],
    command: Sequence[str],
    hashes: dict[str, str],
    model: str = "",
) -> ReportMeta:
    """Where the numbers come from; `examples` are all test items, of which the bench may ask fewer."""
    from plansmith.eval.provenance import code_version, machine_description
    from plansmith.eval.results import ReportMeta

    asked = Counter(example.part for example in bench.suites[0].examples)
    whole = Counter(example.part for example in examples)
    return ReportMeta(
        name=name,
        seed=bench.seed,
        resamples=bench.config.resamples,
        failures=bench.config.failures,
        page_items=bench.config.page_items,
        currency=bench.config.currency,
        command=shlex.join(command),
        code_version=code_version(),
        machine=machine_description(accelerator=_accelerator()),
        model=model,
        data_hashes=hashes,
        left_out={part: whole[part] - count for part, count in asked.items() if whole[part] > count},
    )


def _read_hashes(line: Line, base: Base) -> dict[str, str]:
    """What the numbers depend on, by name."""
    files = {name: file_hash(line.path / name) for name in ("train.jsonl", "val.jsonl", "test.jsonl")}
    adapter = file_hash(adapter_directory(line) / "adapter_model.safetensors")
    return files | {"base model": base.hash, "adapter": adapter}


def evaluate_files(evaluation: Evaluation, progress: Progress, command: Sequence[str]) -> Table:
    """Ask the systems of an evaluation of files, and report; returns the table for the terminal."""
    from plansmith.contract.catalog import Catalog
    from plansmith.evaluation import models_of, read_examples

    catalog = Catalog.load(evaluation.catalog)
    examples = read_examples(evaluation.examples, catalog)
    run = RunDirectory(evaluation.directory)
    with run.locked():
        bench = Bench(
            run=run,
            progress=progress,
            suites=_suites(examples, (), catalog, evaluation.eval, evaluation.seed),
            config=evaluation.eval,
            engine=evaluation.engine,
            seed=evaluation.seed,
            models=models_of(evaluation.eval.systems),
        )
        ask_systems(bench)
        hashes = {evaluation.examples.name: file_hash(evaluation.examples)}
        return write_reports(bench, _meta(evaluation.name, bench, examples, command, hashes))


def _accelerator() -> str | None:
    """Name of the GPU, where torch was loaded in this process and has one."""
    import sys

    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else None
