"""Text over HTTP: what is sent, what comes back, and the planner's retries behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plansmith.contract.endpoint import Message, Text, TextModel
from plansmith.contract.errors import InputError, ServiceError
from plansmith.contract.records import FinishReason
from plansmith.serving.config import Constraint, EndpointConfig, Route
from plansmith.serving.openai_text import OpenAIText
from tests.serving import openai_server as scripted
from tests.serving.openai_server import OpenAIServer, completion, failure

MESSAGES = [Message(role="system", content="s"), Message(role="user", content="u")]
SCHEMA = {"type": "object", "properties": {"queries": {"type": "array"}}}


def write(server: OpenAIServer, *, options: dict[str, Any] | None = None, **settings: Any) -> tuple[Text, OpenAIText]:
    fast: dict[str, Any] = {"retries": 2, "backoff_seconds": 0.01, "timeout_seconds": 5.0}
    model = OpenAIText(EndpointConfig(url=server.url, model="teacher", **(fast | settings)), environ={})
    as_protocol: TextModel = model

    async def main() -> Text:
        try:
            return await as_protocol.write(MESSAGES, **(options or {}))
        finally:
            await model.release()

    return asyncio.run(main()), model


def test_what_is_given_is_sent_and_the_rest_is_the_configs():
    with OpenAIServer(scripted.answers("hello")) as server:
        options = {"temperature": 0.9, "seed": 7, "max_tokens": 33, "schema": SCHEMA}
        text, model = write(server, options=options, top_logprobs=3, top_p=0.5)
        write(server, max_tokens=11)
    body, plain = (asked.body for asked in server.requests)
    assert (body["messages"], body["temperature"], body["seed"], body["max_tokens"]) == (MESSAGES, 0.9, 7, 33)
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert body["top_p"] == 0.5
    assert "logprobs" not in body
    assert (plain["max_tokens"], plain["temperature"]) == (11, 0.0)
    assert "response_format" not in plain
    assert (text.text, text.finish_reason, text.prompt_tokens, text.error) == ("hello", FinishReason.STOP, 100, None)
    assert model.counts == {"sent": 1, "answered": 1}
    assert model.models == {"teacher": 1}


def test_an_endpoint_without_schemas_gets_none():
    with OpenAIServer(scripted.answers("hello")) as server:
        write(server, options={"schema": SCHEMA}, constraint=Constraint.NONE)
    assert "response_format" not in server.requests[0].body


def test_faults_are_tried_again_and_then_an_error():
    with OpenAIServer(scripted.first(2, scripted.server_error, scripted.answers("hello"))) as server:
        text, model = write(server)
    assert (text.text, model.counts["retried"]) == ("hello", 2)
    with OpenAIServer(scripted.server_error) as server, pytest.raises(ServiceError, match="after 3 attempts"):
        write(server)


def test_a_refused_or_withheld_text_says_so():
    too_long = failure(400, "maximum context length is 10", code="context_length_exceeded")
    with OpenAIServer(scripted.always(too_long)) as server:
        text, _ = write(server)
    assert (text.text, text.finish_reason) == ("", FinishReason.ERROR)
    assert text.error is not None
    assert "context length" in text.error
    filtered = [{"index": 0, "finish_reason": "content_filter", "message": {"content": None}}]
    with OpenAIServer(lambda asked: completion(asked, None, choices=filtered)) as server:
        text, _ = write(server)
    assert text.error is not None
    assert "content filter" in text.error


def test_only_the_chat_route_writes_text():
    with pytest.raises(InputError, match="chat route"):
        OpenAIText(EndpointConfig(url="http://localhost:1/v1", model="m", route=Route.COMPLETIONS))
