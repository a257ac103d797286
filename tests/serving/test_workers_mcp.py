"""MCP servers over stdio: killed, stopped, restarted, closed, not there; and the configuration."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plansmith.contract.catalog import Effect
from plansmith.contract.errors import MissingExtraError, ServiceError
from plansmith.serving.workers.mcp import McpServer, connect_mcp
from plansmith.serving.workers.registry import Registry
from tests.serving.mcp_cases import STDIO, connection, failed, marked, use


def with_stdio(work: Callable[[Any], Awaitable[Any]], tmp_path: Path, **options: Any) -> Any:
    """Run `work` with a server over stdio, and see that nothing of it is left afterwards."""

    async def main() -> Any:
        config = McpServer(name="shop", command=STDIO, log=tmp_path / "server.log", **options)
        async with await connect_mcp(config) as registry:
            result = await work(registry)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        return result

    return asyncio.run(main())


def test_a_stdio_server_killed_in_mid_call_fails_that_call_in_time_and_the_next_one_reconnects(tmp_path: Path) -> None:
    async def work(registry: Any) -> None:
        first = (await use(registry, "pid"))["result"]
        mark = tmp_path / "mark"
        hanging = asyncio.create_task(failed(registry, "sleep", {"seconds": 60, "mark": str(mark)}))
        await marked(mark)
        assert (await use(registry, "price", {"item": "a"}))["item"] == "a"
        os.kill(first, signal.SIGKILL)
        start = time.perf_counter()
        error = await hanging
        assert time.perf_counter() - start < 5
        assert (error.code, error.retryable) == ("UNAVAILABLE", False)
        assert "may have been carried out" in error.message
        second, third = await asyncio.gather(use(registry, "pid"), use(registry, "pid"))
        assert second == third != {"result": first}
        assert (connection(registry).reconnects, connection(registry).losses) == (1, 1)
        assert mark.read_text() == f"{first}\n"

    with_stdio(work, tmp_path)


def test_a_server_that_died_between_calls_is_started_again_by_the_next_one(tmp_path: Path) -> None:
    async def work(registry: Any) -> None:
        found = (await use(registry, "pid"))["result"]
        os.kill(found, signal.SIGKILL)
        await asyncio.sleep(0.3)
        assert (await use(registry, "pid"))["result"] != found
        assert (connection(registry).reconnects, connection(registry).losses) == (1, 0)

    with_stdio(work, tmp_path)


def test_a_failure_of_what_may_be_repeated_is_retryable(tmp_path: Path) -> None:
    async def work(registry: Any) -> None:
        late = await failed(registry, "sleep", {"seconds": 60}, 0.2)
        assert (late.code, late.retryable) == ("TIMEOUT", True)
        found = (await use(registry, "pid"))["result"]
        mark = tmp_path / "mark"
        hanging = asyncio.create_task(failed(registry, "sleep", {"seconds": 60, "mark": str(mark)}))
        await marked(mark)
        os.kill(found, signal.SIGKILL)
        lost = await hanging
        assert (lost.code, lost.retryable) == ("UNAVAILABLE", True)

    with_stdio(work, tmp_path, effects={"sleep": Effect.READ})


def test_a_stopped_stdio_server_costs_each_call_its_time_limit_and_no_more(tmp_path: Path) -> None:
    async def work(registry: Any) -> None:
        found = (await use(registry, "pid"))["result"]
        os.kill(found, signal.SIGSTOP)
        start = time.perf_counter()
        errors = await asyncio.gather(
            *(failed(registry, "large", {"size": 10, "x": "y" * 100_000}, 0.3) for _ in range(4))
        )
        assert time.perf_counter() - start < 2
        assert {(error.code, error.retryable) for error in errors} == {("TIMEOUT", False)}
        os.kill(found, signal.SIGCONT)
        assert (await use(registry, "pid"))["result"] == found

    with_stdio(work, tmp_path)


def test_a_registry_can_be_used_in_a_second_event_loop(tmp_path: Path) -> None:
    config = McpServer(name="shop", command=STDIO, log=tmp_path / "log", tools=("pid",))

    async def first() -> tuple[Registry, Any]:
        registry = await connect_mcp(config)
        return registry, await use(registry, "pid")

    async def second(registry: Registry) -> Any:
        async with registry:
            return await use(registry, "pid")

    registry, before = asyncio.run(first())
    assert asyncio.run(second(registry)) != before


def test_after_closing_the_process_is_gone_and_a_call_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        registry = await connect_mcp(McpServer(name="shop", command=STDIO, log=tmp_path / "log"))
        found = (await use(registry, "pid"))["result"]
        await registry.aclose()
        await registry.aclose()
        with pytest.raises(ProcessLookupError):
            os.kill(found, 0)
        error = await failed(registry, "pid")
        assert (error.code, "closed" in error.message) == ("UNAVAILABLE", True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": ("/no/such/program",)}, "FileNotFoundError"),
        ({"command": (sys.executable, "-c", "raise SystemExit(1)")}, "cannot be reached"),
        ({"command": (sys.executable, "-c", "import time; time.sleep(60)"), "connect_timeout_s": 0.5}, "in time"),
        ({"command": (sys.executable, "-c", "print('hello'); input()"), "connect_timeout_s": 3}, "cannot be reached"),
        ({"url": "http://127.0.0.1:1/mcp"}, "ConnectError"),
    ],
    ids=["no program", "ends", "mute", "chatters", "no listener"],
)
def test_a_server_that_cannot_be_reached_is_a_service_error_in_time(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    async def main() -> None:
        await connect_mcp(McpServer(name="none", log=tmp_path / "log", **options))

    start = time.perf_counter()
    with pytest.raises(ServiceError, match=words):
        asyncio.run(main())
    assert time.perf_counter() - start < 15


@pytest.mark.parametrize("options", [{}, {"command": ("a",), "url": "http://b"}, {"url": "http://b", "timeout_s": 0}])
def test_a_configuration_names_one_way_and_sane_limits(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        McpServer(name="x", **options)


def test_headers_and_environment_are_not_shown() -> None:
    shown = repr(McpServer(name="x", url="http://b", headers={"authorization": "canary"}, env={"K": "canary"}))
    assert "canary" not in shown


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"plansmith\[mcp\]"):
        asyncio.run(connect_mcp(McpServer(name="x", url="http://127.0.0.1:1/mcp")))
