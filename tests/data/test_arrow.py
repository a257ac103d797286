"""Rows through Parquet and JSONL and back: unchanged, whatever keys and types their plans have (trl 5118)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError, MissingExtraError
from plansmith.contract.progress import Silent
from plansmith.contract.records import Example, Reject, Split
from plansmith.contract.store import StorageError, file_hash, read_rows
from plansmith.data import arrow, export
from plansmith.data.arrow import Column, FileFormat, columns, from_columns, read_split, to_columns, write_file
from plansmith.data.build import build_data
from plansmith.data.card import CardText
from plansmith.data.config import DataConfig
from plansmith.data.export import export_data

from .conftest import RowWriter

FORMATS = tuple(FileFormat)


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # pyright: ignore[reportUnusedFunction]
    """What `datasets` caches goes to a folder of the test, and it asks no hub."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def example(row_id: str, plan: list[dict[str, Any]], split: Split = Split.TRAIN, **values: Any) -> Example:
    return Example(
        id=row_id, query=f"query {row_id}", plan=plan, family="f", source="s", split=split, part=split.value, **values
    )


MIXED = [
    example("a", [{"type": "one", "args": {"city": "Oslo", "days": 3}}], results=[{"x": 1.0, "y": None}]),
    example("b", [{"type": "two", "args": {"ids": [1, 2.0, "3", None, True], "days": "three"}}]),
    example("c", [{"type": "two", "args": {"days": 3.0, "at": {"lat": 1, "lon": 2}}, "after": [0]}], results=[None]),
    example("d", [], allowed=[{"one": {"city": ["Oslo", ""]}}]),
    example("e", [{"type": "one", "args": {"big": 2**70, "small": 1e-300, "text": 'a "b" \\ \u2028 \U0001f326 \x7f'}}]),
]


def test_what_is_no_text_or_number_is_kept_as_json():
    kinds = columns(Example)
    assert [name for name, kind in kinds.items() if kind is Column.JSON] == ["plan", "results", "allowed", "why"]
    assert (kinds["version"], kinds["split"], kinds["id"]) == (Column.INTEGER, Column.TEXT, Column.TEXT)
    assert columns(Reject)["plan"] is Column.JSON


def test_no_key_appears_and_no_number_changes_its_kind(tmp_path: Path):
    assert write_file(iter(MIXED), Example, tmp_path, "train", FORMATS) == 5
    import pyarrow.parquet as parquet

    table = parquet.read_table(tmp_path / "parquet" / "train.parquet").to_pylist()
    lines = (tmp_path / "jsonl" / "train.jsonl").read_text().split("\n")[:-1]
    for rows in (table, [json.loads(line) for line in lines]):
        assert rows[1]["plan"] == '[{"type":"two","args":{"ids":[1,2.0,"3",null,true],"days":"three"}}]'
        assert rows[1]["results"] is None
        back = [from_columns(row, Example) for row in rows]
        assert back == MIXED
        assert [row.model_dump_json() for row in back] == [row.model_dump_json() for row in MIXED]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["jsonl", "parquet"]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
steps = st.fixed_dictionaries(
    {"type": texts, "args": st.dictionaries(texts, values, max_size=3)},
    optional={"after": st.lists(st.integers(0, 3), max_size=2)},
)
examples = st.builds(
    Example,
    id=texts,
    query=texts,
    plan=st.lists(steps, max_size=2),
    family=texts,
    source=texts,
    split=st.just(Split.TRAIN),
    part=texts,
    results=st.none() | st.lists(values, max_size=2),
    allowed=st.none() | st.just([{"one": {"a": ["", 1, 1.0]}}]),
)


def as_text(rows: list[Example]) -> list[str]:
    """Rows as JSON, which tells 1 from 1.0 and from true."""
    return [json.dumps(row.model_dump(mode="json")) for row in rows]


@given(examples)
def test_a_row_comes_back_from_its_columns(row: Example):
    encoded = to_columns(row)
    assert all(value is None or isinstance(value, str | int) for value in encoded.values())
    assert as_text([from_columns(encoded, Example)]) == as_text([row])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(examples, min_size=1, max_size=4))
def test_rows_come_back_from_files_that_datasets_reads(rows: list[Example], tmp_path_factory: pytest.TempPathFactory):
    import datasets

    folder = tmp_path_factory.mktemp("files")
    assert write_file(rows, Example, folder, "train", FORMATS) == len(rows)
    for kind in FORMATS:
        name = "json" if kind is FileFormat.JSONL else kind.value
        file = str(folder / kind.value / f"train.{kind.value}")
        features = datasets.Features({key: datasets.Value(column.value) for key, column in columns(Example).items()})
        found = datasets.load_dataset(name, data_files=file, split="train", streaming=True, features=features)
        assert as_text([from_columns(dict(row), Example) for row in found]) == as_text(rows)


def test_without_rows_no_file_is_written(tmp_path: Path):
    assert write_file([], Example, tmp_path, "val", FORMATS) == 0
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_the_same_folder_can_be_written_twice_with_other_rows(tmp_path: Path):
    for row in MIXED[:2]:
        write_file([row], Example, tmp_path, "train", FORMATS)
        [line] = (tmp_path / "jsonl" / "train.jsonl").read_text().split("\n")[:-1]
        assert from_columns(json.loads(line), Example) == row


