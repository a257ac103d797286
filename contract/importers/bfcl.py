"""BFCL function docs (Berkeley Function Calling Leaderboard, v1 to v4) into a catalog.

Reads function docs (`{"name","description","parameters":{"type":"dict",...}}`), one, a list, or JSON lines; and
benchmark rows (`{"id","question","function":[...]}`). Python, Java and JavaScript type names become JSON Schema types,
`any` becomes a schema without type. A `response` becomes `returns`. The same doc in several rows is taken once; two
different docs of one name are an error, so convert such a file row by row: `from_bfcl(row, name=row["id"])`.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from plansmith.contract.importers.schemas import args_schema, returns_schema
from plansmith.contract.plan import Json

_MEANINGS = {
    "object": "dict Dict Object HashMap Hashtable TreeMap LinkedHashMap Map",
    "array": "list List tuple Tuple set Set Array ArrayList LinkedList Queue Stack Deque",
    "string": "str String char Char Character Date",
    "integer": "int Integer long Long short Short byte Byte bigint Bigint BigInt BigInteger",
    "number": "float Float double Double Number BigDecimal",
    "boolean": "bool Bool Boolean",
    "null": "None NoneType",
    "": "any Any unknown",
}
"""Type names that BFCL uses (or whose languages have), by what they mean; the empty text stands for any type."""
TYPES = {name: meaning for meaning, names in _MEANINGS.items() for name in names.split()} | {"": ""}

_KEPT = ("name", "description", "parameters", "response")


def from_bfcl(value: Json, *, name: str) -> ImportResult:
    """Workers of BFCL function docs or rows.

    Raises:
        InputError: the value is neither.
        CatalogError: a doc cannot be used, or two different ones have one name; the message lists every problem.

    """
    require_plain_json(value, "the BFCL function docs")
    notes = Notes()
    found = list(_docs(value, notes))
    if found or not _has_rows(value):
        found = entries(found, "BFCL function docs")
    else:
        notes.add("there is no function at all: `[]` is the only plan", "the rows")
    return build_catalog(name, found, lambda doc: _worker(doc, notes), notes)


def looks_like_bfcl(value: Json) -> bool:
    """Whether the value has a form that only BFCL files have: rows, or parameters of type `dict`."""
    found = cast("list[Any]", value) if isinstance(value, list) else [value]
    return bool(found) and all(_is_row(item) or _is_dict_doc(item) for item in found)


def _is_row(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(cast("dict[str, Any]", item).get("function"), list)


def _has_rows(value: Json) -> bool:
    return any(_is_row(item) for item in (cast("list[Any]", value) if isinstance(value, list) else [value]))


def _is_dict_doc(item: Any) -> bool:
    parameters = cast("dict[str, Any]", item).get("parameters") if isinstance(item, dict) else None
    return isinstance(parameters, dict) and cast("dict[str, Any]", parameters).get("type") in ("dict", "HashMap")


def _docs(value: Json, notes: Notes) -> Iterator[Any]:
    """Function docs of rows or of the plain list; the same doc of several rows once."""
    found = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not _has_rows(value):
        yield from found
        return
    seen: dict[str, list[Any]] = {}
    for index, item in enumerate(found):
        if not _is_row(item):
            raise InputError(f"entry {index} is no BFCL row with a list under 'function', found {short(item)}.")
        for doc in item["function"]:
            name = str(cast("dict[str, Any]", doc).get("name")) if isinstance(doc, dict) else ""
            known = seen.setdefault(name, [])
            if doc in known:
                notes.add("the same function doc in another row: taken once", f"worker {name!r}")
            else:
                known.append(doc)
                yield doc


def _worker(doc: dict[str, Json], notes: Notes) -> Worker:
    name = require_name(doc)
    note_dropped(doc, _KEPT, name, notes)
    if "parameters" not in doc:
        raise InputError(f"function {name!r} has no 'parameters', which BFCL requires")
    return make_worker(
        name=name,
        description=description_of(doc, name),
        args=args_schema(doc["parameters"], name, notes, types=TYPES),
        returns=returns_schema(doc.get("response"), name, notes, types=TYPES),
    )
