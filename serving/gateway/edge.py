"""The edge of the gateway, as ASGI middleware: request ids, keys, body size, headers, counts, one log line a request.

Every request passes here before anything else: an unknown key or a body that is too large goes no further. The body is
read whole before the application sees it, within the request's time. What flies out of the application becomes an
error without details. Logs (`plansmith.serving.gateway`) hold no query, plan or key.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from plansmith.serving.gateway.admission import ANYBODY
from plansmith.serving.gateway.errors import INTERNAL, ErrorCode, GatewayError
from plansmith.serving.gateway.service import Caller, Service
from plansmith.serving.runs.tracing import note, span

LOG = logging.getLogger("plansmith.serving.gateway")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_OPEN = frozenset({"/healthz", "/readyz", "/", "/page.js", "/page.css"})
"""Routes that answer without a key: they run nothing and tell nothing but their own state."""
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Edge:
    """Wraps the application."""

    def __init__(self, app: Asgi, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One connection's event, as ASGI has them."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            caller = self._caller(scope, exchange)
            scope.setdefault("state", {})["caller"] = caller
            body = await self._body(scope, receive)
            with span("plansmith.request", {"request_id": exchange.request_id, "path": scope["path"]}) as on:
                await self._app(scope, _replay(body, receive), exchange.send)
                note(on, "status", exchange.status)
        except GatewayError as error:
            await exchange.fail(error)
        except Exception:
            LOG.exception("request %s failed", exchange.request_id)
            await exchange.fail(GatewayError(ErrorCode.INTERNAL, INTERNAL))
        finally:
            self._note(scope, exchange)

    def _caller(self, scope: MutableMapping[str, Any], exchange: _Exchange) -> Caller:
        service, path = self._service, scope["path"]
        needs = path not in _OPEN and not (path == "/metrics" and service.config.open_metrics)
        key = service.keys.holder(exchange.header("authorization")) if needs else ANYBODY
        exchange.name = key.name
        return Caller(key, exchange.request_id, exchange.begun)

    async def _body(self, scope: MutableMapping[str, Any], receive: Receive) -> bytes:
        limits = self._service.config.limits
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        found = bytearray()
        try:
            async with asyncio.timeout(limits.deadline_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return bytes(found)
                    found += message.get("body", b"")
                    if len(found) > limits.body_bytes:
                        raise _too_large(limits.body_bytes)
                    if not message.get("more_body"):
                        return bytes(found)
        except TimeoutError as error:
            raise GatewayError(ErrorCode.DEADLINE, "the request's body did not come in time.") from error

    def _note(self, scope: MutableMapping[str, Any], exchange: _Exchange) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS") else "other"
        seconds = time.monotonic() - exchange.begun
        metrics = self._service.metrics
        metrics.requests.labels(route, method, exchange.status or "gone").inc()
        metrics.request_seconds.labels(route).observe(seconds)
        code = exchange.code or scope.get("state", {}).get("code")
        if code is not None:
            metrics.refused.labels(str(code)).inc()
        told = (exchange.request_id, exchange.name, method, route, exchange.status, seconds)
        LOG.info("request %s by %s: %s %s gave %s in %.3f s", *told)


class _Exchange:
    """One request and what was sent back."""

    def __init__(self, scope: MutableMapping[str, Any], send: Send) -> None:
        self._headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self._send = send
        given = self.header("x-request-id") or ""
        self.request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        self.begun = time.monotonic()
        self.name = "nobody"
        self.status = 0
        self.code: str | None = None

    def header(self, name: str) -> str | None:
        return self._headers.get(name)

    async def send(self, message: Message) -> None:
        """Pass on what the application sends, with the edge's own headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [(b"x-request-id", self.request_id.encode()), *_HEADERS]
            given = {name.lower() for name, _ in message.get("headers", ())}
            message["headers"] = [*message.get("headers", ()), *(pair for pair in own if pair[0] not in given)]
        await self._send(message)

    async def fail(self, error: GatewayError) -> None:
        """Send an error, where nothing was sent yet."""
        self.code = error.code.value
        if self.status:
            return
        content = json.dumps(error.body(self.request_id)).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content)), **error.headers()}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": content})


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then whatever else comes: that the caller has gone."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _too_large(limit: int) -> GatewayError:
    return GatewayError(ErrorCode.TOO_LARGE, f"the body has more than {limit} bytes; shorten the query.")
