"""The state of an agent's run, as data: it can be saved after every change and taken up again, by another process too.

JSON only, with a version. Values of secret parameters are not in it: a state that is taken up again shows the model
`[redacted]` in their place.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plansmith.contract.errors import InputError
from plansmith.contract.plan import Json
from plansmith.contract.store import write_text
from plansmith.serving.runs.answer import Answer
from plansmith.serving.runs.events import RunStatus, StepOutcome

STATE_VERSION = 1
_OPEN = ConfigDict(extra="forbid", use_attribute_docstrings=True)
_FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Phase(StrEnum):
    """Where a run stands."""

    INIT = "init"
    """nothing was asked"""
    REASON = "reason"
    """the model is asked what to do next"""
    ACT = "act"
    """the calls that it asked for are being made"""
    END = "end"
    """it is over"""


class End(StrEnum):
    """Why a run ended."""

    ANSWERED = "answered"
    """the model gave its final answer"""
    PLAIN_TEXT = "plain_text"
    """the model wrote text and called nothing, also after it was told how to end; the text is the answer"""
    MAX_STEPS = "max_steps"
    """all turns were used"""
    TOKEN_BUDGET = "token_budget"
    """a further request could go beyond the budget"""
    DEADLINE = "deadline"
    """the time was over"""
    REPEATED_ACTION = "repeated_action"
    """the same call again and again, or two in turns"""
    BAD_CALLS = "bad_calls"
    """too many calls that cannot be made"""
    CONTEXT_FULL = "context_full"
    """the conversation does not fit the model's context, also after compaction"""
    MODEL_FAILED = "model_failed"
    """the model's endpoint gave no turn"""


class PendingCall(BaseModel):
    """A call of the turn that is being made."""

    model_config = _FROZEN

    id: str
    number: int
    """From 0, over the whole run."""
    worker: str
    args: dict[str, Json]
    same: tuple[str, ...] = ()
    """Ids of equal calls of the turn, which share its outcome."""


class MadeCall(BaseModel):
    """A call that was made."""

    model_config = _FROZEN

    turn: int
    worker: str
    args: dict[str, Json]
    """Without secrets."""
    outcome: StepOutcome


class AgentState(BaseModel):
    """Everything that a run needs to go on."""

    model_config = _OPEN

    version: Literal[1] = STATE_VERSION
    run_id: str
    query: str
    catalog: str
    """Hash of the registry's catalog."""
    phase: Phase = Phase.INIT
    turns: int = 0
    """Turns in which the model was asked."""
    history: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Messages after the query, in OpenAI's form."""
    facts: list[str] = Field(default_factory=list[str])
    """What compaction kept of old observations."""
    pending: list[PendingCall] = Field(default_factory=list[PendingCall])
    calls: list[MadeCall] = Field(default_factory=list[MadeCall])
    actions: list[list[str]] = Field(default_factory=list[list[str]])
    """Keys of the calls of each turn."""
    failures: dict[str, int] = Field(default_factory=dict[str, int])
    """Failures in a row, by worker."""
    removed: dict[str, str] = Field(default_factory=dict[str, str])
    """Workers that are no tools any more, and their last failure."""
    bad_calls: int = 0
    plain_texts: int = 0
    """Turns without a call."""
    compactions: int = 0
    cut: int = 0
    """Results that the model saw in part only."""
    asked: int = 0
    """Requests to the model, the one for an answer included."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens_a_byte: float = 0.4
    """Of requests, as last measured; a careful guess before."""
    seconds: float = 0.0
    """Used up before this process took the run up."""
    end: End | None = None
    answer: Answer | None = None

    @property
    def tokens(self) -> int:
        """Of all requests together."""
        return self.prompt_tokens + self.completion_tokens

    def save(self, path: str | Path) -> None:
        """Write it; a reader sees the old state or the new one, never a part."""
        write_text(path, self.model_dump_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> AgentState:
        """Read a saved state.

        Raises:
            InputError: there is none, or it is not of this version.

        """
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except OSError as error:
            raise InputError(f"the state {str(path)!r} cannot be read: {error}.") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(
                f"{str(path)!r} is no state of an agent's run (version {STATE_VERSION}): {where}: {first['msg']}."
            ) from error


class AgentResult(BaseModel):
    """How an agent's run ended."""

    model_config = _FROZEN

    run_id: str
    query: str
    status: RunStatus
    """`complete`: the model ended it with an answer; `partial`: it had to stop and there is an answer all the same;
    `failed`: there is none."""
    end: End
    answer: Answer
    calls: tuple[MadeCall, ...] = ()
    turns: int = 0
    asked: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    bad_calls: int = 0
    compactions: int = 0
    cut: int = 0
    removed: dict[str, str] = {}
    withheld: dict[str, str] = {}
    """Workers that were no tools from the start, and why."""
    abandoned: int = 0
    """Calls that did not end when they were cancelled and that nobody waits for."""
    seconds: float = 0.0
