"""Several processes share a step's work and come to what one process comes to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from plansmith.contract.errors import InputError
from plansmith.training.parallel import ALONE, World, joined

ROOT = Path(__file__).parent.parent.parent
RECIPE = ["--config", "configs/smoke.yaml", "--training.steps=4", "--training.micro_batch_size=2"]


@given(st.integers(1, 5), st.lists(st.integers(1, 1000), max_size=30))
def test_every_item_is_dealt_to_one_process_and_no_process_gets_much_more(size: int, costs: list[int]):
    items = list(range(len(costs)))
    shares = [World(rank, size).deal(items, costs) for rank in range(size)]
    assert Counter(item for share in shares for item in share) == Counter(items)
    loads = [sum(costs[item] for item in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_one_process_keeps_its_sums():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([1.0, 2.0])
    ALONE.sum_gradients([weight])
    assert weight.grad.tolist() == [1.0, 2.0]
    assert ALONE.sum_values([1.5]) == [1.5]
    assert ALONE.deal(["a", "b"], [1, 9]) == ["a", "b"]


def test_an_incomplete_environment_is_refused(monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="RANK, MASTER_ADDR, MASTER_PORT is not set"), joined():
        pass


def command(out: Path, name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "plansmith.cli", *arguments, *RECIPE, "--out", str(out), "--name", name]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def train(out: Path, name: str, processes: int) -> list[str]:
    """Run `plansmith train` in so many processes; what each printed."""
    environment = {**os.environ, "PLANSMITH_CACHE": str(out / "cache"), "OMP_NUM_THREADS": "1"}
    if processes > 1:
        environment |= {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            command(out, name, "train"),
            cwd=ROOT,
            env=environment | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    found = [process.communicate(timeout=250) for process in started]
    assert [process.returncode for process in started] == [0] * processes, found
    return [shown for shown, _ in found]


@pytest.mark.slow
def test_two_processes_train_the_adapter_that_one_trains(tmp_path: Path):
    for name in ("alone", "together"):
        subprocess.run(command(tmp_path, name, "data", "build"), cwd=ROOT, check=True, capture_output=True, timeout=120)
    train(tmp_path, "alone", 1)
    shown = train(tmp_path, "together", 2)
    assert [bool(text.strip()) for text in shown] == [True, False], "only the first process speaks"
    weights = [load_file(tmp_path / name / "train/adapter/adapter_model.safetensors") for name in ("alone", "together")]
    assert weights[0].keys() == weights[1].keys()
    moved = 0.0
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=1e-4, atol=1e-6)
        moved += float(value.abs().sum()) if "lora_B" in key else 0.0
    assert moved > 0, "lora_B starts at zero, so training has moved it"
    rows = [
        [json.loads(line) for line in (tmp_path / name / "train/metrics.jsonl").read_text().splitlines()]
        for name in ("alone", "together")
    ]
    for alone, together in zip(*rows, strict=True):
        for key in ("loss", "cross_entropy", "validity", "mass_outside_json", "grad_norm"):
            assert together[key] == pytest.approx(alone[key], rel=1e-4)
        assert (together["examples"], together["step"]) == (alone["examples"], alone["step"])
    assert train(tmp_path, "together", 2)[0].strip(), "a finished run is not trained again"
