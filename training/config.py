"""Settings of the training stage: which base model, and how the adapter is trained.

Read from a recipe's `model` and `training` sections. The defaults are a starting point for any base; settings that
were run to their end are in `configs/`, their results in `docs/results.md`. Holds no torch, so that a command can show
its help at once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from plansmith.contract.settings import Settings

SERVABLE_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM accepts as `--max-lora-rank`; an adapter of another rank could be trained but not served."""


class ModelConfig(Settings):
    """The base model that the adapter is trained for."""

    base: str = "gemma3-270m"
    """`gemma3-270m` (from the package of that name), `tiny-random` (random weights, for smoke runs), or a directory
    with a transformers model in safetensors."""
    trim_vocabulary: bool = True
    """Keep only the tokens that the texts, all single characters and bytes, and frequent English need. The model gets
    smaller and faster, and means the same on every text; false keeps the whole vocabulary."""
    keep_merges: int = Field(default=40_000, ge=0)
    """How many of the tokenizer's first (most frequent) merges are looked through for plain English pieces, which a
    trimmed vocabulary keeps beyond what the texts need."""


class TooLong(StrEnum):
    """What happens to an example with more tokens than `max_tokens`."""

    DROP = "drop"
    """it is left out, and counted"""
    STOP = "stop"
    """training is refused, with the count"""


class Schedule(StrEnum):
    """How the learning rate falls after the warm-up."""

    COSINE = "cosine"
    """half a cosine, to zero"""
    LINEAR = "linear"
    """a straight line, to zero"""
    CONSTANT = "constant"
    """it does not fall"""


class Precision(StrEnum):
    """Number format of the frozen weights and activations; adapter and optimizer are always float32."""

    AUTO = "auto"
    """bfloat16 on a GPU, float32 on a CPU"""
    FLOAT32 = "float32"
    """exact and slow on a GPU; the only fast one on most CPUs"""
    BFLOAT16 = "bfloat16"
    """for GPUs, and for CPUs that have instructions for it"""


class TrainingConfig(Settings):
    """LoRA training on the tokens of the plan: cross-entropy, the mass outside the plan grammar, a teacher's view."""

    rank: int = 16
    """Rank of the adapter matrices: 1, 8, 16, 32, 64, 128, 256, 320 or 512 (those that a server loads)."""
    alpha: int = Field(default=32, gt=0)
    """The adapter's output is multiplied by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the adapter's inputs set to zero while training."""
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get an adapter."""
    top_layers: int | None = Field(default=None, ge=1)
    """Adapters only in this many of the uppermost layers, which saves the backward pass through the others; None means
    in all."""
    steps: int = Field(default=40, ge=1)
    """Optimizer steps; the examples are gone through as often as that takes."""
    batch_size: int = Field(default=16, ge=1)
    """Examples an optimizer step."""
    micro_batch_size: int = Field(default=16, ge=1)
    """Examples that run through the model at once. Changes memory and speed, not the result (up to rounding)."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Highest learning rate, reached at the end of the warm-up."""
    schedule: Schedule = Schedule.COSINE
    """How the learning rate falls after the warm-up."""
    warmup_steps: int = Field(default=4, ge=0)
    """Steps over which the learning rate rises from zero."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decay of the adapter's weights."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's memory of the gradient's mean."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """AdamW's memory of the gradient's square."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm (2-norm over all adapter weights)."""
    max_tokens: Annotated[int, Field(ge=8)] = 4096
    """Most tokens of one example: catalog, query and plan together."""
    too_long: TooLong = TooLong.DROP
    """What happens to an example with more tokens than `max_tokens`."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; a killed run goes on from the last one."""
    keep_checkpoints: int = Field(default=1, ge=1)
    """How many checkpoints stay on disk while training runs."""
    validity: bool = True
    """Add the validity term: -log of the probability that the plan grammar's allowed tokens have, at every target
    token. It weighs broken JSON and unregistered names more than wrong content. False: neither learnt nor logged."""
    lambda_validity: float = Field(default=1.0, ge=0)
    """Factor of the validity term; 0 logs it without learning from it."""
    name_weight: float = Field(default=4.0, gt=0)
    """Weight within the validity term of the tokens that write a worker's name."""
    teacher: str | None = None
    """Directory of a teacher's answers (`plansmith data teach`) whose kept log-probabilities are learnt too; needs a
    teacher with the student's tokenizer. None: its plans only."""
    lambda_teacher: float = Field(default=1.0, ge=0)
    """Factor of the teacher term: Kullback-Leibler divergence from the teacher over its likeliest tokens and the
    rest."""
    precision: Precision = Precision.AUTO
    """Number format of the frozen weights and activations."""

    @field_validator("rank")
    @classmethod
    def _servable(cls, rank: int) -> int:
        if rank not in SERVABLE_RANKS:
            raise ValueError(f"rank {rank} cannot be served; choose one of {', '.join(map(str, SERVABLE_RANKS))}")
        return rank

    @field_validator("target_modules")
    @classmethod
    def _some_target(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("no target module named, so nothing would be trained")
        return names
