"""A scripted OpenAI-compatible server for tests: real HTTP on a free port, one behaviour each.

A behaviour is a function from a request to a reply, called in the server's own thread and event loop. `completion`
makes the body that a well-behaved server sends on the route asked; the functions below it misbehave in one way each,
and `first` lets a fault happen a few times before all is well. Everything that was asked is kept in `requests`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    number: int
    """From 0, in order of arrival."""
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]

    @property
    def query(self) -> str:
        """The query in our prompt, on either route."""
        text = self.body["messages"][-1]["content"] if "messages" in self.body else self.body["prompt"]
        return text.rpartition("Query: ")[2].removesuffix("\n").removesuffix("\nPlan:")


@dataclass(frozen=True)
class Reply:
    """What is sent back."""

    content: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Wait before anything is sent."""
    send_bytes: int | None = None
    """Break the connection after so many bytes of the content; None sends all of it."""


Behaviour = Callable[[Asked], Reply]


def completion(asked: Asked, text: str | None, **changes: Any) -> Reply:
    """A right answer with this text; `changes` replace keys of the body, None takes one out."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if "messages" in asked.body:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    size = len(text or "")
    body = {
        "id": "x",
        "object": "chat.completion" if "messages" in asked.body else "text_completion",
        "created": 0,
        "model": asked.body["model"],
        "choices": [choice],
        "usage": {"prompt_tokens": 100, "completion_tokens": size // 4 + 1, "total_tokens": 101 + size // 4},
    } | changes
    return as_json({key: value for key, value in body.items() if value is not None})


def as_json(body: Any, status: int = 200, **headers: str) -> Reply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(json.dumps(body).encode(), status, names)


def failure(status: int, message: str = "it went wrong", *, code: str | None = None, **headers: str) -> Reply:
    """An error in OpenAI's form."""
    return as_json({"error": {"message": message, "type": "error", "code": code}}, status, **headers)


def answers(text: str | Mapping[str, str], *, delay_s: float = 0.0) -> Behaviour:
    """Well-behaved: one text for all queries, or one for each."""
    return lambda asked: replace(
        completion(asked, text if isinstance(text, str) else text[asked.query]), delay_s=delay_s
    )


def first(times: int, fault: Behaviour, then: Behaviour) -> Behaviour:
    """The fault for so many requests, then the other behaviour."""
    return lambda asked: fault(asked) if asked.number < times else then(asked)


def always(reply: Reply) -> Behaviour:
    return lambda _: reply


def rate_limited(**headers: str) -> Behaviour:
    """429, e.g. `rate_limited(retry_after="1")`."""
    return always(failure(429, "slow down", **headers))


def server_error(_: Asked) -> Reply:
    return failure(500, "internal")


def hangs(_: Asked) -> Reply:
    return Reply(delay_s=3600)


def half_a_body(asked: Asked) -> Reply:
    """The connection breaks in the middle of the content."""
    whole = completion(asked, "[]")
    return replace(whole, send_bytes=len(whole.content) // 2)


def half_json(asked: Asked) -> Reply:
    """A whole response whose JSON stops in the middle."""
    return Reply(completion(asked, "[]").content[:40])


def fences_and_prose(asked: Asked) -> Reply:
    return completion(asked, "Sure, here is the plan:\n```json\n[]\n```\nAnything else?")


def broken_json(asked: Asked) -> Reply:
    return completion(asked, '[{"type":"now","args":{')


def unknown_workers(asked: Asked) -> Reply:
    return completion(asked, '[{"type":"launch_rocket","args":{}}]')


def huge_plan(asked: Asked) -> Reply:
    """A plan of over 100 KiB."""
    return completion(asked, json.dumps([{"type": "now", "args": {"x": "y" * 102_400}}]))


def other_model(asked: Asked) -> Reply:
    return completion(asked, "[]", model="somebody-else")


def wrong_usage(asked: Asked) -> Reply:
    return completion(asked, "[]", usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})


class OpenAIServer:
    """Runs a behaviour in a thread; use in `with`."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[Asked] = []
        self.answered = 0
        """Replies that were sent whole."""
        self.under_way = 0
        self.most_under_way = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="openai-server", daemon=True)
        self._listening = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._listening.set()
        await self._stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its reply; whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(len(self.requests), head[0].split()[1], headers, json.loads(content or b"{}"))
        self.requests.append(asked)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self._send(self.behaviour(asked), writer)
        finally:
            self.under_way -= 1

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(reply.delay_s)
        headers = {"content-type": "application/json", "content-length": str(len(reply.content))} | dict(reply.headers)
        head = f"HTTP/1.1 {reply.status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(head.encode() + b"\r\n" + reply.content[: reply.send_bytes])
        await writer.drain()
        if reply.send_bytes is not None:
            return False
        self.answered += 1
        return True
