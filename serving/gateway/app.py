"""The gateway's routes, as a FastAPI application. Reads requests, hands them to `service.py`, writes what it gives.

Nothing of a planner's own server is passed through: these routes are all there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from plansmith import __version__
from plansmith.contract.plan import Json
from plansmith.serving.gateway import chat
from plansmith.serving.gateway.config import GatewayConfig
from plansmith.serving.gateway.edge import LOG, Asgi, Edge
from plansmith.serving.gateway.errors import INTERNAL, ErrorCode, GatewayError
from plansmith.serving.gateway.running import Running
from plansmith.serving.gateway.service import Caller, Parts, Service
from plansmith.serving.gateway.wire import PlanRequest, PlanResponse, ResumeRequest, RunRequest, RunResponse

PAGE = Path(__file__).parent / "page"
_ALIVE_S = 15.0
_STATUSES = {400: "bad request", 401: "no key", 404: "not found", 413: "too large", 429: "too many", 503: "unavailable"}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": what,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["code", "message", "request_id"],
                            "properties": {
                                "code": {"type": "string", "enum": [code.value for code in ErrorCode]},
                                "message": {"type": "string"},
                                "request_id": {"type": "string"},
                            },
                        }
                    },
                }
            }
        },
    }
    for status, what in {**_STATUSES, 405: "no such method", 409: "conflict", 422: "no valid plan", 504: "late"}.items()
}
_SCRIPTS = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'"
)
T = TypeVar("T")


def make_app(parts: Parts, config: GatewayConfig | None = None) -> Gateway:
    """The application with its edge, ready for an ASGI server."""
    return Gateway(Service(parts, config or GatewayConfig()))


class Gateway:
    """An ASGI application; `service` is what it does."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.api = _api(service)
        self._edge: Asgi = Edge(self.api, service)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One event of ASGI."""
        await self._edge(scope, receive, send)


def _api(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        watching = asyncio.create_task(service.readiness.watch(), name="readiness")
        yield
        watching.cancel()
        await service.finish()

    api = FastAPI(title="plansmith", version=__version__, lifespan=lifespan, responses=_ERRORS)
    _errors(api)
    _state_routes(api, service)
    _planner_routes(api, service)
    _run_routes(api, service)
    _page_routes(api)
    return api


def _errors(api: FastAPI) -> None:
    """Every error in one shape."""

    def told(request: Request, error: GatewayError) -> Response:
        caller = request.state.caller
        request.state.code = error.code
        return JSONResponse(error.body(caller.request_id), status_code=error.status, headers=error.headers())

    @api.exception_handler(GatewayError)
    async def _(request: Request, error: GatewayError) -> Response:
        return told(request, error)

    @api.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        more = f" ({len(error.errors()) - 1} more)" if len(error.errors()) > 1 else ""
        return told(request, GatewayError(ErrorCode.BAD_REQUEST, f"{where}: {first['msg']}{more}"))

    @api.exception_handler(Exception)  # it is raised again afterwards, and logged at the edge
    async def _(request: Request, error: Exception) -> Response:
        del error
        return told(request, GatewayError(ErrorCode.INTERNAL, INTERNAL))

    @api.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        codes = {404: ErrorCode.NOT_FOUND, 405: ErrorCode.METHOD_NOT_ALLOWED}
        code = codes.get(error.status_code, ErrorCode.BAD_REQUEST)
        found = told(request, GatewayError(code, f"{request.method} {request.url.path}: {error.detail}."))
        found.headers.update(error.headers or {})
        return found


def _state_routes(api: FastAPI, service: Service) -> None:
    @api.get("/healthz", tags=["state"])
    async def health() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "ok"}

    @api.get("/readyz", tags=["state"])
    async def ready() -> JSONResponse:
        """Whether a plan was made lately; 503 with the reason otherwise."""
        state = service.readiness.state
        good = state.ready and not service.stopping
        reason = "the gateway is being stopped" if service.stopping else state.reason
        service.metrics.ready.set(good)
        return JSONResponse({"ready": good, "reason": reason}, status_code=200 if good else 503)

    @api.get("/metrics", tags=["state"], response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counters for Prometheus."""
        service.metrics.ready.set(service.readiness.state.ready and not service.stopping)
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @api.get("/v1/catalog", tags=["planner"])
    async def catalog() -> dict[str, Any]:
        """The workers that plans may call, with the catalog's hash."""
        runs = service.parts.registry is not None
        return {"hash": service.parts.catalog.hash, "runs": runs, "catalog": service.parts.catalog.to_json()}