def test_an_error_while_reading_rows_is_told_as_it_is(tmp_path: Path):
    def rows() -> Iterator[Example]:
        yield MIXED[0]
        raise InputError("line 2 is no row")

    with pytest.raises(InputError, match="line 2 is no row"):
        write_file(rows(), Example, tmp_path, "train", FORMATS)
    with pytest.raises(StorageError, match="cannot write 'train'"):
        write_file(MIXED, Example, Path("/proc/nowhere"), "train", FORMATS)


@pytest.mark.parametrize("wrong", [{"plan": "["}, {"plan": "3"}, {"split": "other"}, {"more": 1}, {"id": None}])
def test_columns_that_are_no_row_are_refused(wrong: dict[str, Any]):
    with pytest.raises(InputError, match="is no Example"):
        from_columns(to_columns(MIXED[0]) | wrong, Example)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(arrow, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"plansmith\[data\]"):
        write_file(MIXED, Example, tmp_path, "train", FORMATS)


@pytest.fixture
def built(catalog_file: Path, write_jsonl: RowWriter, tmp_path: Path) -> Path:
    """A built data set of 60 rows whose plans have different arguments."""
    rows = [
        {
            "query": f"query {at}",
            "plan": [{"type": ("one", "two")[at % 2], "args": {"a": "x"} | ({"b": at} if at % 3 else {})}],
        }
        for at in range(60)
    ]
    source = {"kind": "jsonl", "path": write_jsonl([*rows, rows[0]]), "catalog": catalog_file, "licence": "MIT"}
    config = {"source": source, "split": {"val": 0.1, "seen": 0.2, "unseen": 0}}
    build_data(DataConfig.model_validate(config), tmp_path / "built", seed=0, progress=Silent())
    return tmp_path / "built"


@pytest.mark.parametrize("folder", ["", "parquet", "jsonl"])
def test_load_dataset_reads_the_folder_with_its_splits(built: Path, tmp_path: Path, folder: str):
    import datasets

    formats = FORMATS if folder != "parquet" else FORMATS[::-1]
    stats = export_data(built, tmp_path / "shared", CardText("Demo"), formats=formats)
    with arrow.quiet():
        loaded = datasets.load_dataset(str(tmp_path / "shared" / folder))
    assert list(loaded) == ["train", "val", "test"]
    for split in Split:
        expected = read_rows(built / f"{split.value}.jsonl", Example)
        assert [from_columns(row, Example) for row in loaded[split.value]] == expected
        assert list(read_split(tmp_path / "shared" / folder, split.value, Example)) == expected
    assert stats.overall.rows == sum(len(part) for part in loaded.values()) == 60
    assert {value.dtype for value in loaded["train"].features.values()} == {"string", "large_string", "int64"}


def test_splits_without_rows_are_left_out(built: Path, tmp_path: Path, catalog_file: Path, write_jsonl: RowWriter):
    import datasets

    rows = [{"query": f"query {at}", "plan": []} for at in range(5)]
    source = {"kind": "jsonl", "path": write_jsonl(rows), "catalog": catalog_file}
    config = DataConfig.model_validate({"source": source, "split": {"val": 0, "seen": 0, "unseen": 0}})
    build_data(config, tmp_path / "small", seed=0, progress=Silent())
    export_data(tmp_path / "small", tmp_path / "shared", CardText("Small"))
    with arrow.quiet():
        assert list(datasets.load_dataset(str(tmp_path / "shared"))) == ["train"]
    with pytest.raises(InputError, match="holds no split 'val'"):
        list(read_split(tmp_path / "shared", "val", Example))


def test_an_export_holds_the_catalog_and_is_the_same_again(built: Path, tmp_path: Path):
    out = tmp_path / "shared"
    export_data(built, out, CardText("Demo"))
    first = {path.relative_to(out).as_posix(): file_hash(path) for path in out.rglob("*") if path.is_file()}
    assert set(first) == {
        *(f"{kind}/{split}.{kind}" for kind in ("parquet", "jsonl") for split in ("train", "val", "test")),
        *("README.md", "jsonl/README.md", "catalog.json", "manifest.json"),
    }
    export_data(built, out, CardText("Demo"))
    assert {path.relative_to(out).as_posix(): file_hash(path) for path in out.rglob("*") if path.is_file()} == first
    assert Catalog.load(out / "catalog.json").hash == Catalog.load(built / "catalog.json").hash
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert out.stat().st_mode & 0o777 == 0o777 & ~current_umask()


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_folder_that_is_no_export_is_never_replaced(built: Path, tmp_path: Path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "README.md").write_text("my notes")
    (out / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match=r"is no earlier export \(it holds \['notes.txt'\]\)"):
        export_data(built, out, CardText("Demo"))
    assert (out / "notes.txt").read_text() == "precious"
    with pytest.raises(InputError, match="no earlier export"):
        export_data(built, out / "notes.txt", CardText("Demo"))


def test_changed_data_is_refused_and_a_failed_export_keeps_the_earlier_one(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "shared"
    export_data(built, out, CardText("Demo"))
    before = file_hash(out / "README.md")

    def fail(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "card", fail)
    with pytest.raises(StorageError, match="No space left"):
        export_data(built, out, CardText("Other"))
    with (built / "train.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(InputError, match="Build the data again"):
        export_data(built, out, CardText("Other"))
    assert file_hash(out / "README.md") == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
