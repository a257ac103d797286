"""The page's plots as Vega-Lite specifications, made and checked by Altair; colours come from the page when it draws.

Reads a report and how long each request took; gives titled plots with one specification for each choice that the
reader has (which metric, which part, which cost). Quantiles are taken over all answers, embedded in the page or not.
Not covered: drawing (the page's script does it with the bundled Vega) and tables (the template).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from plansmith.eval.items import ScoredItem
from plansmith.eval.metrics import FirstFault
from plansmith.eval.results import OVERALL, Report, SystemReport

Spec = dict[str, Any]
Rows = list[dict[str, Any]]
_QUANTILES = tuple(step / 100 for step in range(101))
_MARKED = {0.5: "p50", 0.95: "p95", 0.99: "p99"}
_WIDE_RANGE = 20
"""A cost whose largest value is more than this many times its smallest is drawn on a logarithmic axis."""
TOGETHER = "all parts"
"""What the page calls all plain parts together."""
_ROW = 17
"""Pixels of a line in a plot that has a line for each system."""
_SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
_SECONDS, _COMPLETION, _PROMPT = "seconds a request", "completion tokens", "prompt tokens"


class Choice(NamedTuple):
    """One drawing of a plot."""

    label: str
    spec: Spec


class Plot(NamedTuple):
    """A plot with what the reader may choose in it."""

    id: str
    title: str
    note: str
    chooser: str
    """What is chosen, for the label of the control."""
    choices: list[Choice]


Measures = dict[str, dict[str, list[float]]]
"""Measure to system to the values of its requests."""


def measures(items: Iterable[ScoredItem]) -> Measures:
    """Seconds and tokens of every answer that was asked for."""
    found: Measures = {_SECONDS: {}, _COMPLETION: {}, _PROMPT: {}}
    for item in items:
        if item.sample == 0 and item.finish_reason is not None:
            found[_SECONDS].setdefault(item.system, []).append(item.seconds)
            found[_COMPLETION].setdefault(item.system, []).append(item.completion_tokens)
            found[_PROMPT].setdefault(item.system, []).append(item.prompt_tokens)
    return found


def plots(report: Report, found: Measures, metric_order: Sequence[str]) -> list[Plot]:
    """The plots that have something to show."""
    drawn = [_accuracy(report, metric_order), _faults(report), _latency(report, found), _cost(report)]
    return [plot for plot in drawn if plot.choices]


def parts_of(report: Report) -> list[str]:
    """All plain items together where there are several parts, the plain parts, then the variants'."""
    plain = report.suites[0].parts if report.suites else ()
    together = [OVERALL] if len(plain) != 1 else []
    return [*together, *plain, *(part for part in report.parts if part not in plain)]


def _alt() -> Any:
    return import_module("altair")  # imported when a page is made: it takes a second


def _systems(report: Report) -> list[str]:
    return [system.system for system in report.systems]


def _colour(report: Report) -> Any:
    alt = _alt()
    scale = alt.Scale(domain=_systems(report), range="category")
    return alt.Color("system:N", scale=scale, legend=alt.Legend(title=None, symbolOpacity=1))


def _shape(report: Report) -> Any:
    """A shape for each system, so that colour is not all that tells them apart."""
    alt = _alt()
    shapes = [_SHAPES[place % len(_SHAPES)] for place in range(len(report.systems))]
    scale = alt.Scale(domain=_systems(report), range=shapes)
    return alt.Shape("system:N", scale=scale, legend=alt.Legend(title=None, symbolOpacity=1))


def _name(part: str) -> str:
    return TOGETHER if part == OVERALL else part


def _share_axis(title: str) -> Any:
    return _alt().Axis(format="%", title=title, tickCount=5)


def _spec(chart: Any, rows: Rows, description: str) -> Spec:
    """The specification with its data; without Altair's own configuration, because the page has one for each theme."""
    spec: Spec = chart.properties(width="container", description=description).to_dict()
    for key in ("$schema", "config", "datasets"):
        spec.pop(key, None)
    return spec | {"data": {"values": rows}}


def _data() -> Any:
    return _alt().Data(values=[])


