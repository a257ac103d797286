"""A worker that can be called: its catalog entry, and how a call fails.

The catalog says what may be called, as data; a `CallableWorker` adds the code. Whatever a call raises becomes a
`CallFailure`, the JSON object that the orchestrator, the journal and the answering model see; nothing else of an
exception leaves this place. Registries (`registry.py`) hold workers; decorators, built-ins and MCP servers make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from plansmith.contract.catalog import Worker
from plansmith.contract.plan import Json


class FailureCode(StrEnum):
    """Why a call has no result. Workers may use codes of their own besides these."""

    TIMEOUT = "TIMEOUT"
    """it took longer than its time limit"""
    NETWORK = "NETWORK"
    """what it needs could not be reached"""
    RATE_LIMITED = "RATE_LIMITED"
    """what it needs asked for fewer calls"""
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    """an argument is not what the worker takes; the message names parameter, value and rule"""
    INVALID_RESULT = "INVALID_RESULT"
    """what it gave is no JSON, or not what its catalog entry declares"""
    NOT_FOUND = "NOT_FOUND"
    """what was asked for is not there"""
    FORBIDDEN = "FORBIDDEN"
    """a rule refuses the call; the message names the rule"""
    UNAVAILABLE = "UNAVAILABLE"
    """it failed so often lately that it is not called for a while, or its server is gone"""
    CANCELLED = "CANCELLED"
    """the run ended before the call did"""
    INTERNAL = "INTERNAL"
    """it raised something unforeseen"""


class CallFailure(BaseModel):
    """A failed call, as everybody else sees it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    error: bool = Field(default=True)
    """Always true: tells a failure from a result."""
    code: str
    """One of `FailureCode`, or a worker's own."""
    message: str
    """For people and models; holds no traceback."""
    retryable: bool
    """Whether the same call may succeed later."""


class WorkerError(Exception):
    """What a worker raises to fail in its own words."""

    def __init__(self, code: str, message: str = "", *, retryable: bool = False) -> None:
        """Say how the call failed.

        Args:
            code: one of `FailureCode`, or the worker's own.
            message: what was found, what was expected, what to do.
            retryable: whether the same call may succeed later.

        """
        super().__init__(message or code)
        self.code = str(code)
        self.message = message or str(code)
        self.retryable = retryable

    def failure(self) -> CallFailure:
        """As data."""
        return CallFailure(code=self.code, message=self.message, retryable=self.retryable)


@dataclass(frozen=True, slots=True)
class CallInfo:
    """Which call this is; a worker that has a parameter of this type gets it, and no plan can set it."""

    run_id: str
    step: int
    """Index of the step in its plan."""
    attempt: int = 1
    """1 for the first try."""
    idempotency_key: str | None = None
    """For workers that write: the same for every try of this step of this run, also after a crash."""
    timeout_s: float | None = None
    """Seconds that the caller will wait: the worker's limit or what is left of the run's time."""


@runtime_checkable
class CallableWorker(Protocol):
    """A worker with its code."""

    @property
    def worker(self) -> Worker:
        """Its catalog entry."""
        ...

    @property
    def secrets(self) -> frozenset[str]:
        """Names of parameters whose values are shown to nobody: not in logs, events, errors or the journal."""
        ...

    @property
    def approval(self) -> bool:
        """Whether a person must agree to each call."""
        ...

    async def call(self, args: dict[str, Json], info: CallInfo) -> Json:
        """Run it once.

        Args:
            args: validated against the catalog entry, references resolved.
            info: which call this is.

        Returns:
            Its result as JSON-compatible data.

        Raises:
            WorkerError: it failed in its own words.
            Exception: anything else; the caller turns it into a failure. A call that is cancelled ends at once, also
                where a thread goes on.

        """
        ...


def failure_of(error: BaseException) -> CallFailure:
    """The failure that an exception means; a `WorkerError` says it itself, time limits and networks are retryable.

    Messages of unforeseen exceptions are not passed on, since they may hold anything; their type is.
    """
    if isinstance(error, WorkerError):
        return error.failure()
    if isinstance(error, TimeoutError):
        return CallFailure(code=FailureCode.TIMEOUT, message="it took too long.", retryable=True)
    if isinstance(error, ConnectionError):
        return CallFailure(code=FailureCode.NETWORK, message=f"no connection ({type(error).__name__}).", retryable=True)
    message = f"it raised {type(error).__name__}; its log has the details."
    return CallFailure(code=FailureCode.INTERNAL, message=message, retryable=False)


def as_json_failure(failure: CallFailure) -> dict[str, Any]:
    """`{"error":true,"code":...,"message":...,"retryable":...}`."""
    return failure.model_dump(mode="json")
