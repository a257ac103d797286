"""Builds the report: all answers scored, by system and test part, with intervals, costs, comparisons and wrong items.

Reads run rows, the examples that they answer and the catalog; writes `report.json` and `report.md`. Same rows and same
seed give the same report. Every example is an item for every system: one without an answer is a miss. What the numbers
mean is written in `metrics.py` and `stats.py`; the tables are drawn in `render.py`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.findings import Severity
from plansmith.contract.plan import Plan
from plansmith.contract.records import Example, FinishReason, Run
from plansmith.contract.store import write_text
from plansmith.eval.metrics import Counts, FirstFault, ItemScore, score_item
from plansmith.eval.render import markdown, terminal_table
from plansmith.eval.results import (
    F1S,
    METRICS,
    OVERALL,
    RATES,
    SYSTEMS,
    Comparison,
    Cost,
    Failure,
    PartReport,
    Quantiles,
    Report,
    ReportMeta,
    SystemReport,
)
from plansmith.eval.run import Pair, latest_rows
from plansmith.eval.stats import Metric, micro_f1, paired_f1, paired_rate, quantile, rate

__all__ = [
    "Report",
    "ReportMeta",
    "build_report",
    "code_version",
    "machine_description",
    "markdown",
    "terminal_table",
    "write_report",
]

_COMPARED = (
    ("base/free", "tuned/free"),
    ("base/grammar", "tuned/grammar"),
    ("base/free", "base/grammar"),
    ("tuned/free", "tuned/grammar"),
)


class _Item(NamedTuple):
    """One example as one system answered it."""

    example: Example
    row: Run | None
    score: ItemScore


def build_report(runs: Sequence[Run], examples: Sequence[Example], catalog: Catalog, *, meta: ReportMeta) -> Report:
    """Score every answer.

    Args:
        runs: rows of all systems; of several rows for one item the last answer counts.
        examples: the test items, all of which are in the denominators.
        catalog: the workers that may be called.
        meta: where the numbers come from; gives the seed of the bootstrap.

    """
    rows = latest_rows(runs)
    ids = {example.id for example in examples}
    names = _in_order([system for system, _ in rows])
    items = {name: [_item(example, name, rows, catalog) for example in examples] for name in names}
    return Report(
        meta=meta,
        catalog_name=catalog.name,
        catalog_hash=catalog.hash,
        examples_hash=_examples_hash(examples),
        items=len(examples),
        parts=tuple(dict.fromkeys(example.part for example in examples)),
        systems=tuple(_system(name, items[name], catalog, meta) for name in names),
        comparisons=tuple(
            comparison
            for first, second in _COMPARED
            if first in items and second in items and examples
            for comparison in _compare(first, second, items[first], items[second], meta)
        ),
        other_runs=sum(item not in ids for _, item in rows),
    )


def write_report(report: Report, folder: str | Path) -> tuple[Path, Path]:
    """Write `report.json` and `report.md`, each replaced as a whole, and return their paths.

    Raises:
        StorageError: one of them could not be written; the earlier file is kept.

    """
    paths = Path(folder) / "report.json", Path(folder) / "report.md"
    write_text(paths[0], report.model_dump_json(indent=1) + "\n")
    write_text(paths[1], markdown(report))
    return paths


def _in_order(names: Sequence[str]) -> list[str]:
    """The names once each, known systems first."""
    unique = list(dict.fromkeys(names))
    return [name for name in SYSTEMS if name in unique] + [name for name in unique if name not in SYSTEMS]


def _item(example: Example, system: str, rows: dict[Pair, Run], catalog: Catalog) -> _Item:
    row = rows.get((system, example.id))
    text = row.text if row is not None and row.finish_reason is not FinishReason.ERROR else None
    return _Item(example, row, score_item(text, [example.plan], catalog))


def _system(name: str, items: Sequence[_Item], catalog: Catalog, meta: ReportMeta) -> SystemReport:
    by_part: dict[str, list[_Item]] = {}
    for item in items:
        by_part.setdefault(item.example.part, []).append(item)
    parts = {part: _part(part, members, meta) for part, members in by_part.items()}
    wrong = [item for item in items if item.score.fault is not FirstFault.RIGHT]
    return SystemReport(
        system=name,
        parts=parts | {OVERALL: _part(OVERALL, items, meta)},
        wrong=len(wrong),
        failures=tuple(_failure(item, catalog) for item in wrong[: meta.failures]),
    )


def _part(part: str, items: Sequence[_Item], meta: ReportMeta) -> PartReport:
    rows = [item.row for item in items if item.row is not None]
    faults = Counter(item.score.fault for item in items)
    return PartReport(
        part=part,
        items=len(items),
        missing=len(items) - len(rows),
        failed=sum(row.finish_reason is FinishReason.ERROR for row in rows),
        cut=sum(row.finish_reason is FinishReason.LENGTH for row in rows),
        metrics=metrics_of([item.score for item in items], seed=meta.seed, resamples=meta.resamples),
        first_faults={fault: faults[fault] for fault in FirstFault},
        cost=_cost(rows),
    )


def metrics_of(scores: Sequence[ItemScore], *, seed: int, resamples: int = 2000) -> dict[str, Metric]:
    """All metrics over items, by name."""
    rates = {name: rate([getattr(score, name) for score in scores]) for name in RATES}
    workers = micro_f1([score.worker for score in scores], seed=seed, resamples=resamples)
    arguments = micro_f1([score.argument for score in scores], seed=seed, resamples=resamples)
    return rates | dict(zip(F1S, (workers, arguments), strict=True))


def _cost(rows: Sequence[Run]) -> Cost:
    seconds = sum(row.seconds for row in rows)
    tokens = sum(row.completion_tokens for row in rows)
    return Cost(
        requests=len(rows),
        prompt_tokens=_quantiles([row.prompt_tokens for row in rows]),
        completion_tokens=_quantiles([row.completion_tokens for row in rows]),
        seconds=_quantiles([row.seconds for row in rows]),
        completion_tokens_per_second=tokens / seconds if seconds > 0 else None,
    )


def _quantiles(values: Sequence[float]) -> Quantiles:
    return Quantiles(total=sum(values), p50=quantile(values, 0.5), p95=quantile(values, 0.95))


def _failure(item: _Item, catalog: Catalog) -> Failure:
    text = item.row.text if item.row is not None else ""
    return Failure(
        id=item.example.id,
        part=item.example.part,
        query=item.example.query,
        reference=Plan.from_json(item.example.plan).canonical(catalog),
        candidate=text,
        fault=item.score.fault or FirstFault.UNPARSEABLE,
        finding=_finding(item.row, catalog),
    )


def _finding(row: Run | None, catalog: Catalog) -> str | None:
    if row is None:
        return "there is no row for this item"
    if row.finish_reason is FinishReason.ERROR:
        return f"the request failed: {row.error}"
    errors = [f for f in check_plan(row.text, catalog).findings if f.severity is Severity.ERROR]
    cut = "; the token limit cut the text" if row.finish_reason is FinishReason.LENGTH else ""
    return f"{errors[0].fault.value}: {errors[0].message}{cut}" if errors else cut.lstrip("; ") or None


def _compare(
    first: str, second: str, left: Sequence[_Item], right: Sequence[_Item], meta: ReportMeta
) -> list[Comparison]:
    found: list[Comparison] = []
    for metric in METRICS:
        if metric in RATES:
            pair = ([bool(getattr(item.score, metric)) for item in items] for items in (left, right))
            result = paired_rate(*pair, seed=meta.seed, resamples=meta.resamples)
        else:
            result = paired_f1(_counts(left, metric), _counts(right, metric), seed=meta.seed, resamples=meta.resamples)
        found.append(
            Comparison(
                first=first,
                second=second,
                metric=metric,
                items=len(left),
                difference=result.difference,
                low=result.low,
                high=result.high,
                p_value=result.p_value,
                only_first=result.only_base,
                only_second=result.only_tuned,
            )
        )
    return found


def _counts(items: Sequence[_Item], metric: str) -> list[Counts]:
    counts = [item.score.worker if metric == "worker_f1" else item.score.argument for item in items]
    return [count for count in counts if count is not None]


def _examples_hash(examples: Sequence[Example]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        digest.update((example.model_dump_json() + "\n").encode())
    return digest.hexdigest()


def code_version() -> str:
    """Version of the package, and the commit of the checkout where it runs from one (`+` for changed files)."""
    here = Path(__file__).resolve().parent
    if not (here.parent / "pyproject.toml").exists():  # installed: a repository around it would be somebody else's
        return _version("plansmith")
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return _version("plansmith")
    return f"{_version('plansmith')} ({found.stdout.strip()})"


def machine_description(*, accelerator: str | None = None) -> str:
    """Processor, cores, memory, accelerator as the caller names it, system, and versions of what computes."""
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers", "llguidance"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {accelerator or 'no accelerator'}, "
        f"{platform.system()}, Python {platform.python_version()}, {packages}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
