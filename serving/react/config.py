"""Settings of the ReAct agent: when it stops, what it may call, how much it remembers. Data only."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from plansmith.contract.catalog import Effect
from plansmith.serving.runs.config import BreakerConfig, RetryConfig


class ReActConfig(BaseModel):
    """How a ReAct agent works."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_steps: int = Field(default=8, ge=1, le=256)
    """Turns in which the model may call workers; after the last it must answer from what is known."""
    token_budget: int = Field(default=32_768, ge=256)
    """Tokens of all requests together, prompts and completions; no request is begun that could go beyond."""
    turn_tokens: int = Field(default=512, ge=16)
    """Token limit of what the model writes in one turn."""
    answer_tokens: int = Field(default=512, ge=16)
    """Token limit of an answer that is asked for when the agent has to stop; the budget keeps room for it."""
    deadline_s: float = Field(default=120.0, gt=0)
    """Seconds that a run may take; it has ended by then, whatever model and workers do."""
    answer_share: float = Field(default=0.2, ge=0, lt=1)
    """Share of the deadline kept for the answer: when the rest is over the agent stops and asks for one."""
    repeat_limit: int = Field(default=3, ge=2)
    """The same call in so many turns running ends the run before it is made again."""
    bad_calls: int = Field(default=2, ge=0)
    """How often a call that cannot be made (unknown worker, arguments that do not parse or fit) goes back to the model
    with the reason; one more ends the run."""
    worker_failures: int = Field(default=3, ge=1)
    """Failures in a row after which a worker is taken off the tools, with a word in the prompt."""
    window_tokens: int = Field(default=8192, ge=512)
    """The model's context in tokens."""
    compact_share: float = Field(default=0.6, gt=0, lt=1)
    """Share of the window from which old observations are replaced by a list of facts."""
    observation_chars: int = Field(default=4000, ge=100)
    """Longest result that the model sees whole, in characters of JSON; longer ones are cut, and the cuts counted."""
    concurrency: int = Field(default=16, ge=1)
    """Calls of one turn that run at once."""
    effects: frozenset[Effect] = frozenset({Effect.PURE, Effect.READ})
    """Workers with other effects are no tools: results reach the model that chooses calls, and may try to steer it."""
    permissions: frozenset[str] = frozenset()
    """What the caller may do; a worker that needs more is no tool."""
    retries: RetryConfig = RetryConfig()
    """Of every worker."""
    breaker: BreakerConfig = BreakerConfig()
    """Of every worker, one each for all runs of an agent."""
    min_confidence: float = Field(default=0.0, ge=0, le=1)
    """Answers below it are marked for a person."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Of the model; None leaves the endpoint's own."""
    show_values: bool = False
    """Whether arguments and results stand in events; secrets never do."""
