"""`plansmith run`: plans of the examples, permissions, a person's word, resume, replay."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from plansmith.cli import main
from plansmith.contract.catalog import Catalog
from plansmith.contract.plan import Plan
from plansmith.contract.replay import RecordedCall
from plansmith.serving.workers.loading import load_registry
from plansmith.serving.workers.replayed import replay_registry
from tests.serving.openai_server import OpenAIServer, completion

EXAMPLES = Path(__file__).parent.parent / "examples"
WAREHOUSE = f"{EXAMPLES / 'warehouse' / 'workers.py'}:REGISTRY"
REORDER = str(EXAMPLES / "warehouse" / "reorder.json")
ALLOWED = ["--allow", "purchasing", "--allow", "notes"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANSMITH_WAREHOUSE", str(tmp_path / "warehouse.sqlite"))
    monkeypatch.setenv("PLANSMITH_ASSISTANT_STATE", str(tmp_path / "assistant.sqlite"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """Exit code, what standard output holds as JSON, and standard error."""
    code = main(["run", *arguments])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out.startswith("{") else shown.out, shown.err


def orders() -> list[tuple[str, int]]:
    connection = sqlite3.connect("warehouse.sqlite")
    found = connection.execute("SELECT sku, count FROM orders").fetchall()
    connection.close()
    return found


def test_a_plan_whose_permissions_are_not_granted_runs_nothing(capsys: pytest.CaptureFixture[str]):
    code, results, said = run(capsys, "--plan", REORDER, "--workers", WAREHOUSE)
    assert (code, results) == (1, {})
    assert "'stock_reorder' needs the permission 'purchasing'" in said
    assert not Path("warehouse.sqlite").exists()


def test_a_write_waits_for_a_person_and_happens_once_however_often_it_is_resumed(capsys: pytest.CaptureFixture[str]):
    code, results, said = run(capsys, "--plan", REORDER, "--workers", WAREHOUSE, *ALLOWED)
    assert (code, set(results)) == (1, {"0", "1"})
    assert orders() == []
    name = said.partition("--resume ")[2].split()[0]
    resume = ["--resume", name, "--workers", WAREHOUSE, *ALLOWED]
    code, results, _ = run(capsys, *resume, "--approve", "2")
    assert (code, results["2"]) == (0, {"order_id": "PO-1", "count": 21})
    assert results["3"] == "noted at C-300"
    for _ in range(2):
        assert run(capsys, *resume)[1] == results
    assert orders() == [("C-300", 21)]


def test_a_person_who_refuses_ends_the_run_without_the_write(capsys: pytest.CaptureFixture[str]):
    said = run(capsys, "--plan", REORDER, "--workers", WAREHOUSE, *ALLOWED)[2]
    name = said.partition("--resume ")[2].split()[0]
    code, results, said = run(capsys, "--resume", name, "--workers", WAREHOUSE, *ALLOWED, "--deny", "2")
    assert (code, set(results)) == (1, {"0", "1"})
    assert "a person refused" in said
    assert orders() == []


def test_json_is_the_whole_run(capsys: pytest.CaptureFixture[str]):
    code, result, said = run(capsys, "--plan", REORDER, "--workers", WAREHOUSE, *ALLOWED, "--yes", "--json")
    assert (code, result["status"], said) == (0, "complete", "")
    assert [step["status"] for step in result["steps"]] == ["done"] * 4


def test_with_an_answering_model_the_answer_is_printed_and_goes_into_the_json(capsys: pytest.CaptureFixture[str]):
    Path("plan.json").write_text('[{"type":"stock_level","args":{"sku":"C-300"}}]')
    text = json.dumps({"answer": "21 bottles of glue are missing.", "confidence": 0.9})
    with OpenAIServer(lambda asked: completion(asked, text)) as server:
        command = ["--plan", "plan.json", "--workers", WAREHOUSE, "--answer", server.url]
        assert main(["run", *command]) == 2
        assert "--answer-model NAME" in capsys.readouterr().err
        assert main(["run", *command, "--answer-model", "m"]) == 0
        assert capsys.readouterr().out == "21 bottles of glue are missing.\n"
        code, result, _ = run(capsys, *command, "--answer-model", "m", "--json")
    assert (code, result["answer"]["confidence"]) == (0, 0.9)
    assert "Step 0 result: " in server.requests[0].body["messages"][-1]["content"]


def test_a_dry_run_shows_order_and_refusals_and_calls_nothing(capsys: pytest.CaptureFixture[str]):
    code, shown, _ = run(capsys, "--plan", REORDER, "--workers", WAREHOUSE, "--allow", "notes", "--dry-run")
    lines = shown.splitlines()
    assert code == 1
    assert lines[1] == "step 1: stock_level (read, 5 s), after 0"
    assert lines[2].startswith("step 2: stock_reorder (write, asks first, 10 s), after 0, 1; refused: ")
    assert not Path("warehouse.sqlite").exists()


def test_an_invalid_plan_runs_nothing_and_every_fault_is_told(capsys: pytest.CaptureFixture[str]):
    Path("plan.json").write_text('[{"type":"stock_fnd","args":{}},{"type":"stock_level","args":{"skuu":1}}]')
    code, results, said = run(capsys, "--plan", "plan.json", "--workers", WAREHOUSE)
    assert (code, results) == (1, {})
    for words in ("unknown_worker at /0", "'stock_find'", "unknown_arg at /1/args/skuu", "missing_arg at /1/args"):
        assert words in said


def test_a_recorded_run_is_answered_from_its_results(capsys: pytest.CaptureFixture[str]):
    catalog = load_registry(WAREHOUSE).catalog
    catalog.save("catalog.json")
    plan = [
        {"type": "stock_find", "args": {"text": "oak"}},
        {"type": "stock_level", "args": {"sku": {"$from": "/0/sku"}}},
    ]
    row = {"plan": plan, "results": [{"sku": "X", "name": "oak"}, {"stock": 1, "least": 2, "missing": 1}]}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    Path("plan.json").write_text(json.dumps(plan))
    replay = ["--replay", "rows.jsonl", "--catalog", "catalog.json"]
    code, results, _ = run(capsys, "--plan", "plan.json", *replay)
    assert (code, results["1"]["missing"]) == (0, 1)
    Path("plan.json").write_text(json.dumps([{"type": "stock_find", "args": {"text": "pine"}}]))
    code, results, said = run(capsys, "--plan", "plan.json", *replay)
    assert (code, results) == (1, {})
    assert "UNRECORDED" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a query in quotes, --plan FILE, or --resume ID"),
        (["--plan", "x.json"], "say where the workers are"),
        (["--plan", "x.json", "--workers", WAREHOUSE], "'x.json' cannot be read"),
        (["--plan", REORDER, "--workers", WAREHOUSE, "--approve", "2"], "give --resume ID with them"),
        (["--resume", "none", "--workers", WAREHOUSE], "none"),
        (["--resume", "x", "--plan", REORDER, "--workers", WAREHOUSE], "--plan cannot be used with it"),
        (["--plan", REORDER, "--workers", WAREHOUSE, "--deadline", "0"], "above 0"),
        (["--plan", REORDER, "--replay", "rows.jsonl"], "needs the catalog"),
    ],
)
def test_what_cannot_be_run_is_refused_in_words(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str):
    code, _, said = run(capsys, *arguments)
    assert code == 2
    assert words in said


def test_a_replay_has_the_catalog_of_the_record():
    catalog = Catalog.load(EXAMPLES / "assistant" / "catalog.json")
    registry = replay_registry(catalog, [RecordedCall("msg_send", {"to": "a", "text": "b"}, {"message_id": "1"})])
    assert registry.catalog.hash == catalog.hash


def test_the_examples_plan_is_valid_for_the_examples_workers():
    assert len(Plan.from_json(json.loads(Path(REORDER).read_text())).steps) == 4


def test_the_python_example_of_the_page_runs():
    page = (EXAMPLES.parent / "docs" / "orchestrator.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    space: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "docs/orchestrator.md", "exec"), space)
    assert space["result"].status.value == "complete"
