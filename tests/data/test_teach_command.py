"""`plansmith data queries` and `plansmith data teach` from a config to the files, against a scripted endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plansmith.cli import main
from plansmith.contract.records import Query, TeacherDraft
from plansmith.contract.store import read_rows
from plansmith.data.drafts import DRAFTS
from plansmith.data.queries import QUERIES
from plansmith.data.query_sources.grown import GROWN
from plansmith.data.taught import TeachManifest
from tests.data.conftest import CATALOG as CATALOG_JSON
from tests.serving.openai_server import Asked, OpenAIServer, Reply, completion, failure

Config = Callable[..., Path]
ENDPOINT = {"url": "http://localhost:9/v1", "model": "m"}
GOOD = '{"note":"One call.","plan":[{"type":"one","args":{"a":"x"}}]}'


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Writes a config of a run in `tmp_path / "run"`; sections replace those of the default."""

    def write(url: str = "http://127.0.0.1:9/v1", **sections: Any) -> Path:
        (tmp_path / "catalog.json").write_text(json.dumps(CATALOG_JSON))
        (tmp_path / "log.csv").write_text("n,query\n1,first\n2,second\n3,third\n4,first\n")
        endpoint = {"url": url, "model": "m", "backoff_seconds": 0.01, "retries": 1}
        values: dict[str, Any] = {
            "name": "run",
            "out": str(tmp_path),
            "catalog": str(tmp_path / "catalog.json"),
            "queries": {"sources": [{"kind": "log", "path": str(tmp_path / "log.csv")}]},
            "teacher": {"kind": "openai", "endpoint": endpoint},
            "teach": {"constrained": False},
        }
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(values | sections))
        return path

    return write


def command(action: str, config: Path, *flags: str) -> int:
    return main(["data", action, "--config", str(config), *flags])


def answers(asked: Asked) -> Reply:
    """Queries where queries are asked for, else a plan."""
    if "Invent " in asked.body["messages"][-1]["content"]:
        texts = [f"wish {asked.number} {n}" for n in range(5)]
        return completion(asked, json.dumps({"queries": texts}))
    return completion(asked, "[]" if asked.query.startswith("wish") else GOOD)


def manifest(folder: Path) -> TeachManifest:
    return TeachManifest.model_validate_json((folder / "run" / "teach.json").read_bytes())


