"""Whatever JSON an importer gets, it gives a usable catalog or an `InputError`."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.errors import InputError
from plansmith.contract.importers import CatalogSource, import_value
from plansmith.contract.lint import lint_catalog

JSON_KINDS = [kind for kind in CatalogSource if kind is not CatalogSource.PYTHON]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_KEYS = (
    *(
        "type",
        "properties",
        "required",
        "items",
        "prefixItems",
        "additionalProperties",
        "anyOf",
        "allOf",
        "oneOf",
        "not",
    ),
    *("$ref", "$defs", "definitions", "enum", "const", "default", "nullable", "optional", "dependencies", "minimum"),
    *(
        "exclusiveMinimum",
        "pattern",
        "additionalItems",
        "title",
        "$schema",
        "$id",
        "format",
        "minLength",
        "if",
        "$anchor",
    ),
)
_WORDS = st.sampled_from(
    ["object", "array", "string", "dict", "any", "a", "#", "#/$defs/a", "#/properties/a", "https://e.com/x", "(", ""]
)
schema_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | _WORDS | st.just(0.5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "$c", "type"]), inner, max_size=3)
    ),
    max_leaves=14,
)


def is_accepted_or_refused(value: Any, kind: CatalogSource | None) -> bool:
    """Import; what is accepted must be usable by everything that reads a catalog, what is not has a reason."""
    try:
        result = import_value(value, kind)
    except InputError as error:
        return str(error) != ""
    catalog = result.catalog
    for worker in catalog.workers:
        check_plan([{"type": worker.name, "args": {"a": 1, "b": {"$from": "/0/a"}}}] * 2, catalog)
    return (
        all(map(str, lint_catalog(catalog))) and Catalog.from_json(json.loads(json.dumps(catalog.to_json()))) == catalog
    )


@settings(max_examples=150, deadline=None)
@given(json_values, st.sampled_from([None, *JSON_KINDS]))
def test_any_json_gives_a_catalog_or_an_input_error(value: Any, kind: CatalogSource | None) -> None:
    assert is_accepted_or_refused(value, kind)


@settings(max_examples=300, deadline=None)
@given(schema_values, schema_values, st.sampled_from(["bfcl", "mcp", "openai", "flat", "file", "nestful"]))
def test_any_schema_gives_a_catalog_or_an_input_error(args: Any, returns: Any, form: str) -> None:
    entries: dict[str, Any] = {
        "bfcl": [{"name": "f", "parameters": args, "response": returns}],
        "mcp": {"tools": [{"name": "f", "inputSchema": args, "outputSchema": returns, "annotations": returns}]},
        "openai": [{"type": "function", "function": {"name": "f", "parameters": args}, "extra": returns}],
        "flat": {"tools": [{"type": "function", "name": "f", "parameters": args}]},
        "file": {"version": 1, "name": "n", "workers": [{"name": "f", "args": args, "returns": returns}]},
        "nestful": [{"name": "f", "query_parameters": args, "output_parameters": returns}],
    }
    assert is_accepted_or_refused(entries[form], CatalogSource("openai" if form == "flat" else form))
