"""Settings of a vLLM process. Data only."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

_OURS = frozenset(
    {"--model", "--host", "--port", "--served-model-name", "--structured-outputs-config", "--enable-lora"}
    | {
        "--max-lora-rank",
        "--lora-modules",
        "--max-model-len",
        "--dtype",
        "--quantization",
        "--trust-remote-code",
        "--api-key",
    }
)


class Backend(StrEnum):
    """Which grammar engine vLLM decodes under."""

    AUTO = "auto"
    """`guidance` up to `guidance_workers` workers, `xgrammar` above, where it compiles faster"""
    GUIDANCE = "guidance"
    XGRAMMAR = "xgrammar"


class VllmConfig(BaseModel):
    """How vLLM is started and kept running."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: Path
    """An exported planner (`plansmith model export`): merged weights, or the base of `adapter`."""
    adapter: Path | None = None
    """An exported adapter for `model`."""
    name: str = Field(default="planner", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """The planner's name at the server."""
    python: Path | None = None
    """The interpreter of the environment that has vLLM; None: this one."""
    port: int = Field(default=0, ge=0, le=65535)
    """Loopback port; 0 takes a free one."""
    dtype: str = "auto"
    """Number format of the weights: `auto`, `bfloat16`, `float16`, `float32`."""
    quantization: Literal["fp8", "fp8_per_channel", "int8_per_channel_weight_only"] | None = None
    """Weights quantized by vLLM while it loads them (on GPUs that can); None serves them as they are. Plans change: let
    `plansmith compare` say by how much before users see them."""
    max_model_len: int | None = Field(default=None, ge=64)
    """Longest prompt and plan together, in tokens; None: what catalog, query and plan need, rounded up."""
    max_plan_tokens: int = Field(default=512, ge=16)
    """Token limit of one plan."""
    max_steps: int = Field(default=8, ge=1, le=64)
    """Most steps that the plan grammar allows."""
    query_tokens: int = Field(default=1024, ge=16)
    """Room for the query, in tokens, where `max_model_len` is None."""
    backend: Backend = Backend.AUTO
    guidance_workers: int = Field(default=50, ge=1)
    """Most workers for which `auto` takes guidance."""
    env: dict[str, str] = {}
    """Environment variables of the process, e.g. `VLLM_CPU_KVCACHE_SPACE: "2"`."""
    args: tuple[str, ...] = ()
    """Further flags of vLLM's server, e.g. `--gpu-memory-utilization=0.5`."""
    ready_timeout_s: float = Field(default=900.0, gt=0)
    """How long a start may take: loading, compiling, warming up."""
    restarts: int = Field(default=5, ge=0)
    """How often a server that died is started again within `restart_window_s`."""
    restart_window_s: float = Field(default=600.0, gt=0)
    """Deaths that are longer ago are forgotten."""
    backoff_s: float = Field(default=1.0, gt=0)
    """Wait before the first restart; doubles with each death in the window, up to a minute."""
    stop_grace_s: float = Field(default=20.0, ge=0)
    """How long the process may take to end by itself."""
    log: Path | None = None
    """Where its output goes; None: kept in memory, the last lines only."""

    @field_validator("args")
    @classmethod
    def _not_ours(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        for arg in args:
            name = arg.partition("=")[0]
            if name in _OURS or name.replace("_", "-") in _OURS:
                raise ValueError(f"{name!r} is set by plansmith; use the config's own field, or leave it out")
        return args
