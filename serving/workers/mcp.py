"""The tools of an MCP server as workers (extra `mcp`): over stdio, or over streamable HTTP.

The catalog entries come from the server's `tools/list` through `contract.importers.mcp`. What a server says about its
tools (annotations) is a hint from somebody whom nobody vouches for: it may make a worker more restricted than the
configuration says, never less. Every call has a time limit; a server that dies, hangs or answers nonsense is a
structured failure of that call, and the next call connects anew. A tool's own error (`isError`) is a failure, never a
result. Not covered: resources, prompts, sampling, elicitation, OAuth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from plansmith.contract.catalog import Effect, Worker
from plansmith.contract.errors import InputError, ServiceError
from plansmith.contract.importers.mcp import from_mcp
from plansmith.contract.importers.result import Notes
from plansmith.contract.plan import Json
from plansmith.serving.workers.base import CallInfo, FailureCode, WorkerError
from plansmith.serving.workers.mcp_config import McpServer
from plansmith.serving.workers.mcp_connection import Connection, GoneError, reason_of
from plansmith.serving.workers.mcp_transports import transport_of
from plansmith.serving.workers.registry import Registry
from plansmith.serving.workers.results import ResultReader

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["KEY_META", "TOOL_ERROR", "McpRegistry", "McpServer", "McpWorker", "connect_mcp"]

TOOL_ERROR = "TOOL_ERROR"
"""Failure code of a tool that says of itself that it failed."""
KEY_META = "plansmith/idempotency-key"
"""Where a writing tool finds the call's idempotency key, in the request's `_meta`."""
_MAX_PAGES = 100
_MAX_MESSAGE = 2000


class McpWorker:
    """One tool of a server."""

    def __init__(self, tool: Worker, config: McpServer, connection: Connection, *, approval: bool) -> None:
        """Take the finished catalog entry."""
        self._worker, self._config, self._connection, self._approval = tool, config, connection, approval
        self._secrets = config.secrets.get(tool.name, frozenset()) | _secret_parameters(tool)
        self._results = ResultReader(tool.returns, max_bytes=config.max_result_bytes)

    def __repr__(self) -> str:
        return f"McpWorker({self._worker.name!r}, server {self._config.name!r})"

    @property
    def worker(self) -> Worker:
        """Its catalog entry."""
        return self._worker

    @property
    def secrets(self) -> frozenset[str]:
        """Parameters whose values are shown to nobody."""
        return self._secrets

    @property
    def approval(self) -> bool:
        """Whether a person must agree to each call."""
        return self._approval

    @property
    def connection(self) -> Connection:
        """The server's connection, with its counters."""
        return self._connection

    async def call(self, args: dict[str, Json], info: CallInfo) -> Json:
        """Call the tool on its server.

        Raises:
            WorkerError: `UNAVAILABLE` (server gone), `TIMEOUT`, `TOOL_ERROR` (the tool says that it failed),
                `INVALID_ARGUMENT`, `NOT_FOUND` or `INTERNAL` (the server refused), `INVALID_RESULT`.

        """
        name, limit = self._worker.name, min(self._worker.timeout_s, info.timeout_s or self._worker.timeout_s)
        meta = None if info.idempotency_key is None else {KEY_META: info.idempotency_key}

        async def send(client: Client) -> Any:
            return await client.call_tool(name, cast("Any", args), read_timeout_seconds=limit, meta=cast("Any", meta))

        try:
            result = await self._connection.request(send, limit)
        except GoneError as error:
            raise self._gone(error) from error
        except TimeoutError as error:
            raise self._late(limit) from error
        except Exception as error:
            raise self._refused(error, limit) from error
        return self._read(result)

    @property
    def _repeatable(self) -> bool:
        return self._worker.effect is not Effect.WRITE or self._worker.idempotent

    def _doubt(self) -> str:
        return "" if self._repeatable else " It may have been carried out: look before you repeat it."

    def _gone(self, error: GoneError) -> WorkerError:
        text = f"MCP server {self._config.name!r} is gone: {error.reason}."
        if error.sent:
            return WorkerError(FailureCode.UNAVAILABLE, text + self._doubt(), retryable=self._repeatable)
        return WorkerError(FailureCode.UNAVAILABLE, text, retryable=True)

    def _late(self, limit: float) -> WorkerError:
        text = f"MCP server {self._config.name!r} gave no answer within {limit:g} s."
        return WorkerError(FailureCode.TIMEOUT, text + self._doubt(), retryable=self._repeatable)

    def _refused(self, error: Exception, limit: float) -> WorkerError:
        """An answer that is an error of the protocol, or no answer that fits it."""
        from mcp import MCPError
        from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT

        where = f"MCP server {self._config.name!r}"
        if not isinstance(error, MCPError):
            text = (
                f"{where} gave an answer that does not fit the protocol or its own schema ({_cut(reason_of(error))})."
            )
            return WorkerError(FailureCode.INVALID_RESULT, text)
        if error.code == REQUEST_TIMEOUT:
            return self._late(limit)
        codes = {INVALID_PARAMS: FailureCode.INVALID_ARGUMENT, METHOD_NOT_FOUND: FailureCode.NOT_FOUND}
        text = f"{where} refused the call: {_cut(error.message)} (error {error.code})."
        return WorkerError(codes.get(error.code, FailureCode.INTERNAL), text)

    def _read(self, result: Any) -> Json:
        """Structured content where there is some, else the text."""
        texts, others = _texts(result.content)
        if result.is_error:
            said = _cut("\n".join(texts)) or f"it said nothing ({', '.join(others) or 'no content'})"
            raise WorkerError(TOOL_ERROR, f"tool {self._worker.name!r} failed: {said}")
        if "structured_content" in result.model_fields_set and result.structured_content is not None:
            return self._results.read(result.structured_content)
        if others:
            kinds = ", ".join(sorted(set(others)))
            text = f"tool {self._worker.name!r} gave content that is no text ({kinds}), which a plan cannot use."
            raise WorkerError(FailureCode.INVALID_RESULT, text)
        return self._results.read("\n".join(texts))


