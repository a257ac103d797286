"""One side of a comparison, whatever form it is given in.

| given | is | compared |
| --- | --- | --- |
| a run directory, `DIR` or `DIR:SYSTEM` | `eval/items.jsonl` in it; hashes of catalogs: `report.json` | item by item |
| a file of scored items, `FILE` or `FILE:SYSTEM` | what `plansmith score --items` wrote | item by item |
| a file of candidates | rows `{"id", "plan" | "text"}`, scored here with `--catalog` and `--reference` | item by item |
| the JSON that `plansmith score` printed | metrics without items | as values only |

Of several samples of an item only the first is read. Items of a catalog's variant (`eval/suites.py`) are read only
where their part is asked for, as in the report's totals. Everything is checked while it is read: a file that is none of
these, or whose numbers contradict each other, is refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.parse import ParseError, parse_json
from plansmith.contract.progress import Progress
from plansmith.contract.records import FinishReason
from plansmith.eval.columns import Answered, Columns, ItemValues, Value, mark_of
from plansmith.eval.items import ScoredItem
from plansmith.eval.metrics import F1S, MEANS, METRICS, RATES
from plansmith.eval.rows import MAX_ROW_BYTES, Row, iter_rows, open_rows
from plansmith.eval.score import score_rows


class ScoredWith(NamedTuple):
    """What candidate files are scored with."""

    catalog: Catalog
    reference: str
    workers: int | None = None
    progress: Progress | None = None


class PrintedMetric(BaseModel):
    """One metric as `plansmith score` prints it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    value: float | None = Field(ge=0, le=1)
    hits: int = Field(ge=0)
    scored: int = Field(ge=0)
    unscored: int = Field(ge=0)
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)


