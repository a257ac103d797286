"""What both ways of the policy stage share: the student, its own plans, their rewards, the files of a run.

Reads a supervised adapter and its base model; writes `metrics.jsonl` (one row a step), `validation.jsonl` (held-out
rows decoded without a grammar, before and after), checkpoints and `adapter/`, the last two in the form of the
supervised stage. The rows, the seeds and the learning rate of a step are functions of seed and step, so a killed run
goes on to the same weights, bit by bit on a CPU.

Not covered: several devices, catalogs that change from row to row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch.nn import Parameter
from transformers import PreTrainedModel

from plansmith import __version__
from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import TokenSample, TokenSampler
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Progress
from plansmith.contract.prompt import encode_prompt, prompt_hash
from plansmith.contract.records import Example, Record
from plansmith.contract.store import append_row, file_hash, read_rows, write_rows
from plansmith.data.build import DataSet
from plansmith.training import prefix
from plansmith.training.batches import batch_of
from plansmith.training.checkpoint import Card, Inputs, State, read_card, require_same, save_checkpoint
from plansmith.training.files import make_directory
from plansmith.training.loss import Head
from plansmith.training.model import base_hash, load_model, load_tokenizer
from plansmith.training.policy_config import PolicyConfig
from plansmith.training.reward import Reward, Scorer, Tally, reward_of
from plansmith.training.trainee import model_dtype, output_head, write_adapter
from plansmith.training.trainer import TrainingError
from plansmith.training.validation import VALIDATION, Validation, decode_rows, described

POLICY_VERSION = 1
"""Raised whenever the same inputs would give other weights."""
METRICS = "metrics.jsonl"
_WITHOUT_EFFECT = {"checkpoint_every", "keep_checkpoints", "validate_rows", "teacher", "teacher_adapter"}


class PolicyMetrics(Record):
    """One row of `metrics.jsonl`."""

    step: int
    """From 1."""
    loss: float
    """What is minimised: the clipped policy objective (`grpo`), or reverse KL in nats a token (`distill`)."""
    rewards: Tally
    """Of the plans drawn in this step."""
    zero_variance: float
    """Share of groups whose plans all have the same reward, and so teach `grpo` nothing."""
    cut: float
    """Share of plans that the token limit cut."""
    tokens: float
    """Mean tokens of a plan."""
    entropy: float | None
    """Of the student's next-token distribution in nats, mean over the plans' tokens."""
    kl: float | None
    """Distance to the adapter at the start in nats a token, where it is part of the loss."""
    learning_rate: float
    grad_norm: float
    """Before clipping."""
    seconds: float


@dataclass
class Student:
    """The adapter in training, inside its base model."""

    model: PreTrainedModel
    """Base model with the adapter's layers inside; its attention can share a prefix."""
    peft: PeftModel
    parameters: dict[str, Parameter]
    optimizer: torch.optim.AdamW
    head: Head
    tokenizer: Any
    prefix: list[int]
    """Token ids of the prompt up to the query."""
    device: torch.device


