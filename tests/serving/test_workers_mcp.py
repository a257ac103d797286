"""Tools of real MCP servers as workers: stdio and HTTP, killed, stopped, restarted, wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plansmith.contract.catalog import Effect
from plansmith.contract.errors import InputError, MissingExtraError, ServiceError
from plansmith.serving.workers.base import CallableWorker, CallInfo, WorkerError
from plansmith.serving.workers.mcp import KEY_META, McpServer, McpWorker, connect_mcp
from plansmith.serving.workers.registry import Registry

SERVER = Path(__file__).with_name("mcp_server.py")
STDIO = (sys.executable, str(SERVER), "stdio")


def info(timeout_s: float | None = None, key: str | None = None) -> CallInfo:
    return CallInfo("run", 0, timeout_s=timeout_s, idempotency_key=key)


async def use(registry: Registry, name: str, args: dict[str, Any] | None = None, timeout_s: float = 20) -> Any:
    found = registry.get(name)
    assert found is not None
    return await found.call(args or {}, info(timeout_s))


async def failed(
    registry: Registry, name: str, args: dict[str, Any] | None = None, timeout_s: float = 20
) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        await use(registry, name, args, timeout_s)
    return caught.value


def connection(registry: Registry) -> Any:
    (first, *_) = registry
    assert isinstance(first, McpWorker)
    return first.connection


def with_stdio(work: Callable[[Any], Awaitable[Any]], tmp_path: Path, **options: Any) -> Any:
    """Run `work` with a server over stdio, and see that nothing of it is left afterwards."""

    async def main() -> Any:
        config = McpServer(name="shop", command=STDIO, log=tmp_path / "server.log", **options)
        async with await connect_mcp(config) as registry:
            result = await work(registry)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        return result

    return asyncio.run(main())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class HttpServer:
    """The test server as a process of its own, which can be killed and started again at the same address."""

    def __init__(self, tmp_path: Path, *options: str) -> None:
        self.port, self.options, self.log = free_port(), options, tmp_path / "http.log"
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [sys.executable, str(SERVER), "http", str(self.port), *self.options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(1200):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.02)
            else:
                return self.process
        raise AssertionError(self.log.read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(params=["stream", "json"])
def http(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HttpServer]:
    server = HttpServer(tmp_path, *([] if request.param == "stream" else ["json"]))
    yield server
    server.kill()


def test_tools_become_workers_and_answer_over_stdio(tmp_path: Path) -> None:
    async def work(registry: Any) -> None:
        assert all(isinstance(one, CallableWorker) for one in registry)
        price = registry.get("price")
        assert price.worker.description == "Price of an item."
        assert set(price.worker.returns["properties"]) == {"item", "cents"}
        assert await use(registry, "price", {"item": "pen", "count": 2}) == {"item": "pen", "cents": 500}
        assert await use(registry, "greeting", {"name": "Ann"}) == "Hello Ann"
        found = await asyncio.gather(*(use(registry, "price", {"item": str(n)}) for n in range(30)))
        assert [one["item"] for one in found] == [str(n) for n in range(30)]

    with_stdio(work, tmp_path)


def test_a_tools_error_is_a_failure_and_never_a_result(tmp_path: Path) -> None:
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

    with_stdio(work, tmp_path, max_result_bytes=4000)


def test_hints_only_ever_restrict(tmp_path: Path) -> None:
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
    with_stdio(work, tmp_path, tools=("price", "greeting", "wipe", "sleep"), **options)


def test_a_hint_that_promises_harmlessness_changes_nothing(tmp_path: Path) -> None:
    async def work(registry: Any) -> None:
        price = registry.get("price").worker
        assert (price.effect, price.idempotent) == (Effect.WRITE, False)

    with_stdio(work, tmp_path, tools=("price",))


@pytest.mark.parametrize(
    "options",
    [{"tools": ("prise",)}, {"effects": {"prise": Effect.READ}}, {"idempotent": {"prise"}}, {"approval": {"prise"}}],
)
def test_a_tool_that_the_server_does_not_have_is_a_mistake_of_the_configuration(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    async def work(registry: Any) -> None:
        raise AssertionError

    with pytest.raises(InputError, match="has no tool 'prise'; it has 'price'"):
        with_stdio(work, tmp_path, **options)


async def marked(path: Path) -> None:
    async with asyncio.timeout(20):
        while not path.exists():
            await asyncio.sleep(0.01)


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
        for round_number in (1, 2):
            found = (await use(registry, "pid"))["result"]
            os.kill(found, signal.SIGKILL)
            await asyncio.sleep(0.3)
            assert (await use(registry, "pid"))["result"] != found
            assert (connection(registry).reconnects, connection(registry).losses) == (round_number, 0)

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


def test_a_cancelled_call_ends_at_once_and_others_go_on(tmp_path: Path) -> None:
    async def work(registry: Any) -> None:
        task = asyncio.create_task(use(registry, "sleep", {"seconds": 60}))
        await asyncio.sleep(0.1)
        start = time.perf_counter()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.perf_counter() - start < 0.5
        assert await use(registry, "greeting", {"name": "b"}) == "Hello b"

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


class Legacy(BaseHTTPRequestHandler):
    """A server of the older protocol with sessions, which it forgets when it is told to."""

    protocol_version = "HTTP/1.1"
    sessions: set[str]
    seen: list[Any]
    answers: dict[str, Any]
    delay: threading.Event

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return

    def do_DELETE(self) -> None:
        self._send(200, None)

    def do_GET(self) -> None:
        self._send(405, None)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = message.get("method")
        if method == "initialize":
            session = f"s{len(self.seen)}"
            self.sessions.add(session)
            self.seen.append(method)
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"},
            }
            self._send(200, {"jsonrpc": "2.0", "id": message["id"], "result": result}, session)
        elif method == "server/discover":
            error = {"code": -32601, "message": "unknown method"}
            self._send(200, {"jsonrpc": "2.0", "id": message["id"], "error": error})
        elif self.headers.get("mcp-session-id") not in self.sessions:
            self._send(404, None)
        elif "id" not in message:
            self._send(202, None)
        else:
            self._answer(method, message)

    def _answer(self, method: str, message: Any) -> None:
        self.seen.append((method, message.get("params", {}).get("_meta")))
        if method == "tools/list":
            tool = {"name": "do", "inputSchema": {"type": "object"}}
            self._send(200, {"jsonrpc": "2.0", "id": message["id"], "result": {"tools": [tool]}})
            return
        kind, value = self.answers["do"]
        if kind == "raw":
            self._send(200, value)
        else:
            self._send(200, {"jsonrpc": "2.0", "id": message["id"], kind: value})

    def _send(self, status: int, body: Any, session: str | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        if session is not None:
            self.send_header("mcp-session-id", session)
        if body is not None:
            self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def legacy(answer: tuple[str, Any]) -> Iterator[tuple[str, type[Legacy]]]:
    handler = type("Handler", (Legacy,), {"sessions": set(), "seen": [], "answers": {"do": answer}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
