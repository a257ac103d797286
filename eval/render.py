"""Draws a report: a table for the terminal (rich) and a Markdown page. Reads a `Report` only; computes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from plansmith.eval.metrics import FirstFault
from plansmith.eval.results import METRICS, OVERALL, Comparison, Cost, Failure, PartReport, Report, SystemReport
from plansmith.eval.stats import Metric

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN_CHARACTERS = 2000
"""Longest candidate written out in the Markdown page; the JSON has the whole."""
NOTE = (
    "95% intervals in percent: Wilson for rates, bootstrap over items for F1. All items are in the denominators; "
    "a missing, failed or unreadable answer is a miss."
)


def terminal_table(report: Report) -> Table:
    """Systems as rows, parts as groups, each value with its interval beneath it, in percent."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=0, caption=NOTE, caption_justify="left")
    table.add_column("system", overflow="fold", min_width=max([13, *(len(s.system) for s in report.systems)]))
    for name in METRICS:
        table.add_column(name.replace("_f1", "\nF1"), justify="right", no_wrap=True)
    for part in _groups(report):
        items = next((s.parts[part].items for s in report.systems if part in s.parts), 0)
        table.add_section()
        table.add_row(Text(f"{part}\n{items} items", style="bold"))
        for system in report.systems:
            cells = [_cell(system.parts[part].metrics[name]) for name in METRICS]
            table.add_row(Text(system.system), *[Text(cell) for cell in cells])
    return table


def _groups(report: Report) -> list[str]:
    """The parts, then all items where there is more than one part."""
    return [*report.parts, OVERALL] if len(report.parts) != 1 else list(report.parts)


def _cell(metric: Metric) -> str:
    if metric.value is None:
        return "-"
    return f"{100 * metric.value:.1f}\n{100 * metric.low:.0f}-{100 * metric.high:.0f}"


def markdown(report: Report) -> str:
    """The report as a Markdown page: results, first faults, comparisons, costs, provenance, wrong items."""
    blocks = [
        f"# {_plain(report.meta.name)}: evaluation",
        *_provenance(report),
        "## Results",
        f"{NOTE} In brackets: hits of scored items; for an F1 matched, superfluous and missed elements.",
        *_results(report),
        "## First faults",
        "Each item is in exactly one column. Checker faults come before differences from the reference.",
        *(_fault_table(report, part) for part in _groups(report)),
        "## Pair by pair",
        "Second system minus first on the same items, all parts together, in percentage points: paired bootstrap "
        "interval, items that only one of them has right, and McNemar's exact test. A difference counts as shown where "
        "the interval leaves out zero and the test, where there is one, has p below 0.05.",
        _comparison_table(report.comparisons),
        "## Cost",
        "Failed requests are inside. Seconds of a request include waiting in its batch; tokens a second are those that "
        "one request sees, not the machine's rate.",
        _cost_table(report),
        "## Wrong items",
        *(block for system in report.systems for block in _wrong(system)),
    ]
    return "\n\n".join(blocks) + "\n"


def _provenance(report: Report) -> Iterator[str]:
    meta = report.meta
    lines = [
        f"- catalog: {_plain(report.catalog_name)}, `{report.catalog_hash}`",
        f"- items: {report.items}, `{report.examples_hash}`",
        *(f"- {_plain(name)}: `{value}`" for name, value in meta.data_hashes.items()),
        *(
            f"- not asked because of the limit: {count} items of {_plain(part)}"
            for part, count in meta.left_out.items()
        ),
        f"- seed: {meta.seed}, {meta.resamples} resamples",
        f"- code: {_plain(meta.code_version)}",
        f"- machine: {_plain(meta.machine)}",
    ]
    lines += [f"- model: {_plain(meta.model)}"] if meta.model else []
    lines += [f"- command: `{meta.command}`"] if meta.command else []
    lines += [f"- rows of other items, left aside: {report.other_runs}"] if report.other_runs else []
    yield "\n".join(lines)


