"""The policy stage as a whole: refuse, resume, run a method, validate, write the adapter."""

from __future__ import annotations

from pathlib import Path

from plansmith.contract.errors import InputError
from plansmith.contract.progress import Progress
from plansmith.data.build import DataSet
from plansmith.training.policy_config import Method, PolicyConfig
from plansmith.training.policy_run import (
    PolicyRun,
    finished_adapter,
    inputs_of,
    open_student,
    start_card,
)
from plansmith.training.reward import Scorer
from plansmith.training.validation import VALIDATION, OpenSampler


def train_policy(
    config: PolicyConfig,
    data: DataSet,
    base: Path,
    adapter: Path,
    out: Path,
    *,
    seed: int,
    progress: Progress,
    open_sampler: OpenSampler,
    scorer: Scorer,
) -> Path:
    """Train a supervised adapter further on its own plans; the finished adapter's directory.

    Args:
        config: method and sizes.
        data: rows whose queries are asked (`train`) and decoded before and after (`val`), with their catalog.
        base: the base model of the adapter.
        adapter: what training begins with; it is left as it is.
        out: directory of the run; a killed run there goes on.
        seed: of the order of queries and of the drawing.
        progress: told what happens.
        open_sampler: makes the sampler of the model in training.
        scorer: agreement of a valid plan with its reference.

    Raises:
        InputError: something cannot be used, or earlier work in `out` was made from other inputs.
        CatalogMismatchError: rows or adapter were made for another catalog.
        TrainingError: loss or gradient is no number.
        StorageError: the directory cannot be written.

    """
    start = start_card(adapter)
    inputs = inputs_of(config, data, base, adapter, start, seed=seed)
    finished = finished_adapter(out, inputs)
    if finished is not None:
        progress.note(f"policy: {finished} is complete for the same inputs, skipped")
        return finished
    if config.validate_rows and not data.val:
        raise InputError("there are no val rows to decode before and after; set policy.validate_rows to 0.")
    if not data.train:
        raise InputError("there are no train rows whose queries could be asked.")
    student = open_student(base, adapter, data.catalog, config)
    sampler = open_sampler(student.model, student.tokenizer, base)
    run = PolicyRun(config, data, out, seed, progress, inputs, start, student, sampler, scorer)
    if not any(out.glob("checkpoint-*")):
        (out / VALIDATION).unlink(missing_ok=True)  # of a run that was killed before its first checkpoint
    run.validate(0)
    if config.method is Method.GRPO:
        from plansmith.training.policy import run_grpo

        run_grpo(run)
    else:
        from plansmith.training.policy_distill import run_distill

        run_distill(run)
    return run.finish()
