"""A model that writes text or asks for tools, over any OpenAI-compatible endpoint: for teachers, judges and agents.

Asks through `OpenAIPlanner.ask`, so that retries, limits, counts and the handling of the key are the planner's. A
request that fails after all retries raises a `ServiceError`; one that the endpoint refuses, though it answers others,
comes back as a text with an error. Chat route only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from plansmith.contract.endpoint import Message, Text, Turn
from plansmith.contract.errors import InputError
from plansmith.contract.records import FinishReason
from plansmith.serving.config import EndpointConfig, Route
from plansmith.serving.openai_errors import QueryRefusedError
from plansmith.serving.openai_planner import OpenAIPlanner
from plansmith.serving.openai_reply import Event
from plansmith.serving.openai_request import text_request, turn_request


class OpenAIText:
    """A `ChatModel` over HTTP; `release` it at the end of each event loop."""

    def __init__(self, config: EndpointConfig, *, environ: Mapping[str, str] = os.environ) -> None:
        """Prepare the client; nothing is sent yet.

        Raises:
            InputError: the environment variable of the key is not set, or the route is not `chat`.

        """
        if config.route is not Route.CHAT:
            raise InputError(f"text is written on the chat route only; the route of {config.url!r} is {config.route}.")
        self.config = config
        self._endpoint = OpenAIPlanner(config, environ=environ)
        self._known: set[str] = set()
        """Forms of requests that were answered before: text, with a schema, with tools."""

    @property
    def counts(self) -> Counter[str]:
        """How often each `Event` happened."""
        return self._endpoint.counts

    @property
    def models(self) -> Counter[str]:
        """Names of the models that answered."""
        return self._endpoint.models

    async def write(
        self,
        messages: Sequence[Message],
        *,
        temperature: float | None = None,
        seed: int | None = None,
        max_tokens: int | None = None,
        schema: dict[str, Any] | None = None,
    ) -> Text:
        """Go on with a conversation; what is None is as the config says.

        Raises:
            ServiceError: the endpoint did not answer, also after all retries.
            EndpointRefusedError: the endpoint refuses what would be the same for every request.

        """
        begun = perf_counter()
        asked = text_request(
            messages, self.config, temperature=temperature, seed=seed, max_tokens=max_tokens, schema=schema
        )
        kind = "text" if schema is None else "schema"
        try:
            reply = await self._endpoint.ask(asked, known=kind in self._known)
        except QueryRefusedError as error:
            self.counts[error.event] += 1
            return Text("", 0, 0, perf_counter() - begun, FinishReason.ERROR, str(error))
        self._known.add(kind)
        withheld = Event.FILTERED in reply.events
        return Text(
            text=reply.text,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            seconds=perf_counter() - begun,
            finish_reason=reply.finish_reason,
            error=f"{self.config.url!r} withheld the answer (content filter)." if withheld else None,
        )

    async def turn(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> Turn:
        """Go on with a conversation with tools; what is None is as the config says.

        Raises:
            ServiceError, EndpointRefusedError: as `write`.

        """
        begun = perf_counter()
        asked = turn_request(messages, tools, self.config, temperature=temperature, max_tokens=max_tokens)
        try:
            reply = await self._endpoint.ask(asked, known="tools" in self._known)
        except QueryRefusedError as error:
            self.counts[error.event] += 1
            return Turn("", (), 0, 0, perf_counter() - begun, FinishReason.ERROR, str(error))
        self._known.add("tools")
        withheld = Event.FILTERED in reply.events
        return Turn(
            text=reply.text,
            calls=reply.calls,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            seconds=perf_counter() - begun,
            finish_reason=reply.finish_reason,
            error=f"{self.config.url!r} withheld the answer (content filter)." if withheld else None,
        )

    async def release(self) -> None:
        """Close the connections of the running event loop; the model stays usable."""
        await self._endpoint.release()
