"""A catalog and short ways to write plans that the tests of the metrics share."""

from __future__ import annotations

import json
from typing import Any

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.plan import Plan
from plansmith.eval.metrics import ItemScore, score_item
from plansmith.eval.reading import PlanView

Steps = list[dict[str, Any]]

CATALOG = Catalog(
    "cases",
    [
        Worker(name="find", args={"type": "object", "properties": {"name": {"type": "string"}, "limit": {}}}),
        Worker(
            name="mail",
            args={
                "type": "object",
                "properties": {
                    "to": {"type": "array", "items": {"type": "string"}},
                    "body": {"type": "string"},
                    "tone": {"enum": ["kind", "very formal"]},
                    "format": {"const": "text/plain"},
                    "sender": {"type": "string", "default": "desk@example.org"},
                    "options": {"type": "object", "properties": {"colour": {"enum": ["teal"]}, "note": {}}},
                },
            },
        ),
        Worker(name="now", args={"type": "object", "properties": {}}),
        Worker(name="book", args={"type": "object", "properties": {"id": {}, "extras": {}}}),
    ],
)

GARBAGE = [
    "",
    "I cannot help",
    "null",
    "{}",
    '{"type":"now","args":{}}',
    "[",
    '[{"type":"now"',
    "[NaN]",
    "[] []",
    "'[]'",
]


def step(worker: str, after: list[int] | None = None, **args: Any) -> dict[str, Any]:
    return {"type": worker, "args": args} | ({"after": after} if after else {})


def ref(pointer: str) -> dict[str, str]:
    return {"$from": pointer}


def score(candidate: Any, *references: Steps, **more: Any) -> ItemScore:
    return score_item(candidate, references, CATALOG, **more)


def view(steps: Steps) -> PlanView:
    return PlanView(Plan.from_json(steps), CATALOG)


def text(steps: Steps) -> str:
    return json.dumps(steps)
