"""Config of the data factory: where queries come from, who the teacher is, and how it is asked.

Read by `plansmith data queries` and `plansmith data teach`. Light: config classes only. Relative paths are relative to
the directory where the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from plansmith.contract.settings import Settings
from plansmith.data.teacher_config import QueriesConfig, TeachConfig
from plansmith.serving.config import EndpointConfig


class EndpointTeacher(Settings):
    """An OpenAI-compatible endpoint: a local vLLM, a hosted model."""

    kind: Literal["openai"]
    endpoint: EndpointConfig
    """Where it is and how it is asked."""


class RecordedTeacher(Settings):
    """Plans that something else made: JSONL rows `{"id" or "query", "text" or "plan"}`, with `sample` where several."""

    kind: Literal["recorded"]
    path: Path
    """The file."""
    name: str = "recorded"
    """Name of the teacher, kept with each answer."""


Teacher = Annotated[EndpointTeacher | RecordedTeacher, Field(discriminator="kind")]


class Factory(Settings):
    """Everything that decides which plans a teacher is asked for."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the run: its directory is `out/name`."""
    out: Path = Path("out")
    """Directory that holds the runs."""
    seed: int = Field(default=1, ge=0)
    """Seed of grown queries."""
    catalog: Path | None = None
    """The workers that plans may call; None takes those of the one benchmark among the sources."""
    queries: QueriesConfig
    teacher: Teacher | None = None
    """Who writes the plans; `kind` is `openai` or `recorded`."""
    grower: EndpointConfig | None = None
    """Who invents queries, where some are to be grown; None: the teacher."""
    teach: TeachConfig = TeachConfig()

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if (
            self.teach.samples > 1
            and self.teach.temperature is None
            and isinstance(self.teacher, EndpointTeacher)
            and self.teacher.endpoint.temperature == 0
        ):
            raise ValueError("teach.samples above 1 need a temperature above 0, as teach.temperature")
        return self

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.out / self.name
