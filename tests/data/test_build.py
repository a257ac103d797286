"""Building and loading: counts add up, the same inputs build nothing again, what changed is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import CatalogMismatchError, InputError, ServiceError
from plansmith.contract.progress import Silent
from plansmith.contract.records import Reject
from plansmith.contract.store import StorageError, read_rows
from plansmith.data import build
from plansmith.data.build import build_data, load_data
from plansmith.data.config import CatalogScope, DataConfig
from plansmith.data.manifest import Counts
from plansmith.data.packages import fetch_wheel
from plansmith.data.show import Selection, show_rows, stats
from plansmith.data.sources.nestful import PACKAGE

from .conftest import CATALOG, RowWriter

NAMES = ("one", "two", "three")


class Notes(Silent):
    """Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def config(catalog_file: Path, write_jsonl: RowWriter) -> DataConfig:
    rows = [{"query": f"query {i}", "plan": [{"type": NAMES[i % 2], "args": {"a": f"v{i}"}}]} for i in range(60)]
    path = write_jsonl([*rows, rows[0], {"query": "bad", "plan": [{"type": "four", "args": {}}]}, b"{"])
    source = {"kind": "jsonl", "path": path, "catalog": catalog_file, "licence": "MIT"}
    return DataConfig.model_validate({"source": source, "split": {"val": 0.1, "seen": 0.2, "unseen": 0}})


def test_every_row_is_in_a_file_and_in_the_counts(config: DataConfig, tmp_path: Path):
    out = tmp_path / "out"
    manifest = build_data(config, out, seed=0, progress=Silent())
    data = load_data(out)
    assert data.manifest == manifest
    assert manifest.counts.read == 63
    assert manifest.counts.rejects == {"bad_row": 1, "check": 1, "duplicate": 1}
    assert (len(data.train), len(data.val)) == (manifest.counts.train, manifest.counts.val)
    assert Counter(row.part for row in data.test) == manifest.counts.test
    rejects = read_rows(out / "rejects.jsonl", Reject)
    assert Counter(row.reason for row in rejects) == manifest.counts.rejects
    assert len(data.train) + len(data.val) + len(data.test) + len(rejects) == 63
    assert manifest.licence == "MIT"
    assert data.catalog.hash == Catalog.from_json(CATALOG).hash
    files = {"catalog.json", "train.jsonl", "val.jsonl", "test.jsonl", "rejects.jsonl", "manifest.json"}
    assert {path.name for path in out.iterdir()} == files


def test_the_catalog_can_be_cut_to_the_workers_used(config: DataConfig, tmp_path: Path):
    build_data(config.model_copy(update={"catalog": CatalogScope.USED}), tmp_path / "out", seed=0, progress=Silent())
    assert load_data(tmp_path / "out").catalog.names == ("one", "two")


def test_the_same_inputs_write_nothing_and_say_so(config: DataConfig, tmp_path: Path):
    out = tmp_path / "out"
    first = build_data(config, out, seed=0, progress=Silent())
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    notes = Notes()
    assert build_data(config, out, seed=0, progress=notes) == first
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert any("nothing to do" in note for note in notes.notes)


def test_other_inputs_build_again(config: DataConfig, tmp_path: Path, write_jsonl: RowWriter):
    out = tmp_path / "out"
    hashes = {build_data(config, out, seed=seed, progress=Silent()).inputs for seed in (0, 1)}
    write_jsonl([{"query": f"new {i}", "plan": []} for i in range(30)])
    hashes.add(build_data(config, out, seed=1, progress=Silent()).inputs)
    assert len(hashes) == 3
    assert all(row.query.startswith("new") for row in load_data(out).train)


def test_a_damaged_output_is_built_again(config: DataConfig, tmp_path: Path):
    out = tmp_path / "out"
    build_data(config, out, seed=0, progress=Silent())
    (out / "train.jsonl").write_text("")
    build_data(config, out, seed=0, progress=Silent())
    assert load_data(out).train


