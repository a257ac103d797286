"""Scores two files made by anything: right plans and candidate plans, joined by id.

Reads JSONL with one row an item: `{"id","plan"}` (the plan as JSON) or `{"id","text"}` (as generated); a reference row
may hold several right plans in `plans`, and none (`[]` or null) where the item has none. Further keys are left aside.
Gives the result that `plansmith score` prints. Ids are strings or integers; 1 and "1" are the same id. A file that is
not as described is refused with its name and line: no row is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.parse import ObjectWithDuplicates, ParseError, parse_json, parse_plan_text, parse_plan_value
from plansmith.contract.plan import Json
from plansmith.eval.metrics import is_well_shaped, score_item
from plansmith.eval.report import metrics_of
from plansmith.eval.stats import Metric

_PRINTED = {"value", "hits", "scored", "unscored", "low", "high"}


@dataclass(frozen=True, slots=True)
class FileScore:
    """What `plansmith score` prints."""

    items: int
    """Items of the reference file: the denominator."""
    metrics: dict[str, Metric]
    only_in_reference: int
    """Items without a candidate: misses in every metric."""
    only_in_candidate: int
    """Candidates without a reference row; not scored."""

    def to_json(self) -> dict[str, Json]:
        return {
            "items": self.items,
            "metrics": {name: metric.model_dump(include=_PRINTED) for name, metric in self.metrics.items()},
            "only_in_reference": self.only_in_reference,
            "only_in_candidate": self.only_in_candidate,
        }


@dataclass(frozen=True, slots=True)
class _Row:
    """One row with its place."""

    place: str
    values: dict[str, Json]

    def refuse(self, reason: str) -> InputError:
        return InputError(f"{self.place}: {reason}")


def score_files(
    catalog: Catalog, reference: str | Path, candidate: str | Path, *, seed: int = 0, resamples: int = 2000
) -> FileScore:
    """Score a candidate file against a reference file.

    Args:
        catalog: the workers that may be called.
        reference: right plans; every row is an item.
        candidate: plans to score; an item without a row is a miss in every metric.
        seed: of the bootstrap behind the intervals of the F1.
        resamples: of that bootstrap.

    Raises:
        InputError: a file cannot be read, a line is broken, an id stands twice or is absent; names file and line.

    """
    references = {item: _references(row, catalog) for item, row in _rows(reference).items()}
    if not references:
        raise InputError(f"{str(reference)!r} has no rows; expected one right plan a line.")
    candidates = {item: _candidate(row) for item, row in _rows(candidate).items()}
    scores = [score_item(candidates.get(item), plans, catalog) for item, plans in references.items()]
    return FileScore(
        items=len(references),
        metrics=metrics_of(scores, seed=seed, resamples=resamples),
        only_in_reference=len(references.keys() - candidates.keys()),
        only_in_candidate=len(candidates.keys() - references.keys()),
    )


def _rows(path: str | Path) -> dict[str, _Row]:
    """Rows by id."""
    rows: dict[str, _Row] = {}
    for row in _read(path):
        item = _id(row)
        if item in rows:
            raise row.refuse(f"the id {item!r} stands already in {rows[item].place}; ids must be unique.")
        rows[item] = row
    return rows


def _read(path: str | Path) -> Iterator[_Row]:
    """The rows of a file of others: a last line without newline counts, a broken line is refused."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} is not UTF-8: {error.reason} at byte {error.start}.") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            value = parse_json(line)
        except ParseError as error:
            raise InputError(f"{place}: {error}") from error
        if not isinstance(value, dict):
            raise InputError(f"{place}: expected an object with 'id' and 'plan' or 'text', found {line.strip():.40}")
        if isinstance(value, ObjectWithDuplicates):
            raise InputError(f"{place}: the key {value.duplicates[0]!r} stands twice; keep one.")
        yield _Row(place, cast("dict[str, Json]", value))


def _id(row: _Row) -> str:
    item = row.values.get("id")
    if isinstance(item, bool) or not isinstance(item, str | int):
        found = "none" if "id" not in row.values else repr(item)
        raise row.refuse(f"expected an 'id' that is a string or an integer, found {found}.")
    return str(item)


def _candidate(row: _Row) -> Json:
    return _answer(row, ("plan", "text"))


def _answer(row: _Row, keys: tuple[str, ...]) -> Json:
    """The answer of a row: text as it is, or a plan value in a form that the checker never takes for text."""
    given = [key for key in keys if key in row.values]
    if len(given) != 1:
        found = " and ".join(map(repr, given)) or f"none of them (keys: {', '.join(map(repr, row.values))})"
        raise row.refuse(f"expected exactly one of {', '.join(map(repr, keys))}, found {found}.")
    value = row.values[given[0]]
    if given[0] == "text" and not isinstance(value, str):
        raise row.refuse(f"'text' must be a string, found {json.dumps(value)[:40]}.")
    return cast("Json", value if given[0] == "text" or isinstance(value, list) else json.dumps(value))


def _references(row: _Row, catalog: Catalog) -> list[Json]:
    """The right plans of a reference row, each of the shape of a plan."""
    keys = ("plan", "plans", "text")
    given = [key for key in keys if key in row.values]
    if given in (["plan"], ["plans"]) and row.values[given[0]] is None:
        return []
    if given != ["plans"]:
        return [_plan(row, _answer(row, keys), catalog)]
    plans = row.values["plans"]
    if not isinstance(plans, list) or not all(isinstance(plan, list) for plan in cast("list[Json]", plans)):
        raise row.refuse("'plans' must be a list of plans, each an array of steps.")
    return [_plan(row, plan, catalog) for plan in cast("list[Json]", plans)]


def _plan(row: _Row, value: Json, catalog: Catalog) -> Json:
    if not is_well_shaped(value, catalog):
        raise row.refuse("the reference has not the shape of a plan; `plansmith check` names what is wrong.")
    return parse_plan_text(value).value if isinstance(value, str) else parse_plan_value(value).value
