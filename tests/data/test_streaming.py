"""Builds of many rows: memory does not grow with what rows hold, processes change nothing, killed builds harm nothing.

The builds run in processes of their own. Peak memory is VmHWM, which begins anew in a new program; `ru_maxrss` is
inherited from the parent.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.records import Candidate
from plansmith.data.build import REMOVED, open_data
from plansmith.data.manifest import MANIFEST
from plansmith.data.stages.rows import Kind, Line, query_key
from plansmith.data.stages.store import RowStore
from tests.data.conftest import CATALOG

MIB = 2**20
SPLITS = ("train.jsonl", "val.jsonl", "test.jsonl", "rejects.jsonl", REMOVED, "catalog.json")
BUILD = """
import os, re, signal, sys
from pathlib import Path
from plansmith.contract.progress import Silent
from plansmith.data.build import build_data
from plansmith.data.config import DataConfig

class Killing(Silent):
    task, done = "", 0
    def start(self, what, total):
        self.task, self.done = what, 0
        self.advance(0)
    def advance(self, amount=1, **values):
        self.done += amount
        if self.task == sys.argv[3] and self.done >= int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    build_data(DataConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), seed=3, progress=Killing())
    print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def write_rows(folder: Path, number: int, *, padding: int = 0) -> Path:
    """Rows of which some repeat another, equal or nearly, or hold an invalid plan or an invented literal."""
    rng = random.Random(number)
    words = ["".join(rng.choices("aeioulnrst", k=5)) for _ in range(2000)]
    queries: list[tuple[str, list[dict[str, Any]]]] = []
    with (folder / "rows.jsonl").open("w") as file:
        for at in range(number):
            name, chance = " ".join(rng.choices(words, k=3)), rng.random()
            query, plan = f"{' '.join(rng.choices(words, k=9))} for {name}", [{"type": "one", "args": {"a": name}}]
            if queries and chance < 0.06:
                query, plan = rng.choice(queries[-500:])
                query = query if chance < 0.03 else f"please {query}"
            elif chance < 0.1:
                plan = [{"type": "one", "args": {"a": "nowhere"}} if chance < 0.08 else {"type": "four", "args": {}}]
            else:
                queries.append((query, plan))
            results = [{"x": name, "more": "m" * padding}]
            file.write(json.dumps({"id": f"r{at}", "query": query, "plan": plan, "results": results}) + "\n")
    (folder / "catalog.json").write_text(json.dumps(CATALOG))
    return folder


def config_json(folder: Path, processes: int = 1) -> str:
    source = {"kind": "jsonl", "path": str(folder / "rows.jsonl"), "catalog": str(folder / "catalog.json")}
    reject = {"rule": "reject"}
    verify = {"grounding": reject, "execution": reject}
    extra = {"dedupe": {}, "decontaminate": {}, "processes": processes}
    return json.dumps({"source": source, "verify": verify, **extra})


def build(config: str, out: Path, *, killed_in: str = "", killed_at: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BUILD, config, str(out), killed_in, str(killed_at)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def built(folder: Path, out: Path, processes: int = 1) -> dict[str, bytes]:
    """The bytes of all files of a finished build."""
    done = build(config_json(folder, processes), out)
    assert done.returncode == 0, done.stderr
    return files(out)


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.slow
def test_the_memory_of_a_build_does_not_grow_with_what_its_rows_hold(tmp_path: Path):
    folder = write_rows(tmp_path, 30_000, padding=8000)
    done = build(config_json(folder), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (folder / "rows.jsonl").stat().st_size > 230 * MIB
    assert int(done.stdout) * 1024 < 230 * MIB, "about 80 MiB are the program's"


def test_one_process_and_two_write_the_same_bytes(tmp_path: Path):
    folder = write_rows(tmp_path, 1200)
    one, two = (built(folder, tmp_path / f"out-{number}", number) for number in (1, 2))
    assert one == two
    assert {MANIFEST, *SPLITS} == one.keys()
    rejects = open_data(tmp_path / "out-1").manifest.counts.rejects
    assert {"check", "invented", "duplicate", "near_duplicate"} == rejects.keys()


def test_a_build_that_is_killed_in_any_stage_is_begun_anew_and_gives_the_same_bytes(tmp_path: Path):
    folder = write_rows(tmp_path, 200)
    expected = built(folder, tmp_path / "whole")
    out = tmp_path / "out"
    for stage, at in (("rows to compare", 1), ("rows to compare with test texts", 1), ("rows to write", 100)):
        killed = build(config_json(folder), out, killed_in=stage, killed_at=at)
        assert killed.returncode == -signal.SIGKILL, (stage, killed.stderr)
        assert not (out / MANIFEST).exists(), stage
    assert built(folder, out) == expected


def test_the_processes_of_a_killed_build_end_too(tmp_path: Path):
    config = config_json(write_rows(tmp_path, 20), processes=2)
    killed = build(
        config, tmp_path / "out", killed_in="plans to check", killed_at=20
    )  # waits for all who hold its pipes
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def test_few_long_rows_are_looked_at_together_and_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plansmith.data.stages.store.AT_ONCE", 3)
    monkeypatch.setattr("plansmith.data.stages.store._BYTES_AT_ONCE", 2000)
    lengths = [10, 10, 10, 10, 5000, 10, 900, 900, 10]
    with RowStore(tmp_path) as store:
        for number, length in enumerate(lengths):
            row = Candidate(id=str(number), query="q" * length, plan=[], family="f", source="s")
            text = b"[]\t" + row.model_dump_json().encode()
            store.put(number, Line(Kind.KEPT, False, query_key(row.query), text))
        found = [[stored.number for stored in batch] for batch in store.batches(store.rows())]
        wanted = [stored.number for stored in store.rows(only=lambda number: number % 2 == 0)]
    assert found == [[0, 1, 2], [3], [4], [5, 6], [7, 8]]
    assert wanted == [0, 2, 4, 6, 8]
