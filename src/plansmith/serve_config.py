"""The config of `plansmith serve`: which planner, which workers, and the gateway in front of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from plansmith.contract.settings import Settings
from plansmith.serving.config import EndpointConfig, EngineConfig
from plansmith.serving.gateway.config import GatewayConfig
from plansmith.serving.react.config import ReActConfig
from plansmith.serving.runs.config import RunConfig
from plansmith.serving.vllm.config import VllmConfig


class LocalPlanner(Settings):
    """A model in this process (the local engine): for a laptop and light load."""

    kind: Literal["local"] = "local"
    run: Path | None = None
    """A finished run, e.g. `out/quickstart`."""
    model: Path | None = None
    """An exported planner (`plansmith model export`), in place of `run`."""
    adapter: Path | None = None
    """An adapter for `model`, which is then its base."""
    engine: EngineConfig | None = None
    """How it decodes; None: as the run's recipe says, or the defaults."""

    @model_validator(mode="after")
    def _one_model(self) -> LocalPlanner:
        if (self.run is None) == (self.model is None):
            raise ValueError("give 'run' (a finished run) or 'model' (an exported planner), one of both")
        if self.adapter is not None and self.model is None:
            raise ValueError("'adapter' belongs to 'model'; a run has its own")
        return self


class UrlPlanner(Settings):
    """A planner behind an OpenAI-compatible endpoint, e.g. a vLLM server."""

    kind: Literal["url"] = "url"
    endpoint: EndpointConfig
    export: Path | None = None
    """The exported planner that it serves: its catalog is taken, and the server's tokens are held against it."""
    canary: bool = True
    """Prove at the start that the endpoint decodes under a schema and plans; nothing is served otherwise."""


class VllmPlanner(Settings):
    """A planner in a vLLM server that is started, watched and ended from here."""

    kind: Literal["vllm"] = "vllm"
    server: VllmConfig


class RecordedPlanner(Settings):
    """Plans from a file of answers: for demonstrations and tests."""

    kind: Literal["recorded"] = "recorded"
    file: Path
    """JSONL, `{"query", "plan" | "text"}`."""


PlannerConfig = Annotated[LocalPlanner | UrlPlanner | VllmPlanner | RecordedPlanner, Field(discriminator="kind")]


class AgentConfig(Settings):
    """The ReAct agent as the last rung of the ladder."""

    endpoint: EndpointConfig
    react: ReActConfig = ReActConfig()


class ServeConfig(Settings):
    """What is served."""

    planner: PlannerConfig
    catalog: Path | None = None
    """The workers that plans may call; None: the planner's own catalog."""
    workers: tuple[str, ...] = ()
    """Workers with code, `module:attribute` or `file.py:attribute`; none: there are plans, but no runs."""
    runs: RunConfig = RunConfig()
    journal: Path | None = Path("out/runs.sqlite")
    """Where runs are kept; null: nowhere, and nothing can wait for a person."""
    answer: EndpointConfig | None = None
    """The model that turns results into an answer; null lists the results."""
    teacher: EndpointConfig | None = None
    """The endpoint that is asked where the planner gives no valid plan."""
    agent: AgentConfig | None = None
    """The agent that answers where nobody gives a valid plan."""
    gateway: GatewayConfig = GatewayConfig()
