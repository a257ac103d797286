"""A gateway over real HTTP with a scripted planner, for tests."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import uvicorn

from plansmith.contract.catalog import Catalog, Effect
from plansmith.contract.check import check_plan
from plansmith.contract.endpoint import Draft
from plansmith.contract.plan import dumps
from plansmith.contract.records import FinishReason
from plansmith.serving.gateway.app import Gateway, make_app
from plansmith.serving.gateway.config import GatewayConfig
from plansmith.serving.gateway.service import Parts
from plansmith.serving.workers.base import CallInfo
from plansmith.serving.workers.registry import Registry
from tests.serving.run_parts import Made

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


async def weather(args: dict[str, Any], info: CallInfo) -> Any:
    return {"city": args["city"], "summary": "rain"}


WEATHER = Made("weather_get", weather, args=CITY, effect=Effect.READ)
REGISTRY = Registry("w", [WEATHER])
OSLO = [{"type": "weather_get", "args": {"city": "Oslo"}}]
INVALID = [{"type": "weather_get", "args": {"town": "Oslo"}}]


def draft(query: str, plan: Any, catalog: Catalog, *, error: str | None = None) -> Draft:
    text = plan if isinstance(plan, str) else dumps(plan)
    reason = FinishReason.ERROR if error else FinishReason.STOP
    return Draft(query, text, check_plan(text, catalog), 10, 5, 0.0, reason, error)


Answer = Callable[[str], Awaitable[Any]]


@dataclass
class Scripted:
    """A planner that answers as told; the probe of readiness always gets the empty plan."""

    answer: Answer
    asked: list[str] = field(default_factory=list)
    cancelled: int = 0

    async def plan(self, query: str, catalog: Catalog, *, constrained: bool = True) -> Draft:
        if query == "ready?":
            return draft(query, [], catalog)
        self.asked.append(query)
        try:
            return draft(query, await self.answer(query), catalog)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def says(*plans: Any) -> Scripted:
    """Each plan in turn, the last one for ever; an exception is raised."""
    left = list(plans)

    async def answer(query: str) -> Any:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, BaseException):
            raise found
        return found

    return Scripted(answer)


def hanging() -> Scripted:
    async def answer(query: str) -> Any:
        await asyncio.Event().wait()

    return Scripted(answer)


def parts(planner: Any, **more: Any) -> Parts:
    registry = more.pop("registry", REGISTRY)
    return Parts(
        planner=planner, catalog=REGISTRY.catalog if registry is None else registry.catalog, registry=registry, **more
    )


@dataclass
class Served:
    """A gateway that answers at `url`."""

    url: str
    gateway: Gateway
    loop: asyncio.AbstractEventLoop
    client: httpx2.Client

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, json=body, headers=named)

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for line in self.client.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name] = float(value)
        return found


@contextmanager
def served(made: Parts, config: dict[str, Any] | None = None) -> Iterator[Served]:
    """Serve in a thread of its own, on a free port."""
    gateway = make_app(made, GatewayConfig.model_validate(config or {}))
    server = uvicorn.Server(uvicorn.Config(gateway, host="127.0.0.1", port=0, log_config=None, access_log=False))
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        thread.join(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with httpx2.Client(base_url=url, timeout=30, trust_env=False) as client:
        try:
            yield Served(url, gateway, loops[0], client)
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join(20)
    assert not thread.is_alive()


def events_of(response_lines: Iterator[str]) -> list[tuple[str, Any]]:
    """Server-sent events as pairs of kind and data."""
    found: list[tuple[str, Any]] = []
    kind = ""
    for line in response_lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append((kind, json.loads(line.removeprefix("data: "))))
    return found


def until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def key(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    plain = f"psk-{name}-secret"
    return plain, {"name": name, "sha256": hashlib.sha256(plain.encode()).hexdigest(), **more}
