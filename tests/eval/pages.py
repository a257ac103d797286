"""A small evaluation with every kind of fault, hostile texts among them, from which the tests make pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.records import Example, FinishReason, Run, Split
from plansmith.eval.items import PlannerKind, ScoredItem, SystemInfo
from plansmith.eval.metrics import FirstFault
from plansmith.eval.report import build_report
from plansmith.eval.results import Report, ReportMeta
from plansmith.eval.scoring import score_runs
from plansmith.eval.suites import Suite

SCRIPT = "<script>window.pwned = 1</script>"
IMAGE = "</script><img src=x onerror='window.pwned = 2'>"
OVERRIDE = "abc \u202edlrow\u2069 \u0000 \u2028 end"
HUGE = "[" + '{"type":"quote","args":{"symbol":"' + "y" * (256 * 1024 - 40) + '"}}]'


def _worker(name: str, args: dict[str, str], returns: dict[str, str], description: str = "") -> Worker:
    properties = {key: {"type": kind} for key, kind in args.items()}
    result = {"type": "object", "properties": {key: {"type": kind} for key, kind in returns.items()}}
    return Worker(name=name, description=description, args={"type": "object", "properties": properties}, returns=result)


def _catalog(name: str, prefix: str = "") -> Catalog:
    return Catalog(
        name,
        [
            _worker(prefix + "quote", {"symbol": "string"}, {"price": "number", "currency": "string"}, "A price."),
            _worker(
                prefix + "convert", {"amount": "number", "source": "string", "target": "string"}, {"amount": "number"}
            ),
            _worker(prefix + "send", {"to": "string", "text": "string"}, {}, SCRIPT),
        ],
    )


CATALOG = _catalog("shop <b>")
RENAMED = _catalog("shop renamed", "x_")


def quote(symbol: str, prefix: str = "") -> dict[str, Any]:
    return {"type": prefix + "quote", "args": {"symbol": symbol}}


def chain(symbol: str, target: str, prefix: str = "") -> list[dict[str, Any]]:
    """A price, converted, then sent once something else is done."""
    return [
        quote(symbol, prefix),
        {
            "type": prefix + "convert",
            "args": {"amount": {"$from": "/0/price"}, "source": {"$from": "/0/currency"}, "target": target},
        },
        quote("Z", prefix),
        {
            "type": prefix + "send",
            "args": {"to": "Ann", "text": {"$format": "{0} <b>", "with": [{"$from": "/1/amount"}]}},
            "after": [2],
        },
    ]


def example(index: int, query: str, plan: list[dict[str, Any]], part: str = "seen") -> Example:
    return Example(id=f"item-{index}", query=query, plan=plan, family="f", source="s", split=Split.TEST, part=part)


EXAMPLES = (
    example(0, "price of A, sent in EUR", chain("A", "EUR")),
    example(1, f"hostile {SCRIPT} {IMAGE}", [quote("A")]),
    example(2, f"turned {OVERRIDE}", [quote("B")]),
    example(3, "a very long answer", [quote("C")]),
    example(4, "price of D in CHF", chain("D", "CHF")[:2], "unseen"),
    example(5, "nothing to do", [], "unseen"),
    example(6, "price of E", [quote("E")], "unseen"),
    example(7, "price of F", [quote("F")], "unseen"),
    example(8, "price of G and H", [quote("G"), quote("H")], "unseen"),
)
ANSWERS: dict[str, dict[int, str]] = {
    "small": {
        0: json.dumps([*chain("A", "USD")[:3], {"type": "sned", "args": {"to": "Ann"}}]),
        1: f"Sure: {IMAGE} {SCRIPT}",
        2: json.dumps([quote(f"B{OVERRIDE}")]),
        3: HUGE,
        4: json.dumps([quote("D"), {"type": "convert", "args": {"amount": {"$from": "/1/price"}, "target": "CHF"}}]),
        5: '[{"type":"quote","args":{"symbol":"Q","__proto__":1}}]',
        6: json.dumps([{"type": "send", "args": {"to": IMAGE, "text": "hi"}}]),
        7: "",
        8: json.dumps([quote("H")]),
    },
    "large": {index: json.dumps(item.plan) for index, item in enumerate(EXAMPLES)}
    | {4: json.dumps([*chain("D", "CHF")[:2], quote("D")])},
}
"""Of each system, by place among the examples; empty where the request failed."""


class Evaluation(NamedTuple):
    """A report, the items behind it and the catalogs."""

    report: Report
    items: list[ScoredItem]
    catalogs: dict[str, Catalog]


def run(item: Example, system: str, text: str, place: int) -> Run:
    failed = text == ""
    return Run(
        id=item.id,
        part=item.part,
        system=system,
        query=item.query,
        text=text,
        prompt_tokens=50 + place,
        completion_tokens=min(len(text), 500),
        seconds=0.5 + place * (3 if system == "large" else 1) / 7,
        finish_reason=FinishReason.ERROR if failed else FinishReason.STOP,
        error=f"no planner {IMAGE}" if failed else None,
    )


def info(system: str) -> SystemInfo:
    large = system == "large"
    return SystemInfo(
        system=system,
        kind=PlannerKind.OPENAI if large else PlannerKind.LOCAL,
        model=f"{system} model",
        model_bytes=8_000_000_000 if large else 500_000_000,
        peak_memory_bytes=16_000_000_000 if large else 2_000_000_000,
        constrained=not large,
        concurrency=4,
        answered=len(EXAMPLES),
        wall_seconds=20.0 if large else 4.0,
        price_prompt=1.0 if large else 0.1,
        price_completion=4.0 if large else 0.2,
    )


def evaluation(*, teacher: str | None = "large", variants: bool = True, name: str = "trial") -> Evaluation:
    """Both systems over all items, and over some of them with other worker names."""
    renamed = tuple(
        item.model_copy(update={"id": f"{item.id}@renamed", "part": "renamed", "plan": plan})
        for item, plan in ((EXAMPLES[0], chain("A", "EUR", "x_")), (EXAMPLES[6], [quote("E", "x_")]))
    )
    suites = [Suite("plain", CATALOG, EXAMPLES), *([Suite("renamed", RENAMED, renamed)] if variants else [])]
    runs = [
        run(item, system, answers[place], place)
        for system, answers in ANSWERS.items()
        for place, item in enumerate(EXAMPLES)
    ]
    if variants:
        runs += [run(item, "small", json.dumps([quote("E")]), 1) for item in renamed]
        runs += [run(item, "large", json.dumps(item.plan), 1) for item in renamed]
    scored = score_runs(runs, suites)
    meta = ReportMeta(name=name, seed=1, resamples=100, code_version="0.1.0", machine="a machine")
    infos = {system: info(system) for system in ANSWERS}
    report = build_report(scored.items, suites, meta=meta, systems=infos if teacher else None, teacher=teacher)
    return Evaluation(report, scored.items, {"plain": CATALOG, "renamed": RENAMED})


def many(count: int, systems: Sequence[str] = ("a", "b")) -> list[ScoredItem]:
    """Scored items of many ids: mostly right in `a`, mostly unparseable in `b`, every fault somewhere."""
    faults = list(FirstFault)
    plan = json.dumps([quote("A")], separators=(",", ":"))
    return [
        ScoredItem(
            system=system,
            id=f"n{index}",
            part="seen",
            query=f"query {index}",
            references=(plan,),
            candidate=plan,
            plan=plan,
            fault=faults[index % 997]
            if index % 997 < len(faults)
            else FirstFault.RIGHT
            if system == "a"
            else faults[0],
            finding=None,
            finish_reason=FinishReason.STOP,
            outcomes={},
            counts={},
        )
        for system in systems
        for index in range(count)
    ]
