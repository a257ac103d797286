"""The data card: front matter that hubs read, numbers that are those of the rows, texts that cannot break it."""

from __future__ import annotations

import re
from typing import Any

import yaml

from plansmith.contract.records import Example, Reject, Split
from plansmith.data.arrow import FileFormat
from plansmith.data.card import CardFiles, CardText, card, format_card, front_matter
from plansmith.data.manifest import Manifest, count_families, count_rows
from plansmith.data.stats import DataStats, stats_of


def example(row_id: str, split: Split, source: str = "made", worker: str = "find") -> Example:
    plan = [{"type": worker, "args": {"a": 1}}] if worker else []
    return Example(
        id=row_id, query=f"query {row_id}", plan=plan, family="f", source=source, split=split, part=split.value
    )


ROWS = [
    *(example(str(at), Split.TRAIN) for at in range(5)),
    example("v", Split.VAL, "logs"),
    example("t", Split.TEST, worker=""),
]
REJECTS = [Reject(id="r", query="q", plan=None, reason="near_duplicate", detail="d.", source="made")]
FILES = CardFiles(
    {Split.TRAIN: 5, Split.VAL: 1, Split.TEST: 1}, tuple(FileFormat), {"parquet/train.parquet": "ab" * 32}
)


def manifest(rows: list[Example], licence: str = "Apache-2.0") -> Manifest:
    return Manifest(
        source="made",
        licence=licence,
        seed=3,
        catalog_name="demo",
        catalog_hash="cd" * 32,
        counts=count_rows(rows, REJECTS, read=len(rows) + 1),
        families=count_families(rows),
        warnings={"dangling_reference": 2},
        notes={"literals_to_references": 7},
        files={},
        inputs="ef" * 32,
        config={"source": {"kind": "jsonl"}},
    )


def made(rows: list[Example] = ROWS, licence: str = "Apache-2.0", **text: Any) -> tuple[str, dict[str, Any], DataStats]:
    stats = stats_of(rows, REJECTS, tokens=len)
    written = card(manifest(rows, licence), stats, FILES, CardText(**{"name": "Demo", **text}))
    _, head, body = written.split("---\n", 2)
    return body, yaml.safe_load(head), stats


def test_the_head_names_licence_size_files_and_columns():
    _, head, _ = made()
    assert head["license"] == "apache-2.0"
    assert head["size_categories"] == ["n<1K"]
    assert head["configs"] == [
        {
            "config_name": "default",
            "data_files": [{"split": split, "path": f"parquet/{split}.parquet"} for split in ("train", "val", "test")],
        }
    ]
    [info] = head["dataset_info"]
    assert {"name": "plan", "dtype": "large_string"} in info["features"]
    short = yaml.safe_load(format_card(FILES, FileFormat.JSONL).split("---\n")[1])
    assert short["configs"][0]["data_files"][1] == {"split": "val", "path": "val.jsonl"}
    assert short["dataset_info"] == head["dataset_info"]


def test_a_licence_that_hubs_do_not_know_keeps_its_name():
    head = made(licence="Our own terms")[1]
    assert (head["license"], head["license_name"]) == ("other", "Our own terms")
    head = made(licence="")[1]
    assert (head["license"], head["license_name"]) == ("other", "not given")
    body, head, _ = made(licences={"logs": "CC-BY-4.0"})
    assert head["license"] == ["apache-2.0", "cc-by-4.0"]
    assert re.search(r"\| logs \| CC-BY-4\.0 \| 1 \|", body)


def test_sizes_are_the_hubs_classes():
    stats = stats_of(ROWS)
    for rows, expected in ((999, "n<1K"), (1000, "1K<n<10K"), (99_999, "10K<n<100K"), (10**6, "1M<n<10M")):
        many = stats.model_copy(update={"overall": stats.overall.model_copy(update={"rows": rows})})
        head = front_matter(manifest(ROWS), many, FILES, CardText("Demo"))
        assert head["size_categories"] == [expected]


def test_the_body_holds_the_numbers_of_manifest_and_rows():
    body, _, stats = made(about="Queries of **nobody**.")
    assert "Queries of **nobody**." in body
    for line in (
        "| made | Apache-2.0 | 6 |",
        "| train | 5 |",
        "| overall | 7 | 1 | 6 | 14.3% | 0.0% |",
        "| 1 | 6 | 85.7% |",
        "| `find` | 6 | 100.0% |",
        "| near\\_duplicate | 1 | 12.5% |",
        "| literals\\_to\\_references | 7 |",
        "| dangling\\_reference | 2 |",
        f"| `parquet/train.parquet` | `{'ab' * 32}` |",
    ):
        assert line in body, line
    assert "Rows read: 8, dropped: 1." in body
    assert "query, tokens" in body
    assert "`plan`, `results`, `allowed`, `why` hold JSON as text" in body
    assert f"hash `{'cd' * 32}`" in body
    assert stats.read == 8


def test_without_rejects_notes_and_tokens_their_tables_are_left_out():
    rows = ROWS[:5]
    plain = manifest(rows).model_copy(update={"notes": {}, "warnings": {}})
    written = card(plain, stats_of(rows), CardFiles({Split.TRAIN: 5}, (FileFormat.JSONL,), {}), CardText("Demo"))
    assert "tokens" not in written
    assert "Changed on the way" not in written
    assert "| reason |" not in written
    assert "another format" not in written
    assert "path: jsonl/train.jsonl" in written


def test_texts_of_rows_cannot_break_the_card():
    evil = "a|b`c\n---\n# <script>x</script> *d*"
    body, head, _ = made([*ROWS, example("x", Split.TRAIN, source=evil, worker=evil)], name=f"N {evil}", licence=evil)
    assert "<script>" not in re.sub(r"`[^`]*`", "", body.replace("\\`", ""))
    assert head["pretty_name"] == " ".join(f"N {evil}".split())
    assert not re.search(r"^(---|# <)", body, re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", body, re.MULTILINE):
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table
