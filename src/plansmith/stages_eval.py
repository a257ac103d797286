"""The stages that judge a planner: answers of base and tuned model to the test items, and the report.

Reads the test part, base model and adapter; writes `eval/runs.jsonl`, `report.json` and `report.md`. Answers are kept
as long as model, engine settings, prompt and test part are the same; only what is missing is asked.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.contract.errors import InputError
from plansmith.contract.records import Example, FinishReason, Run
from plansmith.contract.store import file_hash, read_rows, write_rows
from plansmith.rundir import State
from plansmith.stages import Base, Line, adapter_directory, prompt_inputs

if TYPE_CHECKING:
    from rich.table import Table

    from plansmith.data.build import DataSet

MODELS = ("base", "tuned")
RUNS = "eval/runs.jsonl"


def evaluate(line: Line, data: DataSet, base: Base, adapter: Path) -> list[Run]:
    """Stage 4: what base and tuned model answer to the test items, each without and with grammar."""
    from plansmith.eval.run import choose_examples

    examples = choose_examples(data.test, line.recipe.eval)
    if not examples:
        raise InputError(f"{str(line.path / 'test.jsonl')!r} has no rows, so nothing can be evaluated.")
    rows: list[Run] = []
    for model in MODELS:
        rows += _evaluate_model(line, data, examples, model, base, adapter if model == "tuned" else None)
    return rows


def _evaluate_model(
    line: Line, data: DataSet, examples: Sequence[Example], model: str, base: Base, adapter: Path | None
) -> list[Run]:
    stage = f"eval {model}"
    inputs = {
        "engine": line.recipe.engine.model_dump(mode="json"),
        "test": file_hash(line.path / "test.jsonl"),
        "base": base.hash,
        "adapter": file_hash(adapter / "adapter_model.safetensors") if adapter is not None else None,
        **prompt_inputs(data),
    }
    runs = line.path / RUNS
    systems = {f"{model}/free": False, f"{model}/grammar": True}
    if line.run.state(stage, inputs) in (State.STALE, State.NEW):
        _drop_systems(line, runs, systems, line.run.differences(stage, inputs))
    rows = _answers(runs, systems, examples)
    if len(rows) == len(systems) * len(examples):
        line.progress.note(f"{stage}: {len(examples)} test items are answered already (same inputs)")
        line.run.mark(stage, inputs, done=True)
        return rows
    line.run.mark(stage, inputs, done=False)
    rows = _ask(line, data, examples, systems, base, adapter, runs)
    line.run.mark(stage, inputs, done=True)
    return rows


def _ask(
    line: Line,
    data: DataSet,
    examples: Sequence[Example],
    systems: Mapping[str, bool],
    base: Base,
    adapter: Path | None,
    runs: Path,
) -> list[Run]:
    from plansmith.eval.run import run_system
    from plansmith.serving.local_engine import LocalEngine

    rows: list[Run] = []
    with LocalEngine(base.path, adapter, config=line.recipe.engine) as engine:
        for system, constrained in systems.items():
            rows += run_system(
                engine,
                system,
                examples,
                data.catalog,
                runs,
                constrained=constrained,
                progress=line.progress,
                config=line.recipe.eval,
            )
    return rows


def _answers(runs: Path, systems: Mapping[str, bool], examples: Sequence[Example]) -> list[Run]:
    """The answers that are on disk for these systems and items; failed requests are no answers."""
    if not runs.exists():
        return []
    wanted = {(system, example.id) for system in systems for example in examples}
    found = {
        (row.system, row.id): row
        for row in read_rows(runs, Run)
        if (row.system, row.id) in wanted and row.finish_reason is not FinishReason.ERROR
    }
    return list(found.values())


def _drop_systems(line: Line, runs: Path, systems: Mapping[str, bool], changes: Sequence[str]) -> None:
    """Take rows that other inputs made out of `runs.jsonl`, after a copy of the whole file was kept."""
    if not runs.exists():
        return
    rows = read_rows(runs, Run)
    kept = [row for row in rows if row.system not in systems]
    if len(kept) == len(rows):
        return
    aside = line.run.free_name(RUNS)
    write_rows(aside, rows)
    write_rows(runs, kept)
    reason = f" ({'; '.join(changes)})" if changes else ""
    line.progress.note(f"eval: {len(rows) - len(kept)} answers were made from other inputs{reason}; kept in {aside}")


def report(line: Line, data: DataSet, base: Base, command: Sequence[str]) -> Table:
    """Stage 5: `report.json` and `report.md` from the answers on disk; returns the table for the terminal."""
    from plansmith.eval.report import (
        ReportMeta,
        build_report,
        code_version,
        machine_description,
        terminal_table,
        write_report,
    )
    from plansmith.eval.run import choose_examples

    recipe = line.recipe
    examples = choose_examples(data.test, recipe.eval)
    asked = Counter(example.part for example in examples)
    whole = Counter(example.part for example in data.test)
    steps = f"{recipe.training.steps} steps of {recipe.training.batch_size}"
    meta = ReportMeta(
        name=recipe.name,
        seed=recipe.seed,
        resamples=recipe.eval.resamples,
        failures=recipe.eval.failures,
        command=shlex.join(command),
        code_version=code_version(),
        machine=machine_description(accelerator=_accelerator()),
        model=f"{recipe.model.base}, LoRA of rank {recipe.training.rank}, {steps}",
        data_hashes=_read_hashes(line, base),
        left_out={part: whole[part] - count for part, count in asked.items() if whole[part] > count},
    )
    found = build_report(read_rows(line.path / RUNS, Run), examples, data.catalog, meta=meta)
    write_report(found, line.path)
    return terminal_table(found)


def _read_hashes(line: Line, base: Base) -> dict[str, str]:
    """What the numbers depend on, by name."""
    files = {name: file_hash(line.path / name) for name in ("train.jsonl", "val.jsonl", "test.jsonl")}
    adapter = file_hash(adapter_directory(line) / "adapter_model.safetensors")
    return files | {"base model": base.hash, "adapter": adapter}


def _accelerator() -> str | None:
    """Name of the GPU, where torch was loaded in this process and has one."""
    import sys

    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name(0) if torch is not None and torch.cuda.is_available() else None
