"""A pipeline that is killed in each of its stages, one after the other, comes to the report of one that was not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RECIPE = ["--config", "configs/smoke.yaml", "--eval.limit_per_part", "1", "--engine.threads", "1"]
STAGES = (
    *("1 of 6, data", "2 of 6, base model", "3 of 6, training", "4 of 6, export", "5 of 6, answers", "serve: ready at"),
    "6 of 6, report",
)

pytestmark = [pytest.mark.slow]


def start(out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "plansmith.cli", "pipeline", *RECIPE, "--out", str(out)]
    environment = {**os.environ, "PLANSMITH_CACHE": str(out / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def kill_at(out: Path, words: str) -> str:
    """What it told until then; the words are its last."""
    process = start(out)
    assert process.stderr is not None
    told = ""
    with process.stderr:
        for line in process.stderr:
            told += line
            if words in line:
                break
        process.send_signal(signal.SIGKILL)
    process.wait()
    assert words in told, told
    return told


def scores(out: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Scored items and the report's metrics, without what was measured in seconds and bytes."""
    lines = (out / "smoke" / "eval" / "items.jsonl").read_text().splitlines()
    items = sorted((json.loads(line) for line in lines), key=lambda row: (row["system"], row["id"]))
    for item in items:
        item.pop("seconds")
    report = json.loads((out / "smoke" / "report.json").read_text())
    return items, {row["system"]: row["parts"] for row in report["systems"]}


def test_killed_in_each_stage_it_comes_to_the_same_report(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for words in STAGES:
        told = kill_at(killed, words)
        if words.startswith("serve"):
            url = re.findall(r"serve: ready at (\S+)", told)[-1]
            for _ in range(200):
                try:
                    urllib.request.urlopen(f"{url}/healthz", timeout=5).close()
                except (urllib.error.URLError, OSError):
                    break
            else:
                pytest.fail("the served planner outlives the pipeline")
    for out in (killed, whole):
        process = start(out)
        _, told = process.communicate(timeout=280)
        assert process.returncode == 0, told
    assert scores(killed)[0] == scores(whole)[0]
    left, right = scores(killed)[1], scores(whole)[1]
    assert left.keys() == right.keys()
    for system, parts in left.items():
        for part, found in parts.items():
            assert found["metrics"] == right[system][part]["metrics"], (system, part)
    adapters = [out / "smoke" / "train" / "adapter" / "adapter_model.safetensors" for out in (killed, whole)]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()
    card = (whole / "smoke" / "export" / "README.md").read_text()
    assert "served" in card
    assert card == (killed / "smoke" / "export" / "README.md").read_text()