def _accuracy(report: Report, metric_order: Sequence[str]) -> Plot:
    choices: list[Choice] = []
    for metric in metric_order:
        rows = [
            {
                "part": _name(part),
                "system": system.system,
                "value": found.value,
                "low": found.low,
                "high": found.high,
                "items": found.scored,
            }
            for part in parts_of(report)
            for system in report.systems
            if part in system.parts and (found := system.parts[part].metrics.get(metric)) and found.value is not None
        ]
        if rows:
            choices.append(Choice(metric, _accuracy_spec(report, metric, rows)))
    note = "Points are values, bars 95% intervals over the items of the part."
    return Plot("accuracy", "Accuracy by part", note, "Metric", choices)


def _accuracy_spec(report: Report, metric: str, rows: Rows) -> Spec:
    alt = _alt()
    names = list(map(_name, parts_of(report)))
    base = alt.Chart(_data()).encode(
        y=alt.Y("part:N", sort=names, title=None, axis=alt.Axis(domain=False, ticks=False)),
        yOffset=alt.YOffset("system:N", sort=_systems(report), scale=alt.Scale(paddingOuter=0.5)),
        color=_colour(report),
        tooltip=[
            alt.Tooltip("system:N"),
            alt.Tooltip("part:N"),
            alt.Tooltip("value:Q", format=".1%"),
            alt.Tooltip("low:Q", format=".1%", title="95% from"),
            alt.Tooltip("high:Q", format=".1%", title="to"),
            alt.Tooltip("items:Q"),
        ],
    )
    interval = base.mark_rule(strokeWidth=2, opacity=0.55, strokeCap="round").encode(
        x=alt.X("low:Q", scale=alt.Scale(domain=[0, 1]), axis=_share_axis(metric)), x2="high:Q"
    )
    point = base.mark_point(filled=True, size=70, opacity=1).encode(x="value:Q", shape=_shape(report))
    chart = alt.layer(interval, point).properties(height=_ROW * len(names) * (len(report.systems) + 1))
    return _spec(chart, rows, f"{metric} of every system on every part, with 95% intervals")


def _faults(report: Report) -> Plot:
    choices: list[Choice] = []
    for part in parts_of(report):
        rows = [
            {
                "system": system.system,
                "fault": fault.value,
                "rank": rank,
                "items": count,
                "share": count / system.parts[part].items,
            }
            for system in report.systems
            if part in system.parts and system.parts[part].items
            for rank, fault in enumerate(_fault_order())
            if (count := system.parts[part].first_faults.get(fault, 0))
        ]
        if rows:
            choices.append(Choice(_name(part), _fault_spec(report, rows)))
    return Plot("faults", "First faults", "Each answer is counted once, by the first thing wrong.", "Part", choices)


def _fault_order() -> list[FirstFault]:
    return [FirstFault.RIGHT, *(fault for fault in FirstFault if fault is not FirstFault.RIGHT)]


def _fault_spec(report: Report, rows: Rows) -> Spec:
    alt = _alt()
    scale = alt.Scale(domain=[fault.value for fault in _fault_order()], range="ordinal")
    chart = (
        alt.Chart(_data())
        .mark_bar(height=18)
        .encode(
            x=alt.X("share:Q", stack="zero", scale=alt.Scale(domain=[0, 1]), axis=_share_axis("answers")),
            y=alt.Y("system:N", sort=_systems(report), title=None, axis=alt.Axis(domain=False, ticks=False)),
            color=alt.Color("fault:N", scale=scale, legend=alt.Legend(title=None)),
            order=alt.Order("rank:Q"),
            tooltip=[
                alt.Tooltip("system:N"),
                alt.Tooltip("fault:N", title="first fault"),
                alt.Tooltip("items:Q"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
        .properties(height=2 * _ROW * len({row["system"] for row in rows}))
    )
    return _spec(chart, rows, "share of answers by first fault, for every system")


def _latency(report: Report, found: Measures) -> Plot:
    choices: list[Choice] = []
    for measure, systems in found.items():
        values = {name: systems[name] for name in _systems(report) if systems.get(name)}
        if any(any(numbers) for numbers in values.values()):
            choices.append(Choice(measure, _latency_spec(report, measure, values)))
    note = "Share of requests done within the value; the circle is p50, the square p95, the triangle p99."
    return Plot("latency", "Latency and tokens", note, "Measure", choices)


def _latency_spec(report: Report, measure: str, values: Mapping[str, Sequence[float]]) -> Spec:
    import numpy as np

    alt = _alt()
    rows: Rows = []
    for system, numbers in values.items():
        cuts = np.quantile(np.asarray(numbers, dtype=float), _QUANTILES).tolist()
        for share, value in zip(_QUANTILES, cuts, strict=True):
            mark = {"mark": _MARKED[share]} if share in _MARKED else {}
            rows.append({"system": system, "value": float(f"{value:.5g}"), "share": share, **mark})
    x = alt.X("value:Q", title=measure, scale=_scale([row["value"] for row in rows]), axis=_cost_axis())
    base = alt.Chart(_data()).encode(x=x, color=_colour(report))
    y = alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]), axis=_share_axis("requests"))
    line = base.mark_line(strokeWidth=2, interpolate="monotone", clip=True).encode(y=y)
    tooltip = [
        alt.Tooltip("system:N"),
        alt.Tooltip("mark:N", title="quantile"),
        alt.Tooltip("value:Q", title=measure, format=",.4~g"),
    ]
    shape = alt.Shape(
        "mark:N",
        scale=alt.Scale(domain=list(_MARKED.values()), range=["circle", "square", "triangle-up"]),
        legend=None,
    )
    points = (
        base.transform_filter("isValid(datum.mark)")
        .mark_point(filled=True, size=70, opacity=1)
        .encode(y=y, shape=shape, tooltip=tooltip)
    )
    chart = alt.layer(line, points).properties(height=240)
    return _spec(chart, rows, f"distribution of {measure} for every system")


