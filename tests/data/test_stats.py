"""Numbers of a data set are right, add up, and are shown as people read them."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from plansmith.contract.errors import InputError, MissingExtraError
from plansmith.contract.records import Example, Reject, Split
from plansmith.contract.store import write_rows
from plansmith.data import stats_show
from plansmith.data.stats import DataStats, Lengths, folder_stats, lengths_of, stats_of
from plansmith.data.stats_show import share, stats_tables, write_stats_html


def example(query: str, plan: list[dict[str, Any]], split: Split, part: str, family: str = "f") -> Example:
    return Example(id=query, query=query, plan=plan, family=family, source="made", split=split, part=part)


FIND, BOOK = {"type": "find", "args": {"city": "Oslo", "n": 2}}, {"type": "book", "args": {"id": {"$from": "/0/id"}}}
NOTE = {
    "type": "note",
    "args": {"text": {"$format": "{0}", "with": [{"$from": "/0/id"}]}, "raw": {"$literal": {"$from": "/0"}}},
}
ROWS = [
    example("find it", [FIND], Split.TRAIN, "train"),
    example("find and book it now", [FIND, BOOK], Split.TRAIN, "train", "g"),
    example("nothing", [], Split.VAL, "val"),
    example("find and note", [FIND, NOTE], Split.TEST, "seen"),
    example("another one", [FIND], Split.TEST, "unseen", "h"),
]
REJECTS = [
    Reject(id=str(at), query="q", plan=None, reason=reason, detail="d.", source="made")
    for at, reason in enumerate(["check", "near_duplicate", "near_duplicate"])
]


def test_every_number_of_a_small_set():
    stats = stats_of(ROWS, REJECTS, tokens=lambda text: len(text.split()))
    assert list(stats.parts) == ["train", "val", "test seen", "test unseen"]
    overall = stats.overall
    assert (overall.rows, overall.families, overall.abstentions, overall.with_references) == (5, 3, 1, 2)
    assert overall.steps == {0: 1, 1: 2, 2: 2}
    assert list(overall.workers.items()) == [("find", 4), ("book", 1), ("note", 1)]
    assert (overall.values, overall.values_with_references, overall.calls) == (11, 2, 6)
    assert overall.query_words == Lengths(count=5, total=13, min=1, p50=2, p95=5, max=5)
    assert overall.query_tokens == overall.query_words
    assert overall.plan_characters.min == 2
    train = stats.parts["train"]
    assert (train.rows, train.families, train.with_references) == (2, 2, 1)
    assert stats.rejects == {"near_duplicate": 2, "check": 1}
    assert stats.sources == {"made": 5}
    assert stats.read == 8
    assert sum(part.rows for part in stats.parts.values()) == overall.rows
    assert DataStats.model_validate_json(stats.model_dump_json()) == stats


def test_without_a_tokenizer_there_are_no_lengths_in_tokens():
    assert stats_of(ROWS).overall.query_tokens is None


def test_a_folder_is_read_row_by_row(tmp_path: Path):
    for split in Split:
        write_rows(tmp_path / f"{split.value}.jsonl", [row for row in ROWS if row.split is split])
    write_rows(tmp_path / "rejects.jsonl", REJECTS)
    assert folder_stats(tmp_path) == stats_of(ROWS, REJECTS)
    (tmp_path / "val.jsonl").unlink()
    with pytest.raises(InputError, match=r"val\.jsonl"):
        folder_stats(tmp_path)


@given(st.lists(st.integers(0, 50), max_size=60))
def test_quantiles_are_lengths_that_occur_with_the_right_rank(lengths: list[int]):
    found = lengths_of(Counter(lengths))
    assert (found.count, found.total) == (len(lengths), sum(lengths))
    if not lengths:
        assert found.mean == 0
        return
    assert (found.min, found.max) == (min(lengths), max(lengths))
    for quantile, at in ((found.p50, 0.5), (found.p95, 0.95)):
        assert quantile in lengths
        assert sum(length <= quantile for length in lengths) >= at * len(lengths) - 1e-9
        assert sum(length < quantile for length in lengths) < at * len(lengths)


def printed(stats: DataStats, width: int = 110) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(*stats_tables(stats))
    return console.export_text()


def test_tables_show_parts_bars_and_reasons():
    text = printed(stats_of(ROWS, REJECTS))
    for words in ("test unseen", "overall", "near_duplicate", "find", "query, words", "made"):
        assert words in text
    bars = [len(bar) for bar in re.findall("█+", text.split("Workers")[1].split("Lengths")[0])]
    assert bars == [30, 8, 8]
    assert "25.0%" in text.split("Dropped")[1]


def test_names_with_markup_are_shown_as_they_are():
    rows = [example("q", [{"type": "[red]worker[/red]", "args": {}}], Split.TRAIN, "train")]
    assert "[red]worker[/red]" in printed(stats_of(rows))


def test_many_workers_are_cut_and_the_rest_is_counted():
    rows = [example(str(at), [{"type": f"w{at}", "args": {}}], Split.TRAIN, "train") for at in range(50)]
    assert "10 more, 10 calls" in printed(stats_of(rows))


def test_an_empty_set_has_numbers_too():
    stats = stats_of([])
    assert stats.overall.rows == 0
    assert share(0, 0) == "-"
    assert "overall" in printed(stats)


def test_the_page_is_one_file_that_needs_nothing_else(tmp_path: Path):
    pytest.importorskip("vl_convert")
    path = tmp_path / "stats.html"
    name = "</script><img src=x onerror=alert(1)>"
    rows = [*ROWS, example("q", [{"type": name, "args": {}}], Split.TEST, "<b>part</b>")]
    write_stats_html(stats_of(rows, REJECTS), path, title="Rows & <more>")
    text = path.read_text()
    assert text.count("<script>") == text.count("</script>") == 2
    assert "<img" not in text.split("vegaEmbed(")[-1]
    assert "<b>" not in text.split("<script>")[0]
    assert "Rows &amp; &lt;more&gt;" in text
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=", re.sub(r"<script>.*?</script>", "", text, flags=re.S))
    assert "\\u003c/script>" in text
    write_stats_html(stats_of(rows, REJECTS), tmp_path / "again.html", title="Rows & <more>")
    assert (tmp_path / "again.html").read_bytes() == path.read_bytes()


def test_without_the_packages_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stats_show, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"plansmith\[report\]"):
        write_stats_html(stats_of(ROWS), tmp_path / "stats.html")
