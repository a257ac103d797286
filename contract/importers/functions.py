"""Python functions into a catalog: signature and docstring -> pydantic model -> JSON Schema.

Reads annotated functions (plain or async), their defaults and their docstrings (Google, NumPy, Sphinx). Parameters may be whatever
pydantic has a schema for: `Literal`, `Optional`, `Enum`, `Annotated[..., Field()]`, nested models, dataclasses, lists,
dicts, dates. The return annotation becomes `returns`, closed for models. `$defs` stay, titles go. Not covered:
`*args`, `**kwargs`, positional-only parameters: a plan names every argument.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, cast

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from plansmith.contract.catalog import Catalog, Effect, Worker
from plansmith.contract.errors import InputError
from plansmith.contract.importers.result import ImportResult, Notes, make_catalog, make_worker, require_plain_json
from plansmith.contract.importers.schemas import subschemas

Function = Callable[..., Any]


class FunctionNote(UserWarning):
    """A function's schema says less than it could; the message names the function and the parameter."""