def _results(report: Report) -> Iterator[str]:
    for part in _groups(report):
        rows = [
            [system.system, *(_full(system.parts[part].metrics[name]) for name in METRICS)] for system in report.systems
        ]
        yield f"### {_plain(part)} ({_items(report, part)} items)"
        yield _table(["system", *METRICS], rows)
        yield from _troubles(report, part)


def _troubles(report: Report, part: str) -> Iterator[str]:
    """What did not go well with the requests, where anything did not."""
    for system in report.systems:
        numbers = system.parts[part]
        if numbers.missing or numbers.failed or numbers.cut:
            yield (
                f"{_plain(system.system)}: {numbers.missing} items without a row, {numbers.failed} failed requests, "
                f"{numbers.cut} answers cut by the token limit."
            )


def _items(report: Report, part: str) -> int:
    return next((system.parts[part].items for system in report.systems if part in system.parts), 0)


def _full(metric: Metric) -> str:
    if metric.value is None:
        return f"- ({metric.unscored} unscored)"
    share = f"{metric.hits}/{metric.scored}" if metric.tp is None else f"{metric.tp}, {metric.fp}, {metric.fn}"
    unscored = f", {metric.unscored} unscored" if metric.unscored else ""
    return f"{100 * metric.value:.1f} [{100 * metric.low:.1f}, {100 * metric.high:.1f}] ({share}{unscored})"


def _fault_table(report: Report, part: str) -> str:
    rows = [
        [system.system, *(str(system.parts[part].first_faults[fault]) for fault in FirstFault)]
        for system in report.systems
    ]
    return f"**{_plain(part)}**\n\n" + _table(["system", *(fault.value for fault in FirstFault)], rows)


def _comparison_table(comparisons: Sequence[Comparison]) -> str:
    if not comparisons:
        return "There are no two systems to compare."
    rows = [
        [
            f"{c.first} to {c.second}",
            c.metric,
            f"{100 * c.difference:+.1f} [{100 * c.low:+.1f}, {100 * c.high:+.1f}]",
            str(c.only_first),
            str(c.only_second),
            "-" if c.p_value is None else f"{c.p_value:.2g}",
            "yes" if c.shown else "no",
        ]
        for c in comparisons
    ]
    return _table(["systems", "metric", "difference", "only first", "only second", "p", "shown"], rows)


def _cost_table(report: Report) -> str:
    header = ["system", "requests", "prompt tokens p50", "p95", "completion tokens p50", "p95", "seconds p50", "p95"]
    rows = [_cost_row(system.system, system.parts[OVERALL]) for system in report.systems]
    return _table([*header, "completion tokens a second"], rows)


def _cost_row(name: str, part: PartReport) -> list[str]:
    cost: Cost = part.cost
    spreads = (cost.prompt_tokens, cost.completion_tokens, cost.seconds)
    numbers = [_number(value) for spread in spreads for value in (spread.p50, spread.p95)]
    return [name, str(cost.requests), *numbers, _number(cost.completion_tokens_per_second)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _wrong(system: SystemReport) -> Iterator[str]:
    total = system.parts[OVERALL].items
    shown = f", the first {len(system.failures)} of them here" if len(system.failures) < system.wrong else ""
    yield f"### {_plain(system.system)}: {system.wrong} of {total} wrong{shown}"
    for failure in system.failures:
        yield _failure(failure)


def _failure(failure: Failure) -> str:
    candidate = failure.candidate
    if len(candidate) > _SHOWN_CHARACTERS:
        candidate = candidate[:_SHOWN_CHARACTERS] + f"... ({len(failure.candidate)} characters in all)"
    finding = f" ({_plain(failure.finding)})" if failure.finding else ""
    lines = f"query:     {failure.query}\nreference: {failure.reference}\ncandidate: {candidate}"
    fence = "`" * (1 + max([2, *(len(run) for run in re.findall(r"`+", lines))]))
    title = f"**{_plain(failure.id)}** ({_plain(failure.part)}): {failure.fault.value}{finding}"
    return f"{title}\n\n{fence}text\n{lines}\n{fence}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
