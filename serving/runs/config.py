"""Settings of runs: limits, retries, circuit breakers, permissions, approval, what is shown.

Data only; an orchestrator takes one and every run of it obeys it.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from plansmith.contract.check import DEFAULT_MAX_STEPS

_SETTINGS = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ApprovalMode(StrEnum):
    """What happens at a worker that needs a person's word."""

    ASK = "ask"
    """the callback is asked; without one the run ends as `awaiting_approval` in the journal"""
    REFUSE = "refuse"
    """nobody is asked, the step fails as forbidden"""
    GRANT = "grant"
    """nobody is asked, the step runs: for tests and closed systems"""


class RetryConfig(BaseModel):
    """When a failed call is tried again: only where its failure is retryable and a second call does no harm."""

    model_config = _SETTINGS

    max_attempts: int = Field(default=3, ge=1)
    """Calls of one step at most, the first included."""
    initial_s: float = Field(default=0.2, ge=0)
    """Wait before the second call; doubles each time."""
    max_s: float = Field(default=10.0, ge=0)
    """Longest wait."""
    jitter_s: float = Field(default=0.2, ge=0)
    """A random part of up to this is added to each wait."""


class BreakerConfig(BaseModel):
    """When a worker that keeps failing is left alone."""

    model_config = _SETTINGS

    failures: int = Field(default=5, ge=1)
    """Failures in a row that open it."""
    cool_s: float = Field(default=30.0, ge=0)
    """Seconds until one call may probe."""


class RunConfig(BaseModel):
    """How runs are run."""

    model_config = _SETTINGS

    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1)
    """A plan of more is invalid."""
    concurrency: int = Field(default=16, ge=1)
    """Steps of one run that run at once."""
    deadline_s: float = Field(default=120.0, gt=0)
    """Seconds that a run may take; it has ended by then, whatever its workers do."""
    grace_s: float = Field(default=0.05, ge=0)
    """Share of the deadline's end, at most a tenth, in which cancelled calls may end by themselves."""
    retries: RetryConfig = RetryConfig()
    """Of every worker."""
    breaker: BreakerConfig = BreakerConfig()
    """Of every worker, one each for all runs of an orchestrator."""
    permissions: frozenset[str] = frozenset()
    """What the caller may do; a plan with a worker that needs more is refused before anything runs."""
    approval: ApprovalMode = ApprovalMode.ASK
    """What happens at a worker that needs a person's word."""
    answer_share: float = Field(default=0.2, ge=0, lt=1)
    """Share of the deadline kept for the answer, where the orchestrator has somebody who makes it."""
    min_confidence: float = Field(default=0.0, ge=0, le=1)
    """Answers below it are marked for a person."""
    max_result_bytes: int = Field(default=1 << 20, ge=1)
    """Largest result of a step as JSON; a larger one is a failure, never cut."""
    show_values: bool = False
    """Whether arguments and results stand in events and logs; secrets never do."""
