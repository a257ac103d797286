"""What a worker gave, as plain JSON data, or the failure that says why it is none.

Pydantic turns models, dataclasses, enums and dates into JSON, as the return annotation says where there is one. What
JSON cannot hold is refused rather than bent: NaN and Infinity (pydantic writes null), keys that are no text, unknown
types, circles, lone surrogates, and results over the size limit. Then the result is held against the `returns` schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import jsonschema_rs
from pydantic import TypeAdapter

from plansmith.contract.catalog import Schema
from plansmith.contract.plan import Json, pointer_text
from plansmith.serving.workers.base import FailureCode, WorkerError

MAX_RESULT_BYTES = 1024 * 1024
"""Largest result unless a worker says otherwise, as UTF-8 JSON."""
_MAX_SHOWN = 200


class ResultReader:
    """Turns results of one worker into JSON and checks them."""

    def __init__(self, returns: Schema | None, annotation: Any = Any, *, max_bytes: int = MAX_RESULT_BYTES) -> None:
        """Prepare the checks.

        Args:
            returns: schema of the result; None where the catalog does not say.
            annotation: the function's return annotation; `Any` where there is none.
            max_bytes: largest result as UTF-8 JSON without white space.

        """
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        self._schema = None if returns is None else schema_validator(returns)
        self.max_bytes = max_bytes

    def read(self, value: Any) -> Json:
        """The result as JSON data.

        Raises:
            WorkerError: `INVALID_RESULT`, with the place and the reason.

        """
        try:
            _refuse_keys(value)
            made = self._adapter.dump_python(value, mode="json", by_alias=True, warnings="none")
            text = json.dumps(made, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            size = len(text.encode())
            if "null" in text:  # pydantic writes null for a NaN in a place without a type
                _refuse_nan(self._adapter.dump_python(value, mode="python", warnings="none"))
        except _NoJsonError as error:
            raise _invalid(str(error)) from error
        except RecursionError as error:
            raise _invalid("it is nested too deeply") from error
        except Exception as error:  # serializers of the user's own models may raise anything
            raise _invalid(_reason(error)) from error
        if size > self.max_bytes:
            raise _invalid(f"it has {size:,} bytes as JSON, and the limit is {self.max_bytes:,}")
        self._check(made)
        return made

    def _check(self, made: Json) -> None:
        error = None if self._schema is None else next(self._schema.iter_errors(made), None)
        if error is not None:
            where = pointer_text(*error.instance_path) or "the result"
            raise _invalid(f"{where} is not what the catalog declares: {_cut(error.message)}")


def schema_validator(schema: Schema) -> jsonschema_rs.Draft202012Validator:
    """A compiled validator; a reference that leads outside the schema is never fetched."""
    return jsonschema_rs.Draft202012Validator(schema, retriever=_refuse_remote)


def _refuse_remote(uri: str) -> Any:
    raise ValueError(f"reference {uri!r} leads outside the schema")


class _NoJsonError(Exception):
    """The reason why a value is no JSON."""


def _invalid(reason: str) -> WorkerError:
    message = f"the worker's result cannot be used: {reason.rstrip('.')}."
    return WorkerError(FailureCode.INVALID_RESULT, message)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it holds text or bytes that are not UTF-8"
    text = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, ValueError) and "Out of range float" in text:
        return "it holds NaN or Infinity, which JSON has no place for"
    return f"it is no JSON data ({_cut(text)})"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "... (cut)"


def _refuse_keys(value: Any) -> None:
    """Refuse keys that are no text in the plain dicts of a result; a model's own fields are pydantic's matter."""
    for node in _containers(value):
        if isinstance(node, Mapping):
            for key in cast("Mapping[Any, Any]", node):
                if not isinstance(key, str):
                    raise _NoJsonError(f"it has the key {_cut(repr(key))}, and JSON keys are texts")


def _refuse_nan(value: Any) -> None:
    for node in _containers(value):
        items = cast("Mapping[Any, Any]", node).values() if isinstance(node, Mapping) else node
        for item in cast("Iterable[Any]", items):
            if isinstance(item, float) and not math.isfinite(item):
                raise _NoJsonError("it holds NaN or Infinity, which JSON has no place for")
    if isinstance(value, float) and not math.isfinite(value):
        raise _NoJsonError("it is NaN or Infinity, which JSON has no place for")


def _containers(value: Any) -> Iterable[Any]:
    """Every plain container in a value, itself first; each once, so a circle ends."""
    pending, seen = [value], set[int]()
    while pending:
        node = pending.pop()
        if not isinstance(node, (Mapping, list, tuple, set, frozenset)) or id(cast("Any", node)) in seen:
            continue
        seen.add(id(cast("Any", node)))
        yield node
        pending += cast("Mapping[Any, Any]", node).values() if isinstance(node, Mapping) else cast("Any", node)
