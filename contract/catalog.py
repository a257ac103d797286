"""Catalog: which workers may be called, as pure data with a content hash.

Reads and writes `{"version":1,"name":...,"workers":[...]}`. Needs no worker code. Other forms (Python functions, OpenAI
tools, MCP, BFCL, NESTFUL) become this one in `importers.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import jsonschema_rs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plansmith.contract.errors import CatalogError, CatalogMismatchError, InputError
from plansmith.contract.parse import duplicate_places, parse_json
from plansmith.contract.plan import Json, dumps, pointer_text
from plansmith.contract.schema import circular_reference, order_value

Schema = dict[str, Any]


class Effect(StrEnum):
    """What a call does to the world."""

    PURE = "pure"
    """same arguments, same result, nothing touched"""
    READ = "read"
    """reads the outside world"""
    WRITE = "write"
    """changes the outside world"""


class Worker(BaseModel):
    """One worker: its name, what it takes and gives (JSON Schema 2020-12), and how it may be run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """1 to 128 characters, no control characters, unique in its catalog."""
    description: str = ""
    """The first sentence is shown to the planner."""
    args: Schema
    """Schema of the arguments, of type object; `additionalProperties` is false unless given."""
    returns: Schema | None = None
    """Schema of the result; None where unknown."""
    effect: Effect = Effect.WRITE
    """`write` unless the source says otherwise: the careful guess."""
    idempotent: bool = False
    """Whether a repeated call with the same arguments changes nothing further."""
    permission: str | None = None
    """The permission that a caller must hold, if any."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Time limit of one call in seconds."""

    @cached_property
    def properties(self) -> dict[str, Any]:
        """Parameter name to schema, in the order of the catalog."""
        return cast("dict[str, Any]", self.args.get("properties", {}))

    @cached_property
    def required(self) -> frozenset[str]:
        """Names of the parameters that every call must give."""
        return frozenset(cast("list[str]", self.args.get("required", ())))

    def order_args(self, args: dict[str, Json]) -> dict[str, Json]:
        """The arguments with their keys in the schema's property order, at every depth; unknown keys come last."""
        return cast("dict[str, Json]", order_value(args, self.args, self.args))


