"""Settings of the planner engines. Light: pydantic only, so that the command line can show them without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineConfig(BaseModel):
    """How the local engine decodes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    batch_size: int = Field(default=32, ge=1, le=1024)
    """Most queries decoded at once; more is faster up to about 64, and takes memory for their keys and values."""
    max_new_tokens: int = Field(default=384, ge=1)
    """Token limit of one plan; a plan that reaches it ends with finish reason `length`."""
    max_steps: int = Field(default=8, ge=1, le=64)
    """Most steps that the plan grammar allows (constrained decoding only)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: the first CUDA device where there is one, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: bfloat16 on CUDA; float32 on the CPU, where the short types are far slower without AMX."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch for the whole process; None leaves torch's own choice."""
    prefix_cache_size: int = Field(default=4, ge=1)
    """Catalogs whose prompt prefix (keys and values) and compiled grammar are kept; the least recently used goes."""
    prefill_tokens: int = Field(default=1024, ge=16)
    """Most prompt tokens in one forward pass: bounds the memory of long catalogs and of many new rows."""
    gather_seconds: float = Field(default=0.005, ge=0, le=1)
    """How long a lone `plan` call waits for others to share its batch; a running batch takes new calls at once."""
    queue_size: int = Field(default=1024, ge=1)
    """`plan` calls that may wait; further callers wait for a place before they are queued."""
