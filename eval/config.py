"""Settings of evaluation. Light: pydantic only."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class EvalConfig(BaseModel):
    """How systems are asked and how the report counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    batch_size: int = Field(default=16, ge=1)
    """Queries handed to a batching planner at once; rows are stored batch by batch, a stop loses at most one."""
    concurrency: int = Field(default=8, ge=1)
    """Requests under way at once for a planner that takes one query at a time."""
    limit_per_part: int | None = Field(default=None, ge=1)
    """Most test items asked of each part, picked by the hash of their id (the same for all systems); None: all."""
    resamples: int = Field(default=2000, ge=100)
    """Bootstrap resamples behind each interval of an F1 and of a paired difference."""
    failures: int = Field(default=20, ge=0)
    """Wrong items written out in full for each system; all of them are counted."""