async def connect_mcp(config: McpServer) -> Registry:
    """Connect to a server and take its tools as workers; close the registry to end it.

    Args:
        config: where it is, and what its tools may do.

    Returns:
        A registry, an async context manager. What was noted about the tools is in `McpRegistry.notes`.

    Raises:
        MissingExtraError: the package `mcp` is not installed.
        ServiceError: the server cannot be started or reached, or gives no tools list.
        InputError: its tools cannot become a catalog, or the configuration names tools that it does not have.

    """
    connection = Connection(config.name, lambda: transport_of(config), connect_timeout_s=config.connect_timeout_s)
    try:
        await connection.open()
        return await _registry(config, connection)
    except BaseException:
        await connection.aclose()
        raise


class McpRegistry(Registry):
    """The tools of one server."""

    notes: tuple[str, ...] = ()
    """What was dropped, mapped or left aside in the server's tools list."""


async def _registry(config: McpServer, connection: Connection) -> McpRegistry:
    try:
        tools = await connection.request(_list_tools, config.connect_timeout_s)
    except (GoneError, TimeoutError) as error:
        raise ServiceError(f"MCP server {config.name!r} gave no list of its tools: {reason_of(error)}.") from error
    except Exception as error:
        reason = _cut(reason_of(error))
        raise ServiceError(f"MCP server {config.name!r} gave no usable list of its tools: {reason}.") from error
    tools = _chosen(config, tools)
    hints = {tool["name"]: cast("dict[str, Any]", tool.pop("annotations", None) or {}) for tool in tools}
    imported = from_mcp(cast("Json", tools), name=config.name)
    notes = Notes()
    workers = [_worker(config, entry, hints[entry.name], connection, notes) for entry in imported.catalog.workers]
    made = McpRegistry(config.name, workers, closing=[connection])
    made.notes = (*imported.notes, *notes.lines())
    return made


async def _list_tools(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        found += [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in page.tools]
        cursor = page.next_cursor
        if not cursor:
            return found
    raise InputError(f"the list of tools has more than {_MAX_PAGES} pages")


def _chosen(config: McpServer, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that are asked for; a name in the configuration that no tool has is a mistake, never ignored."""
    known = [tool["name"] for tool in tools]
    approval: frozenset[str] = frozenset() if isinstance(config.approval, bool) else config.approval
    named = {*(config.tools or ()), *config.effects, *config.idempotent, *config.secrets, *approval}
    if unknown := sorted(named - set(known)):
        have = ", ".join(map(repr, known)) or "none"
        raise InputError(f"MCP server {config.name!r} has no tool {', '.join(map(repr, unknown))}; it has {have}.")
    return [tool for tool in tools if config.tools is None or tool["name"] in config.tools]


def _worker(config: McpServer, entry: Worker, hints: dict[str, Any], connection: Connection, notes: Notes) -> McpWorker:
    """The entry with the caller's own word about it, which hints may only make more careful."""
    name = entry.name
    own = config.effects.get(name)
    destroys = hints.get("destructiveHint") is True and own is None
    writes = (hints.get("readOnlyHint") is False or destroys) and own is None
    effect = Effect.WRITE if writes else own or config.effect
    asked = config.approval if isinstance(config.approval, bool) else name in config.approval
    where = f"worker {name!r}"
    if effect is not (own or config.effect):
        notes.add(
            f"the server hints that it changes something: effect 'write' instead of {str(config.effect)!r}", where
        )
    if destroys and not asked:
        notes.add("the server hints that it destroys something: a person must agree to each call", where)
    if unused := sorted(key for key, value in hints.items() if key != "title" and not (writes and value is True)):
        notes.add(f"hints that nobody vouches for change nothing ({', '.join(unused)})", where)
    update = {
        "effect": effect,
        "idempotent": effect is not Effect.WRITE or name in config.idempotent,
        "permission": config.permission,
        "timeout_s": config.timeout_s,
    }
    return McpWorker(entry.model_copy(update=update), config, connection, approval=asked or destroys)


def _texts(content: list[Any]) -> tuple[list[str], list[str]]:
    """The texts in a tool's content, and the kinds of everything else."""
    texts: list[str] = []
    others: list[str] = []
    for block in content:
        inner = block.resource if block.type == "resource" else block
        if isinstance(getattr(inner, "text", None), str):
            texts.append(inner.text)
        else:
            others.append(str(block.type))
    return texts, others


def _secret_parameters(tool: Worker) -> frozenset[str]:
    def is_secret(schema: Any) -> bool:
        node = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
        return node.get("writeOnly") is True or node.get("format") == "password"

    return frozenset(name for name, schema in tool.properties.items() if is_secret(schema))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + f"... (cut, {len(text):,} characters)"
