"""The data card: a `README.md` that says what a data set holds, where it comes from, and what was left out.

Reads a manifest and the numbers of its rows; gives Markdown with the YAML front matter that model hubs and
`datasets.load_dataset` understand: `configs` name the files of each split and `dataset_info` the type of each column.
Texts from rows (sources, workers, reasons) are escaped. Not covered: prose about how the queries were written, which
only the author knows (`about` takes it).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from plansmith.contract.records import Example, Split
from plansmith.data.arrow import Column, FileFormat, columns
from plansmith.data.manifest import Manifest
from plansmith.data.stats import DataStats
from plansmith.data.stats_show import length_rows, part_rows, share

LICENCES = frozenset(
    {
        *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0"),
        *("cdla-permissive-2.0", "gpl-3.0", "isc", "mpl-2.0", "odc-by", "openrail", "unlicense"),
    }
)
"""Licences that the hubs know under these names; others stand there as `other` with their own name."""
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_LARGEST = "1M<n<10M"
MOST_WORKERS = 60


@dataclass(frozen=True, slots=True)
class CardFiles:
    """What lies beside the card."""

    splits: Mapping[Split, int]
    """Rows of each split that has any."""
    formats: Sequence[FileFormat]
    """The first one is what `load_dataset` reads from the folder; others are read from their own folders."""
    hashes: Mapping[str, str]
    """Sha256 of each file by its path from the card."""


@dataclass(frozen=True, slots=True)
class CardText:
    """What only the author knows."""

    name: str
    """Title of the card."""
    about: str = ""
    """Paragraphs in Markdown, put in as they are."""
    licences: Mapping[str, str] = field(default_factory=dict[str, str])
    """Licence by source, where a source has another one than the manifest says."""


def card(manifest: Manifest, stats: DataStats, files: CardFiles, text: CardText) -> str:
    """The whole `README.md`."""
    sections = [
        f"# {_plain(text.name)}",
        *([text.about.strip()] if text.about.strip() else []),
        _summary(manifest, stats),
        _sources(manifest, stats, text.licences),
        _reading(files),
        _mix(stats),
        _lengths(stats),
        _dropped(manifest, stats),
        _made(manifest, files),
    ]
    head = yaml.safe_dump(front_matter(manifest, stats, files, text), sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n\n" + "\n\n".join(sections) + "\n"


def front_matter(manifest: Manifest, stats: DataStats, files: CardFiles, text: CardText) -> dict[str, Any]:
    """The card's machine-readable head."""
    return {
        **_licence(_licences(manifest, stats, text.licences)),
        "pretty_name": _line(text.name),
        "task_categories": ["text-generation"],
        "tags": ["planning", "tool-use", "function-calling", "plansmith"],
        "size_categories": [next((name for most, name in _SIZES if stats.overall.rows < most), _LARGEST)],
        **_files_front(files.splits, files.formats[0], f"{files.formats[0].value}/"),
    }


def format_card(files: CardFiles, kind: FileFormat) -> str:
    """The short `README.md` in the folder of a format that is not the default, so that it can be loaded too."""
    head = yaml.safe_dump(_files_front(files.splits, kind, ""), sort_keys=False)
    return f"---\n{head}---\n\nThe rows as {kind.value}; the data card is in the folder above.\n"


def _files_front(splits: Iterable[Split], kind: FileFormat, folder: str) -> dict[str, Any]:
    """Which files each split has, and the type of each column, since empty columns would have none."""
    paths = [{"split": split.value, "path": f"{folder}{split.value}.{kind.value}"} for split in splits]
    features = [{"name": name, "dtype": column.value} for name, column in columns(Example).items()]
    return {
        "configs": [{"config_name": "default", "data_files": paths}],
        "dataset_info": [{"config_name": "default", "features": features}],
    }


def _licences(manifest: Manifest, stats: DataStats, by_source: Mapping[str, str]) -> list[str]:
    """Every licence of the rows, once each; an empty text is an unknown one."""
    return sorted({by_source.get(source, manifest.licence) for source in stats.sources})


def _licence(names: list[str]) -> dict[str, Any]:
    known = [name.lower() for name in names if name.lower() in LICENCES]
    if len(known) == len(names):
        return {"license": known[0] if len(known) == 1 else known}
    given = ", ".join(_line(name) or "not given" for name in names)
    return {"license": "other", "license_name": given}


def _summary(manifest: Manifest, stats: DataStats) -> str:
    overall = stats.overall
    return (
        f"{overall.rows} queries with their plans: which of {len(overall.workers)} workers to call, in which order, "
        f"with which arguments. {share(overall.abstentions, overall.rows)} of the plans are empty, because no worker "
        f"fits. {share(overall.with_references, overall.rows)} use an earlier step's result in a later one. "
        f"Catalog: `{_code(manifest.catalog_name)}`, hash `{manifest.catalog_hash}`."
    )


