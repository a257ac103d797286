"""A small catalog, examples and scripted planners that the tests of evaluation share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.check import check_plan
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import ServiceError
from plansmith.contract.records import Example, FinishReason, Run, Split

CATALOG = Catalog(
    "small",
    [
        Worker(name="quote", args={"type": "object", "properties": {"symbol": {"type": "string"}}}),
        Worker(name="now", args={"type": "object", "properties": {}}),
    ],
)


def plan_of(index: int) -> list[dict[str, Any]]:
    return [{"type": "quote", "args": {"symbol": f"S{index}"}}]


def example(index: int, part: str = "seen") -> Example:
    return Example(
        id=f"item-{index}",
        query=f"price of S{index} | now",
        plan=plan_of(index),
        family="f",
        source="s",
        split=Split.TEST,
        part=part,
    )


EXAMPLES = [example(i, "seen" if i < 4 else "handwritten") for i in range(6)]
RIGHT = {e.query: json.dumps(e.plan) for e in EXAMPLES}


def draft(query: str, text: str, *, error: str | None = None) -> Draft:
    reason = FinishReason.ERROR if error else FinishReason.STOP
    return Draft(query, text, check_plan(text, CATALOG), 50, 20, 0.5, reason, error)


class Batching:
    """Answers from a script, many at once; keeps what it was asked."""

    def __init__(self, answers: Mapping[str, str], *, stop_at: int | None = None) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []
        self.stop_at = stop_at

    def plan_batch(self, queries: Sequence[str], catalog: Catalog, *, constrained: bool) -> list[Draft]:
        if self.stop_at == len(self.asked):
            raise KeyboardInterrupt
        self.asked.append(list(queries))
        return [draft(query, self.answers.get(query, "[]")) for query in queries]


class OneByOne:
    """Answers from a script, one query a call; queries in `down` find no service."""

    def __init__(self, answers: Mapping[str, str], *, down: Sequence[str] = ()) -> None:
        self.answers = answers
        self.down = set(down)
        self.asked: list[str] = []
        self.under_way = 0
        self.most_under_way = 0

    async def plan(self, query: str, catalog: Catalog, *, constrained: bool = True) -> Draft:
        self.asked.append(query)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0.001)
        finally:
            self.under_way -= 1
        if query in self.down:
            raise ServiceError("no planner at port 1")
        return draft(query, self.answers.get(query, "[]"))


def run(item: Example, system: str, text: str, *, error: str | None = None, **more: Any) -> Run:
    reason = FinishReason.ERROR if error else FinishReason.STOP
    values: dict[str, Any] = {"prompt_tokens": 50, "completion_tokens": 20, "seconds": 0.5, "finish_reason": reason}
    return Run(id=item.id, part=item.part, system=system, query=item.query, text=text, error=error, **(values | more))
