"""Carries one request body to an endpoint and its answer back, through the official client.

Over TLS or a proxy the client's own transport sends it; of that there are several with few connections each, since its
work a request grows with the connections it holds. To plain HTTP without a proxy, as local servers speak it, the
client's address and headers go out over `lean_http`, many times faster. Belongs to one event loop.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from plansmith.serving.config import EndpointConfig, Route
from plansmith.serving.lean_http import HttpError, LeanPool, Response

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_PATHS = {Route.CHAT: "/chat/completions", Route.COMPLETIONS: "/completions", Route.PLANS: "/plans"}
_CONNECT_SECONDS = 10.0
_CONNECTIONS_A_CLIENT = 16


class Wire:
    """To one endpoint."""

    def __init__(self, config: EndpointConfig, key: str | None) -> None:
        """Prepare; nothing is sent yet.

        Args:
            config: the endpoint.
            key: sent as bearer token; None sends none, whatever the environment holds.

        """
        self._config = config
        self._path = _PATHS[config.route]
        self._key = key
        self._clients = [_make_client(config)]
        self._requests = 0
        self._pool: LeanPool | None = None
        parts = urlsplit(config.url)
        if is_plain(config.url) and parts.hostname is not None:
            connect = min(_CONNECT_SECONDS, config.timeout_seconds)
            self._pool = LeanPool(parts.hostname, parts.port or 80, connect_seconds=connect)
            self._head = _head(f"{parts.path}{self._path}", parts.netloc, self._clients[0], key)

    async def post(self, content: bytes) -> Response:
        """Send a body, JSON in UTF-8, and return the answer with whatever status; whoever waits sets the time limit.

        Raises:
            HttpError: no connection, or it broke.

        """
        if self._pool is not None:
            response = await self._pool.exchange(b"%s%d\r\n\r\n%s" % (self._head, len(content), content))
            if not 300 <= response.status < 400:
                return response
        return await self._post_by_client(content)

    async def _post_by_client(self, content: bytes) -> Response:
        import httpx2
        import openai

        options: Any = {"headers": {"Authorization": f"Bearer {self._key}" if self._key else openai.Omit()}}
        with _told_plainly():
            try:
                response = await self._next_client().post(
                    self._path, cast_to=httpx2.Response, content=content, options=options
                )
            except openai.APIStatusError as error:
                response = error.response
            return Response(response.status_code, dict(response.headers), response.content)

    def _next_client(self) -> AsyncOpenAI:
        """The clients in turn, as many as the concurrency needs."""
        turn = self._requests % -(-self._config.concurrency // _CONNECTIONS_A_CLIENT)
        self._requests += 1
        if turn == len(self._clients):
            self._clients.append(_make_client(self._config))
        return self._clients[turn]

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.close()
        for client in self._clients:
            await client.close()


@contextmanager
def _told_plainly() -> Generator[None]:
    """The official client's errors of the connection as ours."""
    import openai

    try:
        yield
    except openai.APITimeoutError as error:
        raise HttpError("no connection in time") from error
    except openai.APIConnectionError as error:
        cause = error.__cause__ or error
        raise HttpError(str(cause) or type(cause).__name__) from error


def is_plain(url: str) -> bool:
    """Whether an endpoint is reached over plain HTTP, and by no proxy."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        return False
    proxies = urllib.request.getproxies()
    return not proxies.keys() & {"http", "all"} or bool(urllib.request.proxy_bypass(parts.hostname))


def _head(target: str, host: str, client: AsyncOpenAI, key: str | None) -> bytes:
    """The official client's request up to the length of its content."""
    own = {name: value for name, value in client.default_headers.items() if isinstance(value, str)}
    own = {name: value for name, value in own.items() if name.lower() != "authorization"}
    own |= {"Authorization": f"Bearer {key}"} if key else {}
    lines = [f"POST {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in own.items())]
    return "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")


def _make_client(config: EndpointConfig) -> AsyncOpenAI:
    """A client that retries nothing itself; each request brings its own key."""
    import httpx2
    import openai

    timeout = httpx2.Timeout(None, connect=min(_CONNECT_SECONDS, config.timeout_seconds))
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=2 * _CONNECTIONS_A_CLIENT)
    return openai.AsyncOpenAI(
        api_key="none",
        base_url=config.url,
        max_retries=0,
        timeout=timeout,
        http_client=openai.DefaultAsyncHttpxClient(limits=limits, timeout=timeout),
    )