def test_from_a_log_to_answers_and_again_without_asking(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with OpenAIServer(answers) as server:
        path = config(server.url)
        assert command("queries", path) == 0
        assert "duplicate 1" in capsys.readouterr().out
        assert command("teach", path) == 0
        told = capsys.readouterr()
        assert "valid" in told.out
        assert "3/3" in told.err
        assert command("teach", path) == 0
        assert "3 of 3 answers are there already" in capsys.readouterr().err
        assert sorted(asked.query for asked in server.requests) == ["first", "second", "third"]
    found = manifest(tmp_path)
    assert (found.outcomes.wanted, found.outcomes.kept, found.requests) == (3, 3, 3)
    assert {row.model for row in read_rows(tmp_path / "run" / DRAFTS, TeacherDraft)} == {"m"}


def test_examples_and_the_answer_schema_reach_the_endpoint(config: Config, tmp_path: Path):
    def held(asked: Asked) -> Reply:
        schema = asked.body["response_format"]["json_schema"]["schema"]
        secret = schema["properties"].get("word", {}).get("enum")
        return completion(asked, json.dumps({"word": secret[0]}) if secret else GOOD)

    shots = tmp_path / "examples.jsonl"
    shots.write_text(json.dumps({"query": "shown", "note": "So.", "plan": []}) + "\n")
    with OpenAIServer(held) as server:
        path = config(server.url, teach={"examples": str(shots)})
        assert command("queries", path) == command("teach", path) == 0
        bodies = [asked.body for asked in server.requests]
    assert len(bodies) == 4, "one request to prove that the endpoint decodes under a schema"
    assert [message["content"] for message in bodies[-1]["messages"][1:3]] == [
        "Query: shown\nPlan:",
        '{"note":"So.","plan":[]}',
    ]
    assert bodies[-1]["response_format"]["json_schema"]["schema"]["required"] == ["note", "plan"]
    with OpenAIServer(held) as server:
        shots.write_text(json.dumps({"query": "shown", "note": "Thus.", "plan": []}) + "\n")
        assert command("teach", config(server.url, teach={"examples": str(shots)})) == 0
        assert len(server.requests) == 4, "another example is another teacher"
    assert (tmp_path / "run" / f"{DRAFTS}.1").exists()
    with OpenAIServer(held) as server:
        shots.write_text(json.dumps({"query": "shown", "note": "So.", "plan": []}) + "\n")
        assert command("teach", config(server.url, teach={"examples": str(shots)})) == 0
        assert server.requests == [], "another address of the endpoint is no other teacher"


def test_a_grown_set_is_taught_and_its_mix_compared(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    growth = {"kind": "grown", "count": 10, "per_request": 5, "rounds": 1, "mix": {"abstain": 0.5, "steps": {"1": 1}}}
    with OpenAIServer(answers) as server:
        path = config(server.url, queries={"sources": [growth]})
        assert command("queries", path) == command("teach", path) == 0
        assert len(server.requests) == 12
        assert all("response_format" in asked.body for asked in server.requests[:2])
    assert "Mix of grown queries" in capsys.readouterr().out
    shares = {(row.what, row.name): row for row in manifest(tmp_path).mix}
    assert (shares["steps", "0"].queries, shares["steps", "0"].plans) == (0.5, 1.0)
    assert all(row.wanted is not None for row in read_rows(tmp_path / "run" / QUERIES, Query))
    assert (tmp_path / "run" / GROWN).exists()


def test_a_budget_ends_with_exit_code_1_and_says_how_to_go_on(config: Config, capsys: pytest.CaptureFixture[str]):
    with OpenAIServer(answers) as server:
        path = config(server.url)
        assert command("queries", path) == 0
        assert command("teach", path, "--teach.budget.requests=2") == 1
        told = capsys.readouterr()
        assert "the budget of 2 requests (2 made) is used up; 1 of 3 requests were not made" in told.err
        assert "not asked yet" in told.out
        assert command("teach", path) == 0
        assert len(server.requests) == 3


def test_costs_are_told_where_prices_are_given(config: Config, tmp_path: Path):
    with OpenAIServer(answers) as server:
        path = config(server.url)
        assert command("queries", path) == 0
        flags = ("--teach.budget.price_prompt=1000", "--teach.budget.price_completion=0", "--teach.budget.currency=EUR")
        assert command("teach", path, *flags) == 0
    assert manifest(tmp_path).cost == "0.30 EUR"


def test_a_dead_endpoint_fails_what_was_asked_and_a_wrong_key_is_unusable_input(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = config()
    assert command("queries", path) == 0
    assert command("teach", path, "--teach.give_up_after=2", "--teacher.endpoint.concurrency=1") == 3
    assert "last 2 requests all failed" in capsys.readouterr().err
    assert manifest(tmp_path).outcomes.failed >= 2
    with OpenAIServer(lambda _: failure(401, "bad key")) as server:
        assert command("teach", config(server.url)) == 2
    with OpenAIServer(answers) as server:
        assert command("teach", config(server.url)) == 0
    assert manifest(tmp_path).outcomes.kept == 3


def test_a_recorded_teacher_answers_from_a_file(config: Config, tmp_path: Path):
    rows = [
        {"query": "first", "text": GOOD, "sample": 0},
        {"query": "first", "plan": [], "sample": 1},
        {"query": "second", "plan": [{"type": "four", "args": {}}], "sample": 0},
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    teacher = {"kind": "recorded", "path": str(tmp_path / "answers.jsonl"), "name": "past"}
    path = config(teacher=teacher, teach={"samples": 2})
    assert command("queries", path) == command("teach", path) == 0
    outcomes = manifest(tmp_path).outcomes
    assert (outcomes.wanted, outcomes.kept, outcomes.rejected, outcomes.failed) == (6, 2, {"unknown_worker": 1}, 3)
    assert command("teach", path, "--teach.samples=1") == 0
    outcomes = manifest(tmp_path).outcomes
    assert (outcomes.wanted, outcomes.kept, outcomes.rejected, outcomes.failed) == (3, 1, {"unknown_worker": 1}, 1)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"teacher": None}, "no teacher is given"),
        ({"teach": {"samples": 3}}, "samples above 1 need a temperature above 0"),
        ({"teach": {"sample": 3}}, "sample"),
        ({"teach": {"budget": {"money": 5}}}, "price_prompt"),
        ({"teach": {"examples": "none.jsonl"}}, "cannot be read"),
        (
            {"teacher": {"kind": "openai", "endpoint": {"url": "http://x/v1", "model": "m", "route": "completions"}}},
            "route",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    config: Config, capsys: pytest.CaptureFixture[str], sections: dict[str, Any], message: str
):
    assert command("queries", config()) == 0
    assert command("teach", config(**sections)) == 2
    assert message in capsys.readouterr().err


def test_teaching_before_queries_says_what_to_run(config: Config, capsys: pytest.CaptureFixture[str]):
    assert command("teach", config()) == 2
    assert "plansmith data queries" in capsys.readouterr().err


def test_settings_of_queries_and_teacher_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["data", "teach", "--settings"]) == 0
    told = capsys.readouterr().out
    assert "--teach.budget.money" in told
    assert "--teacher.endpoint.url" in told


@pytest.mark.network
@pytest.mark.parametrize(
    ("source", "queries", "workers", "references"),
    [
        ({"kind": "nestful", "part": "complexfuncbench"}, 1000, 40, 943),
        ({"kind": "nestful", "part": "executable"}, 85, 39, 0),
        ({"kind": "nestful", "part": "glaive"}, 169, 64, 0),
        ({"kind": "nestful", "part": "sgd"}, 46, 30, 0),
        ({"kind": "bfcl"}, 2351, 64, 266),
    ],
)
def test_benchmarks_bring_queries_and_a_catalog(
    config: Config, tmp_path: Path, source: dict[str, str], queries: int, workers: int, references: int
):
    path = config(catalog=None, queries={"sources": [source]})
    assert command("queries", path) == 0
    found = json.loads((tmp_path / "run" / "queries.json").read_text())
    (counts,) = found["sources"]
    rows = read_rows(tmp_path / "run" / QUERIES, Query)
    assert counts["read"] == counts["kept"] + sum(counts["rejects"].values())
    assert counts["read"] == queries
    assert len(json.loads((tmp_path / "run" / "teacher_catalog.json").read_text())["workers"]) <= workers
    assert sum(row.reference is not None for row in rows) == references
