"""Tools of real MCP servers over HTTP as workers: results, errors, hints, and servers that die or forget."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Effect
from plansmith.contract.errors import InputError
from plansmith.serving.workers.base import CallableWorker, WorkerError
from plansmith.serving.workers.mcp import KEY_META, McpServer, connect_mcp
from tests.serving.mcp_cases import HttpServer, Legacy, connection, failed, info, legacy, marked, use


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that tests leave as they find it."""
    server = HttpServer(tmp_path_factory.mktemp("mcp"))
    yield server.url
    server.kill()


def with_http(work: Callable[[Any], Awaitable[Any]], url: str, **options: Any) -> None:
    async def main() -> None:
        async with await connect_mcp(McpServer(name="shop", url=url, **options)) as registry:
            await work(registry)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(main())


@pytest.fixture(params=["stream", "json"])
def http(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HttpServer]:
    server = HttpServer(tmp_path, *([] if request.param == "stream" else ["json"]))
    yield server
    server.kill()


def test_tools_become_workers_and_answer(shared: str) -> None:
    async def work(registry: Any) -> None:
        assert all(isinstance(one, CallableWorker) for one in registry)
        price = registry.get("price")
        assert price.worker.description == "Price of an item."
        assert set(price.worker.returns["properties"]) == {"item", "cents"}
        assert await use(registry, "price", {"item": "pen", "count": 2}) == {"item": "pen", "cents": 500}
        assert await use(registry, "greeting", {"name": "Ann"}) == "Hello Ann"
        found = await asyncio.gather(*(use(registry, "price", {"item": str(n)}) for n in range(30)))
        assert [one["item"] for one in found] == [str(n) for n in range(30)]

    with_http(work, shared)


def test_a_tools_error_is_a_failure_and_never_a_result(shared: str) -> None:
    async def work(registry: Any) -> None:
        for name, args, words in (
            ("own_error", {}, "sold out"),
            ("fail", {"text": "x"}, "'fail' failed"),
            ("price", {"item": "a", "count": "many"}, "'price' failed"),
        ):
            error = await failed(registry, name, args)
            assert (error.code, error.retryable, words in error.message) == ("TOOL_ERROR", False, True)
        picture = await failed(registry, "picture")
        assert (picture.code, "image" in picture.message) == ("INVALID_RESULT", True)
        large = await failed(registry, "large", {"size": 5000})
        assert (large.code, "5,002 bytes" in large.message) == ("INVALID_RESULT", True)

    with_http(work, shared, max_result_bytes=4000)


def test_hints_only_ever_restrict(shared: str) -> None:
    async def work(registry: Any) -> None:
        entries = {one.worker.name: one for one in registry}
        assert {name: one.worker.effect for name, one in entries.items()} == {
            "price": Effect.READ,
            "greeting": Effect.READ,
            "wipe": Effect.WRITE,
            "sleep": Effect.PURE,
        }
        assert [name for name, one in entries.items() if one.approval] == ["wipe"]
        assert entries["wipe"].secrets == {"token"}
        assert {one.worker.permission for one in entries.values()} == {"shop"}
        assert any("'wipe'" in note and "destroys" in note for note in registry.notes)
        assert any("'price'" in note and "readOnlyHint" in note for note in registry.notes)

    options = {"effect": Effect.READ, "effects": {"sleep": Effect.PURE}, "permission": "shop"}
    with_http(work, shared, tools=("price", "greeting", "wipe", "sleep"), **options)


def test_a_hint_that_promises_harmlessness_changes_nothing(shared: str) -> None:
    async def work(registry: Any) -> None:
        price = registry.get("price").worker
        assert (price.effect, price.idempotent) == (Effect.WRITE, False)

    with_http(work, shared, tools=("price",))


@pytest.mark.parametrize(
    "options",
    [{"tools": ("prise",)}, {"effects": {"prise": Effect.READ}}, {"idempotent": {"prise"}}, {"approval": {"prise"}}],
)
def test_a_tool_that_the_server_does_not_have_is_a_mistake_of_the_configuration(
    shared: str, options: dict[str, Any]
) -> None:
    async def work(registry: Any) -> None:
        raise AssertionError

    with pytest.raises(InputError, match="has no tool 'prise'; it has 'price'"):
        with_http(work, shared, **options)


def test_a_cancelled_call_ends_at_once_and_others_go_on(shared: str) -> None:
    async def work(registry: Any) -> None:
        task = asyncio.create_task(use(registry, "sleep", {"seconds": 60}))
        await asyncio.sleep(0.1)
        start = time.perf_counter()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.perf_counter() - start < 0.5
        assert await use(registry, "greeting", {"name": "b"}) == "Hello b"

    with_http(work, shared)