class Catalog:
    """An immutable set of workers with a name and a content hash."""

    def __init__(self, name: str, workers: Sequence[Worker]) -> None:
        """Check the workers together.

        Raises:
            CatalogError: duplicate or bad names, an invalid schema, `args` not of type object, a parameter name
                that starts with `$`. The message lists every problem.

        """
        self.name = name
        self.workers: tuple[Worker, ...] = tuple(_with_defaults(worker) for worker in workers)
        problems = catalog_problems(self.workers)
        if problems:
            raise CatalogError(f"catalog {name!r} cannot be used: " + "; ".join(problems))
        self._by_name = {worker.name: worker for worker in self.workers}

    def __repr__(self) -> str:
        return f"Catalog({self.name!r}, {len(self.workers)} workers, {self.hash[:12]})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Catalog) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def get(self, name: object) -> Worker | None:
        """The worker of that exact name, or None."""
        return self._by_name.get(name) if isinstance(name, str) else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Worker names in the order of the catalog."""
        return tuple(worker.name for worker in self.workers)

    @cached_property
    def hash(self) -> str:
        """Sha256 (64 hex digits) over the catalog's canonical JSON."""
        return hashlib.sha256(dumps(self.to_json()).encode()).hexdigest()

    def require_hash(self, found: str, *, what: str) -> None:
        """Refuse something that was made for another catalog.

        Raises:
            CatalogMismatchError: `found` is not this catalog's hash; the message names both.

        """
        if found != self.hash:
            raise CatalogMismatchError(what=what, expected=self.hash, found=found)

    def subset(self, names: Sequence[str]) -> Catalog:
        """A catalog of the named workers only, in the order of this one; raises `CatalogError` on unknown names."""
        unknown = sorted(set(names) - set(self.names))
        if unknown:
            raise CatalogError(f"catalog {self.name!r} has no worker named {', '.join(map(repr, unknown))}")
        return Catalog(self.name, [worker for worker in self.workers if worker.name in set(names)])

    def to_json(self) -> dict[str, Json]:
        return {
            "version": 1,
            "name": self.name,
            "workers": [worker.model_dump(mode="json") for worker in self.workers],
        }

    @classmethod
    def from_json(cls, value: Json) -> Catalog:
        """Build from the catalog file's JSON; raises `CatalogError` that lists every problem."""
        try:
            file = _CatalogFile.model_validate(value)
        except ValidationError as error:
            raise CatalogError("catalog cannot be used: " + _explain(error, value)) from error
        return cls(file.name, file.workers)

    @classmethod
    def load(cls, path: str | Path) -> Catalog:
        """Read a catalog file; raises `InputError` where it is absent or no JSON, `CatalogError` where it is wrong."""
        try:
            value = parse_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"catalog file {str(path)!r} cannot be read: {error.strerror or error}.") from error
        except ValueError as error:
            raise CatalogError(f"catalog file {str(path)!r} is not JSON: {error}.") from error
        except RecursionError as error:
            raise CatalogError(f"catalog file {str(path)!r} is nested too deeply.") from error
        twice = [pointer_text(*place) for place in duplicate_places(value)]
        if twice:
            raise CatalogError(f"catalog file {str(path)!r} has keys that stand twice in their object: {twice[:5]}.")
        try:
            return cls.from_json(value)
        except CatalogError as error:
            raise CatalogError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the catalog file (indented, for people to read and diff)."""
        text = json.dumps(self.to_json(), ensure_ascii=False, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")


class _CatalogFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1]
    name: str = Field(min_length=1, max_length=128)
    workers: list[Worker]


def _with_defaults(worker: Worker) -> Worker:
    """Close `args`: `additionalProperties` defaults to false here, unlike in JSON Schema."""
    if worker.args.get("type") != "object" or "additionalProperties" in worker.args:
        return worker
    return worker.model_copy(update={"args": worker.args | {"additionalProperties": False}})


def catalog_problems(workers: Sequence[Worker]) -> list[str]:
    """Every reason why these workers cannot form a catalog; empty when they can."""
    problems: list[str] = []
    seen: set[str] = set()
    for worker in workers:
        if worker.name in seen:
            problems.append(f"duplicate name {worker.name!r}")
        seen.add(worker.name)
        problems += _worker_problems(worker)
    return problems


def _worker_problems(worker: Worker) -> list[str]:
    problems: list[str] = []
    if not 1 <= len(worker.name) <= 128 or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in worker.name):
        problems.append(f"bad name {worker.name!r}: expected 1 to 128 characters without control characters")
    if worker.args.get("type") != "object":
        problems.append(f"'args' of {worker.name!r} must be a schema with type 'object', found {worker.args!r:.80}")
    for where, schema in (("args", worker.args), ("returns", worker.returns)):
        if schema is not None and (reason := _schema_problem(schema)):
            problems.append(f"{where!r} of {worker.name!r} is not a usable JSON Schema 2020-12: {reason}")
    properties = worker.args.get("properties")
    for name in cast("dict[str, Any]", properties) if isinstance(properties, dict) else ():
        if name.startswith("$"):
            problems.append(f"parameter {name!r} of {worker.name!r} starts with '$', which is kept for operators")
    return problems


def _schema_problem(schema: Schema) -> str | None:
    """Why a schema cannot be used, or None. References outside the schema are refused: nothing is fetched."""
    try:
        jsonschema_rs.meta.validate(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"})
        jsonschema_rs.Draft202012Validator(schema, retriever=_refuse_remote)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return str(error).splitlines()[0]
    circle = circular_reference(schema)
    return None if circle is None else f"the reference {circle!r} leads back to itself"


def _refuse_remote(uri: str) -> Any:
    raise ValueError(f"reference {uri!r} leads outside the schema")


def _explain(error: ValidationError, value: Json) -> str:
    """One line for all of pydantic's findings, naming the worker where there is one."""
    lines: list[str] = []
    for item in error.errors():
        loc = item["loc"]
        where = "/".join(map(str, loc)) or "the file"
        if len(loc) > 1 and loc[0] == "workers" and isinstance(loc[1], int):
            worker = value["workers"][loc[1]]
            name = cast("dict[str, Json]", worker).get("name") if isinstance(worker, dict) else None
            where = f"worker {name!r}, {'/'.join(map(str, loc[2:])) or 'entry'}"
        lines.append(f"{where}: {item['msg']}")
    return "; ".join(lines)
