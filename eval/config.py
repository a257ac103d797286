"""Settings of evaluation: which systems are asked, on which variants of the catalog, and how the report counts.

Light: pydantic only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from plansmith.eval.variants_config import VariantsConfig
from plansmith.serving.config import EndpointConfig

RUN = "run"
"""In place of a directory: what the run itself made."""


class Section(BaseModel):
    """Base of the config classes of evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class SystemConfig(Section):
    """What all systems have: a name, how they decode, what they are paid."""

    name: str = Field(pattern=r"^[^\s:][^\s:]{0,99}$")
    """Name in the report, e.g. `teacher` or `student/grammar`; no spaces, no colon."""
    constrained: bool = False
    """Decode under the plan grammar; false is free decoding, so that the report shows what the model itself learnt."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """0: greedy. Above: sampled, for the teacher's self-agreement."""
    samples: int = Field(default=1, ge=1, le=100)
    """Answers an item; all metrics take the first, self-agreement compares all pairs."""
    price_prompt: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens, in the report's currency."""
    price_completion: float | None = Field(default=None, ge=0)
    """Price of a million completion tokens."""
    price_hour: float | None = Field(default=None, ge=0)
    """Price of an hour of the machine, for a planner that is paid by time."""

    @model_validator(mode="after")
    def _samples_differ(self) -> SystemConfig:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("samples above 1 need a temperature above 0: greedy answers are all the same")
        return self


class LocalSystem(SystemConfig):
    """A model on this machine, in the local engine."""

    kind: Literal["local"]
    base: str = RUN
    """Directory of a transformers model; `run`: the base model that the run prepared."""
    adapter: str | None = None
    """Directory of an adapter; `run`: the adapter that the run trained; None: the base model alone."""


class EndpointSystem(SystemConfig):
    """An OpenAI-compatible endpoint: a vLLM server, a hosted model."""

    kind: Literal["openai"]
    endpoint: EndpointConfig
    """Where it is and how it is asked."""
    server_pid: int | None = None
    """Process id of the server, where it runs on this machine: its peak memory is measured."""


class ServedSystem(SystemConfig):
    """The run's own export behind `plansmith serve`, as the recipe's `serve` says; it decodes under the grammar."""

    kind: Literal["served"]


class RecordedSystem(SystemConfig):
    """Answers that something else made: JSONL rows `{"id" or "query", "text" or "plan"}`."""

    kind: Literal["recorded"]
    path: Path
    """The file."""


System = Annotated[LocalSystem | EndpointSystem | RecordedSystem | ServedSystem, Field(discriminator="kind")]

RUN_SYSTEMS: tuple[LocalSystem, ...] = tuple(
    LocalSystem(kind="local", name=f"{model}/{mode}", adapter=adapter, constrained=mode == "grammar")
    for model, adapter in (("base", None), ("tuned", RUN))
    for mode in ("free", "grammar")
)
"""What a run is judged by where nothing else is asked for: its base and its tuned model, without and with grammar."""


class EvalConfig(Section):
    """How systems are asked and how the report counts."""

    systems: tuple[System, ...] = RUN_SYSTEMS
    """Who is asked; default: the run's base and tuned model, each without and with grammar."""
    teacher: str | None = None
    """Name of the system that the others are measured against, one of `systems` or one that was asked before in the
    same directory; None: no such table."""
    variants: VariantsConfig = VariantsConfig()
    """Variants of the catalog that every system is asked on, too: shuffled, renamed, distracting workers, ..."""
    batch_size: int = Field(default=16, ge=1)
    """Queries handed to a batching planner at once; rows are stored batch by batch, a stop loses at most one."""
    concurrency: int = Field(default=8, ge=1)
    """Requests under way at once for a planner that takes one query at a time."""
    limit_per_part: int | None = Field(default=None, ge=1)
    """Most test items asked of each part, picked by the hash of their id (the same for all systems); None: all."""
    resamples: int = Field(default=2000, ge=100)
    """Bootstrap resamples behind each interval of an F1 and of a paired difference."""
    failures: int = Field(default=20, ge=0)
    """Wrong items written out in full for each system in the Markdown page; all of them are counted."""
    page_items: int = Field(default=2000, ge=0)
    """Items that the HTML page holds, wrong ones first; `eval/items.jsonl` has all."""
    currency: str = "USD"
    """Currency of the prices."""

    @model_validator(mode="after")
    def _names_fit(self) -> EvalConfig:
        names = [system.name for system in self.systems]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"system names must be unique; found twice: {twice}")
        return self
