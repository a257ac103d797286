"""Draws a report: a table for the terminal (rich) and a Markdown page. Reads a `Report` only; computes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from plansmith.eval.metrics import MAIN_METRICS, FirstFault
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
    for name in MAIN_METRICS:
        table.add_column(name.replace("_f1", "\nF1"), justify="right", no_wrap=True)
    for part in _groups(report):
        table.add_section()
        table.add_row(Text(f"{part}\n{_items(report, part)} items", style="bold"))
        for name, numbers in _asked(report, part):
            table.add_row(Text(name), *[Text(_cell(numbers.metrics[metric])) for metric in MAIN_METRICS])
    return table


def _groups(report: Report) -> list[str]:
    """The plain parts, all of them together where there is more than one, then the variants."""
    plain = report.suites[0].parts
    return [*plain, *([OVERALL] if len(plain) != 1 else []), *(part for part in report.parts if part not in plain)]


def _asked(report: Report, part: str) -> list[tuple[str, PartReport]]:
    """The systems that were asked a part."""
    return [(system.system, system.parts[part]) for system in report.systems if part in system.parts]


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
        *_teacher(report),
        "## Pair by pair",
        "Second system minus first on the same items, all plain parts together, in percentage points: paired bootstrap "
        "interval, items that only one of them has right, and McNemar's exact test. A difference counts as shown where "
        "the interval leaves out zero and the test, where there is one, has p below 0.05.",
        _comparison_table(report.comparisons),
        *_variants(report),
        "## Cost",
        "Over the plain parts; failed requests are inside. Seconds of a request include waiting in its batch; tokens a "
        "second are those that one request sees, not the machine's rate.",
        _cost_table(report),
        *_system_table(report),
        "## Wrong items",
        *(block for system in report.systems for block in _wrong(system)),
    ]
    return "\n\n".join(blocks) + "\n"


def _provenance(report: Report) -> Iterator[str]:
    meta = report.meta
    lines = [
        *(
            f"- {_plain(suite.name)}: {suite.items} items `{suite.examples_hash}`, catalog "
            f"{_plain(suite.catalog_name)} `{suite.catalog_hash}`, prompt `{suite.prompt_hash}`"
            for suite in report.suites
        ),
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
        asked = _asked(report, part)
        yield f"### {_plain(part)} ({_items(report, part)} items)"
        yield _metric_table(asked, MAIN_METRICS)
        further = [n for n in METRICS if n not in MAIN_METRICS and any(p.metrics[n].scored for _, p in asked)]
        if further:
            yield "Further metrics; lower is better for `repaired` and `abstained_wrong`:"
            yield _metric_table(asked, further)
        yield from _troubles(report, part)


def _metric_table(asked: Sequence[tuple[str, PartReport]], names: Sequence[str]) -> str:
    return _table(["system", *names], [[s, *(_full(numbers.metrics[n]) for n in names)] for s, numbers in asked])


def _troubles(report: Report, part: str) -> Iterator[str]:
    """What did not go well with the requests, where anything did not."""
    for name, numbers in _asked(report, part):
        if numbers.missing or numbers.failed or numbers.cut:
            yield (
                f"{_plain(name)}: {numbers.missing} items without a row, {numbers.failed} failed requests, "
                f"{numbers.cut} answers cut by the token limit."
            )


def _items(report: Report, part: str) -> int:
    return next((numbers.items for _, numbers in _asked(report, part)), 0)


def _full(metric: Metric) -> str:
    if metric.value is None:
        return f"- ({metric.unscored} unscored)"
    share = f"{metric.hits}/{metric.scored}" if metric.tp is None else f"{metric.tp}, {metric.fp}, {metric.fn}"
    unscored = f", {metric.unscored} unscored" if metric.unscored else ""
    return f"{100 * metric.value:.1f} [{100 * metric.low:.1f}, {100 * metric.high:.1f}] ({share}{unscored})"


def _fault_table(report: Report, part: str) -> str:
    rows = [
        [name, *(str(numbers.first_faults[fault]) for fault in FirstFault)] for name, numbers in _asked(report, part)
    ]
    return f"**{_plain(part)}**\n\n" + _table(["system", *(fault.value for fault in FirstFault)], rows)


def _teacher(report: Report) -> Iterator[str]:
    """Agreement and correctness side by side, then the headline."""
    if report.teacher is None:
        return
    table = report.teacher
    yield "## Teacher and students"
    yield (
        f"Teacher: {_plain(table.teacher)}. Correct: equivalent to the reference. Agreement: the student's plan is "
        "equivalent to the teacher's, right or wrong. "
        + (
            "The teacher was not sampled, so the ceiling of agreement is unknown."
            if table.sampled is None
            else f"Self-agreement: pairs of samples of {_plain(table.sampled)} at temperature {table.temperature}."
        )
    )
    rows = [
        [
            row.part,
            row.student,
            *map(_full, (row.teacher_correct, row.student_correct, row.agreement)),
            "-" if row.self_agreement is None else _full(row.self_agreement),
            str(row.teacher_unreadable),
        ]
        for row in table.rows
    ]
    header = ["part", "student", "teacher correct", "student correct", "agreement", "self-agreement of the teacher"]
    yield _table([*header, "teacher gave no plan"], rows)
    yield "**Headline**: student against teacher, over the plain parts, in this run on this machine."
    lines = [
        [
            line.student,
            str(line.items),
            f"{100 * line.difference:+.1f} [{100 * line.low:+.1f}, {100 * line.high:+.1f}] points",
            *(f"{value:.2f}x" if value is not None else "-" for value in (line.times_faster, line.latency_ratio)),
            *(f"{100 * value:.0f}%" if value is not None else "-" for value in (line.memory_saved, line.bytes_saved)),
        ]
        for line in report.headline
    ]
    header = ["student", "items", "accuracy (equivalent)", "plans a second", "latency p50", "peak memory saved"]
    yield _table([*header, "bytes of weights saved"], lines)


def _variants(report: Report) -> Iterator[str]:
    if not report.variants:
        return
    yield "## Variants of the catalog"
    yield "The same items under a variant minus the same items under the plain catalog, system by system."
    yield _comparison_table(report.variants)


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
    header = ["system", "requests"]
    header += [
        f"{what} {q}" for what in ("prompt tokens", "completion tokens", "seconds") for q in ("p50", "p95", "p99")
    ]
    rows = [_cost_row(name, numbers) for name, numbers in _asked(report, OVERALL)]
    currency = report.meta.currency
    return _table(
        [*header, "completion tokens a second", f"price, {currency}", f"price a solved query, {currency}"], rows
    )


def _cost_row(name: str, part: PartReport) -> list[str]:
    cost: Cost = part.cost
    spreads = (cost.prompt_tokens, cost.completion_tokens, cost.seconds)
    numbers = [_number(value) for spread in spreads for value in (spread.p50, spread.p95, spread.p99)]
    further = map(_number, (cost.completion_tokens_per_second, cost.price, cost.price_per_solved))
    return [name, str(cost.requests), *numbers, *further]


def _system_table(report: Report) -> Iterator[str]:
    """How each system was asked and what it took."""
    known = [(system, system.info) for system in report.systems if system.info is not None]
    if not known:
        return
    yield (
        "Plans a second are answers over the time of asking, at the stated concurrency; memory is the peak of the "
        "serving process (for a local system, of the whole process that also evaluates)."
    )
    header = ["system", "model", "decoding", "concurrency", "plans a second", "peak memory, GiB", "weights, MiB"]
    rows = [
        [
            system.system,
            _plain(info.model),
            ("plan grammar" if info.constrained else "free") + (f", T {info.temperature}" if info.temperature else ""),
            str(info.concurrency),
            _number(system.plans_per_second),
            _number(info.peak_memory_bytes and info.peak_memory_bytes / 2**30),
            _number(info.model_bytes and info.model_bytes / 2**20),
        ]
        for system, info in known
    ]
    yield _table(header, rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _wrong(system: SystemReport) -> Iterator[str]:
    total = sum(numbers.items for part, numbers in system.parts.items() if part != OVERALL)
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
