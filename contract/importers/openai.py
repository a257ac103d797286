"""OpenAI `tools` lists into a catalog.

Reads what a request body holds: `tools` of Chat Completions (`{"type":"function","function":{...}}`), of the Responses
API (`{"type":"function","name":...}`), the older `functions`, whole bodies with one of these keys, or the plain list.
Tools that the provider runs itself (`web_search`, `mcp`, `custom`, ...) have no parameters: left out, with a note.
OpenAI has no result schemas and no effects, so `returns` is null and the effect stays `write`.
"""

from __future__ import annotations

from typing import Any, cast

from plansmith.contract.catalog import Worker
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
from plansmith.contract.importers.schemas import args_schema
from plansmith.contract.plan import Json

_KEPT = ("type", "name", "description", "parameters")


def from_openai(value: Json, *, name: str) -> ImportResult:
    """Workers of a `tools` or `functions` list, or of a request body that has one.

    Raises:
        InputError: the value has no such list.
        CatalogError: an entry cannot be used; the message lists every problem.

    """
    require_plain_json(value, "the OpenAI tools list")
    notes = Notes()
    tools: list[dict[str, Json]] = []
    for index, tool in enumerate(entries(_tools(value), "OpenAI tools")):
        function = _function(tool, index, notes)
        if function is not None:
            tools.append(function)
    if not tools:
        raise InputError(
            f"none of the {len(_tools(value))} OpenAI tools is a function, so no worker can be made of them."
        )
    return build_catalog(name, tools, lambda tool: _worker(tool, notes), notes)


def looks_like_openai(value: Json) -> bool:
    """Whether the value has a form that only OpenAI tools lists have."""
    if isinstance(value, dict) and "functions" in value:
        return isinstance(value["functions"], list)
    found = _tools(value)
    if not isinstance(found, list):
        return False
    tools = cast("list[Any]", found)
    return any(map(_is_function, tools)) and all(isinstance(tool, dict) and "type" in tool for tool in tools)


def _is_function(tool: Any) -> bool:
    if not isinstance(tool, dict):
        return False
    entry = cast("dict[str, Any]", tool)
    return entry.get("type") == "function" and not entry.keys().isdisjoint({"function", "name"})


def _tools(value: Json) -> Any:
    """The list in a body (`tools`, the older `functions`, or both), or the value itself."""
    if not isinstance(value, dict):
        return value
    body = cast("dict[str, Any]", value)
    lists = [body[key] for key in ("tools", "functions") if isinstance(body.get(key), list)]
    if lists:
        return [tool for part in lists for tool in part]
    return [body] if "function" in body or "parameters" in body else None


def _function(tool: dict[str, Json], index: int, notes: Notes) -> dict[str, Json] | None:
    """The part of a tool that describes its function, in the flat form; None where it is no function."""
    kind = tool.get("type", "function")
    if kind != "function":
        notes.add(f"left out: a tool of type {short(kind)} is run by the provider and is no function", f"tool {index}")
        return None
    if "function" not in tool:
        return tool
    function = tool["function"]
    if not isinstance(function, dict):
        raise InputError(f"tool {index}: expected an object under 'function', found {short(function)}.")
    beside = {key: value for key, value in tool.items() if key not in ("type", "function")}
    return {**beside, **cast("dict[str, Json]", function)}


def _worker(tool: dict[str, Json], notes: Notes) -> Worker:
    name = require_name(tool)
    note_dropped(tool, _KEPT, name, notes)
    return make_worker(
        name=name,
        description=description_of(tool, name),
        args=args_schema(tool.get("parameters"), name, notes),
    )
