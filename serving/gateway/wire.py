"""What the gateway's own routes take and give, as JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from plansmith.contract.plan import Json
from plansmith.serving.gateway.ladder import Attempt, Rung
from plansmith.serving.runs.events import Answer, Refusal, RunResult, RunStatus, StepOutcome

_IN = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
_OUT = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PlanRequest(BaseModel):
    """A query to be planned."""

    model_config = _IN

    query: str = Field(min_length=1)
    """The user's words."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds that the request may take, its wait included; the gateway's own limit holds all the same."""


class RunRequest(BaseModel):
    """A query to be planned and run, or a plan to be run."""

    model_config = _IN

    query: str = Field(default="", min_length=0)
    """The user's words; needed where there is no plan."""
    plan: list[Any] | None = None
    """A plan to run; then no planner is asked."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds for planning, steps and answer together; the gateway's own limit holds all the same."""
    agent: bool = True
    """Whether a ReAct agent may answer where there is no valid plan and the gateway has one."""


class ResumeRequest(BaseModel):
    """A person's word on steps that wait for it."""

    model_config = _IN

    approve: dict[str, bool] = {}
    """By index of the step: whether it may run."""


class PlanResponse(BaseModel):
    """What came of planning."""

    model_config = _OUT

    request_id: str
    valid: bool
    """Whether there is a valid plan."""
    plan: list[dict[str, Any]] | None
    """The plan; null where no rung gave a valid one. An empty plan means that no worker fits the query."""
    findings: tuple[dict[str, Any], ...] = ()
    """Of the plan (warnings), or of the last one that was not valid."""
    rung: Rung | None
    """The rung of the fallback ladder that gave it."""
    rungs: tuple[Attempt, ...]
    """All that were tried."""
    prompt_tokens: int
    """Of all rungs."""
    completion_tokens: int
    seconds: float
    """From the request's start, its wait included."""
    catalog: str
    """Hash of the catalog."""


class RunState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    COMPLETE = "complete"
    PARTIAL = "partial"
    FAILED = "failed"
    REFUSED = "refused"
    AWAITING_APPROVAL = "awaiting_approval"


class RunResponse(BaseModel):
    """A run."""

    model_config = _OUT

    run_id: str
    request_id: str | None = None
    """The request that began it; null for a run that is read from the journal."""
    query: str
    status: RunState
    plan: list[dict[str, Any]] | None = None
    """The plan; null where there is no valid one, or an agent answered."""
    findings: tuple[dict[str, Any], ...] = ()
    refusals: tuple[Refusal, ...] = ()
    """What is not allowed or not there."""
    steps: tuple[StepOutcome, ...] = ()
    """One a step, or one a call of the agent."""
    missing: tuple[str, ...] = ()
    """What has no result, and why."""
    answer: Answer | None = None
    rung: Rung | None = None
    rungs: tuple[Attempt, ...] = ()
    """What was tried to get a plan; none where the plan was given."""
    seconds: float = 0.0


def of_result(result: RunResult, request_id: str | None, attempts: tuple[Attempt, ...], seconds: float) -> RunResponse:
    """A run of the orchestrator."""
    rung = next((one.rung for one in attempts if one.outcome == "valid"), None)
    return RunResponse(
        run_id=result.run_id,
        request_id=request_id,
        query=result.query,
        status=RunState(result.status.value),
        plan=result.plan,
        findings=result.findings,
        refusals=result.refusals,
        steps=result.steps,
        missing=result.missing,
        answer=result.answer,
        rung=rung,
        rungs=attempts,
        seconds=seconds,
    )


def of_saved(run_id: str, query: str, status: str, plan: Json, steps: tuple[StepOutcome, ...]) -> RunResponse:
    """A run as the journal has it."""
    known = status in set(RunStatus)
    return RunResponse(
        run_id=run_id,
        query=query,
        status=RunState(status) if known else RunState.RUNNING,
        plan=plan,
        steps=steps,
    )
