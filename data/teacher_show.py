"""Queries and a teacher's answers as people read them: tables of counts for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from plansmith.data.mix import MixRow
from plansmith.data.queries import QueriesManifest
from plansmith.data.taught import TeachManifest


def queries_tables(manifest: QueriesManifest) -> list[RenderableType]:
    """Sources with what was kept and dropped, and the mix of grown queries."""
    table = Table(title=f"Queries: {manifest.queries}", title_justify="left")
    for column in ("source", "read", "kept", "dropped", "notes"):
        table.add_column(column, justify="right" if column in ("read", "kept") else "left")
    for one in manifest.sources:
        table.add_row(one.source, str(one.read), str(one.kept), _counts(one.rejects), _counts(one.notes))
    return [table, *_mix(manifest.mix)]


def teach_tables(manifest: TeachManifest) -> list[RenderableType]:
    """What became of every answer that was wanted, what it took, and the mix of the plans."""
    outcomes = manifest.outcomes
    table = Table(title=f"Answers of {manifest.model}: {outcomes.wanted} wanted", title_justify="left")
    table.add_column("outcome")
    table.add_column("answers", justify="right")
    table.add_column("share", justify="right")
    rows = [
        ("valid", outcomes.kept),
        ("valid after repair", outcomes.repaired),
        *((f"rejected: {reason}", count) for reason, count in outcomes.rejected.items()),
        ("failed, to be asked again", outcomes.failed),
        ("not asked yet", outcomes.missing),
    ]
    for name, count in rows:
        if count or name == "valid":
            table.add_row(name, str(count), f"{count / max(outcomes.wanted, 1):.1%}")
    return [table, _cost(manifest), *_mix(manifest.mix)]


def _cost(manifest: TeachManifest) -> Table:
    table = Table(show_header=False, title="What it took", title_justify="left")
    table.add_row("requests", str(manifest.requests))
    table.add_row("prompt tokens", str(manifest.prompt_tokens))
    table.add_row("completion tokens", str(manifest.completion_tokens))
    if manifest.cost:
        table.add_row("cost", manifest.cost)
    if manifest.events:
        table.add_row("last run", _counts(manifest.events))
    if manifest.models:
        table.add_row("models that answered", _counts(manifest.models))
    return table


def _mix(rows: Sequence[MixRow]) -> list[Table]:
    if not rows:
        return []
    table = Table(title="Mix of grown queries", title_justify="left")
    for column in ("", "", "wanted", "queries", "plans"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(row.what, row.name, _share(row.wanted), _share(row.queries), _share(row.plans))
    return [table]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
