"""The assistant's workers: the code fits the catalog that planners are trained for."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.compiled import compile_catalog
from plansmith.contract.errors import InputError
from plansmith.contract.execution import prepare_args
from plansmith.contract.plan import Json, Plan
from plansmith.contract.records import Candidate
from plansmith.contract.store import read_rows
from plansmith.serving.workers.base import CallInfo, WorkerError
from plansmith.serving.workers.decorator import worker
from plansmith.serving.workers.loading import load_registry
from plansmith.serving.workers.registry import Registry

FOLDER = Path(__file__).parents[2] / "examples" / "assistant"
CATALOG = Catalog.load(FOLDER / "catalog.json")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("PLANSMITH_ASSISTANT_STATE", str(tmp_path / "state.sqlite"))
    return load_registry(f"{FOLDER / 'workers.py'}:REGISTRY")


def call(registry: Registry, name: str, args: dict[str, Json], key: str | None = None) -> Any:
    one = registry.get(name)
    assert one is not None
    return asyncio.run(one.call(args, CallInfo("run", 0, idempotency_key=key)))


def test_the_code_stands_under_the_catalog_that_planners_are_trained_for(registry: Registry):
    assert registry.catalog.hash == CATALOG.hash


def test_every_handwritten_plan_runs_and_its_results_are_what_the_catalog_declares(registry: Registry):
    compiled, ran, codes = compile_catalog(CATALOG), 0, Counter[str]()
    for number, row in enumerate(read_rows(FOLDER / "handwritten.jsonl", Candidate)):
        context: list[Json] = []
        plan = Plan.from_json(row.plan)
        for index, step in enumerate(plan.steps):
            args = prepare_args(step, context, compiled[step.type])
            try:
                context.append(call(registry, step.type, args, key=f"{number}/{index}"))
            except WorkerError as error:
                codes[error.code] += 1
                break
            ran += 1
    assert ran > 50
    assert set(codes) <= {"NOT_FOUND", "AMOUNT_TOO_HIGH"}
    assert codes.total() < 20


def test_a_write_that_is_repeated_under_its_key_happens_once(registry: Registry):
    message = {"to": "Ana", "text": "on my way"}
    first = call(registry, "msg_send", message, key="a")
    assert call(registry, "msg_send", message, key="a") == first
    assert call(registry, "msg_send", message, key="b") != first


def test_an_event_that_was_added_is_listed(registry: Registry):
    call(registry, "cal_add_event", {"title": "lunch", "date": "Monday", "time": "noon"}, key="k")
    assert "noon: lunch" in call(registry, "cal_list_events", {"date": "Monday"})["events"]
    assert "noon: lunch" not in call(registry, "cal_list_events", {"date": "Friday"})["events"]


def test_an_unknown_stock_is_a_failure_in_words(registry: Registry):
    with pytest.raises(WorkerError, match="no quote of 'ACME' is recorded"):
        call(registry, "fin_get_quote", {"stock": "ACME"})


def entry(**properties: Any) -> Catalog:
    args = {"type": "object", "properties": properties, "required": []}
    return Catalog("c", [Worker(name="add", args=args)])


def add(left: int, right: int = 0) -> int:
    return left + right


@pytest.mark.parametrize(
    ("catalog", "words"),
    [
        (Catalog("c", [Worker(name="subtract", args={"type": "object"})]), "'subtract', but there is no code"),
        (entry(left={"type": "integer"}, third={"type": "integer"}), "does not take 'third' and needs 'left'"),
        (entry(left={"type": "integer"}), "needs 'left', which the entry leaves open"),
    ],
)
def test_code_that_does_not_fit_an_entry_is_refused(catalog: Catalog, words: str):
    with pytest.raises(InputError, match=words):
        Registry("r", [worker(add)]).under(catalog)
