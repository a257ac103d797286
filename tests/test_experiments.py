"""The scripts of `scripts/experiments` run on the smallest recipe and count every item."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def ablation(out: Path, *more: str) -> dict[str, Any]:
    sizes = ["--sizes", "4", "--seeds", "1", "--threads", "1", "--arms", "ce", "names"]
    settings = ['--eval.variants.kinds=["renamed"]', "--training.steps=2", "--training.checkpoint_every=1"]
    command = [str(ROOT / "scripts" / "experiments" / "ablation"), "--config", "configs/smoke.yaml", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, *command, *sizes, *settings, *more], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_ablation_trains_every_arm_once_and_puts_all_items_into_its_table(tmp_path: Path):
    found = ablation(tmp_path)
    assert (found["runs_done"], found["runs_planned"]) == (2, 2)
    rows = {(row["arm"], row["part"], row["system"]): row for row in found["table"]}
    assert len(rows) == 2 * 3 * 2
    items = (tmp_path / "ce-4-1" / "eval" / "items.jsonl").read_text().splitlines()
    counted = sum(row["valid"]["of"] for key, row in rows.items() if key[0] == "ce")
    handwritten = sum('"part":"handwritten' in line for line in items)
    assert counted == len(items) - handwritten > 0
    assert {row["arm"] for row in found["differences"]} == {"names"}
    losses = {row["run"]: row for row in found["losses"]}
    assert losses["ce-4-1"]["loss"][0] == losses["ce-4-1"]["cross_entropy"][0]
    assert losses["names-4-1"]["loss"][0] > losses["names-4-1"]["cross_entropy"][0]
    assert losses["ce-4-1"]["cross_entropy"][0] == losses["names-4-1"]["cross_entropy"][0]
    again = ablation(tmp_path, "--table")
    assert again["table"] == found["table"]


def test_the_headline_experiment_says_what_it_does_and_takes_its_settings():
    command = [sys.executable, str(ROOT / "scripts" / "experiments" / "headline"), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout
    assert "accuracy difference with interval" in shown
    assert "--min-share" in shown
