"""How an MCP server is reached: its program over stdio, or its address over streamable HTTP.

Over HTTP each request stands alone: one that cannot reach the server fails alone. The client of the `mcp` package ends
all requests together when one of them raises, so the HTTP transport here turns what httpx raises into an answer of the
protocol to that request. Proxies of the environment are not used.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TextIO

import httpx2

from plansmith.serving.workers.mcp_config import McpServer

NOT_SENT = "plansmith/not-sent"
"""In the data of an error that our own transport made: no server has seen the request."""


def transport_of(config: McpServer) -> AbstractAsyncContextManager[Any]:
    """A new transport of the `mcp` package: a context manager of a read and a write stream."""
    return _program(config) if config.url is None else _address(config.url, config)


@contextlib.asynccontextmanager
async def _program(config: McpServer) -> AsyncGenerator[Any, None]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    program, *arguments = config.command
    server = StdioServerParameters(command=program, args=arguments, env=config.env, cwd=config.cwd)
    with contextlib.ExitStack() as stack:
        log = _standard_error(stack) if config.log is None else stack.enter_context(_appended(config.log))
        async with stdio_client(server, log) as streams:
            yield streams


def _appended(path: Path) -> TextIO:
    return path.open("a", encoding="utf-8")


def _standard_error(stack: contextlib.ExitStack) -> TextIO:
    """Our standard error, or its descriptor where a notebook has put something else in its place."""
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return stack.enter_context(os.fdopen(os.dup(2), "w", encoding="utf-8"))
    return sys.stderr


@contextlib.asynccontextmanager
async def _address(url: str, config: McpServer) -> AsyncGenerator[Any, None]:
    from mcp.client.streamable_http import streamable_http_client

    # calls have limits of their own: a read timeout here would be a second, shorter one
    timeout = httpx2.Timeout(config.connect_timeout_s, read=None)
    async with (
        httpx2.AsyncClient(headers=config.headers, timeout=timeout, transport=_Alone()) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


class _Alone(httpx2.AsyncBaseTransport):
    """Requests that fail alone: an error of the network becomes an error answer to the request that met it."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        try:
            return await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            unsent = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout))
            return httpx2.Response(502, headers={"content-type": "application/json"}, content=_answer(error, unsent))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _answer(error: Exception, unsent: bool) -> bytes:
    from mcp_types import CONNECTION_CLOSED

    message = f"{type(error).__name__}: {error}".rstrip(". ")
    body: dict[str, Any] = {"code": CONNECTION_CLOSED, "message": message, "data": {NOT_SENT: unsent}}
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": body}).encode()