def test_a_changed_file_is_refused_with_both_hashes(config: DataConfig, tmp_path: Path):
    out = tmp_path / "out"
    manifest = build_data(config, out, seed=0, progress=Silent())
    lines = (out / "train.jsonl").read_text().splitlines(keepends=True)
    (out / "train.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(InputError, match=manifest.files["train.jsonl"]) as caught:
        load_data(out)
    assert build.file_hash(out / "train.jsonl") in str(caught.value)


def test_another_catalog_is_refused_with_both_hashes(config: DataConfig, tmp_path: Path):
    out = tmp_path / "out"
    manifest = build_data(config, out, seed=0, progress=Silent())
    other = Catalog.from_json(CATALOG).subset(["one", "two"])
    other.save(out / "catalog.json")
    with pytest.raises(CatalogMismatchError, match=manifest.catalog_hash) as caught:
        load_data(out)
    assert other.hash in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "{}", '{"version":2}'])
def test_a_folder_without_a_manifest_holds_no_data_set(tmp_path: Path, text: str | None):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=r"holds no data set|is no manifest"):
        load_data(tmp_path)


def test_a_build_that_finds_no_usable_row_is_refused_and_earlier_output_stays(
    config: DataConfig, tmp_path: Path, write_jsonl: RowWriter
):
    out = tmp_path / "out"
    first = build_data(config, out, seed=0, progress=Silent())
    write_jsonl([{"query": "bad", "plan": [{"type": "four", "args": {}}]}])
    with pytest.raises(InputError, match="unknown_worker"):
        build_data(config, out, seed=0, progress=Silent())
    assert load_data(out).manifest == first


KILLED = """
import os, sys
from pathlib import Path
from plansmith.contract.progress import Silent
from plansmith.data.build import build_data
from plansmith.data.config import DataConfig

config, out = DataConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2])
left = int(sys.argv[3])
real_sync, real_replace = os.fsync, Path.replace

def count():
    global left
    left -= 1
    if left < 0:
        os._exit(9)

def sync(handle):
    count()
    real_sync(handle)

def replace(self, target):
    if Path(target).parent == out:
        count()
    return real_replace(self, target)

os.fsync, Path.replace = sync, replace
build_data(config, out, seed=1, progress=Silent())
"""


@pytest.mark.parametrize("writes", [0, 3, 6, 8, 11])
def test_a_build_that_is_killed_leaves_the_earlier_data_set_or_the_new_one(
    config: DataConfig, tmp_path: Path, writes: int
):
    """Killed in the middle of writing (6 files) or of moving in (6 more)."""
    out = tmp_path / "out"
    build_data(config, out, seed=0, progress=Silent())
    command = [sys.executable, "-c", KILLED, config.model_dump_json(), str(out), str(writes)]
    assert subprocess.run(command, check=False).returncode == 9
    assert load_data(out).manifest.seed == (0 if writes < 6 else 1)
    again = build_data(config, out, seed=1, progress=Silent())
    assert load_data(out).manifest == again
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]


def test_an_output_path_that_is_a_file_is_one_clear_error(config: DataConfig, tmp_path: Path):
    out = tmp_path / "file"
    out.write_text("in the way")
    with pytest.raises(StorageError, match="cannot write data into"):
        build_data(config, out, seed=0, progress=Silent())
    assert out.read_text() == "in the way"