def _planner_routes(api: FastAPI, service: Service) -> None:
    @api.post("/v1/plans", tags=["planner"])
    async def plan(body: PlanRequest, request: Request) -> PlanResponse:
        """Plan a query. A query without a valid plan is no error: `valid` is false, and `findings` say why."""
        return await _while_there(request, service, service.plan(body.query, _caller(request), body.deadline_s))

    @api.get("/v1/models", tags=["planner"])
    async def models() -> dict[str, Any]:
        """The planner, as OpenAI lists models."""
        return chat.models(service.config.model)

    @api.post("/v1/chat/completions", tags=["planner"])
    async def completions(body: chat.ChatRequest, request: Request) -> Response:
        """OpenAI-compatible: one user message in, the plan as JSON text out."""
        query = chat.query_of(body, service.config.model)
        planned = await _while_there(request, service, service.plan(query, _caller(request)))
        if not body.stream:
            return JSONResponse(chat.completion(planned, service.config.model))
        with_usage = bool((body.stream_options or {}).get("include_usage"))
        pieces = list(chat.chunks(planned, service.config.model, with_usage=with_usage))
        return Response(b"".join(pieces), media_type="text/event-stream")


def _run_routes(api: FastAPI, service: Service) -> None:
    @api.post("/v1/runs", tags=["runs"], response_model=RunResponse)
    async def run(body: RunRequest, request: Request) -> Any:
        """Plan a query and run it. With `Accept: text/event-stream` events come as they happen, the result last."""
        running = service.start_run(
            body.query, body.plan, _caller(request), deadline_s=body.deadline_s, agent=body.agent
        )
        return await _told(running, request, service)

    @api.get("/v1/runs/{run_id}", tags=["runs"])
    async def find(run_id: str, request: Request) -> RunResponse:
        """A run that was begun with this key."""
        return await service.find_run(run_id, _caller(request))

    @api.post("/v1/runs/{run_id}/resume", tags=["runs"], response_model=RunResponse)
    async def resume(run_id: str, body: ResumeRequest, request: Request) -> Any:
        """Go on with a run that waits for a person or was interrupted; needs a journal."""
        if not all(step.isdecimal() and step.isascii() for step in body.approve):
            raise GatewayError(ErrorCode.BAD_REQUEST, "'approve' maps indices of steps to true or false.")
        said = {int(step): word for step, word in body.approve.items()}
        return await _told(service.start_resume(run_id, said, _caller(request)), request, service)


def _page_routes(api: FastAPI) -> None:
    def file(name: str) -> Response:
        path = PAGE / name
        if not path.is_file():
            raise GatewayError(ErrorCode.NOT_FOUND, "this installation has no page.")
        return FileResponse(path, headers={"content-security-policy": _SCRIPTS, "cache-control": "no-cache"})

    @api.get("/", include_in_schema=False)
    async def page() -> Response:
        return file("index.html")

    @api.get("/page.js", include_in_schema=False)
    async def script() -> Response:
        return file("page.js")

    @api.get("/page.css", include_in_schema=False)
    async def style() -> Response:
        return file("page.css")


def _caller(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


async def _told(running: Running, request: Request, service: Service) -> Any:
    """A run as one answer, or as a stream of its events."""
    if "text/event-stream" in request.headers.get("accept", ""):
        running.events = asyncio.Queue()
        return StreamingResponse(_events(running, request, service), media_type="text/event-stream")
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((running.task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not running.task.done():
            service.metrics.gone.inc()
            running.leave()
            raise GatewayError(ErrorCode.BAD_REQUEST, "the caller went away.")
        return await running.task
    finally:
        gone.cancel()


async def _events(running: Running, request: Request, service: Service) -> AsyncGenerator[bytes]:
    """Events as they happen; a comment now and then, so that nobody on the way takes the silence for an end."""
    assert running.events is not None
    events = running.events
    running.task.add_done_callback(lambda _: events.put_nowait(("end", {})))
    yield _sse("run", {"run_id": running.run_id})
    try:
        while True:
            try:
                kind, data = await asyncio.wait_for(events.get(), _ALIVE_S)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if kind == "end":
                break
            yield _sse(kind, data)
        try:
            response = await running.task
            yield _sse("result", response.model_dump(mode="json"))
        except GatewayError as error:
            yield _sse("error", error.body(_caller(request).request_id))
        except Exception:
            LOG.exception("run %s failed", running.run_id)
            yield _sse("error", GatewayError(ErrorCode.INTERNAL, INTERNAL).body(_caller(request).request_id))
    finally:
        if not running.task.done():
            service.metrics.gone.inc()
            running.leave()


def _sse(kind: str, data: Json) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def _while_there(request: Request, service: Service, work: Coroutine[Any, Any, T]) -> T:
    """Do it unless the caller goes away, which cancels it."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            service.metrics.gone.inc()
            raise GatewayError(ErrorCode.BAD_REQUEST, "the caller went away.")
        return await task
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, GatewayError):
                await task


async def _gone(request: Request) -> None:
    """Wait until the caller has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