def test_an_http_server_answers_dies_in_mid_call_and_is_reached_again(http: HttpServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with await connect_mcp(McpServer(name="shop", url=http.url)) as registry:
            assert await use(registry, "price", {"item": "pen"}) == {"item": "pen", "cents": 250}
            mark = tmp_path / "mark"
            hanging = asyncio.create_task(failed(registry, "sleep", {"seconds": 60, "mark": str(mark)}))
            await marked(mark)
            assert (await use(registry, "price", {"item": "a"}))["item"] == "a"
            http.kill()
            start = time.perf_counter()
            error = await hanging
            assert time.perf_counter() - start < 5
            assert (error.code, error.retryable) == ("UNAVAILABLE", False)
            dead = await failed(registry, "pid")
            assert (dead.code, dead.retryable, "ConnectError" in dead.message) == ("UNAVAILABLE", True, True)
            http.start()
            assert (await use(registry, "pid"))["result"] == http.process.pid
            os.kill(http.process.pid, signal.SIGSTOP)
            late = await failed(registry, "pid", timeout_s=0.3)
            assert (late.code, late.retryable) == ("TIMEOUT", False)
            os.kill(http.process.pid, signal.SIGCONT)
            assert await use(registry, "greeting", {"name": "b"}) == "Hello b"
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(main())


TEXT = {"content": [{"type": "text", "text": "done"}]}


def test_a_session_that_the_server_has_forgotten_is_made_anew_once_and_the_call_sent_again() -> None:
    async def main(url: str, handler: type[Legacy]) -> None:
        async with await connect_mcp(McpServer(name="old", url=url)) as registry:
            assert await use(registry, "do") == "done"
            handler.sessions.clear()
            assert await use(registry, "do") == "done"
            assert connection(registry).reconnects == 1
            assert [one for one in handler.seen if one == "initialize"] == ["initialize"] * 2
            assert len([one for one in handler.seen if one[0] == "tools/call"]) == 2

    with legacy(("result", TEXT)) as (url, handler):
        asyncio.run(main(url, handler))


def test_a_request_that_is_cut_off_fails_alone() -> None:
    async def main(url: str) -> None:
        async with await connect_mcp(McpServer(name="old", url=url)) as registry:
            slow = asyncio.create_task(use(registry, "do", {"seconds": 0.5}))
            await asyncio.sleep(0.1)
            error = await failed(registry, "do", {"hang up": True})
            assert (error.code, error.retryable) == ("UNAVAILABLE", False)
            assert await slow == "done"
            assert connection(registry).reconnects == 0

    with legacy(("result", TEXT)) as (url, _):
        asyncio.run(main(url))


def test_a_writing_call_carries_its_idempotency_key() -> None:
    async def main(url: str, handler: type[Legacy]) -> None:
        async with await connect_mcp(McpServer(name="old", url=url)) as registry:
            found = registry.get("do")
            assert found is not None
            await found.call({}, info(5, "run-0-abc"))
            assert handler.seen[-1][1][KEY_META] == "run-0-abc"

    with legacy(("result", TEXT)) as (url, handler):
        asyncio.run(main(url, handler))


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (("error", {"code": -32602, "message": "no such colour"}), "INVALID_ARGUMENT", "no such colour"),
        (("error", {"code": -32601, "message": "gone"}), "NOT_FOUND", "gone"),
        (("error", {"code": -5, "message": "own"}), "INTERNAL", "error -5"),
        (("error", {"code": -32000, "message": "overloaded"}), "UNAVAILABLE", "overloaded"),
        (("error", {"code": -32001, "message": "slow"}), "TIMEOUT", "no answer"),
        (("result", {"content": "text"}), "INVALID_RESULT", "protocol"),
        (("result", {"content": [{"type": "text", "text": "x"}], "isError": True}), "TOOL_ERROR", "x"),
        (("result", {"content": [], "isError": True}), "TOOL_ERROR", "said nothing"),
        (("result", {"content": [{"type": "text", "text": "y" * 9000}], "isError": True}), "TOOL_ERROR", "9,000"),
        (("raw", {"what": 1}), "INTERNAL", ""),
    ],
)
def test_wrong_answers_are_failures_with_a_code(answer: tuple[str, Any], code: str, words: str) -> None:
    async def main(url: str) -> WorkerError:
        async with await connect_mcp(McpServer(name="old", url=url)) as registry:
            return await failed(registry, "do", timeout_s=2)

    with legacy(answer) as (url, _):
        error = asyncio.run(main(url))
    assert error.code == code
    assert words in error.message
    assert len(error.message) < 2300