def _sources(manifest: Manifest, stats: DataStats, licences: Mapping[str, str]) -> str:
    rows = [
        (_plain(source), _plain(licences.get(source, manifest.licence)) or "not given", number)
        for source, number in stats.sources.items()
    ]
    return "## Sources\n\n" + _table(("source", "licence", "rows"), rows)


def _reading(files: CardFiles) -> str:
    kinds = columns(Example)
    as_json = ", ".join(f"`{name}`" for name, column in kinds.items() if column is Column.JSON)
    others = ", ".join(f"`{kind.value}/`" for kind in files.formats[1:])
    also = f" The same rows in another format can be loaded from {others}." if others else ""
    counts = _table(("split", "rows"), [(split.value, number) for split, number in files.splits.items()])
    return (
        "## Reading it\n\n"
        "    import json\n"
        "    from datasets import load_dataset\n\n"
        '    data = load_dataset("PATH OF THIS FOLDER")\n'
        f'    plan = json.loads(data["{next(iter(files.splits)).value}"][0]["plan"])\n\n'
        f"{as_json} hold JSON as text, since a column has one type and plans differ in theirs. "
        f"Other columns: {', '.join(f'`{name}`' for name, column in kinds.items() if column is not Column.JSON)}."
        f"{also}\n\n"
        f"{counts}"
    )


def _mix(stats: DataStats) -> str:
    overall = stats.overall
    parts = [
        (
            _plain(name),
            part.rows,
            part.families,
            part.calls,
            share(part.abstentions, part.rows),
            share(part.with_references, part.rows),
        )
        for name, part in part_rows(stats)
    ]
    steps = [(steps, number, share(number, overall.rows)) for steps, number in overall.steps.items()]
    shown = list(overall.workers.items())[:MOST_WORKERS]
    workers = [(f"`{_code(name)}`", number, share(number, overall.calls)) for name, number in shown]
    left = len(overall.workers) - len(shown)
    more = f"\n\n{left} more workers are called less often." if left else ""
    return (
        "## What is in it\n\n"
        + _table(("part", "rows", "families", "calls", "no worker fits", "with references"), parts)
        + "\n\n### Steps of a plan\n\n"
        + _table(("steps", "rows", "share"), steps)
        + "\n\n### Workers\n\n"
        + _table(("worker", "calls", "share"), workers)
        + more
    )


def _lengths(stats: DataStats) -> str:
    rows = [
        (name, f"{spread.mean:.1f}", spread.min, spread.p50, spread.p95, spread.max)
        for name, spread in length_rows(stats)
    ]
    return "## Lengths\n\n" + _table(("of", "mean", "least", "median", "95%", "most"), rows)


def _dropped(manifest: Manifest, stats: DataStats) -> str:
    rows = [(_plain(reason), number, share(number, stats.read)) for reason, number in stats.rejects.items()]
    notes = [(_plain(what), number) for what, number in manifest.notes.items()]
    warnings = [(_plain(what), number) for what, number in manifest.warnings.items()]
    dropped = sum(stats.rejects.values())
    lines = [f"## What was left out\n\nRows read: {stats.read}, dropped: {dropped}."]
    lines += [_table(("reason", "rows", "share"), rows)] if rows else []
    lines += ["Changed on the way:", _table(("what", "number"), notes)] if notes else []
    lines += ["Findings of kept plans that are no errors:", _table(("finding", "number"), warnings)] if warnings else []
    return "\n\n".join(lines)


def _made(manifest: Manifest, files: CardFiles) -> str:
    hashes = [(f"`{_code(path)}`", f"`{value}`") for path, value in files.hashes.items()]
    config = json.dumps(manifest.config, indent=1, ensure_ascii=False, sort_keys=True).replace("\n", "\n    ")
    return (
        f"## How it was made\n\nBy plansmith, seed {manifest.seed}; the same inputs have the hash `{manifest.inputs}`. "
        f"The manifest names the hashes of the rows before they were written here.\n\n"
        f"{_table(('file', 'sha256'), hashes)}\n\nConfig:\n\n    {config}"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; columns whose first cell is a number stand at the right."""
    body = [list(row) for row in rows]
    numeric = [bool(body) and _is_number(body[0][at]) for at in range(len(head))]
    rule = [" ---: " if right else " --- " for right in numeric]
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(rule)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in body)])


def _is_number(cell: object) -> bool:
    return isinstance(cell, int) or (isinstance(cell, str) and cell.rstrip("%").replace(".", "", 1).isdigit())


def _plain(text: str) -> str:
    """Text that Markdown and HTML leave as it is, on one line."""
    for mark in ("\\", "|", "`", "*", "_", "[", "]", "#"):
        text = text.replace(mark, f"\\{mark}")
    return _line(text.replace("&", "&amp;").replace("<", "&lt;"))


def _code(text: str) -> str:
    """Text for a code span inside a table."""
    return _line(text.replace("`", "'").replace("|", "\\|"))


def _line(text: str) -> str:
    """Text on one line: a line of dashes would end the front matter."""
    return " ".join(text.split())
