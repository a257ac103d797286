"""LoRA training of a planner: examples to an adapter that a server loads.

Reads a data set and a base model's directory; writes `adapter/` (peft safetensors and `plansmith.json`),
`metrics.jsonl`, and checkpoints into the output directory. A killed run goes on from its last checkpoint and ends with
the same weights, bit by bit on a CPU; a finished one is not run again for the same inputs.

The loss is cross-entropy on the tokens of the plan, with the validity term and a teacher's where they are switched on
(`loss.py`), each sum divided once by the weight of the whole optimizer step.
Every step runs the catalog once a micro-batch (`prefix.py`).

Several processes (`parallel.py`) share the micro-batches of each step and come to the same weights, up to rounding; the
first of them writes the files.

Not covered: evaluation by generated plans while training.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn import Parameter
from transformers import PreTrainedModel

from plansmith import __version__
from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.progress import Progress, Silent
from plansmith.contract.prompt import prompt_hash
from plansmith.contract.store import append_row, file_hash, read_rows, write_rows, write_text
from plansmith.data.build import DataSet
from plansmith.data.drafts import DRAFTS
from plansmith.training import prefix
from plansmith.training.batches import batch_of, micro_batches
from plansmith.training.checkpoint import (
    CARD,
    Card,
    Inputs,
    State,
    load_checkpoint,
    read_card,
    require_same,
    save_checkpoint,
)
from plansmith.training.config import ModelConfig, Precision, Schedule, TrainingConfig
from plansmith.training.encode import Corpus, encode_examples
from plansmith.training.files import make_directory
from plansmith.training.loss import Head, LossOutput, Terms, chunked_plan_loss
from plansmith.training.metrics import StepMetrics, StepTotals
from plansmith.training.model import GEMMA, TERMS, base_hash, load_model, load_tokenizer, vocab_rows
from plansmith.training.parallel import ALONE, World
from plansmith.training.supervision import Supervision, build_supervision

TRAINER_VERSION = 2
"""Raised whenever the same inputs would give other weights."""
_WITHOUT_EFFECT = {"checkpoint_every", "keep_checkpoints"}
_METRICS = "metrics.jsonl"


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


@dataclass
class Trainee:
    """The model in training, with what moves it."""

    model: PreTrainedModel
    """Base model with the adapter's layers inside."""
    peft: PeftModel
    parameters: dict[str, Parameter]
    optimizer: torch.optim.AdamW
    head: Head
    device: torch.device


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
    if world.leads:
        _start(out, done, config, corpus, progress)
    for step in range(done, config.steps):
        row = train_step(trainee, corpus, extra, config, step, seed=seed, world=world)
        if not world.leads:
            continue
        append_row(out / _METRICS, row)
        if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
            state = State(step=step + 1, inputs=inputs)
            save_checkpoint(out, state, trainee.parameters, trainee.optimizer, keep=config.keep_checkpoints)
        _show(row, config, progress)
    extra.close(progress if world.leads else Silent())
    if world.leads:
        progress.finish()
        _finish(out, trainee, corpus, data, inputs, progress)
    world.wait()
    done_now = _finished(out, inputs)
    if done_now is None:
        raise TrainingError(f"{str(out / 'adapter')!r} is not there, though it was written; do all processes share it?")
    return done_now._replace(skipped=False)


def inputs_of(model: ModelConfig, config: TrainingConfig, data: DataSet, base: Path, *, seed: int) -> Inputs:
    """What the weights depend on.

    Raises:
        CatalogMismatchError: the rows were made for another catalog than the one beside them.

    """
    data.catalog.require_hash(data.manifest.catalog_hash, what="the training data")
    settings = config.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
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


