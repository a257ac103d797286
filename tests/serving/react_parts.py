"""Scripted models for an agent: what each turn answers, over real HTTP; and a check of every conversation sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from plansmith.contract.catalog import Effect
from plansmith.serving.config import EndpointConfig
from plansmith.serving.openai_text import OpenAIText
from plansmith.serving.react.agent import ReActAgent
from plansmith.serving.react.config import ReActConfig
from plansmith.serving.react.state import AgentResult
from plansmith.serving.runs.config import RetryConfig
from plansmith.serving.workers.base import CallInfo, WorkerError
from plansmith.serving.workers.registry import Registry
from tests.serving.openai_server import Asked, Behaviour, OpenAIServer, Reply, completion
from tests.serving.run_parts import Made

FAST = RetryConfig(max_attempts=1, initial_s=0, max_s=0, jitter_s=0)
CALM = ReActConfig(retries=FAST, deadline_s=30)


def call(name: str, arguments: Any = None, id_: str | None = "") -> dict[str, Any]:
    """One tool call; `arguments` that are no text are written as JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    made = {"type": "function", "function": {"name": name, "arguments": text}}
    return made if id_ is None else {"id": id_ or f"id_{abs(hash((name, text)))}", **made}


def final(answer: str = "Done.", **more: Any) -> dict[str, Any]:
    return call("final_answer", {"answer": answer, **more})


def asks(asked: Asked, *calls: dict[str, Any], text: str | None = None, **changes: Any) -> Reply:
    """A turn with calls."""
    message = {"role": "assistant", "content": text, "tool_calls": list(calls)}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return completion(asked, "", choices=[choice], **changes)


def turns(*script: Sequence[dict[str, Any]] | str, then: Behaviour | None = None) -> Behaviour:
    """Turn by turn: calls, or a text without any; the last one, or `then`, from there on."""

    def behaviour(asked: Asked) -> Reply:
        if asked.number >= len(script) and then is not None:
            return then(asked)
        turn = script[min(asked.number, len(script) - 1)]
        return completion(asked, turn) if isinstance(turn, str) else asks(asked, *turn)

    return behaviour


def ask(
    behaviour: Behaviour,
    registry: Registry,
    config: ReActConfig = CALM,
    query: str = "Weather in Oslo?",
    *,
    endpoint: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[AgentResult, list[Asked]]:
    """Run an agent against a scripted model; every conversation that it sent is checked."""
    agent_options = {name: options.pop(name) for name in ("approve",) if name in options}
    work = options.pop("work", None)

    async def run(url: str) -> AgentResult:
        settings = {"retries": 0, "backoff_seconds": 0.01, "backoff_max_seconds": 0.01, **(endpoint or {})}
        model = OpenAIText(EndpointConfig(url=url, model="m", **settings))
        agent = ReActAgent(model, registry, config, **agent_options)
        try:
            found: AgentResult = await (work(agent) if work is not None else agent.run(query, **options))
            return found
        finally:
            await model.release()

    with OpenAIServer(behaviour) as server:
        result = asyncio.run(run(server.url))
    for one in server.requests:
        require_sound(one.body["messages"])
    return result, server.requests


def require_sound(messages: list[dict[str, Any]]) -> None:
    """OpenAI's rules: every call has its one answer, before anybody else speaks."""
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_ids, "an answer to no call"
            open_ids.remove(message["tool_call_id"])
            assert isinstance(message["content"], str)
            continue
        assert not open_ids, f"calls without answers: {open_ids}"
        ids = [one["id"] for one in message.get("tool_calls", ())]
        assert len(ids) == len(set(ids)), "two calls with one id"
        open_ids = list(ids)
    assert not open_ids, f"calls without answers: {open_ids}"


def observations(asked: Asked) -> list[str]:
    """Contents of the tool messages of a request."""
    return [message["content"] for message in asked.body["messages"] if message["role"] == "tool"]


def tool_names(asked: Asked) -> list[str]:
    return [tool["function"]["name"] for tool in asked.body.get("tools", ())]


Script = Callable[[Asked], Reply]


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
GOOD = json.dumps({"answer": "From what is known: rain.", "confidence": 0.5})


async def weather(args: dict[str, Any], info: CallInfo) -> Any:
    if args["city"] == "Atlantis":
        raise WorkerError("NOT_FOUND", "there is no city 'Atlantis'.")
    return {"city": args["city"], "summary": "rain", "degrees": 7.5}


def registry(*more: Made) -> Registry:
    return Registry("w", [Made("weather_get", weather, args=CITY, effect=Effect.READ), *more])


def oslo(city: str = "Oslo") -> dict[str, Any]:
    return call("weather_get", {"city": city})


def closing(asked: Asked) -> Reply | None:
    """The reply to a request for an answer without tools; None for a turn."""
    return completion(asked, GOOD) if "response_format" in asked.body else None
