"""A small student that has learnt its rows by halves, so that its plans for one query get different rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from plansmith.contract.progress import Silent
from plansmith.contract.records import Example, Split
from plansmith.data.build import DataSet
from plansmith.policy import agreement, live_sampler
from plansmith.training.config import ModelConfig, TrainingConfig
from plansmith.training.encode import texts_of
from plansmith.training.model import build_tiny
from plansmith.training.policy_config import PolicyConfig
from plansmith.training.policy_stage import train_policy
from plansmith.training.trainer import train

GRPO = PolicyConfig(
    steps=4,
    prompts=3,
    group_size=4,
    micro_batch_size=6,
    max_new_tokens=48,
    learning_rate=2e-3,
    warmup_steps=0,
    validate_rows=2,
    checkpoint_every=2,
)


def with_val(data: DataSet) -> DataSet:
    """Six rows to train on, two of them to validate with."""
    val: list[Example] = [row.model_copy(update={"split": Split.VAL, "part": "val"}) for row in data.train[:2]]
    return DataSet(data.catalog, data.train[:6], val, [], data.manifest)


def sharp_base(out: Path, data: DataSet) -> Path:
    """A tiny random model whose output distribution is far from flat, so that it learns fast."""
    out.mkdir()
    build_tiny(out, texts_of(data), vocabulary=400)
    weights = load_file(out / "model.safetensors")
    weights["model.embed_tokens.weight"] *= 15
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def supervised(out: Path, data: DataSet, base: Path, steps: int) -> Path:
    """Some steps of the supervised stage; the adapter."""
    config = TrainingConfig(
        rank=64,
        alpha=128,
        steps=steps,
        batch_size=6,
        micro_batch_size=6,
        learning_rate=1e-2,
        warmup_steps=3,
        checkpoint_every=100,
    )
    return train(ModelConfig(base="tiny-random"), config, data, base, out, seed=3, progress=Silent()).adapter


def policy(data: DataSet, base: Path, adapter: Path, out: Path, config: PolicyConfig = GRPO, **change: Any) -> Path:
    arguments: dict[str, Any] = {
        "seed": 5,
        "progress": Silent(),
        "open_sampler": live_sampler(8),
        "scorer": agreement,
    } | change
    return train_policy(config, data, base, adapter, out, **arguments)
