"""Settings of the training stage: which base model, and how the adapter is trained.

Read from a recipe's `model` and `training` sections. The defaults are a starting point for any base; settings that
were run to their end are in `configs/`, their results in `docs/results.md`. Holds no torch, so that a command can show
its help at once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from plansmith.contract.settings import Settings

_WITHOUT_EFFECT = {"checkpoint_every", "keep_checkpoints", "tensorboard"}
_WATCHING = {"validate_every", "validate_rows", "validate_tokens", "metric", "keep", "patience"}
"""Without effect unless a validation decides which weights are kept or when training ends."""
_LATER = {"quantization", "rank_stabilized", "gradient_checkpointing", "flex_attention"}
"""Came after adapters had been trained: those are the same as with the default."""
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
    layers: int | None = Field(default=None, ge=1)
    """Keep only so many of the decoder layers, those that change the hidden states most on the training texts: a
    smaller and faster student, which has to learn anew what the others did. None keeps all."""


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


class Quantization(StrEnum):
    """How the frozen weights are held; adapter and optimizer are float32 all the same."""

    NONE = "none"
    """as `precision` says"""
    INT8 = "int8"
    """8 bits a weight (needs bitsandbytes and a CUDA device)"""
    NF4 = "nf4"
    """4 bits a weight, doubly quantized, as in QLoRA (needs bitsandbytes and a CUDA device)"""


class Metric(StrEnum):
    """By which the validations of a run are ranked; more is better, a lower validation loss decides between equals."""

    EQUIVALENT = "equivalent"
    """share of plans that do the same as the reference"""
    REWARD = "reward"
    """mean of: 1 for an equivalent plan, the mean F1 of other valid ones, -0.25 to -1 for invalid ones"""
    VALID = "valid"
    """share of plans without a fault"""
    LOSS = "loss"
    """the validation loss alone: lower is better"""


class Keep(StrEnum):
    """Which weights become the adapter."""

    LAST = "last"
    """those of the last step"""
    BEST = "best"
    """those of the best validation"""


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
    quantization: Quantization = Quantization.NONE
    """How the frozen weights are held: QLoRA where it is not none."""
    rank_stabilized: bool = False
    """Multiply the adapter's output by alpha / sqrt(rank) instead (rsLoRA), which suits high ranks."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third slower."""
    flex_attention: bool = False
    """Attention over the whole packed row by FlexAttention (CUDA only, no dropout inside attention); try
    scripts/bench/gpu to see whether it is faster on your machine."""
    validate_every: int | None = Field(default=None, ge=1)
    """Steps between validations, and at the end: the val rows are planned without a grammar, as a user would. None:
    there are none."""
    validate_rows: int = Field(default=64, ge=1)
    """Most val rows that are planned each time; they are the first ones, always the same."""
    validate_tokens: int = Field(default=256, ge=8)
    """Token limit of a plan in a validation; a plan that reaches it counts as it stands."""
    metric: Metric = Metric.EQUIVALENT
    """By which validations are ranked."""
    keep: Keep = Keep.LAST
    """Which weights become the adapter."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many validations in a row without a better one; None: never before `steps`."""
    tensorboard: bool = False
    """Write event files for TensorBoard beside metrics.jsonl (package: tensorboard)."""

    @model_validator(mode="after")
    def _validation_is_on(self) -> Self:
        if self.validate_every is None and (self.keep is Keep.BEST or self.patience is not None):
            name = "keep: best" if self.keep is Keep.BEST else "patience"
            raise ValueError(f"{name} needs validations; set validate_every, e.g. to 10")
        return self

    def that_matter(self) -> dict[str, Any]:
        """The settings that the weights depend on, as JSON; what came later and is off is left out."""
        dumped = self.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
        watched = self.keep is Keep.BEST or self.patience is not None
        idle = {name for name in _WATCHING if not watched}
        idle |= {name for name in _LATER if dumped[name] == TrainingConfig.model_fields[name].default}
        return {name: value for name, value in dumped.items() if name not in idle}

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
