"""What a system costs: sessions add up, the peak of memory is of the time asked, the file is replaced as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plansmith.contract.errors import InputError
from plansmith.eval import measure
from plansmith.eval.items import PlannerKind, SystemInfo
from plansmith.eval.measure import (
    Measurement,
    MemorySource,
    load_systems,
    model_bytes,
    save_system,
    save_systems,
)

MIB = 2**20


def info(name: str = "tuned/grammar", kind: PlannerKind = PlannerKind.OPENAI, **more: object) -> SystemInfo:
    return SystemInfo.model_validate({"system": name, "kind": kind, "constrained": True, "concurrency": 8} | more)


def fill(mebibytes: int) -> bytearray:
    block = bytearray(mebibytes * MIB)
    block[::4096] = b"x" * len(block[::4096])
    return block


def test_systems_are_stored_by_name_and_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "eval" / "systems.json"
    assert load_systems(path) == {}
    save_system(path, info("a"))
    save_system(path, info("b", model="gemma"))
    save_system(path, info("a", model="qwen", price_prompt=0.5))
    assert load_systems(path) == {"a": info("a", model="qwen", price_prompt=0.5), "b": info("b", model="gemma")}
    save_systems(path, {"b": info("b")})
    assert load_systems(path) == {"b": info("b")}
    assert [file.name for file in path.parent.iterdir()] == ["systems.json"]
    path.write_text('{"a": {"system": "a", "surprise": 1}}')
    with pytest.raises(InputError, match=r"systems\.json: a/kind"):
        load_systems(path)
    with pytest.raises(InputError, match="cannot be read"):
        load_systems(tmp_path)


def measure_and_stop(path: Path) -> None:
    with Measurement(path, info(price_hour=2.0)) as measured:
        measured.add(5, 2.0)
        raise KeyboardInterrupt


def test_sessions_of_one_system_add_up_and_another_way_of_asking_begins_anew(tmp_path: Path):
    path = tmp_path / "systems.json"
    with Measurement(path, info()) as first:
        first.add(10, 4.0)
        first.add(2, 1.0)
    with pytest.raises(KeyboardInterrupt):
        measure_and_stop(path)
    with Measurement(path, info("other")):
        pass
    found = load_systems(path)
    assert (found["tuned/grammar"].answered, found["tuned/grammar"].wall_seconds) == (17, 7.0)
    assert found["tuned/grammar"].price_hour == 2.0, "a price is no cost that was measured"
    assert (found["other"].answered, found["other"].wall_seconds) == (0, 0.0)
    with Measurement(path, info(concurrency=1)) as third:
        third.add(1, 9.0)
    assert (load_systems(path)["tuned/grammar"].answered, third.source) == (1, MemorySource.NONE)
    assert load_systems(path)["tuned/grammar"].peak_memory_bytes is None


def test_recorded_answers_have_no_speed(tmp_path: Path):
    path = tmp_path / "systems.json"
    with Measurement(path, info(kind=PlannerKind.RECORDED)) as measured:
        measured.add(1000, 0.1)
    assert (load_systems(path)["tuned/grammar"].answered, load_systems(path)["tuned/grammar"].wall_seconds) == (1000, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is Linux's")
def test_the_peak_of_a_process_is_that_of_the_time_asked_and_not_of_before(tmp_path: Path):
    """In a process of its own: one that has run other tests gives memory back at any time."""
    code = """
import json, sys
from pathlib import Path
from plansmith.eval import measure
from plansmith.eval.measure import Measurement, load_systems
from tests.eval.test_measure import fill, info, PlannerKind

path = Path(sys.argv[1])
before = fill(300)
del before
held = measure._status("VmRSS")
with Measurement(path, info(kind=PlannerKind.LOCAL)) as measured:
    block = fill(80)
    del block
    measured.add(1, 1.0)
peak = load_systems(path)["tuned/grammar"].peak_memory_bytes
with Measurement(path, info(kind=PlannerKind.LOCAL)) as again:
    again.add(1, 1.0)
last = load_systems(path)["tuned/grammar"].peak_memory_bytes
print(json.dumps({"held": held, "peak": peak, "last": last, "source": measured.source}))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "systems.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-1000:]
    found = json.loads(done.stdout)
    assert found["source"] == MemorySource.HIGH_WATER
    assert 70 * MIB <= found["peak"] - found["held"] <= 150 * MIB
    assert found["last"] == found["peak"], "the higher peak of two sessions stands"


def test_where_the_mark_cannot_be_set_back_the_peak_is_said_to_be_of_the_whole_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measure, "_status", lambda field: None)
    path = tmp_path / "systems.json"
    with Measurement(path, info(kind=PlannerKind.LOCAL)) as measured:
        measured.add(1, 1.0)
    assert measured.source is MemorySource.LIFETIME
    peak = load_systems(path)["tuned/grammar"].peak_memory_bytes
    assert peak is not None
    assert 10 * MIB < peak < 2**40


class Cuda:
    """What is used of torch.cuda."""

    def __init__(self) -> None:
        self.reset: list[int] = []

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def reset_peak_memory_stats(self, device: int) -> None:
        self.reset.append(device)

    def max_memory_allocated(self, device: int) -> int:
        return (device + 1) * 2**40


def test_memory_of_all_gpus_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Torch:
        cuda = Cuda()

    monkeypatch.setitem(sys.modules, "torch", Torch)  # type: ignore[arg-type]
    path = tmp_path / "systems.json"
    with Measurement(path, info(kind=PlannerKind.LOCAL)) as measured:
        measured.add(1, 1.0)
    peak = load_systems(path)["tuned/grammar"].peak_memory_bytes
    assert peak is not None
    assert 3 * 2**40 < peak < 3 * 2**40 + 2**36
    assert Torch.cuda.reset == [0, 1]


SERVER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import sys
print("ready", flush=True)
sys.stdin.readline()
block = bytearray(120 * 2**20)
block[::4096] = b"x" * len(block[::4096])
print("filled", flush=True)
sys.stdin.readline()
'''])
child.wait()
"""


def test_the_memory_of_a_served_process_and_its_children_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\nread pid < %s\necho \"$pid, 1000\"\necho '1, 5'\necho '[N/A], 7'\n" % (tmp_path / "pid")
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path = tmp_path / "systems.json"
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        (tmp_path / "pid").write_text(f"{server.pid}\n")
        assert server.stdout.readline() == "ready\n"
        with Measurement(path, info(), server_pid=server.pid) as measured:
            server.stdin.write("\n")
            server.stdin.flush()
            assert server.stdout.readline() == "filled\n"
            time.sleep(3 * measure.SAMPLE_EVERY_S)
            measured.add(1, 1.0)
            server.stdin.write("\n")
            server.stdin.flush()
            server.wait(10)
    assert measured.source is MemorySource.TREE
    peak = load_systems(path)["tuned/grammar"].peak_memory_bytes
    assert peak is not None
    assert 1120 * MIB <= peak <= 1400 * MIB, "the child's 120 MiB and what nvidia-smi says of the server are added"
    with pytest.raises(InputError, match=f"process {server.pid} cannot be read"):
        Measurement(path, info(), server_pid=server.pid).__enter__()


def test_the_bytes_of_a_model_are_those_of_its_safetensors(tmp_path: Path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for folder, size in ((base, 100), (adapter, 7)):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"x" * size)
        (folder / "tokenizer.json").write_bytes(b"x" * 50)
    (base / "model-2.safetensors").write_bytes(b"x" * 30)
    assert [model_bytes(base, adapter), model_bytes(base), model_bytes(None), model_bytes(tmp_path)] == [
        137,
        130,
        None,
        None,
    ]
