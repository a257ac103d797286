"""Arguments of a call: held against the catalog entry, then made into the typed objects that a function wants.

The schema comes first, because pydantic is lenient where plans must not be ("5" is no integer, true is no number). Then
the argument model gives models, enums and dates, and runs the user's own validators. A refusal names parameter, value
and rule; where the parameter is secret, neither its value nor a text that a validator wrote about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from plansmith.contract.catalog import Worker
from plansmith.contract.importers.functions import argument_model, read_signature
from plansmith.contract.plan import Json, pointer_text
from plansmith.serving.workers.base import FailureCode, WorkerError
from plansmith.serving.workers.results import schema_validator

_MAX_SHOWN = 120
_SHAPE_RULES = ("required", "additionalProperties", "unevaluatedProperties", "type")
"""Rules whose message about the arguments as a whole names parameters, never values."""


class ArgumentReader:
    """Checks the arguments of one worker and makes the keyword arguments of its function."""

    def __init__(self, worker: Worker, fn: Callable[..., Any], hidden: frozenset[str], secrets: frozenset[str]) -> None:
        """Prepare the checks; `hidden` parameters are filled in by the caller, `secrets` are never shown."""
        self._schema = schema_validator(worker.args)
        self._model: type[BaseModel] = argument_model(fn, hidden=hidden)
        self._secrets = secrets
        self._fields = {str(field.alias): name for name, field in self._model.model_fields.items()}
        self._own_default = {
            name
            for name, parameter in read_signature(fn).parameters.items()
            if not isinstance(parameter.default, FieldInfo)
        }

    def read(self, args: dict[str, Json]) -> dict[str, Any]:
        """Keyword arguments; a parameter that is not given keeps the function's own default.

        Raises:
            WorkerError: `INVALID_ARGUMENT`, not retryable.

        """
        try:
            text = json.dumps(args, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise _invalid("the arguments are no JSON data") from error
        problems = [self._schema_problem(error) for error in self._schema.iter_errors(args)]
        if problems:
            raise _invalid("; ".join(problems))
        try:
            made = self._model.model_validate_json(text)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False)
            problems = [self._model_problem(cast("dict[str, Any]", item)) for item in found]
            raise _invalid("; ".join(problems)) from (None if self._secrets else error)
        given = made.model_fields_set
        return {
            alias: getattr(made, name)
            for alias, name in self._fields.items()
            if name in given or alias not in self._own_default
        }

    def _schema_problem(self, error: Any) -> str:
        path, rule = list(error.instance_path), str(error.schema_path[-1]) if error.schema_path else "the schema"
        if not path:
            hide = self._secrets and rule not in _SHAPE_RULES
            return f"the arguments break the rule {rule!r}" if hide else _cut(error.message)
        if path[0] in self._secrets:
            return f"argument {_place(path)} (secret, not shown) breaks the rule {rule!r}"
        return f"argument {_place(path)}: {_cut(error.message)} (rule {rule!r})"

    def _model_problem(self, item: dict[str, Any]) -> str:
        path, rule = list(item["loc"]), item["type"]
        if (not path and self._secrets) or (path and path[0] in self._secrets):
            return f"argument {_place(path)} (secret, not shown) breaks the rule {rule!r}"
        return f"argument {_place(path)} is {_cut(repr(item['input']))}: {_cut(item['msg'])} (rule {rule!r})"


def _place(path: Sequence[str | int]) -> str:
    """Name of the parameter, and the place inside its value."""
    if not path:
        return "'?'"
    return repr(path[0]) + (f" at {pointer_text(*path[1:])}" if path[1:] else "")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "... (cut)"


def _invalid(reason: str) -> WorkerError:
    return WorkerError(FailureCode.INVALID_ARGUMENT, reason.rstrip(".") + ".")
