"""Settings of the policy stage: training on the student's own plans, after the supervised stage.

Read from a recipe's `policy` section. Holds no torch, so that a command can show its help at once.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from plansmith.contract.settings import Settings
from plansmith.training.config import Precision


class Method(StrEnum):
    """What is learnt from the student's own plans."""

    GRPO = "grpo"
    """the reward of each plan against the others for the same query (TRL's GRPO trainer)"""
    DISTILL = "distill"
    """the distribution of a teacher with the same tokenizer, at every token that the student drew (reverse KL)"""


class SampledBy(StrEnum):
    """Who draws the student's plans."""

    ENGINE = "engine"
    """the local engine, on the model in training: no second copy of the weights, the catalog runs once a step"""
    VLLM = "vllm"
    """vLLM in the same process on a GPU, to which TRL copies the weights before each step; for `grpo` only"""


class PolicyConfig(Settings):
    """Training of a supervised adapter on its own plans, decoded without a grammar."""

    method: Method = Method.GRPO
    """What is learnt from the student's own plans."""
    steps: int = Field(default=20, ge=1)
    """Optimizer steps; each draws new plans."""
    prompts: int = Field(default=8, ge=1)
    """Queries a step."""
    group_size: int = Field(default=8, ge=1)
    """Plans drawn for each query; `grpo` compares them with each other and needs two at least."""
    micro_batch_size: int = Field(default=16, ge=1)
    """Plans that run through the model at once; `prompts` times `group_size` must be a multiple of it."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the drawing; the loss looks at the distribution at the same temperature (`grpo`)."""
    max_new_tokens: int = Field(default=128, ge=1)
    """Token limit of one plan; what reaches it is cut, and then most likely does not parse."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Learning rate after the warm-up; it does not fall."""
    warmup_steps: int = Field(default=2, ge=0)
    """Steps over which the learning rate rises from zero."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decay of the adapter's weights."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's memory of the gradient's mean."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """AdamW's memory of the gradient's square."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the distance to the adapter as it was at the start (`grpo`); above 0 costs one more forward pass."""
    clip: float = Field(default=0.2, gt=0)
    """How far the probability of a token may move before its gradient is cut (`grpo`)."""
    normalize: bool = True
    """Divide rewards by their spread within the group (`grpo`); false only takes off their mean."""
    sampled_by: SampledBy = SampledBy.ENGINE
    """Who draws the student's plans."""
    sample_batch_size: int = Field(default=64, ge=1)
    """Most plans that the local engine decodes at once."""
    vllm_memory: float = Field(default=0.3, gt=0, lt=1)
    """Share of the GPU's memory for vLLM, where it draws."""
    teacher: Path | None = None
    """Directory of the teacher's model, for `distill`; its tokenizer must be the student's, trimming included."""
    teacher_adapter: Path | None = None
    """Directory of the teacher's adapter; None: the teacher's model alone."""
    validate_rows: int = Field(default=32, ge=0)
    """Held-out rows that are decoded greedily without a grammar before and after; 0: none."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Steps between checkpoints; a killed run goes on from the last one."""
    keep_checkpoints: int = Field(default=1, ge=1)
    """How many checkpoints stay on disk while training runs."""
    precision: Precision = Precision.AUTO
    """Number format of the frozen weights and activations."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.method is Method.GRPO and self.group_size < 2:
            raise ValueError("'grpo' compares the plans of a query with each other, so group_size must be 2 at least")
        if self.samples % self.micro_batch_size:
            raise ValueError(
                f"prompts x group_size is {self.samples}, no multiple of micro_batch_size {self.micro_batch_size}"
            )
        if (self.method is Method.DISTILL) != (self.teacher is not None):
            raise ValueError("'teacher' is needed for the method 'distill' and used by no other")
        if self.teacher_adapter is not None and self.teacher is None:
            raise ValueError("'teacher_adapter' is set without a 'teacher' that it belongs to")
        if self.method is Method.DISTILL and self.sampled_by is SampledBy.VLLM:
            raise ValueError("'distill' draws with the local engine; vLLM is for 'grpo'")
        return self

    @property
    def samples(self) -> int:
        """Plans a step."""
        return self.prompts * self.group_size
