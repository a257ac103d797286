"""`plansmith eval` on files: any planner, several of them side by side, resume, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.cli import main
from tests.eval.cases import CATALOG, EXAMPLES, RIGHT
from tests.serving.openai_server import OpenAIServer, answers, first, rate_limited, server_error

WRONG = '[{"type":"now","args":{}}]'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    CATALOG.save(tmp_path / "catalog.json")
    write(tmp_path / "test.jsonl", [{"id": e.id, "query": e.query, "plan": e.plan, "part": e.part} for e in EXAMPLES])
    write(tmp_path / "teacher.jsonl", [{"id": e.id, "text": RIGHT[e.query]} for e in EXAMPLES[:5]])
    write(
        tmp_path / "student.jsonl", [{"query": e.query, "text": WRONG if i else "no"} for i, e in enumerate(EXAMPLES)]
    )
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def evaluate(*arguments: str, name: str = "trial") -> int:
    return main(["eval", "--examples", "test.jsonl", "--catalog", "catalog.json", "--name", name, *arguments])


def report(folder: Path, name: str = "trial") -> dict[str, Any]:
    return json.loads((folder / "out" / name / "report.json").read_text())


def parts(folder: Path, system: str) -> dict[str, Any]:
    return next(s["parts"] for s in report(folder)["systems"] if s["system"] == system)


def test_planners_asked_one_after_the_other_stand_in_one_report(folder: Path):
    assert evaluate("--planner", "teacher.jsonl") == 0
    assert evaluate("--planner", "student.jsonl", "--eval.teacher", "teacher") == 0
    overall = parts(folder, "teacher")["overall"]
    assert (overall["items"], overall["failed"]) == (6, 1)
    assert overall["metrics"]["equivalent"]["hits"] == 5
    assert parts(folder, "student")["overall"]["metrics"]["equivalent"]["hits"] == 0
    assert report(folder)["teacher"]["rows"][-1]["teacher_unreadable"] == 1
    assert report(folder)["headline"][0]["difference"] == pytest.approx(-5 / 6)
    assert main(["compare", "out/trial:student", "out/trial:teacher", "--max-drop", "0", "--max-unscored", "0.2"]) == 0
    assert main(["compare", "out/trial:teacher", "out/trial:student", "--max-drop", "0.5", "--max-unscored", "1"]) == 1


def test_all_files_of_a_run_are_there(folder: Path):
    assert evaluate("--planner", "teacher.jsonl") == 0
    out = folder / "out" / "trial"
    page = (out / "report.html").read_text()
    assert "<title>" in page
    assert "http://" not in page.split("<script", 1)[0]
    assert (out / "report.md").read_text().startswith("# trial: evaluation")
    items = [json.loads(line) for line in (out / "eval" / "items.jsonl").read_text().splitlines()]
    assert [item["id"] for item in items] == [e.id for e in EXAMPLES]
    assert items[5]["finding"].startswith("the request failed")


def test_an_endpoint_is_asked_and_only_failures_are_asked_again(folder: Path, capsys: pytest.CaptureFixture[str]):
    faulty = first(2, server_error, answers(RIGHT))
    with OpenAIServer(faulty) as server:
        flags = ["--planner", server.url, "--model", "small", "--eval.concurrency", "1"]
        config = {"kind": "openai", "name": "small", "endpoint": {"url": server.url, "model": "small", "retries": 0}}
        assert evaluate_config(folder, config, concurrency=1) == 0
        assert parts(folder, "small")["overall"]["failed"] == 2
        assert evaluate_config(folder, config, concurrency=1) == 0
        assert parts(folder, "small")["overall"]["metrics"]["exact"]["hits"] == 6
        assert len(server.requests) == 8
        assert evaluate(*flags, "--system", "other") == 0
    told = capsys.readouterr().err
    assert "2 requests failed and count as misses" in told
    assert "small: " in told
    assert {s["system"] for s in report(folder)["systems"]} == {"small", "other"}


def evaluate_config(folder: Path, system: dict[str, Any], **options: Any) -> int:
    settings = {"systems": [system]} | options
    config = {"name": "trial", "examples": "test.jsonl", "catalog": "catalog.json", "eval": settings}
    (folder / "trial.yaml").write_text(json.dumps(config))
    return main(["eval", "--config", "trial.yaml"])


def test_sampling_gives_the_teachers_self_agreement(folder: Path):
    calls = iter(range(100))
    with OpenAIServer(lambda asked: answers(RIGHT[asked.query] if next(calls) < 9 else WRONG)(asked)) as server:
        system = {"kind": "openai", "name": "warm", "endpoint": {"url": server.url, "model": "m"}, "samples": 2}
        assert evaluate_config(folder, system | {"temperature": 0.7}, concurrency=1, teacher="warm") == 0
        assert {request.body["temperature"] for request in server.requests} == {0.7}
        assert len({request.body["seed"] for request in server.requests}) == 12
    rows = (folder / "out/trial/eval/runs.jsonl").read_text().splitlines()
    assert sorted(json.loads(row)["sample"] for row in rows) == [0] * 6 + [1] * 6


def test_variants_are_asked_and_reported_apart(folder: Path):
    write(folder / "any.jsonl", [{"query": e.query, "text": RIGHT[e.query]} for e in EXAMPLES])
    kinds = '["shuffled","no_worker"]'
    assert evaluate("--planner", "any.jsonl", "--eval.variants.kinds", kinds) == 0
    found = parts(folder, "any")
    assert found["shuffled"]["metrics"]["equivalent"]["value"] == 1
    assert found["no_worker"]["metrics"]["abstained_right"]["value"] == 0
    assert found["overall"]["items"] == 6


def test_answers_to_other_items_are_put_aside_and_not_mixed_in(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert evaluate("--planner", "teacher.jsonl") == 0
    write(folder / "test.jsonl", [{"id": e.id, "query": e.query, "plan": e.plan} for e in EXAMPLES[:3]])
    assert evaluate("--planner", "student.jsonl") == 0
    assert "eval teacher: 6 answers were made from other inputs" in capsys.readouterr().err
    assert {s["system"] for s in report(folder)["systems"]} == {"student"}
    assert (folder / "out/trial/eval/runs.jsonl.1").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--planner", "nothing"], "is no URL, no file and no folder"),
        (["--planner", "http://localhost:1/v1"], "give --model NAME"),
        (["--planner", "teacher.jsonl", "--config", "x.yaml"], "cannot be used together with --config"),
        (["--planner", "teacher.jsonl", "--eval.teacher", "big"], "teacher 'big' is none of the systems: teacher"),
        (["--planner", "."], "holds no model"),
    ],
)
def test_what_cannot_be_evaluated_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    assert evaluate(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "a", "query": "q"}, "line 7: expected 'query'"),
        ({"id": "item-0", "query": "q", "plan": []}, "line 7: the id 'item-0' stands already"),
        ({"query": "q", "plan": [{"type": "nobody", "args": {}}]}, "line 7: the plan is not valid against the catalog"),
        ({"query": "q", "plan": "x"}, "line 7: this is no test item"),
    ],
)
def test_a_row_that_cannot_be_used_ends_the_command_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], message: str
):
    with (folder / "test.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    assert evaluate("--planner", "teacher.jsonl") == 2
    assert message in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_an_endpoint_that_nobody_reaches_ends_with_code_3(folder: Path, capsys: pytest.CaptureFixture[str]):
    with OpenAIServer(rate_limited()) as server:
        url = server.url
    write(folder / "test.jsonl", [{"query": f"q{i}", "plan": []} for i in range(30)])
    system = {"kind": "openai", "name": "gone", "endpoint": {"url": url, "model": "m", "retries": 0}}
    assert evaluate_config(folder, system) == 3
    assert url in capsys.readouterr().err