class PrintedPart(BaseModel):
    """Metrics of some of the items."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    items: int = Field(ge=1)
    metrics: dict[str, PrintedMetric]


class PrintedScore(PrintedPart):
    """What `plansmith score` prints."""

    only_in_reference: int = Field(ge=0)
    only_in_candidate: int = Field(ge=0)
    parts: dict[str, PrintedPart] | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    label: str
    """As it was given, with the system where it has one."""
    scores: Columns | PrintedPart
    """Items, or metrics without items."""
    missing: int
    """Items without an answer, as far as that is known."""
    catalog_hash: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def items(self) -> int:
        return len(self.scores) if isinstance(self.scores, Columns) else self.scores.items


def read_side(
    given: str,
    *,
    names: Sequence[str],
    system: str | None = None,
    part: str | None = None,
    scored_with: ScoredWith | None = None,
) -> Side:
    """Read one side.

    Args:
        given: a path, for items and run directories optionally with `:SYSTEM` after it.
        names: the metrics that are compared.
        system: which system, in place of the one after the path.
        part: read the items of this part only.
        scored_with: catalog and right plans for candidate files.

    Raises:
        InputError: the path leads to none of the forms, or the system or part is not there.

    """
    path, after = split_system(given)
    if after is not None and system is not None and after != system:
        raise InputError(f"{given!r} names the system {after!r}, but {system!r} was given too; keep one.")
    chosen = system or after
    if path.is_dir():
        return _from_run(path, chosen, names, part)
    printed = _printed(path)
    if printed is not None:
        _refuse_system(given, chosen)
        return _from_printed(printed, given, path, names, part)
    first = next(iter_rows(path), None)
    if first is None:
        raise InputError(f"{str(path)!r} has no rows; nothing can be compared.")
    if "outcomes" in first.values:
        found = _from_items(path, chosen, names, part)
        return _side(f"{path}:{found.system}", found)
    if {"plan", "text"} & first.values.keys():
        _refuse_system(given, chosen)
        return _from_candidates(path, given, part, scored_with)
    raise first.refuse(
        "this is neither the JSON of `plansmith score`, nor scored items (`plansmith score --items`, or "
        "eval/items.jsonl of a run), nor candidates with 'plan' or 'text'; the first row's keys: "
        f"{', '.join(first.values):.200}."
    )


def split_system(given: str) -> tuple[Path, str | None]:
    """A path and the system after it: the longest existing path before a colon; the whole where that exists."""
    if os.path.exists(given):
        return Path(given), None
    cuts = [index for index, letter in enumerate(given) if letter == ":"]
    for cut in reversed(cuts):
        if os.path.exists(given[:cut]) and given[cut + 1 :]:
            return Path(given[:cut]), given[cut + 1 :]
    return Path(given), None


def _refuse_system(given: str, chosen: str | None) -> None:
    if chosen is not None:
        raise InputError(f"{given!r} holds one system without a name; leave {chosen!r} away.")


def _from_run(path: Path, system: str | None, names: Sequence[str], part: str | None) -> Side:
    items = path / "eval" / "items.jsonl"
    if not items.exists():
        raise InputError(f"{str(path)!r} has no eval/items.jsonl: run `plansmith eval` there, or give a file.")
    found = _from_items(items, system, names, part)
    return _side(f"{path}:{found.system}", found, catalog_hash=_catalog_hash(path / "report.json", part))


class _Suite(BaseModel):
    """What is read here of a suite in a report."""

    catalog_hash: str
    parts: tuple[str, ...]


class _Report(BaseModel):
    """What is read here of a report."""

    suites: tuple[_Suite, ...]


def _catalog_hash(report: Path, part: str | None) -> str | None:
    """Hash of the catalog under which the items were asked, several in a row; None where no report says it."""
    try:
        suites = _Report.model_validate_json(report.read_text(encoding="utf-8")).suites
    except (OSError, ValueError):
        return None
    asked = suites[:1] if part is None else [suite for suite in suites if part in suite.parts]
    return ", ".join(suite.catalog_hash for suite in asked) or None


def _side(label: str, found: _Items, *, catalog_hash: str | None = None) -> Side:
    missing = found.columns.answered.count(Answered.MISSING)
    return Side(label, found.columns, missing, catalog_hash, found.notes)


def _no_part(label: str, part: str, parts: Sequence[str]) -> InputError:
    return InputError(f"{label!r} has no items of the part {part!r}; its parts: {_listed(parts)}.")


class _Items(NamedTuple):
    """The items of one system."""

    system: str
    columns: Columns
    notes: tuple[str, ...]


def _from_items(path: Path, system: str | None, names: Sequence[str], part: str | None) -> _Items:
    columns = Columns(names=tuple(names))
    seen: set[str] = set()
    systems: dict[str, None] = {}
    parts: dict[str, None] = {}
    samples = variants = 0
    for row in iter_rows(path):
        item = _scored_item(row)
        systems[item.system] = None
        if item.system != (system or next(iter(systems))):
            continue
        parts[item.part] = None
        samples += item.sample > 0
        variants += _is_variant(item)
        if item.sample or (_is_variant(item) if part is None else item.part != part):
            continue
        if item.id in seen:
            raise row.refuse(f"the system {item.system!r} has the item {item.id!r} twice.")
        seen.add(item.id)
        columns.add(_item_values(row, item, names))
    if system is None and len(systems) > 1:
        raise InputError(f"{str(path)!r} holds several systems; name one after a colon: {_listed(list(systems))}.")
    if not parts:
        raise InputError(f"{str(path)!r} has no items of the system {system!r}; it has: {_listed(list(systems))}.")
    if not columns:
        raise _no_part(str(path), part or "plain", list(parts))
    notes: list[str] = []
    if samples:
        notes.append(f"{str(path)!r}: of several samples of an item the first is compared; {samples} are left aside.")
    if variants and part is None:
        notes.append(f"{str(path)!r}: {variants} items of variants are left aside; --part compares those of one.")
    return _Items(system or next(iter(systems)), columns, tuple(notes))


def _is_variant(item: ScoredItem) -> bool:
    """Whether the item was made from another one under a changed catalog: its id ends in `@` and its part."""
    return item.id.endswith(f"@{item.part}")


def _scored_item(row: Row) -> ScoredItem:
    try:
        return ScoredItem.model_validate_json(json.dumps(row.values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = "/".join(map(str, first["loc"])) or "the row"
        raise row.refuse(f"this is no scored item: {where}: {first['msg']}.") from error


def _item_values(row: Row, item: ScoredItem, names: Sequence[str]) -> ItemValues:
    failed = item.finish_reason is FinishReason.ERROR
    missing = item.candidate is None and item.finish_reason is None
    answered = Answered.FAILED if failed else Answered.MISSING if missing else Answered.YES
    values = tuple(_value(row, item, name) for name in names)
    return ItemValues(item.id, item.part, mark_of(item.query, item.references), answered, values)


def _value(row: Row, item: ScoredItem, name: str) -> Value:
    held = item.counts if name in F1S else item.outcomes
    if name not in held:
        raise row.refuse(f"the item has no {name!r}; it was scored by another version. Score it again.")
    value = held[name]
    fits = (
        value is None
        or (name in F1S and min(cast("tuple[int, ...]", value)) >= 0)
        or (name in RATES and isinstance(value, bool))
        or (name in MEANS and isinstance(value, float) and 0 <= value <= 1)
    )
    if not fits:
        raise row.refuse(f"{value!r} is no outcome of the metric {name!r}.")
    return value


def _from_candidates(path: Path, given: str, part: str | None, scored_with: ScoredWith | None) -> Side:
    if scored_with is None:
        raise InputError(
            f"{given!r} holds plans that are not scored yet: give --catalog and --reference, or the output of "
            "`plansmith score`."
        )
    catalog, reference, workers, progress = scored_with
    scoring = score_rows(catalog, reference, path, workers=workers, progress=progress)
    notes = list(scoring.notes)
    if scoring.only_in_candidate:
        notes.append(f"{given!r}: {scoring.only_in_candidate} rows have no reference and are left aside.")
    columns = scoring.columns
    if part is not None:
        if part not in columns.part_names():
            raise _no_part(given, part, columns.part_names())
        columns = columns.of_part(part)
    return _side(given, _Items(given, columns, tuple(notes)), catalog_hash=catalog.hash)


def _printed(path: Path) -> PrintedScore | None:
    """What `plansmith score` printed, on one line or several; None where the file is something else."""
    with open_rows(path) as file:
        data = file.read(MAX_ROW_BYTES + 1)
    if len(data) > MAX_ROW_BYTES:
        return None
    try:
        value = parse_json(data.decode("utf-8-sig"))
    except (ParseError, UnicodeDecodeError):
        return None
    if not isinstance(value, dict) or "metrics" not in value:
        return None
    try:
        printed = PrintedScore.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = "/".join(map(str, first["loc"]))
        raise InputError(f"{str(path)!r} is not what `plansmith score` prints: {where}: {first['msg']}.") from error
    for block in (printed, *(printed.parts or {}).values()):
        _require_consistent(block, path)
    return printed


def _require_consistent(block: PrintedPart, path: Path) -> None:
    for name, metric in block.metrics.items():
        wrong = (
            metric.hits > metric.scored
            or metric.scored + metric.unscored != block.items
            or (metric.value is None) != (metric.scored == 0)
            or (
                name in RATES
                and metric.value is not None
                and not math.isclose(metric.value, metric.hits / metric.scored, abs_tol=1e-9)
            )
        )
        if wrong:
            raise InputError(f"{str(path)!r}: the numbers of {name!r} contradict each other; print the score again.")


def _from_printed(printed: PrintedScore, given: str, path: Path, names: Sequence[str], part: str | None) -> Side:
    block: PrintedPart = printed
    if part is not None:
        parts = printed.parts or {}
        if part not in parts:
            have = f"its parts: {_listed(list(parts))}" if parts else "it was printed without --by-part"
            raise InputError(f"{given!r} has no part {part!r}; {have}.")
        block = parts[part]
    for name in names:
        if name not in block.metrics:
            raise InputError(f"{str(path)!r} has no metric {name!r}; it was printed by another version.")
    note = f"{given!r} holds no items: values are compared, and whether the items are the same cannot be seen."
    return Side(given, block, 0 if part is not None else printed.only_in_reference, None, (note,))


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:12]]
    return ", ".join(shown) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def require_metrics(names: Sequence[str]) -> None:
    """Refuse names that are no metrics; the message lists those that are."""
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise InputError(f"{unknown[0]!r} is no metric; expected one of: {', '.join(METRICS)}.")
