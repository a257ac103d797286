"""The whole line with a tiny random model: every stage runs, stops cleanly, goes on, and is not run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECIPE = ["--config", "configs/smoke.yaml", "--eval.limit_per_part", "1", "--engine.threads", "1"]

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "plansmith.cli", *arguments, "--out", str(out)]
    environment = {**os.environ, "PLANSMITH_CACHE": str(out / "cache"), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=pipe, stderr=pipe)


def run(out: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(out, *arguments)
    shown, told = process.communicate(timeout=280)
    return process.returncode, shown, told


def rows(out: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "smoke" / name).read_text().splitlines()]


def test_ctrl_c_in_training_ends_with_130_and_keeps_the_checkpoint(out: Path):
    flags = ["--training.steps", "500", "--training.checkpoint_every", "1", "--training.keep_checkpoints", "1"]
    process = start(out, "pipeline", *RECIPE, *flags)
    deadline = time.monotonic() + 200
    while not list((out / "smoke").glob("train/checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.rstrip().splitlines()[-1].startswith("plansmith: stopped.")
    assert "Traceback" not in told
    assert list((out / "smoke").glob("train/checkpoint-*"))


def test_other_settings_begin_anew_keep_the_earlier_work_and_run_to_the_report(out: Path):
    code, shown, told = run(out, "pipeline", *RECIPE)
    assert code == 0, told
    assert "train: made anew, because training.steps: 500 -> 2" in told
    assert list((out / "smoke").glob("train.1/checkpoint-*"))
    assert "tuned/grammar" in shown
    plan, serve = shown.splitlines()[-2:]
    assert "plansmith plan " in plan
    assert serve.endswith(f"serve --model {out / 'smoke' / 'export'}")
    assert (out / "smoke" / "export" / "plansmith.json").is_file()
    assert len(rows(out, "train/metrics.jsonl")) == 2
    systems = {row["system"] for row in rows(out, "eval/runs.jsonl")}
    assert systems == {"base/free", "base/grammar", "tuned/free", "tuned/grammar", "served"}
    assert {file.name for file in (out / "smoke").iterdir()} >= {
        "report.md",
        "report.json",
        "recipe.json",
        "stages.json",
    }


def test_a_second_run_does_nothing_again(out: Path):
    made = [path for stage in ("train", "export") for path in (out / "smoke" / stage).rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in made}
    answers = (out / "smoke" / "eval" / "runs.jsonl").read_bytes()
    code, shown, told = run(out, "pipeline", *RECIPE)
    assert (code, "training steps" in told, "plans by" in told) == (0, False, False)
    assert "tuned/grammar" in shown
    assert {path: path.stat().st_mtime_ns for path in made} == before
    assert (out / "smoke" / "eval" / "runs.jsonl").read_bytes() == answers


def test_a_changed_adapter_asks_only_the_tuned_model_again(out: Path):
    code, _, told = run(out, "pipeline", *RECIPE, "--training.steps", "1")
    assert code == 0, told
    assert "base: complete for the same inputs, skipped" in told
    assert "eval base/free: " in told
    assert "plans by base" not in told
    assert "plans by tuned/free" in told
    assert "export: made anew, because adapter" in told
    assert (out / "smoke" / "eval" / "runs.jsonl.1").is_file()


def test_the_model_just_made_plans_a_query(out: Path):
    code, shown, told = run(out, "plan", "Will it rain in Oslo tomorrow?", *RECIPE[:2])
    assert code in (0, 1), told
    assert json.loads(shown) is not None or code == 1
    assert "under the plan grammar" in told


def test_an_adapter_of_other_settings_is_not_evaluated_under_this_recipe(out: Path):
    code, shown, told = run(out, "eval", *RECIPE, "--training.steps", "7")
    assert (code, shown) == (2, "")
    assert "was trained from other inputs" in told
    assert "training.steps: 1 -> 7" in told


def test_data_of_another_catalog_is_refused_with_both_hashes(out: Path):
    card = out / "smoke" / "train" / "adapter" / "plansmith.json"
    text = card.read_text()
    known = json.loads(text)["catalog_hash"]
    card.write_text(text.replace(known, "0" * 64))
    code, shown, told = run(out, "plan", "Will it rain in Oslo tomorrow?", *RECIPE[:2])
    card.write_text(text)
    assert (code, shown) == (2, "")
    assert "0" * 64 in told
    assert known in told


def test_the_data_of_a_run_can_be_exported_and_plotted(out: Path, tmp_path: Path):
    code, shown, told = run(out, "data", "export", *RECIPE[:2], "--to", str(tmp_path / "shared"))
    assert code == 0, told
    assert "load_dataset" in shown
    assert (tmp_path / "shared" / "README.md").read_text().startswith("---\n")
    assert list((tmp_path / "shared" / "parquet").glob("*.parquet"))
    code, shown, told = run(out, "data", "stats", *RECIPE[:2], "--html", str(tmp_path / "plots.html"))
    assert code == 0, told
    assert (tmp_path / "plots.html").stat().st_size > 10_000