def build_trainee(base: Path, config: TrainingConfig, *, seed: int, device: torch.device | None = None) -> Trainee:
    """Load the base model, put fresh adapter layers into it, and make the optimizer.

    Raises:
        InputError: no layer has one of the target names, or a shared prefix does not cover the architecture.

    """
    device = device or ALONE.device
    model = load_model(base, model_dtype(config.precision, device))
    prefix.prepare(model)
    torch.manual_seed(seed)
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.target_modules),
        layers_to_transform=_top_layers(model, config.top_layers),
    )
    try:
        peft = get_peft_model(model, lora)
    except ValueError as error:
        raise InputError(f"no adapter can be put into {str(base)!r}: {error}") from error
    peft.to(device).train()
    parameters = {name: p for name, p in peft.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )
    return Trainee(model, peft, parameters, optimizer, output_head(model), device)


def _top_layers(model: PreTrainedModel, count: int | None) -> list[int] | None:
    layers = model.config.get_text_config().num_hidden_layers
    if count is not None and count > layers:
        raise InputError(f"training.top_layers is {count}, but the model has {layers} layers.")
    return None if count is None else list(range(layers - count, layers))


def model_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Number format of the frozen weights."""
    if precision is Precision.AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if precision is Precision.BFLOAT16 else torch.float32


def output_head(model: PreTrainedModel) -> Head:
    """Hidden states to logits, as the model itself does it."""
    layer: Any = model.get_output_embeddings()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if not cap:
        return layer
    return lambda hidden_ND: torch.tanh(layer(hidden_ND) / cap) * cap


def _start(out: Path, done: int, config: TrainingConfig, corpus: Corpus, progress: Progress) -> None:
    """Say what is about to run, and drop metrics of steps that will run again."""
    path = out / _METRICS
    rows = read_rows(path, StepMetrics) if path.is_file() else []
    write_rows(path, [row for row in rows if row.step <= done])
    dropped = sum(corpus.dropped.values())
    progress.note(
        f"training: {len(corpus.examples)} of {corpus.given} rows ({dropped} left out), {config.steps} steps of "
        f"{config.batch_size}, rank {config.rank}, {len(corpus.prefix)} prompt tokens shared, {len(corpus.prefixes)} "
        "catalogs" + (f"; going on after step {done}" if done else "")
    )
    progress.start("training steps", config.steps)
    if done:
        progress.advance(done)


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
        packed = prefix.pack(corpus.prefix_of(rows[0]), [corpus.examples[i] for i in rows], trainee.device)
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
    hidden_ND = prefix.hidden_at_targets(trainee.model, packed)
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


def _show(row: StepMetrics, config: TrainingConfig, progress: Progress) -> None:
    left = round(row.seconds * (config.steps - row.step))
    progress.advance(
        1,
        loss=round(row.loss, 4),
        examples_per_second=round(row.examples / max(row.seconds, 1e-3), 2),
        time_left=f"{left // 60}:{left % 60:02d}",
    )


def _finish(out: Path, trainee: Trainee, corpus: Corpus, data: DataSet, inputs: Inputs, progress: Progress) -> None:
    rows = read_rows(out / _METRICS, StepMetrics)
    seconds = math.fsum(row.seconds for row in rows)
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
    )
    make_directory(out / "adapter", lambda draft: write_adapter(trainee.peft, card, draft))
    examples = sum(row.examples for row in rows)
    progress.note(
        f"training: loss {rows[0].loss:.3f} to {rows[-1].loss:.3f} in {seconds:.0f} s, "
        f"{seconds / len(rows):.1f} s a step, {examples / max(seconds, 1e-3):.2f} examples a second, "
        f"peak memory {peak_memory() / 1e9:.1f} GB; adapter in {out / 'adapter'}"
    )


def write_adapter(peft: PeftModel, card: Card, draft: Path) -> None:
    """Write weights, settings and card of the trained adapter into an existing directory."""
    peft.peft_config["default"].base_model_name_or_path = card.base
    peft.save_pretrained(
        str(draft), safe_serialization=True, save_embedding_layers=False, selected_adapters=["default"]
    )
    (draft / "README.md").unlink(missing_ok=True)
    settings = json.loads((draft / "adapter_config.json").read_text(encoding="utf-8"))
    settings["target_modules"].sort()
    write_text(draft / "adapter_config.json", json.dumps(settings, indent=1) + "\n")
    write_text(draft / CARD, card.model_dump_json(indent=1) + "\n")


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
