"""What a run tells: events while it goes on, and its result.

Every event has the version of this format, the run and a kind. Values stand in events only where the run's config shows
them, and secrets never. A `RunResult` is for the caller: its results are what the workers gave, unredacted; its
failures and reasons are redacted.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from plansmith.contract.plan import Json
from plansmith.serving.workers.base import CallFailure

EVENT_VERSION = 1
"""Goes up when a field changes its meaning or goes away."""
_FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EventKind(StrEnum):
    """What happened."""

    RUN_STARTED = "run_started"
    """a run, or the rest of one after a resume, begins"""
    PLAN_READY = "plan_ready"
    """the plan was checked; the event says whether it may run"""
    STEP_STARTED = "step_started"
    """a worker is about to be called for the first time"""
    STEP_RETRIED = "step_retried"
    """a call failed and will be made again"""
    STEP_FINISHED = "step_finished"
    """a step has its result"""
    STEP_FAILED = "step_failed"
    """a step has no result, or nobody knows whether it took effect"""
    STEP_SKIPPED = "step_skipped"
    """a step is not run, for the reason given"""
    APPROVAL_NEEDED = "approval_needed"
    """a person must agree before a step runs"""
    MODEL_ASKED = "model_asked"
    """an agent's model is asked what to do next; `step` is the number of the turn"""
    MODEL_FAILED = "model_failed"
    """an agent's model gave no turn"""
    COMPACTED = "compacted"
    """an agent's old observations became facts"""
    ANSWER = "answer"
    """the answer to the query"""
    RUN_FINISHED = "run_finished"
    """nothing further happens in this run"""


class StepStatus(StrEnum):
    """How a step ended."""

    DONE = "done"
    """it has a result"""
    FAILED = "failed"
    """its call failed, or could not be made"""
    SKIPPED = "skipped"
    """it was not called; the reason says why"""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """a write was sent and nobody knows whether it took effect; it is never repeated by itself"""
    AWAITING_APPROVAL = "awaiting_approval"
    """a person must agree first"""


class RunStatus(StrEnum):
    """How a run ended."""

    COMPLETE = "complete"
    """every step has a result"""
    PARTIAL = "partial"
    """some steps have results, others have none"""
    FAILED = "failed"
    """no step has a result"""
    REFUSED = "refused"
    """the plan is invalid or asks for what is not allowed; nothing ran"""
    AWAITING_APPROVAL = "awaiting_approval"
    """a person must agree to a step; `resume` goes on"""


class StepOutcome(BaseModel):
    """How one step ended."""

    model_config = _FROZEN

    step: int
    worker: str
    status: StepStatus
    result: Json = None
    """What the worker gave, where the step is done."""
    failure: CallFailure | None = None
    """Why it has no result, where a call failed or could not be made."""
    reason: str | None = None
    """Why it was skipped or waits."""
    attempts: int = 0
    """Calls that were made."""
    seconds: float = 0.0
    """From its start to its end, waits between calls included."""


class Refusal(BaseModel):
    """Why a plan does not run, from the side of the orchestrator."""

    model_config = _FROZEN

    step: int
    worker: str
    failure: CallFailure


class Answer(BaseModel):
    """What the user is told."""

    model_config = _FROZEN

    text: str
    """Empty where there is none."""
    confidence: float | None = None
    """The model's own, from 0 to 1; None where no model wrote it."""
    by_model: bool
    for_person: bool
    """Whether a person should look: low confidence, no answer, or steps without results."""
    missing: tuple[str, ...] = ()
    """What the run has no result for, and why."""
    cut: int = 0
    """Results that the model saw in part only."""
    asked: int = 0
    """How often the model was asked."""
    error: str | None = None
    """Why there is no answer."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class RunResult(BaseModel):
    """How a run ended."""

    model_config = _FROZEN

    run_id: str
    query: str
    status: RunStatus
    steps: tuple[StepOutcome, ...] = ()
    """One for each step of the plan, in its order; none where the plan is invalid."""
    plan: Json = None
    """The plan as JSON; None where it is invalid."""
    findings: tuple[dict[str, Json], ...] = ()
    """What the check found."""
    refusals: tuple[Refusal, ...] = ()
    """What is not allowed or not there."""
    missing: tuple[str, ...] = ()
    """What a person misses in the results, a sentence for each step without one."""
    abandoned: int = 0
    """Calls that did not end when they were cancelled and that nobody waits for."""
    answer: Answer | None = None
    """What the user is told; None where nobody makes answers, nothing ran, or the run waits for a person."""
    seconds: float = 0.0

    @property
    def results(self) -> dict[int, Json]:
        """Results by step, as far as there are any."""
        return {one.step: one.result for one in self.steps if one.status is StepStatus.DONE}


class RunEvent(BaseModel):
    """Something that happened in a run."""

    model_config = _FROZEN

    version: int = EVENT_VERSION
    kind: EventKind
    run_id: str
    step: int | None = None
    worker: str | None = None
    attempt: int | None = None
    """Of a retried step: the call that failed."""
    status: str | None = None
    """Of an ended step or run."""
    failure: CallFailure | None = None
    message: str | None = None
    """In words, for people."""
    seconds: float | None = None
    data: Json = None
    """Findings and refusals of a plan; arguments of a call to be approved; values where the config shows them."""