@dataclass
class PolicyRun:
    """One run of the policy stage, whatever the method."""

    config: PolicyConfig
    data: DataSet
    out: Path
    seed: int
    progress: Progress
    inputs: Inputs
    start: Card
    """Of the adapter that training begins with."""
    student: Student
    sampler: TokenSampler
    scorer: Scorer

    @property
    def catalog(self) -> Catalog:
        return self.data.catalog

    def rows_of(self, step: int) -> list[Example]:
        """The queries of a step, counted from 0, each once."""
        rows = self.data.train
        chosen = batch_of(step, [0] * len(rows), self.config.prompts, self.config.prompts, seed=self.seed)
        return [rows[index] for index in chosen]

    def draw(self, step: int, queries: Sequence[str]) -> list[TokenSample]:
        """Plans of the student as it is now."""
        seeds = [(self.seed * 1_000_003 + step) * 100_003 + index for index in range(len(queries))]
        return self.sampler.sample(
            queries,
            self.catalog,
            temperature=self.config.temperature,
            seeds=seeds,
            max_new_tokens=self.config.max_new_tokens,
        )

    def reward(self, text: str, row: Example) -> Reward:
        return reward_of(text, row.plan, self.catalog, self.scorer)

    def validate(self, step: int) -> None:
        """Append a row to `validation.jsonl`, unless it has one for this step."""
        path = self.out / VALIDATION
        done = read_rows(path, Validation) if path.is_file() else []
        rows = self.data.val[: self.config.validate_rows]
        if not rows or any(row.step == step for row in done):
            return
        begun = time.monotonic()
        rewards, answers = decode_rows(
            rows, self.data, self.sampler, self.scorer, max_new_tokens=self.config.max_new_tokens
        )
        cut = sum(answer.cut for answer in answers) / len(answers)
        seconds = round(time.monotonic() - begun, 3)
        found = Validation(step=step, rewards=rewards, cut=cut, answers=answers, seconds=seconds)
        append_row(path, found)
        self.progress.note(f"policy: {described(found)}, reward {rewards.reward:.3f}")

    def begin(self, done: int) -> None:
        """Say what is about to run, and drop metrics of steps that will run again."""
        path = self.out / METRICS
        rows = read_rows(path, PolicyMetrics) if path.is_file() else []
        write_rows(path, [row for row in rows if row.step <= done])
        config = self.config
        self.progress.note(
            f"policy: {config.method.value}, {config.steps} steps of {config.prompts} queries x {config.group_size} "
            f"plans from {len(self.data.train)} rows" + (f"; going on after step {done}" if done else "")
        )
        self.progress.start("policy steps", config.steps)
        if done:
            self.progress.advance(done)

    def record(self, row: PolicyMetrics) -> None:
        """Keep what a step gave; then, where it is time, a checkpoint."""
        append_row(self.out / METRICS, row)
        if row.step % self.config.checkpoint_every == 0 or row.step == self.config.steps:
            state = State(step=row.step, inputs=self.inputs)
            student = self.student
            save_checkpoint(self.out, state, student.parameters, student.optimizer, keep=self.config.keep_checkpoints)
        self.progress.advance(
            1,
            reward=round(row.rewards.reward, 3),
            valid=round(row.rewards.valid, 3),
            flat=round(row.zero_variance, 2),
        )

    def learning_rate(self, step: int) -> float:
        """Learning rate of a step counted from 0."""
        return self.config.learning_rate * min(1.0, (step + 1) / (self.config.warmup_steps + 1))

    def require_finite(self, step: int, loss: float, norm: float) -> None:
        """Stop before the optimizer moves the weights.

        Raises:
            TrainingError: loss or gradient is no number.

        """
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingError(
                f"policy step {step + 1}: the loss is {loss}, its gradient's norm {norm}; the weights were left alone. "
                "Lower policy.learning_rate."
            )

    def finish(self) -> Path:
        """Validate once more and write the adapter."""
        self.progress.finish()
        self.validate(self.config.steps)
        rows = read_rows(self.out / METRICS, PolicyMetrics)
        inputs = self.inputs
        card = Card(
            plansmith=__version__,
            base=inputs.base,
            base_hash=inputs.base_hash,
            base_terms=self.start.base_terms,
            catalog_hash=inputs.catalog_hash,
            prompt_hash=inputs.prompt_hash,
            data=self.data.manifest.files,
            seed=self.seed,
            steps=len(rows),
            examples=len(self.data.train),
            given=len(self.data.train),
            final_loss=rows[-1].loss,
            seconds=round(math.fsum(row.seconds for row in rows), 3),
            inputs=inputs,
        )
        target = self.out / "adapter"
        make_directory(target, lambda draft: write_adapter(self.student.peft, card, draft))
        self.progress.note(
            f"policy: mean reward {rows[0].rewards.reward:.3f} to {rows[-1].rewards.reward:.3f} in "
            f"{card.seconds:.0f} s, {card.seconds / len(rows):.1f} s a step; adapter in {target}"
        )
        return target


def inputs_of(config: PolicyConfig, data: DataSet, base: Path, adapter: Path, start: Card, *, seed: int) -> Inputs:
    """What the weights depend on.

    Raises:
        CatalogMismatchError: rows or adapter were made for another catalog.
        InputError: the adapter belongs to another base model or prompt.

    """
    data.catalog.require_hash(data.manifest.catalog_hash, what="the training data")
    data.catalog.require_hash(start.catalog_hash, what=f"adapter {str(adapter)!r}")
    found = {"base_hash": base_hash(base), "prompt_hash": prompt_hash(data.catalog)}
    for name, value in found.items():
        if getattr(start, name) != value:
            raise InputError(
                f"adapter {str(adapter)!r} was trained for {name} {getattr(start, name)}, but here it is {value}. "
                "Give the base and the data that it was trained with, or train it again."
            )
    settings = config.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
    settings |= {"stage": "policy", "start": file_hash(adapter / "adapter_model.safetensors")}
    if config.teacher is not None:
        settings["teacher"] = base_hash(config.teacher)
    if config.teacher_adapter is not None:
        settings["teacher_adapter"] = file_hash(config.teacher_adapter / "adapter_model.safetensors")
    return Inputs(
        trainer=POLICY_VERSION,
        seed=seed,
        base=start.base,
        catalog_hash=data.catalog.hash,
        train_hash=data.manifest.files["train.jsonl"],
        config=settings,
        base_hash=found["base_hash"],
        prompt_hash=found["prompt_hash"],
    )


def start_card(adapter: Path) -> Card:
    """The card of the adapter that training begins with; raises `InputError` where there is none."""
    card = read_card(adapter)
    if card is None:
        raise InputError(
            f"{str(adapter)!r} holds no finished adapter (plansmith.json and adapter_model.safetensors). "
            "The policy stage goes on from a supervised one: run plansmith train first."
        )
    return card


def finished_adapter(out: Path, inputs: Inputs) -> Path | None:
    """The adapter of a finished run from the same inputs; raises `InputError` where it was made from others."""
    card = read_card(out / "adapter")
    if card is None:
        return None
    require_same(f"adapter {str(out / 'adapter')!r}", card.inputs, inputs)
    return out / "adapter"


def open_student(base: Path, adapter: Path, catalog: Catalog, config: PolicyConfig) -> Student:
    """Load base and adapter for training.

    Raises:
        InputError: a shared prefix does not cover the architecture.

    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(base, model_dtype(config.precision, device))
    prefix.prepare(model)
    peft = PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    peft.to(device).train()
    parameters = {name: p for name, p in peft.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )
    tokenizer = load_tokenizer(base)
    shared = encode_prompt("", catalog, tokenizer).prefix
    return Student(model, peft, parameters, optimizer, output_head(model), tokenizer, shared, device)
