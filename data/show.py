"""A data set as people read it: tables of counts, and rows with their plans.

Reads a folder that `build_data` wrote; gives rich renderables, which the commands `plansmith data stats` and `plansmith
data show` print. Rejects are shown like other rows, with their reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plansmith.contract.errors import InputError
from plansmith.contract.plan import dumps
from plansmith.contract.records import Example, Reject
from plansmith.data.built import Built, open_data


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows to show; None means any."""

    part: str | None = None
    """`train`, `val`, a test part, `rejects`, or a reject's reason."""
    worker: str | None = None
    """A worker that the plan calls."""
    text: str | None = None
    """Text in the query, in any case."""
    row_id: str | None = None
    start: int = 0
    """How many of the selected rows to pass over."""
    limit: int = 10
    """How many rows to show."""


def stats(folder: Path) -> list[RenderableType]:
    """Tables of a data set: where it is from, rows by part and reason, plan lengths, workers.

    Raises:
        InputError: the folder holds no complete, unchanged data set.

    """
    data = open_data(folder)
    seen = _Seen()
    for row in data.rows():
        seen.families.setdefault(row.part, set()).add(hash(row.family))
        seen.lengths[len(row.plan)] += 1
        seen.calls.update(cast("str", step["type"]) for step in row.plan)
    return [_origin(data), _counts(data, seen), _lengths(seen.lengths), _workers(data, seen.calls)]


@dataclass(slots=True)
class _Seen:
    """What the tables need of the rows."""

    families: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    """By part: hashes of the families."""
    lengths: Counter[int] = field(default_factory=Counter[int])
    """Rows by number of steps."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """Calls by worker."""


def _origin(data: Built) -> Table:
    manifest = data.manifest
    table = Table(title="Data set", show_header=False, title_justify="left")
    for name, value in (
        ("source", manifest.source),
        ("licence", manifest.licence or "not given"),
        ("seed", str(manifest.seed)),
        ("catalog", f"{manifest.catalog_name}, {len(data.catalog.workers)} workers, {manifest.catalog_hash[:12]}"),
        *((name.replace("_", " "), str(number)) for name, number in manifest.notes.items()),
        *((f"warning {name}", str(number)) for name, number in manifest.warnings.items()),
    ):
        table.add_row(Text(name), Text(value))
    return table


def _counts(data: Built, seen: _Seen) -> Table:
    counts = data.manifest.counts
    table = Table(title="Rows", title_justify="left", show_footer=True)
    table.add_column("part", footer="read")
    table.add_column("rows", justify="right", footer=str(counts.read))
    table.add_column("share", justify="right", footer="100.0%")
    table.add_column("families", justify="right")
    parts = {"train": counts.train, "val": counts.val} | counts.test
    for part, number in parts.items():
        name = part if part in ("train", "val") else f"test {part}"
        table.add_row(Text(name), str(number), _share(number, counts.read), str(len(seen.families.get(part, ()))))
    for reason, number in counts.rejects.items():
        table.add_row(Text(f"dropped {reason}"), str(number), _share(number, counts.read), "")
    return table


def _lengths(lengths: Counter[int]) -> Table:
    table = Table(title="Steps of a plan", title_justify="left")
    for name in ("steps", "rows", "share"):
        table.add_column(name, justify="right")
    table.add_column("")
    most = max(lengths.values(), default=1)
    for length, number in sorted(lengths.items()):
        table.add_row(str(length), str(number), _share(number, lengths.total()), "█" * round(30 * number / most))
    return table


def _workers(data: Built, calls: Counter[str]) -> Table:
    total = sum(calls.values())
    table = Table(title="Workers", title_justify="left")
    table.add_column("worker")
    table.add_column("calls", justify="right")
    table.add_column("share", justify="right")
    for name in sorted(data.catalog.names, key=lambda name: (-calls[name], name)):
        table.add_row(Text(name), str(calls[name]), _share(calls[name], total))
    return table


def _share(number: int, total: int) -> str:
    return f"{100 * number / total:.1f}%" if total else "-"


def show_rows(folder: Path, selection: Selection) -> Iterator[RenderableType]:
    """Rows one after the other, then one line that says how many more there are.

    Raises:
        InputError: the folder holds no complete, unchanged data set, or no row is selected.

    """
    data = open_data(folder)
    shown: list[Example | Reject] = []
    found = 0
    for row in chain[Example | Reject](data.rows(), data.rejects()):
        if _selected(row, selection):
            if selection.start <= found < selection.start + selection.limit:
                shown.append(row)
            found += 1
    if not found:
        parts = ["train", "val", *data.manifest.counts.test, "rejects", *data.manifest.counts.rejects]
        raise InputError(f"no row of {str(folder)!r} is selected by {selection}; parts are {', '.join(parts)}.")
    for row in shown:
        yield row_text(row)
    yield Text(f"{len(shown)} of {found} rows, from row {selection.start}", style="dim")


def _selected(row: Example | Reject, selection: Selection) -> bool:
    parts = {row.part} if isinstance(row, Example) else {"rejects", row.reason}
    return (
        (selection.part is None or selection.part in parts)
        and (selection.worker is None or selection.worker in {step.get("type") for step in _steps(row.plan)})
        and (selection.text is None or selection.text.casefold() in row.query.casefold())
        and (selection.row_id is None or selection.row_id == row.id)
    )


def _steps(plan: Any) -> Iterable[dict[str, Any]]:
    steps = cast("list[Any]", plan) if isinstance(plan, list) else []
    return [cast("dict[str, Any]", step) for step in steps if isinstance(step, dict)]


def row_text(row: Example | Reject) -> RenderableType:
    """A row for reading: its part or reason, the query, one line a step."""
    part = row.part if isinstance(row, Example) else f"dropped: {row.reason}"
    lines = [Text.assemble((row.id, "bold"), "  ", (part, "cyan" if isinstance(row, Example) else "red"))]
    lines.append(Text(row.query))
    if isinstance(row, Reject):
        lines.append(Text(row.detail, style="red"))
    elif row.why:
        lines.append(Text(f"kept: {'; '.join(row.why)}", style="green"))
    for index, step in enumerate(_steps(row.plan)):
        after = f" after {step['after']}" if step.get("after") else ""
        lines.append(Text(f"  {index}  {step.get('type')} {dumps(step.get('args'))}{after}"))
    if row.plan == []:
        lines.append(Text("  no step: no worker fits"))
    return Group(*lines, Text(""))