def _scale(values: Sequence[float]) -> Any:
    low, high = min(values), max(values)
    if low > 0 and high / low > _WIDE_RANGE:
        return _alt().Scale(type="log", nice=False, padding=12)
    return _alt().Scale(zero=True, nice=True)


def _cost_axis() -> Any:
    return _alt().Axis(format="~s", tickCount=5)


def _cost(report: Report) -> Plot:
    whole = {system.system: system.parts[OVERALL] for system in report.systems if OVERALL in system.parts}
    costs = {system.system: system_costs(system) for system in report.systems if system.system in whole}
    names = dict.fromkeys(name for values in costs.values() for name in values)
    choices: list[Choice] = []
    for name in names:
        rows = [
            {"system": system, "cost": value, "value": right.value, "low": right.low, "high": right.high}
            for system, part in whole.items()
            if (value := costs[system].get(name)) is not None
            and (right := part.metrics.get("equivalent"))
            and right.value is not None
        ]
        if rows:
            choices.append(Choice(name, _cost_spec(report, name, rows)))
    note = "Up and to the left is better. Bars are 95% intervals over all plain items."
    return Plot("cost", "Accuracy against cost", note, "Cost", choices)


def system_costs(system: SystemReport) -> dict[str, float | None]:
    """What a system costs over the plain items, by name, where it is known."""
    cost, info = system.parts[OVERALL].cost, system.info
    tokens = cost.prompt_tokens.total + cost.completion_tokens.total
    requests = cost.requests or 1
    return {
        "seconds a request (median)": cost.seconds.p50,
        "completion tokens a request (mean)": cost.completion_tokens.total / requests,
        "tokens a request (mean)": tokens / requests,
        "price of a solved query": cost.price_per_solved,
        "peak memory (bytes)": info.peak_memory_bytes if info is not None else None,
        "model (bytes)": info.model_bytes if info is not None else None,
    }


def _cost_spec(report: Report, name: str, rows: Rows) -> Spec:
    alt = _alt()
    x = alt.X("cost:Q", title=name, scale=_scale([row["cost"] for row in rows]), axis=_cost_axis())
    base = alt.Chart(_data()).encode(
        x=x,
        color=_colour(report),
        tooltip=[
            alt.Tooltip("system:N"),
            alt.Tooltip("cost:Q", title=name, format=",.4~g"),
            alt.Tooltip("value:Q", title="equivalent", format=".1%"),
            alt.Tooltip("low:Q", format=".1%", title="95% from"),
            alt.Tooltip("high:Q", format=".1%", title="to"),
        ],
    )
    y = alt.Y("low:Q", scale=alt.Scale(domain=[0, 1]), axis=_share_axis("equivalent"))
    interval = base.mark_rule(strokeWidth=2, opacity=0.55).encode(y=y, y2="high:Q")
    point = base.mark_point(filled=True, size=90, opacity=1).encode(y="value:Q", shape=_shape(report))
    chart = alt.layer(interval, point).properties(height=240)
    return _spec(chart, rows, f"share of equivalent plans against {name}, for every system")
