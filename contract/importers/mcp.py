"""MCP `tools/list` results into a catalog.

Reads a whole JSON-RPC response, its `result`, the plain `tools` list, or a list of pages of these. `inputSchema`
becomes `args`, `outputSchema` becomes `returns`. Annotations are hints from a server that nobody vouches for: they may
make a worker more restricted, never less, and the default (effect `write`, not idempotent) is the most restricted one.
So they change nothing unless the caller trusts the server (`trust_hints`). See the MCP specification, "Tools".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from plansmith.contract.catalog import Effect, Worker
from plansmith.contract.errors import InputError
from plansmith.contract.importers.result import (
    ImportResult,
    Notes,
    build_catalog,
    description_of,
    entries,
    make_worker,
    note_dropped,
    require_name,
    require_plain_json,
    short,
)
from plansmith.contract.importers.schemas import args_schema, returns_schema
from plansmith.contract.plan import Json

_KEPT = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


def from_mcp(value: Json, *, name: str, trust_hints: bool = False) -> ImportResult:
    """Workers of an MCP tools list.

    Args:
        value: response, result, list of tools, or list of pages (responses or results).
        name: name of the catalog.
        trust_hints: believe `readOnlyHint` (effect `read`) and `idempotentHint`. Only for servers of your own.

    Raises:
        InputError: the value is no such list, or the response is an error.
        CatalogError: a tool cannot be used; the message lists every problem.

    """
    require_plain_json(value, "the MCP tools list")
    notes = Notes()
    tools = entries(list(_tools(value, notes)), "MCP tools")
    return build_catalog(name, tools, lambda tool: _worker(tool, notes, trust_hints), notes)


def looks_like_mcp(value: Json) -> bool:
    """Whether the value has a form that only MCP tools lists have."""
    try:
        found = list(_tools(value, Notes()))
    except InputError:
        return isinstance(value, dict) and "jsonrpc" in value
    return bool(found) and all(isinstance(tool, dict) and "inputSchema" in tool for tool in found)


def _tools(value: Json, notes: Notes) -> Iterator[Any]:
    pages = cast("list[Any]", value) if isinstance(value, list) else [value]
    if pages and all(_is_page(page) for page in pages):
        for page in pages:
            yield from _tools_of_page(page)
        if _result(pages[-1]).get("nextCursor"):
            notes.add("there are more: the server gave a 'nextCursor', and the page after it is not here", "last page")
    elif isinstance(value, list):
        yield from cast("list[Any]", value)
    elif _is_tool(value):
        yield value
    else:
        raise InputError(f"expected an MCP tools/list response, its result, or its 'tools' list, found {short(value)}.")


def _is_page(value: Any) -> bool:
    if not isinstance(value, dict) or _is_tool(cast("Any", value)):
        return False
    return not {"jsonrpc", "result", "tools", "error"}.isdisjoint(cast("dict[str, Any]", value))


def _is_tool(value: Any) -> bool:
    return isinstance(value, dict) and "inputSchema" in value


def _result(page: dict[str, Any]) -> dict[str, Any]:
    result = page.get("result", page)
    return cast("dict[str, Any]", result) if isinstance(result, dict) else {}


def _tools_of_page(page: dict[str, Any]) -> list[Any]:
    if "error" in page:
        raise InputError(f"the MCP server answered with an error instead of a tools list: {short(page['error'])}.")
    tools = _result(page).get("tools")
    if not isinstance(tools, list):
        raise InputError(f"expected a list under 'tools' in the MCP result, found {short(tools)}.")
    return cast("list[Any]", tools)


def _worker(tool: dict[str, Json], notes: Notes, trust_hints: bool) -> Worker:
    name = require_name(tool)
    note_dropped(tool, _KEPT, name, notes)
    if "inputSchema" not in tool:
        raise InputError(f"tool {name!r} has no 'inputSchema', which MCP requires")
    return make_worker(
        name=name,
        description=_description(tool, name, notes),
        args=args_schema(tool["inputSchema"], name, notes),
        returns=returns_schema(tool.get("outputSchema"), name, notes),
        **_effects(tool, name, notes, trust_hints),
    )


def _description(tool: dict[str, Json], name: str, notes: Notes) -> str:
    """The description; a title (for people) stands in where there is none."""
    description = description_of(tool, name)
    title = tool.get("title")
    if title is None:
        return description
    if not description.strip() and isinstance(title, str):
        notes.add("the title is taken as description, which is absent", f"worker {name!r}")
        return title
    notes.add("'title' is dropped: a catalog has no place for it", f"worker {name!r}")
    return description


def _effects(tool: dict[str, Json], name: str, notes: Notes, trust_hints: bool) -> dict[str, Any]:
    annotations = tool.get("annotations")
    if annotations is None:
        return {}
    if not isinstance(annotations, dict):
        raise InputError(f"the annotations of {name!r} must be an object, found {short(annotations)}")
    hints = cast("dict[str, Json]", annotations)
    if not trust_hints:
        if hints:
            notes.add(
                f"annotations ({', '.join(sorted(hints))}) are hints nobody vouches for: not used", f"worker {name!r}"
            )
        return {}
    read_only = hints.get("readOnlyHint") is True
    unused = hints.keys() - {"readOnlyHint", "idempotentHint"}
    if unused:
        notes.add(f"annotations ({', '.join(sorted(unused))}) are dropped: no place for them", f"worker {name!r}")
    return {
        "effect": Effect.READ if read_only else Effect.WRITE,
        "idempotent": read_only or hints.get("idempotentHint") is True,
    }
