"""Real MCP servers for tests: this folder's `mcp_server.py` as a process, and an old one with sessions in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from plansmith.serving.workers.base import CallInfo, WorkerError
from plansmith.serving.workers.mcp import McpWorker
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


async def marked(path: Path) -> None:
    async with asyncio.timeout(20):
        while not path.exists():
            await asyncio.sleep(0.01)


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


class Legacy(BaseHTTPRequestHandler):
    """A server of the older protocol with sessions, which it forgets when it is told to."""

    protocol_version = "HTTP/1.1"
    sessions: set[str]
    seen: list[Any]
    answers: dict[str, Any]

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
        wanted = message["params"].get("arguments") or {}
        if "hang up" in wanted:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        time.sleep(wanted.get("seconds", 0))
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
