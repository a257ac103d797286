"""What every source gives: a catalog, candidates, rows that it had to drop, and counts of what it changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError

from plansmith.contract.catalog import Catalog
from plansmith.contract.plan import Json
from plansmith.contract.records import Candidate, Reject


@dataclass(frozen=True, slots=True)
class Loaded:
    """All rows of one source; every row read is in `candidates` or in `rejects`."""

    name: str
    licence: str
    catalog: Catalog
    candidates: list[Candidate]
    rejects: list[Reject]
    notes: dict[str, int] = field(default_factory=dict[str, int])
    """What the conversion changed, by kind (`literals_to_references`: 2336)."""


def candidate_or_reject(row: Json, *, where: str, defaults: dict[str, Any]) -> Candidate | Reject:
    """A user's row as a candidate; a row that is none becomes a reject `bad_row` that names its place.

    Args:
        row: what the user's file or script gave.
        where: file and line, or script and row number.
        defaults: values for keys that the row does not have.

    """
    if (problem := _not_json(row)) is not None:
        return bad_row(None, where, problem, defaults)
    if not isinstance(row, dict):
        return bad_row(row, where, f"expected an object with 'query' and 'plan', found {type(row).__name__}", defaults)
    node = {**defaults, **cast("dict[str, Any]", row)}
    if node.get("family") is None:
        node["family"] = family_of(node.get("plan"))
    try:
        candidate = Candidate.model_validate(node)
    except ValidationError as error:
        faults = "; ".join(f"{'/'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:4])
        return bad_row(row, where, faults, defaults)
    if not candidate.query.strip():
        return bad_row(row, where, "'query' is empty", defaults)
    return candidate


def _not_json(row: Json) -> str | None:
    """Why a value cannot be stored as JSON in UTF-8, or None."""
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        return f"a text holds the lone surrogate {error.object[error.start]!r}, which UTF-8 does not have"
    except (TypeError, ValueError, RecursionError) as error:
        return f"not plain JSON: {error}"
    return None


def bad_row(row: Json, where: str, why: str, defaults: dict[str, Any]) -> Reject:
    """A reject for a row that is no candidate; it takes over what the row has of id, query and plan."""
    node = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    own_id = node.get("id")
    return Reject(
        id=own_id if isinstance(own_id, str) else defaults["id"],
        query=str(node.get("query", "")),
        plan=node.get("plan"),
        reason="bad_row",
        detail=f"{where}: {why}.",
        source=defaults["source"],
    )


def family_of(plan: Json) -> str:
    """The sequence of workers: what makes two recorded plans alike."""
    if not isinstance(plan, list):
        return ""
    steps = cast("list[Any]", plan)
    names = [str(cast("dict[str, Any]", step).get("type")) for step in steps if isinstance(step, dict)]
    return " > ".join(names) or "(no worker)"
