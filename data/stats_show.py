"""Draws the numbers of a data set: tables with bars for a terminal, and one HTML file with plots.

Reads `DataStats`; gives rich renderables, or writes a file that opens from disk and needs no network. Altair makes the
plots, vl-convert brings Vega for them (extra `report`). Names of workers, sources and reasons are data: they are put
into the page as escaped JSON or escaped text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from plansmith.contract.errors import MissingExtraError
from plansmith.contract.store import write_text
from plansmith.data.stats import OVERALL, DataStats, Lengths, PartStats

EXTRA = "report"
BAR = 30
"""Width of the longest bar in characters."""
MOST_WORKERS = 40
_PACKAGES = ("altair", "vl_convert")
_LENGTHS = {
    "query_characters": "query, characters",
    "query_words": "query, words",
    "query_tokens": "query, tokens",
    "plan_characters": "plan, characters",
    "plan_tokens": "plan, tokens",
}


def stats_tables(stats: DataStats) -> list[RenderableType]:
    """Tables for a terminal: parts, steps of a plan, workers, lengths, sources, what was dropped."""
    overall = stats.overall
    workers = overall.workers
    shown = dict(list(workers.items())[:MOST_WORKERS])
    left = len(workers) - len(shown)
    caption = f"{left} more, {sum(workers.values()) - sum(shown.values())} calls" if left else None
    tables: list[RenderableType] = [
        _parts(stats),
        _bars("Steps of a plan", "steps", {str(k): v for k, v in overall.steps.items()}, overall.rows),
        _bars("Workers", "worker", shown, overall.calls, caption),
        _lengths(stats),
        _bars("Sources", "source", stats.sources, overall.rows),
    ]
    if stats.rejects:
        tables.append(_bars("Dropped rows", "reason", stats.rejects, stats.read))
    return tables


def part_rows(stats: DataStats) -> list[tuple[str, PartStats]]:
    """Parts in order, then all rows where there is more than one part."""
    every = list(stats.parts.items())
    return every if len(every) == 1 else [*every, (OVERALL, stats.overall)]


def length_rows(stats: DataStats) -> list[tuple[str, Lengths]]:
    """What was measured, in words, with its spread over all kept rows."""
    spreads = ((name, getattr(stats.overall, key)) for key, name in _LENGTHS.items())
    return [(name, spread) for name, spread in spreads if spread is not None]


def share(number: int, total: int) -> str:
    """Percent with one place; `-` where there is nothing to be a share of."""
    return f"{100 * number / total:.1f}%" if total else "-"


def _parts(stats: DataStats) -> Table:
    table = Table(title="Rows", title_justify="left")
    table.add_column("part")
    for name in ("rows", "families", "calls", "no worker fits", "with references", "values by reference"):
        table.add_column(name, justify="right")
    for name, part in part_rows(stats):
        table.add_row(
            Text(name),
            str(part.rows),
            str(part.families),
            str(part.calls),
            share(part.abstentions, part.rows),
            share(part.with_references, part.rows),
            share(part.values_with_references, part.values),
        )
    return table


def _bars(title: str, what: str, counts: Mapping[str, int], total: int, caption: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column(what)
    table.add_column("number", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", width=BAR, no_wrap=True)
    most = max(counts.values(), default=1)
    for name, number in counts.items():
        table.add_row(Text(name), str(number), share(number, total), "█" * round(BAR * number / most))
    return table


def _lengths(stats: DataStats) -> Table:
    table = Table(title="Lengths", title_justify="left")
    table.add_column("of")
    for name in ("mean", "least", "median", "95%", "most"):
        table.add_column(name, justify="right")
    for name, spread in length_rows(stats):
        numbers = (spread.min, spread.p50, spread.p95, spread.max)
        table.add_row(name, f"{spread.mean:.1f}", *map(str, numbers))
    return table


def write_stats_html(stats: DataStats, path: Path, *, title: str = "Data set") -> None:
    """Write one self-contained HTML file with plots of the numbers.

    Raises:
        MissingExtraError: a package of the extra `report` is not installed.
        StorageError: the file could not be written; the earlier file is kept.

    """
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError(package, EXTRA)
    bundle: str = import_module("vl_convert").javascript_bundle()
    library = re.sub(r"<(?=/script|!--)", r"\\x3c", bundle, flags=re.IGNORECASE)
    spec = json.dumps(_spec(stats), ensure_ascii=False).replace("<", "\\u003c")
    lines = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8">',
        f"<title>{escape(title)}</title>",
        "<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}"
        "td,th{padding:.2em .8em;text-align:right}td:first-child,th:first-child{text-align:left}</style>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{stats.read} rows read, {stats.overall.rows} kept, {sum(stats.rejects.values())} dropped.</p>",
        _html_parts(stats),
        '<div id="plots"></div>',
        f"<script>{library}</script>",
        f'<script>vegaEmbed("#plots", {spec}, {{mode: "vega-lite", actions: false}});</script></html>',
    ]
    write_text(path, "\n".join(lines) + "\n")


def _html_parts(stats: DataStats) -> str:
    head = ("part", "rows", "families", "no worker fits", "with references")
    rows = [
        (
            name,
            str(part.rows),
            str(part.families),
            share(part.abstentions, part.rows),
            share(part.with_references, part.rows),
        )
        for name, part in part_rows(stats)
    ]
    cells = ["".join(f"<td>{escape(value)}</td>" for value in row) for row in rows]
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr><tr>{'</tr><tr>'.join(cells)}</tr></table>"


def _spec(stats: DataStats) -> dict[str, Any]:
    """Vega-Lite specification of all plots, one below the other."""
    overall = stats.overall
    workers = dict(list(overall.workers.items())[:MOST_WORKERS])
    charts = [
        _steps_chart(stats),
        _bar_chart(f"Calls by worker (the {len(workers)} most called)", workers),
        _bar_chart("Kept rows by source", stats.sources),
        _bar_chart("Dropped rows by reason", stats.rejects),
    ]
    altair: Any = import_module("altair")
    return altair.vconcat(*[chart for chart in charts if chart is not None]).to_dict()


def _steps_chart(stats: DataStats) -> Any:
    """Share of rows by number of steps, a panel a part."""
    altair: Any = import_module("altair")
    rows = [
        {"part": name, "steps": steps, "rows": number, "share": number / part.rows}
        for name, part in part_rows(stats)
        for steps, number in part.steps.items()
    ]
    return (
        altair.Chart(_inline(rows), title="Steps of a plan")
        .mark_bar()
        .encode(
            x=altair.X("steps:O", title="steps"),
            y=altair.Y("share:Q", title="share of rows", axis=altair.Axis(format="%")),
            column=altair.Column("part:N", title=None, sort=[name for name, _ in part_rows(stats)]),
            tooltip=["part:N", "steps:O", "rows:Q"],
        )
        .properties(height=160)
    )


def _bar_chart(title: str, counts: Mapping[str, int]) -> Any:
    """Horizontal bars, the longest first; None where there is nothing."""
    if not counts:
        return None
    altair: Any = import_module("altair")
    rows = [{"name": name, "number": number} for name, number in counts.items()]
    return (
        altair.Chart(_inline(rows), title=title)
        .mark_bar()
        .encode(
            x=altair.X("number:Q", title=None),
            y=altair.Y("name:N", title=None, sort=None, axis=altair.Axis(labelLimit=400)),
            tooltip=["name:N", "number:Q"],
        )
    )


def _inline(rows: Iterable[dict[str, Any]]) -> Any:
    return import_module("altair").Data(values=list(rows))
