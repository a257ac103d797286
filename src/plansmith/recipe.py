"""Recipe: one config for the whole line, from data to report.

Reads a YAML file and flags (`plansmith.contract.settings`); imports the stages' config classes only, no torch.
Relative paths in a recipe are relative to the directory where the command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from plansmith.contract.settings import Settings, load_settings
from plansmith.data.config import DataConfig
from plansmith.eval.config import EvalConfig
from plansmith.serving.config import EngineConfig
from plansmith.training.config import ModelConfig, TrainingConfig


class Recipe(Settings):
    """Everything that decides what a run makes; written as `recipe.json` beside the run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the run: its directory is `out/name`."""
    out: Path = Path("out")
    """Directory that holds the runs."""
    seed: int = Field(default=1, ge=0)
    """Seed of every random choice: generated queries, split, initial adapter, order of examples."""
    data: DataConfig
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.out / self.name


def load_recipe(file: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; raises `InputError` that lists every problem with file, line and key."""
    return load_settings(Recipe, file, overrides)
