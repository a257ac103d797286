"""Recipe: one config for the whole line, from data to report.

Reads a YAML file and flags (`plansmith.contract.settings`); imports the stages' config classes only, no torch.
Relative paths in a recipe are relative to the directory where the command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from plansmith.contract.settings import Settings, load_settings
from plansmith.data.config import DataConfig
from plansmith.data.teacher_config import QueriesConfig, TeachConfig
from plansmith.eval.config import EvalConfig
from plansmith.factory import Factory, Teacher
from plansmith.serving.config import EndpointConfig, EngineConfig
from plansmith.serving.gateway.config import LimitsConfig
from plansmith.training.config import ModelConfig, TrainingConfig
from plansmith.training.policy_config import PolicyConfig


class StudentConfig(Settings):
    """The student that says how likely it finds each of several right plans (`data.verify.likeliest`)."""

    base: Path
    """Directory of a transformers model."""
    adapter: Path | None = None
    """Directory of its adapter; None: the base alone."""


class VllmStage(Settings):
    """vLLM in the serve stage: what differs from its own defaults."""

    python: Path | None = None
    """The interpreter of the environment that has vLLM; None: this one."""
    dtype: str = "auto"
    """Number format of the weights."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the process, e.g. `VLLM_CPU_KVCACHE_SPACE: "2"`."""
    args: tuple[str, ...] = ()
    """Further flags of vLLM's server."""


class ServeStage(Settings):
    """`plansmith serve` on the export, as long as the test items are asked there; the report's system `served`."""

    by: Literal["local", "vllm"] = "local"
    """`local`: the local engine; `vllm`: a vLLM server that is started for it."""
    vllm: VllmStage = VllmStage()
    ready_timeout_s: float = Field(default=900.0, gt=0)
    """How long it may take to get ready."""
    limits: LimitsConfig = LimitsConfig(deadline_s=600.0)
    """What the gateway takes on; the time limit is long, since a laptop is asked as many items at once as it takes."""


class Recipe(Settings):
    """Everything that decides what a run makes; written as `recipe.json` beside the run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the run: its directory is `out/name`."""
    out: Path = Path("out")
    """Directory that holds the runs."""
    seed: int = Field(default=1, ge=0)
    """Seed of every random choice: generated queries, split, initial adapter, order of examples."""
    catalog: Path | None = None
    """The workers that a teacher's plans may call; None takes those of the one benchmark among the query sources."""
    queries: QueriesConfig | None = None
    """What a teacher is asked; None: there is no teacher, and `data.source` names rows that have their plans."""
    teacher: Teacher | None = None
    """Who writes the plans; `kind` is `openai` or `recorded`."""
    grower: EndpointConfig | None = None
    """Who invents queries, where some are to be grown; None: the teacher."""
    teach: TeachConfig = Field(default_factory=TeachConfig)
    data: DataConfig
    judge: EndpointConfig | None = None
    """The model that is asked whether a plan is right, where `data.verify.judge` is set."""
    student: StudentConfig | None = None
    """Who chooses among right plans, where `data.verify.likeliest` is set."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    policy: PolicyConfig | None = None
    """Training of the supervised adapter on its own plans (`plansmith train --stage policy`); None: there is none."""
    engine: EngineConfig = Field(default_factory=EngineConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    export: Literal["merged", "adapter"] | None = None
    """Write what a server loads to `out/name/export` after training, as `plansmith model export` does; None: not."""
    serve: ServeStage | None = None
    """Ask the test items of the served export too; `{}` takes the local engine. None: nothing is served."""

    @model_validator(mode="after")
    def _teacher_has_queries(self) -> Self:
        given = [name for name in ("teacher", "grower", "catalog") if getattr(self, name) is not None]
        if self.queries is None and given:
            raise ValueError(f"{given[0]!r} is set, but 'queries' is not, so no teacher would be asked")
        if self.serve is not None and self.export is None:
            raise ValueError("'serve' serves what 'export' wrote; set export to 'merged' or 'adapter'")
        _ = self.factory  # checks what goes together
        return self

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.out / self.name

    @property
    def factory(self) -> Factory | None:
        """The part that collects queries and asks a teacher; None where the recipe has none."""
        if self.queries is None:
            return None
        shared = ("name", "out", "seed", "catalog", "queries", "teacher", "grower", "teach")
        return Factory.model_validate({name: getattr(self, name) for name in shared})


def load_recipe(file: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; raises `InputError` that lists every problem with file, line and key."""
    return load_settings(Recipe, file, overrides)
