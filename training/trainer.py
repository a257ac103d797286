"""LoRA training of a planner: examples to an adapter that a server loads.

Reads a data set and a base model's directory; writes `adapter/` (peft safetensors and `plansmith.json`),
`metrics.jsonl`, and checkpoints into the output directory; with validations also `validation.jsonl` and the best
weights. A killed run goes on from its last checkpoint and ends with the same weights, bit by bit on a CPU; a finished
one is not run again for the same inputs.

The loss is cross-entropy on the tokens of the plan, with the validity term and a teacher's where they are switched on
(`loss.py`), each sum divided once by the weight of the whole optimizer step.
Every step runs the catalog once a micro-batch (`prefix.py`), where the model can.

Several processes (`parallel.py`) share the micro-batches of each step and come to the same weights, up to rounding; the
first of them writes the files and validates.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from plansmith import __version__
from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.progress import Progress, Silent
from plansmith.contract.prompt import prompt_hash
from plansmith.contract.store import file_hash, read_rows
from plansmith.data.build import DataSet
from plansmith.data.drafts import DRAFTS
from plansmith.training import prefix
from plansmith.training.batches import batch_of, micro_batches
from plansmith.training.checkpoint import (
    Card,
    Inputs,
    load_checkpoint,
    read_card,
    require_same,
)
from plansmith.training.config import ModelConfig, Schedule, TrainingConfig
from plansmith.training.encode import Corpus, encode_examples
from plansmith.training.files import make_directory
from plansmith.training.log import METRICS, Log
from plansmith.training.loss import LossOutput, Terms, chunked_plan_loss
from plansmith.training.metrics import StepMetrics, StepTotals
from plansmith.training.model import GEMMA, TERMS, base_hash, load_tokenizer, vocab_rows
from plansmith.training.parallel import ALONE, World
from plansmith.training.supervision import Supervision, build_supervision
from plansmith.training.trainee import Trainee, build_trainee, write_adapter
from plansmith.training.validation import Judge, Watch

TRAINER_VERSION = 2
"""Raised whenever the same inputs would give other weights."""


class TrainingError(PlansmithError):
    """Training cannot go on: the loss or its gradient is no number."""


class TrainResult(NamedTuple):
    """A finished run."""

    adapter: Path
    steps: int
    final_loss: float
    seconds: float
    """Wall time of the steps."""
    skipped: bool
    """Whether it was there already."""


def train(
    model: ModelConfig,
    config: TrainingConfig,
    data: DataSet,
    base: Path,
    out: Path,
    *,
    seed: int,
    progress: Progress,
    world: World = ALONE,
    judge: Judge | None = None,
) -> TrainResult:
    """Train an adapter, go on with a killed run, or return the finished one.

    Args:
        model: which base.
        config: how.
        data: the data set, whose training rows are learnt.
        base: directory of the base model.
        out: where the adapter goes; the same directory in all processes.
        seed: of the adapter's start and the order of the rows.
        progress: told of every step.
        world: the processes that train together.
        judge: plans held-out rows and scores the plans; needed where the settings ask for validations.

    Raises:
        InputError: data, base or output directory cannot be used; earlier work there was made from other inputs.
        CatalogMismatchError: the rows were made for another catalog.
        TrainingError: the loss is no number any more.
        StorageError: the output directory cannot be written.

    """
    inputs = inputs_of(model, config, data, base, seed=seed)
    finished = _finished(out, inputs)
    if finished is not None:
        progress.note(f"training: {out / 'adapter'} is complete for the same inputs, skipped")
        return finished
    tokenizer = load_tokenizer(base)
    corpus = encode_examples(data.train, data.catalog, tokenizer, config, progress, catalogs=data.catalogs)
    extra = build_supervision(corpus, tokenizer, config, vocab_rows(base), progress)
    trainee = build_trainee(base, config, seed=seed, device=world.device)
    done = load_checkpoint(out, inputs, trainee.parameters, trainee.optimizer)
    world.wait()
    log = Log(out, config, inputs, progress) if world.leads else None
    if log is not None:
        log.watch = _watch(config, data, base, out, trainee, tokenizer, judge, progress)
        log.begin(done, corpus, trainee)
    ended = world.any(log is not None and log.exhausted)
    for step in range(done, config.steps):
        if ended:
            break
        row = train_step(trainee, corpus, extra, config, step, seed=seed, world=world)
        ended = world.any(log is not None and log.keep(row, trainee))
    extra.close(progress if world.leads else Silent())
    if log is not None:
        log.close()
        _finish(out, trainee, corpus, data, inputs, log)
    world.wait()
    done_now = _finished(out, inputs)
    if done_now is None:
        raise TrainingError(f"{str(out / 'adapter')!r} is not there, though it was written; do all processes share it?")
    return done_now._replace(skipped=False)


def _watch(
    config: TrainingConfig,
    data: DataSet,
    base: Path,
    out: Path,
    trainee: Trainee,
    tokenizer: Any,
    judge: Judge | None,
    progress: Progress,
) -> Watch | None:
    if config.validate_every is None:
        return None
    if judge is None:
        raise InputError("training.validate_every is set, but nobody was given who plans and scores held-out rows.")
    return Watch(config, data, base, out, trainee, tokenizer, judge, progress)


def inputs_of(model: ModelConfig, config: TrainingConfig, data: DataSet, base: Path, *, seed: int) -> Inputs:
    """What the weights depend on.

    Raises:
        CatalogMismatchError: the rows were made for another catalog than the one beside them.

    """
    data.catalog.require_hash(data.manifest.catalog_hash, what="the training data")
    settings = config.that_matter()
    if "metric" in settings:
        settings["val_hash"] = data.manifest.files["val.jsonl"]
    if config.teacher is not None and (drafts := Path(config.teacher).expanduser() / DRAFTS).is_file():
        settings["teacher_hash"] = file_hash(drafts)
    return Inputs(
        trainer=TRAINER_VERSION,
        seed=seed,
        base=model.base,
        base_hash=base_hash(base),
        catalog_hash=data.catalog.hash,
        prompt_hash=prompt_hash(data.catalog),
        train_hash=data.manifest.files["train.jsonl"],
        config=settings,
    )


def _finished(out: Path, inputs: Inputs) -> TrainResult | None:
    card = read_card(out / "adapter")
    if card is None:
        return None
    require_same(f"adapter {str(out / 'adapter')!r}", card.inputs, inputs)
    return TrainResult(out / "adapter", card.steps, card.final_loss, card.seconds, skipped=True)


def train_step(
    trainee: Trainee,
    corpus: Corpus,
    extra: Supervision,
    config: TrainingConfig,
    step: int,
    *,
    seed: int,
    world: World = ALONE,
) -> StepMetrics:
    """One optimizer step; `step` counts from 0. All processes take it together, each with its share of the rows.

    Raises:
        TrainingError: loss or gradient is no number; the weights are still those of the step before.

    """
    begun = time.monotonic()
    torch.manual_seed(seed * 1_000_003 + step + 7_919 * world.rank)
    size, micro = config.batch_size, config.micro_batch_size
    chosen = batch_of(step, corpus.groups, size, micro, seed=seed)
    weight_total = math.fsum(weight for i in chosen for weight in corpus.examples[i].weights)
    totals, tokens, masking = StepTotals(), 0, extra.mask_seconds()
    cut = micro_batches(chosen, corpus.groups, corpus.lengths, world.even(size, micro))
    costs = [len(corpus.prefix_of(rows[0])) + sum(corpus.lengths[i] for i in rows) for rows in cut]
    for number, rows in enumerate(world.deal(cut, costs)):
        packed = trainee.pack(corpus.prefix_of(rows[0]), [corpus.examples[i] for i in rows])
        terms = extra.terms(rows, trainee.device)
        if number == 0:
            extra.prefetch([*chosen, *batch_of(step + 1, corpus.groups, size, micro, seed=seed)])
        totals.add(_backward(trainee, packed, terms, weight_total), terms)
        tokens += len(packed.ids_T)
    totals.sum_over(world)
    world.sum_gradients(trainee.parameters.values())
    loss = totals.loss
    norm = float(torch.nn.utils.clip_grad_norm_(trainee.parameters.values(), config.max_grad_norm))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        names = ", ".join(repr(corpus.names[i]) for i in chosen[:4])
        raise TrainingError(
            f"step {step + 1}: the loss is {loss}, its gradient's norm {norm}; the weights were left alone. "
            f"Lower training.learning_rate, or look at the rows of this step ({names}, ...)."
        )
    rate = learning_rate(step, config)
    for group in trainee.optimizer.param_groups:
        group["lr"] = rate
    trainee.optimizer.step()
    trainee.optimizer.zero_grad(set_to_none=True)
    return StepMetrics(
        step=step + 1,
        loss=loss,
        **totals.shown(config),
        learning_rate=rate,
        grad_norm=norm,
        examples=len(chosen),
        tokens=round(world.sum_values([tokens])[0]),
        seconds=round(time.monotonic() - begun, 3),
        mask_seconds=round(extra.mask_seconds() - masking, 4),
    )


def _backward(trainee: Trainee, packed: prefix.Packed, terms: Terms, weight_total: float) -> LossOutput:
    hidden_ND = trainee.hidden_at_targets(packed)
    out = chunked_plan_loss(
        hidden_ND,
        trainee.head,
        packed.target_N,
        packed.weight_N,
        weight_total=weight_total,
        validity=terms.validity,
        teacher=terms.teacher,
    )
    out.loss.backward()
    return out


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Learning rate of a step counted from 0."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    share = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    if config.schedule is Schedule.CONSTANT:
        return config.learning_rate
    fall = 1 - share if config.schedule is Schedule.LINEAR else (1 + math.cos(math.pi * share)) / 2
    return config.learning_rate * fall


def _finish(out: Path, trainee: Trainee, corpus: Corpus, data: DataSet, inputs: Inputs, log: Log) -> None:
    rows = read_rows(out / METRICS, StepMetrics)
    seconds = math.fsum(row.seconds for row in rows)
    chosen = log.choose()
    card = Card(
        plansmith=__version__,
        base=inputs.base,
        base_hash=inputs.base_hash,
        base_terms=TERMS if inputs.base == GEMMA else None,
        catalog_hash=inputs.catalog_hash,
        prompt_hash=inputs.prompt_hash,
        data=data.manifest.files,
        seed=inputs.seed,
        steps=len(rows),
        examples=len(corpus.examples),
        given=corpus.given,
        final_loss=rows[-1].loss,
        seconds=round(seconds, 3),
        inputs=inputs,
        kept_step=chosen.kept_step,
        validation=chosen.validation,
    )
    make_directory(out / "adapter", lambda draft: write_adapter(trainee.peft, card, draft))
    examples = sum(row.examples for row in rows)
    log.progress.note(
        f"training: loss {rows[0].loss:.3f} to {rows[-1].loss:.3f} in {seconds:.0f} s, "
        f"{seconds / len(rows):.1f} s a step, {examples / max(seconds, 1e-3):.2f} examples a second, "
        f"peak memory {peak_memory() / 1e9:.1f} GB; adapter in {out / 'adapter'}{chosen.told}"
    )


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
