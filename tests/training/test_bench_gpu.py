"""`scripts/bench/gpu` runs where there is only torch, transformers and peft, and compares like with like."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ABSENT = ("pydantic", "jsonschema_rs", "llguidance", "datasets", "plansmith")
"""Packages that the GPU machine does not have."""


@pytest.mark.slow
def test_the_gpu_benchmark_needs_none_of_our_other_packages_and_both_ways_have_the_same_loss(tmp_path: Path):
    out = tmp_path / "gpu.json"
    sizes = ["--prefix-tokens", "60", "--query-tokens", "12", "--plan-tokens", "16", "--examples", "4", "--micro", "3"]
    blocked = f"import sys\nfor name in {ABSENT}: sys.modules[name] = None\n"
    run = (
        "import runpy; sys.modules.pop('plansmith'); "
        f"sys.argv = ['gpu', '--shape', 'tiny', '--device', 'cpu', '--steps', '1', '--out', {str(out)!r}, *{sizes}]; "
        f"runpy.run_path({str(ROOT / 'scripts' / 'bench' / 'gpu')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", blocked + run], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert set(found["results"]) == {"shared_prefix", "shared_prefix_validity", "plain_padded"}
    assert found["loss_difference"] < 1e-6
    shared, plain = found["results"]["shared_prefix"], found["results"]["plain_padded"]
    assert shared["tokens_a_step"] < plain["tokens_a_step"]
    assert found["results"]["shared_prefix_validity"]["first_loss"] > shared["first_loss"]
