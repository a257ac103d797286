"""From a teacher at an endpoint to a report with one command: each stage over real HTTP, nothing asked twice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plansmith.cli import main
from plansmith.contract.progress import Silent
from plansmith.contract.records import Example, Reject
from plansmith.contract.store import read_rows
from plansmith.data.manifest import read_manifest
from plansmith.data.stages.tally import Stage
from plansmith.training.config import ModelConfig
from plansmith.training.model import prepare_base
from tests.serving.openai_server import Asked, OpenAIServer, Reply, completion

ROOT = Path(__file__).parent.parent
CITIES = 30
SAMPLES = 3
Config = Callable[..., Path]


def forecast(city: str) -> dict[str, Any]:
    return {"type": "weather_get_forecast", "args": {"city": city, "date": "Monday"}}


class Oracle:
    """A teacher that is wrong in a way of its own for each kind of query, and a judge that knows one fault."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.judged = 0

    def __call__(self, asked: Asked) -> Reply:
        if "The user's text, as JSON" in asked.body["messages"][-1]["content"]:
            self.judged += 1
            right = self.number(asked.body["messages"][-1]["content"]) % 5 != 4
            return completion(asked, json.dumps({"why": "It was looked at.", "right": right}))
        sample = self.asked[asked.query]
        self.asked[asked.query] += 1
        plan = self.plan(self.number(asked.query), sample)
        return completion(asked, json.dumps(plan))

    @staticmethod
    def number(text: str) -> int:
        return int(text.partition("Town")[2].split()[0])

    @staticmethod
    def plan(number: int, sample: int) -> list[dict[str, Any]]:
        right = [forecast(f"Town{number}")]
        if number % 5 == 1 and sample == 1:
            return [forecast("Atlantis")]
        if number % 5 == 2:
            return [{"type": "launch_rocket", "args": {}}]
        if number % 5 == 3 and sample == 0:
            advice = {"type": "weather_advise_umbrella", "args": {"rain_chance": {"$from": "/0/rain_chance"}}}
            return [*right, advice]
        return right


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def server(oracle: Oracle) -> Iterator[OpenAIServer]:
    with OpenAIServer(oracle) as running:
        yield running


