"""The policy stage of a recipe: what training needs of evaluation and of the engine, and the stage itself.

Reads the recipe's `policy` section and the supervised adapter of the run; writes `policy/` in the run directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plansmith import __version__
from plansmith.contract.errors import InputError
from plansmith.contract.store import file_hash
from plansmith.held_out import agreement, live_sampler
from plansmith.stages import Base, Line, enter, require_trained_on

if TYPE_CHECKING:
    from plansmith.data.build import DataSet

_STAGE = "policy"


def train_policy(line: Line, data: DataSet, base: Base) -> Path:
    """Train the run's supervised adapter further on its own plans; the new adapter's directory.

    Raises:
        InputError: the recipe has no `policy` section, or the supervised adapter is not there or was made from other
            inputs.

    """
    config = line.recipe.policy
    if config is None:
        raise InputError("the recipe has no 'policy' section; add one, e.g. --policy.steps 20.")
    adapter = require_trained_on(line, data, base)
    out = line.path / _STAGE
    inputs = {
        "policy": config.model_dump(mode="json", exclude={"checkpoint_every", "keep_checkpoints"}),
        "seed": line.recipe.seed,
        "adapter": file_hash(adapter / "adapter_model.safetensors"),
        "train": file_hash(line.path / "train.jsonl"),
        "val": file_hash(line.path / "val.jsonl"),
        "base": base.hash,
        "plansmith": __version__,
    }
    if enter(line, _STAGE, inputs, made=(out / "adapter" / "adapter_model.safetensors").is_file(), aside=_STAGE):
        from plansmith.training.policy_stage import train_policy as run_policy

        line.run.mark(_STAGE, inputs, done=False)
        run_policy(
            config,
            data,
            base.path,
            adapter,
            out,
            seed=line.recipe.seed,
            progress=line.progress,
            open_sampler=live_sampler(config.sample_batch_size),
            scorer=agreement,
        )
        line.run.mark(_STAGE, inputs, done=True)
    return out / "adapter"
