"""The OpenAI-compatible route: the official client and LangChain's against it, and what it refuses by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import openai
import pytest

from tests.serving.gateway_parts import INVALID, OSLO, parts, says, served

USER = [{"role": "user", "content": "Weather in Oslo?"}]


def client(url: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def test_the_official_client_gets_the_plan_and_its_cost():
    planner = says(OSLO)
    with served(parts(planner)) as gateway, client(gateway.url) as asks:
        found = asks.chat.completions.create(model="planner", messages=USER)
        assert [model.id for model in asks.models.list()] == ["planner"]
    choice = found.choices[0]
    assert json.loads(choice.message.content or "") == OSLO
    assert (choice.finish_reason, choice.message.role) == ("stop", "assistant")
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (10, 5, 15)
    assert (found.model_extra or {})["plansmith"]["rung"] == "planner"
    assert planner.asked == ["Weather in Oslo?"]


@pytest.mark.parametrize("usage", [False, True])
def test_streamed_pieces_are_the_same_plan(usage: bool):
    with served(parts(says(OSLO))) as gateway, client(gateway.url) as asks:
        stream = asks.chat.completions.create(
            model="planner", messages=USER, stream=True, stream_options={"include_usage": usage}
        )
        chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert json.loads(text) == OSLO
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert finishes == [None, "stop"]
    totals = [chunk.usage.total_tokens for chunk in chunks if chunk.usage is not None]
    assert totals == ([15] if usage else [])


def test_parts_of_a_message_are_one_query():
    planner = says([])
    content: Any = [{"type": "text", "text": "Weather "}, {"type": "text", "text": "in Oslo?"}]
    with served(parts(planner)) as gateway, client(gateway.url) as asks:
        asks.chat.completions.create(model="planner", messages=[{"role": "user", "content": content}])
    assert planner.asked == ["Weather in Oslo?"]


@pytest.mark.parametrize(
    "taken",
    [{"temperature": 0}, {"temperature": 0.0}, {"n": 1}, {"user": "u"}, {"seed": 3}, {"top_p": 1.0}, {"tools": []}],
)
def test_fields_that_change_nothing_are_taken(taken: dict[str, Any]):
    with served(parts(says([]))) as gateway, client(gateway.url) as asks:
        asks.chat.completions.create(model="planner", messages=USER, **taken)


@pytest.mark.parametrize(
    ("refused", "names"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"n": 2}, "n"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": ["x"]}, "stop"),
        ({"frob": 1}, "frob"),
        ({"messages": [{"role": "system", "content": "s"}, *USER]}, "messages"),
        ({"messages": [*USER, {"role": "assistant", "content": "[]"}, *USER]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(refused: dict[str, Any], names: str):
    planner = says([])
    with served(parts(planner)) as gateway:
        response = gateway.post("/v1/chat/completions", {"model": "planner", "messages": USER, **refused})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == names
    assert planner.asked == []


def test_errors_reach_the_official_client_as_its_own():
    with served(parts(says(INVALID))) as gateway, client(gateway.url) as asks:
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            asks.chat.completions.create(model="planner", messages=USER)
        assert "no valid plan" in caught.value.message
        assert caught.value.code == "no_valid_plan"
        with pytest.raises(openai.NotFoundError, match="it is 'planner'"):
            asks.chat.completions.create(model="gpt-7", messages=USER)


SCRIPT = """
import sys
from langchain_openai import ChatOpenAI
model = ChatOpenAI(model="planner", base_url=sys.argv[1], api_key="none", max_retries=0)
print(model.invoke("Weather in Oslo?").content)
print("".join(str(chunk.content) for chunk in model.stream("Weather in Oslo?")))
"""


@pytest.mark.slow
def test_langchains_model_works_as_it_is():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LANGCHAIN", "LANGSMITH"))}
    with served(parts(says(OSLO))) as gateway:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, f"{gateway.url}/v1"],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [OSLO, OSLO]