FULL = """
import resource, sys
from pathlib import Path
from plansmith.contract.errors import PlansmithError
from plansmith.contract.progress import Silent
from plansmith.data.build import build_data
from plansmith.data.config import DataConfig

resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    build_data(DataConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), seed=1, progress=Silent())
except PlansmithError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_file_that_cannot_grow_is_one_clear_error_and_earlier_output_stays(config: DataConfig, tmp_path: Path):
    """A limit on file size stands for a full disk: writing stops with the system's error."""
    out = tmp_path / "out"
    first = build_data(config, out, seed=0, progress=Silent())
    command = [sys.executable, "-c", FULL, config.model_dump_json(), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "cannot write" in done.stdout
    assert load_data(out).manifest == first


def test_counts_that_do_not_add_up_are_refused():
    with pytest.raises(ValidationError, match="add up to 4"):
        Counts(read=5, train=1, val=1, test={"seen": 1}, rejects={"check": 1})


def test_a_package_that_cannot_be_fetched_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLANSMITH_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    notes = Notes()
    with pytest.raises(ServiceError, match=r"could not fetch nestful-wrapper==0\.1\.7") as caught:
        fetch_wheel(PACKAGE, notes)
    assert caught.value.exit_code == 3
    assert "Apache-2.0" in notes.notes[0]
    assert list((tmp_path / "wheels").iterdir()) == []


def test_another_wheel_is_refused(config: DataConfig, tmp_path: Path):
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"no wheel")
    nestful = DataConfig.model_validate({"source": {"kind": "nestful", "wheel": wheel}})
    with pytest.raises(InputError, match=PACKAGE.sha256):
        build_data(nestful, tmp_path / "out", seed=0, progress=Silent())


def shown(folder: Path, *, selection: Selection | None = None) -> str:
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        for part in stats(folder) if selection is None else show_rows(folder, selection):
            console.print(part)
    return console.export_text()


def test_stats_and_rows_are_shown_as_people_read_them(config: DataConfig, tmp_path: Path):
    out = tmp_path / "out"
    manifest = build_data(config, out, seed=0, progress=Silent())
    text = shown(out)
    assert "dropped duplicate" in text
    assert str(manifest.counts.read) in text
    assert "three" in text
    rows = shown(out, selection=Selection(part="train", worker="two", limit=2))
    assert "0  two {" in rows
    assert "2 of" in rows
    assert "unknown_worker" in shown(out, selection=Selection(part="rejects"))
    with pytest.raises(InputError, match="parts are train"):
        shown(out, selection=Selection(part="nowhere"))


def test_config_sizes_are_counts_or_shares():
    def size(text: str) -> object:
        data = json.loads(f'{{"source":{{"kind":"nestful"}},"split":{{"val":{text}}}}}')
        return DataConfig.model_validate(data).split.val

    assert [size("1"), size("1.0"), size("0.25")] == [1, 1.0, 0.25]
    assert [type(size(text)) for text in ("1", "1.0", '"0.25"', '"40"')] == [int, float, float, int]
    for bad in ("-1", "1.5", '"a"'):
        with pytest.raises(ValidationError):
            size(bad)


def test_near_duplicates_and_rows_too_near_to_a_test_row_are_dropped_and_counted(tmp_path: Path):
    pytest.importorskip("rensa")
    long = "Please tell me as soon as you can what the time is over there in the city of "
    plan = [{"type": "time_now", "args": {}}]
    rows = [{"query": f"{long}{name}", "plan": plan} for name in ("Lisbon", "Lisbon!?!", "Lisboa")]
    rows += [{"query": f"{number} unlike questions about {number * 7}", "plan": plan} for number in range(30)]
    rows.append({"query": f"{long}Lisbons", "plan": plan, "part": "handwritten"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {
        "kind": "jsonl",
        "path": tmp_path / "rows.jsonl",
        "catalog": Path(__file__).parent.parent / "golden" / "demo_catalog.json",
    }
    split = {"val": 2, "seen": 3, "unseen": 0}

    def counts(name: str, **options: object) -> dict[str, int]:
        config = DataConfig.model_validate({"source": source, "split": split} | options)
        manifest = build_data(config, tmp_path / name, seed=1, progress=Silent())
        counted = manifest.counts
        kept = counted.train + counted.val + sum(counted.test.values())
        assert kept + sum(counted.rejects.values()) == counted.read == len(rows)
        return counted.rejects

    plain = counts("plain")
    near = counts("near", dedupe={})
    apart = counts("apart", decontaminate={})
    assert "near_duplicate" not in plain
    assert near["near_duplicate"] >= 2
    assert apart["contaminated"] >= 1
