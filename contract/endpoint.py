"""Protocols between stages: who can plan, who can execute. Stages take these; the command line hands them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypedDict

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import CheckResult
from plansmith.contract.plan import Step
from plansmith.contract.records import FinishReason


class TokenLogprob(NamedTuple):
    """One generated token, and what else was likely in its place; natural logarithms."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens with their log-probability, as the endpoint gives them."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a planner wrote for one query, checked by the client whatever the server promised."""

    query: str
    text: str
    """Generated text without the stop token; empty on error."""
    check: CheckResult
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """Wall time from request to last token, waiting in a queue included."""
    finish_reason: FinishReason
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Log-probabilities of the text's tokens, where they were asked for and given."""


class Planner(Protocol):
    """Turns a query and a catalog into a draft. Never raises for a bad plan: that is a finding of the draft."""

    async def plan(self, query: str, catalog: Catalog, *, constrained: bool = True) -> Draft:
        """Plan one query; `constrained` decodes under the catalog's plan grammar."""
        ...


class TokenSample(NamedTuple):
    """What a model wrote, token by token."""

    ids: tuple[int, ...]
    """Tokens drawn, the stop token included where it was drawn."""
    text: str
    """Their text without the stop token; special tokens stay visible."""
    stopped: bool
    """Whether the model ended it; else the token limit cut it."""


class TokenSampler(Protocol):
    """Draws plans from a model that is being trained, without a grammar; the weights are those of the moment."""

    def sample(
        self,
        queries: Sequence[str],
        catalog: Catalog,
        *,
        temperature: float,
        seeds: Sequence[int],
        max_new_tokens: int,
    ) -> list[TokenSample]:
        """One sample a query, in their order.

        Args:
            queries: the users' words; several samples of a query are several equal entries.
            catalog: the workers that the prompt shows.
            temperature: 0 takes the likeliest token.
            seeds: one for each query.
            max_new_tokens: a plan that reaches it is cut.

        """
        ...


class Message(TypedDict):
    """One message of a conversation."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


class Text(NamedTuple):
    """What a model wrote."""

    text: str
    """Empty on error."""
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """Wall time from request to last token, waiting in a queue included."""
    finish_reason: FinishReason
    error: str | None = None


class TextModel(Protocol):
    """Writes text; whoever asks reads and checks it."""

    async def write(
        self,
        messages: Sequence[Message],
        *,
        temperature: float | None = None,
        seed: int | None = None,
        max_tokens: int | None = None,
        schema: dict[str, Any] | None = None,
    ) -> Text:
        """Go on with a conversation.

        Args:
            messages: what was said.
            temperature: None: the model's own.
            seed: None: the model's own.
            max_tokens: None: the model's own limit.
            schema: JSON Schema of the text, for models that can be held to one; the text may break it all the same.

        """
        ...


class ToolCall(NamedTuple):
    """A call that a model asks for, as it wrote it."""

    id: str
    """Empty where the endpoint gave none."""
    name: str
    arguments: str
    """JSON text, as far as the model can write it."""


class Turn(NamedTuple):
    """What a model does next in a conversation with tools."""

    text: str
    """What it says besides its calls; empty on error."""
    calls: tuple[ToolCall, ...]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    finish_reason: FinishReason
    error: str | None = None


class ChatModel(TextModel, Protocol):
    """A model that can also ask for calls; whoever asks makes them and answers."""

    async def turn(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> Turn:
        """Go on with a conversation.

        Args:
            messages: in OpenAI's form, with `tool_calls` and `tool` messages.
            tools: in OpenAI's form; none allows no call.
            temperature: None: the model's own.
            max_tokens: None: the model's own limit.

        """
        ...


class Executor(Protocol):
    """Runs one step whose references are already resolved."""

    async def execute(self, step: Step, args: dict[str, Any]) -> Any:
        """JSON-compatible result of the worker; raises for a failed call."""
        ...