@pytest.fixture
def config(tmp_path: Path, server: OpenAIServer) -> Config:
    """Writes a recipe of a run in `tmp_path / "run"`; sections replace those of the default."""
    shutil.copy(ROOT / "examples/assistant/catalog.json", tmp_path / "catalog.json")
    queries = [f"Weather in Town{number} on Monday?" for number in range(CITIES)]
    (tmp_path / "log.txt").write_text("\n".join(queries) + "\n")
    endpoint = {"url": server.url, "model": "m", "backoff_seconds": 0.01, "retries": 1}

    def write(**sections: Any) -> Path:
        values: dict[str, Any] = {
            "name": "run",
            "out": str(tmp_path),
            "catalog": str(tmp_path / "catalog.json"),
            "queries": {"sources": [{"kind": "log", "path": str(tmp_path / "log.txt")}]},
            "teacher": {"kind": "openai", "endpoint": endpoint},
            "teach": {"constrained": False, "form": "plan", "samples": SAMPLES, "temperature": 0.7},
            "data": {
                "source": {"kind": "teacher"},
                "verify": {"vote": {"min_share": 0.5}, "judge": {}},
                "split": {"val": 2, "seen": 3, "unseen": 0},
            },
            "judge": endpoint,
            "model": {"base": "tiny-random", "trim_vocabulary": False},
            "training": {"steps": 2, "batch_size": 4, "micro_batch_size": 4, "warmup_steps": 1},
            "engine": {"max_new_tokens": 24, "max_steps": 2, "threads": 1},
            "eval": {"limit_per_part": 1, "resamples": 100},
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(json.dumps(values | sections))
        return path

    return write


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def test_each_stage_keeps_and_rejects_what_it_should_and_asks_nothing_twice(
    config: Config, oracle: Oracle, server: OpenAIServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    recipe = config()
    for action in ("queries", "teach", "build"):
        assert run("data", action, "--config", recipe) == 0, capsys.readouterr().err
    out = tmp_path / "run"
    manifest = read_manifest(out)
    a_fifth = CITIES // 5
    assert manifest.counts.read == CITIES * SAMPLES
    assert manifest.counts.rejects == {
        "check": a_fifth * SAMPLES,
        "invented": a_fifth,
        "judged_wrong": a_fifth * SAMPLES,
        "outvoted": a_fifth,
        "same_answer": a_fifth * (2 + 1 + 1),
    }
    kept = [row for part in ("train", "val", "test") for row in read_rows(out / f"{part}.jsonl", Example)]
    assert {row.query: row.plan for row in kept} == {
        f"Weather in Town{number} on Monday?": [forecast(f"Town{number}")]
        for number in range(CITIES)
        if number % 5 not in (2, 4)
    }
    assert {row.why for row in kept if Oracle.number(row.query) % 5 == 3} == {
        (
            "valid plan",
            "every literal is known",
            "no recorded results to run it on",
            "2 of 3 answers agree",
            "the judge finds it right",
        )
    }
    assert run("data", "show", "--config", recipe, "--part", "train", "--limit", "1") == 0
    assert "kept: valid plan; every literal is known" in capsys.readouterr().out
    reasons = Counter(row.reason for row in read_rows(out / "rejects.jsonl", Reject))
    assert reasons == manifest.counts.rejects
    asked = len(server.requests)
    assert asked == CITIES * SAMPLES + oracle.judged
    for action in ("queries", "teach", "build"):
        assert run("data", action, "--config", recipe) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert len(server.requests) == asked


def test_more_queries_are_asked_alone_and_no_row_changes_sides(
    config: Config, oracle: Oracle, server: OpenAIServer, tmp_path: Path
):
    recipe = config(
        data={"source": {"kind": "teacher"}, "verify": {"vote": {}}, "split": {"val": 0.1, "seen": 0.2, "unseen": 0.0}},
        judge=None,
    )
    for action in ("queries", "teach", "build"):
        assert run("data", action, "--config", recipe) == 0
    out = tmp_path / "run"
    parts = ("train", "val", "test")
    before = {row.query: row.part for part in parts for row in read_rows(out / f"{part}.jsonl", Example)}
    asked = len(server.requests)
    with (tmp_path / "log.txt").open("a") as log:
        log.write("".join(f"Weather in Town{number} on Monday?\n" for number in range(CITIES, CITIES + 10)))
    for action in ("queries", "teach", "build"):
        assert run("data", action, "--config", recipe) == 0
    assert len(server.requests) == asked + 10 * SAMPLES
    after = {row.query: row.part for part in parts for row in read_rows(out / f"{part}.jsonl", Example)}
    assert len(after) > len(before)
    assert {query: after[query] for query in before} == before


@pytest.mark.slow
def test_the_pipeline_goes_from_queries_to_the_report_and_a_second_run_asks_nobody(
    config: Config,
    server: OpenAIServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("PLANSMITH_CACHE", str(tmp_path / "cache"))
    recipe = config()
    assert run("pipeline", "--config", recipe) == 0, capsys.readouterr().err
    told = capsys.readouterr()
    assert "1 of 7, queries" in told.err
    assert "2 of 7, the teacher's plans" in told.err
    assert "tuned/grammar" in told.out
    assert (tmp_path / "run" / "report.json").is_file()
    asked = len(server.requests)
    assert run("pipeline", "--config", recipe) == 0
    assert "training steps" not in capsys.readouterr().err
    assert len(server.requests) == asked


def test_the_student_chooses_among_right_plans(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLANSMITH_CACHE", str(tmp_path / "cache"))
    student = prepare_base(ModelConfig(base="tiny-random", trim_vocabulary=False), texts=[], progress=Silent())
    data = {
        "source": {"kind": "teacher"},
        "verify": {"likeliest": True},
        "split": {"val": 2, "seen": 3, "unseen": 0},
    }
    recipe = config(data=data, judge=None, student={"base": str(student)})
    for action in ("queries", "teach", "build"):
        assert run("data", action, "--config", recipe) == 0
    manifest = read_manifest(tmp_path / "run")
    (stage,) = [stage for stage in manifest.stages if stage.stage is Stage.CHOICE]
    assert stage.counted["plans_scored"] == 2 * (CITIES // 5), "two plans for each query of one kind in five"
    assert manifest.counts.rejects["less_likely"] >= 1


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"judge": None}, "data.verify.judge is set, but the recipe does not say who that is"),
        ({"data": {"source": {"kind": "teacher"}}}, "'judge' is given, but data.verify.judge is not set"),
        (
            {"data": {"source": {"kind": "teacher"}, "verify": {"likeliest": True}}, "judge": None},
            "data.verify.likeliest is set",
        ),
        (
            {
                "data": {"source": {"kind": "teacher"}, "verify": {"likeliest": True}},
                "judge": None,
                "student": {"base": "nowhere"},
            },
            "holds no model",
        ),
        ({"queries": None}, "'teacher' is set, but 'queries' is not"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(
    config: Config, capsys: pytest.CaptureFixture[str], sections: dict[str, Any], message: str
):
    assert run("data", "build", "--config", config(**sections)) == 2
    assert message in capsys.readouterr().err


def test_a_recipe_without_queries_has_nobody_to_ask(config: Config, capsys: pytest.CaptureFixture[str]):
    recipe = config(queries=None, teacher=None, catalog=None)
    assert run("data", "teach", "--config", recipe) == 2
    assert "recipe without 'queries'" in capsys.readouterr().err
