"""Hostile and mistaken input of `plansmith score`: a clear refusal or clear counts, never a wrong number or a crash.

Everything goes through the command line, as a user's files do.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plansmith.cli import main
from plansmith.contract.parse import MAX_BYTES
from plansmith.contract.plan import dumps
from plansmith.contract.progress import Silent
from plansmith.contract.store import read_rows
from plansmith.eval import score as scoring
from plansmith.eval.items import ScoredItem
from tests.eval.cases import CATALOG, plan_of

Captured = pytest.CaptureFixture[str]
RIGHT = [{"id": "a", "plan": plan_of(1)}, {"id": "b", "plan": plan_of(2)}]
ANSWERS = [{"id": "a", "plan": plan_of(1)}, {"id": "b", "text": "no plan"}]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def score(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def hits(self, metric: str = "equivalent") -> tuple[int, int]:
        found = self.score["metrics"][metric]
        return found["hits"], found["scored"]

    def refused(self, *reasons: str) -> None:
        """Exit code 2, nothing on standard output, one line that names the reasons."""
        assert (self.code, self.out) == (2, "")
        assert self.err.count("\n") == 1, self.err
        for reason in reasons:
            assert reason in self.err


Scorer = Callable[..., Outcome]


@pytest.fixture
def scored(tmp_path: Path, capsys: Captured) -> Scorer:
    """Score files given as rows, lines or bytes; a path is used as it is."""
    CATALOG.save(tmp_path / "catalog.json")

    def place(name: str, content: Any) -> str:
        if isinstance(content, Path):
            return str(content)
        if not isinstance(content, bytes):
            lines = [row if isinstance(row, str) else json.dumps(row) for row in content]
            content = "".join(line + "\n" for line in lines).encode()
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    def run(reference: Any = RIGHT, candidate: Any = ANSWERS, *more: str) -> Outcome:
        files = ["--reference", place("r.jsonl", reference), "--candidate", place("c.jsonl", candidate)]
        code = main(["score", "--catalog", str(tmp_path / "catalog.json"), *files, *more])
        return Outcome(code, *capsys.readouterr())

    return run


def test_the_files_that_the_cases_spoil_are_scored_when_whole(scored: Scorer):
    assert scored().hits() == (1, 2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(b'{"id":"a","plan":[]}\n'), "gzip"),
        (b"PK\x03\x04rest", "zip"),
        (b"PAR1\x00\x00", "Parquet"),
        ('{"id":"a","plan":[]}\n'.encode("utf-16"), "UTF-16"),
        (bytes(range(256)), "binary"),
        (b"id,plan\na,[]\n", "CSV"),
        (b'[{"id":"a","plan":[]}]\n', "one JSON array"),
        (b'{\n "id": "a",\n "plan": []\n}\n', "several lines"),
        (b'{"id":"a","plan":[]}{"id":"b","plan":[]}\n', "line 1"),
        (b'{"id":"a","plan":[]}\n{"id":"\xff"}\n', "line 2: the file is not UTF-8: invalid start byte at byte 28"),
        (b'{"id":"a","plan":[]}\n' + b" " * (16 * 2**20) + b"\n", "line 2: the row has more than 16"),
        (b"null\n", "expected an object"),
        (b'{"id":"a","plan":[NaN]}\n', "line 1"),
        (b'{"id":"a","plan":[-Infinity]}\n', "line 1"),
        (b'{"id":"a","plan":' + b"[" * 10_000 + b"]" * 10_000 + b"}\n", "nested too deeply to be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_no_jsonl_is_refused_as_what_it_is(scored: Scorer, content: bytes, reason: str):
    scored(content, ANSWERS).refused("r.jsonl", reason)
    scored(RIGHT, content).refused("c.jsonl", reason)


def test_folders_pipes_devices_and_absent_files_are_refused_without_waiting(scored: Scorer, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path, reason in ((tmp_path, "a folder"), (tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device")):
        scored(path, ANSWERS).refused(reason)
        scored(RIGHT, path).refused(reason)
    scored(RIGHT, tmp_path / "none").refused("cannot be read", "No such file")


@pytest.mark.parametrize(
    "row",
    [
        '{"plan":[]}',
        '{"id":null,"plan":[]}',
        '{"id":true,"plan":[]}',
        '{"id":1.0,"plan":[]}',
        '{"id":1e999,"plan":[]}',
        '{"id":' + "9" * 5000 + ',"plan":[]}',
        '{"id":["a"],"plan":[]}',
        '{"id":{"a":1},"plan":[]}',
        '{"id":"\\ud800","plan":[]}',
    ],
)
def test_a_row_without_a_usable_id_is_refused_with_its_place(scored: Scorer, row: str):
    scored([*RIGHT, "", row]).refused("r.jsonl, line 4: ", "id")
    scored(RIGHT, [row]).refused("c.jsonl, line 1: ", "id")


def test_ids_that_differ_in_type_only_are_the_same_id(scored: Scorer):
    twice = [{"id": 1, "plan": []}, {"id": "x", "plan": []}, {"id": "1", "plan": []}]
    scored(twice).refused("line 3: the id '1' stands already", "line 1", "as text")
    scored(RIGHT, twice).refused("c.jsonl, line 3")
    found = scored([{"id": 7, "plan": plan_of(7)}], [{"id": "7", "plan": plan_of(7)}])
    assert (found.hits(), found.score["only_in_reference"]) == ((1, 1), 0)
    assert scored([{"id": "01", "plan": []}], [{"id": 1, "plan": []}]).score["only_in_candidate"] == 1


def test_rows_of_several_systems_are_named_as_the_reason_of_double_ids(scored: Scorer):
    rows = [{"id": "a", "system": name, "text": "[]"} for name in ("base/free", "tuned/free")]
    scored(RIGHT, rows).refused("c.jsonl, line 2", "'system'")


def test_ids_in_only_one_file_are_counted_and_miss(scored: Scorer):
    found = scored(
        [{"id": i, "plan": plan_of(i)} for i in range(5)], [{"id": i, "plan": plan_of(i)} for i in range(3, 9)]
    )
    assert (found.score["items"], found.score["only_in_reference"], found.score["only_in_candidate"]) == (5, 3, 4)
    for name in ("parsed", "registered", "valid", "exact", "equivalent", "worker_f1", "argument_f1"):
        assert found.hits(name) == (2, 5)
    for metric in found.score["metrics"].values():
        assert metric["scored"] + metric["unscored"] == 5


def test_files_that_share_no_id_and_candidates_without_rows_are_said_aloud(scored: Scorer):
    apart = scored(RIGHT, [{"id": "z", "plan": []}])
    assert (apart.hits(), apart.score["only_in_reference"], apart.score["only_in_candidate"]) == ((0, 2), 2, 1)
    assert "no id of the candidates" in apart.err
    empty = scored(RIGHT, b"\n\r\n")
    assert (empty.hits(), empty.score["only_in_reference"]) == ((0, 2), 2)
    assert "has no rows" in empty.err
    scored(b"", ANSWERS).refused("has no rows")


def test_a_swapped_pair_is_refused_where_it_shows_and_the_same_file_is_said_aloud(scored: Scorer, tmp_path: Path):
    scored(ANSWERS, RIGHT).refused("r.jsonl, line 2", "swapped")
    scored(RIGHT, [{"id": "a", "plans": [plan_of(1)]}]).refused("c.jsonl, line 1", "swapped")
    (tmp_path / "one.jsonl").write_text(json.dumps(RIGHT[0]) + "\n")
    same = scored(tmp_path / "one.jsonl", tmp_path / "one.jsonl")
    assert same.hits() == (1, 1)
    assert "the same file" in same.err


def test_a_catalog_without_any_worker_of_the_references_is_refused(scored: Scorer):
    other = [{"id": "a", "plan": [{"type": "book_hotel", "args": {}}]}]
    scored(other, other).refused("none of the workers", "'book_hotel'")


def test_references_to_some_unknown_workers_are_counted_and_leave_the_other_numbers_right(scored: Scorer):
    other = [{"type": "book_hotel", "args": {}}]
    rows = [*RIGHT, {"id": "c", "plan": other}, {"id": "d", "plan": plan_of(1)[:0]}]
    found = scored(rows, [{"id": row["id"], "plan": row["plan"]} for row in rows])
    assert found.hits() == (4, 4)
    assert found.hits("valid") == found.hits("registered") == (3, 4)
    assert "1 of 4 items have reference plans that are not valid" in found.err
    assert "'c': unknown_worker" in found.err


def test_plans_of_256_kib_are_scored_and_longer_ones_are_misses(scored: Scorer):
    def plan(size: int) -> list[dict[str, Any]]:
        empty = len(dumps([{"type": "quote", "args": {"symbol": ""}}]))
        return [{"type": "quote", "args": {"symbol": "x" * (size - empty)}}]

    largest, longer = plan(MAX_BYTES), plan(MAX_BYTES + 1)
    right = [{"id": i, "plan": largest} for i in range(4)]
    answers = [
        {"id": 0, "plan": largest},
        {"id": 1, "text": dumps(largest)},
        {"id": 2, "plan": longer},
        {"id": 3, "text": dumps(longer)},
    ]
    found = scored(right, answers)
    assert found.hits() == found.hits("parsed") == (2, 4)
    scored([{"id": 0, "plan": longer}], answers).refused("r.jsonl, line 1", "shape")


@pytest.mark.parametrize("depth", [60, 65, 500, 900, 960, 985, 2000, 10_000, 100_000])
def test_deep_nesting_is_a_miss_or_refused_with_its_place(scored: Scorer, depth: int):
    nest = "[" * depth + "]" * depth
    plan = '[{"type":"quote","args":{"symbol":' + nest + "}}]"
    texts = [nest, plan, '{"a":' * depth + "1" + "}" * depth]
    as_text = scored(RIGHT, [{"id": "a", "text": texts[0]}, {"id": "b", "text": texts[1]}])
    assert as_text.hits() == (0, 2)
    for text in texts:
        found = scored(RIGHT, ['{"id":"a","plan":' + text + "}"])
        if found.code:
            found.refused("c.jsonl, line 1", "nested too deeply", "'text'")
        else:
            assert found.hits() == (0, 2)
    assert depth < 900 or scored(['{"id":"a","plan":' + plan + "}"]).code == 2


def test_numbers_that_no_float_holds_are_misses_and_no_reference(scored: Scorer):
    plan = '[{"type":"quote","args":{"symbol":1e999}}]'
    answers = ['{"id":"a","plan":' + plan + "}", json.dumps({"id": "b", "text": plan})]
    assert scored(RIGHT, answers).hits("valid") == (0, 2)
    assert scored(RIGHT, ['{"id":"a","plan":1e999}', '{"id":"b","plan":{"x":-1e999}}']).hits("parsed") == (0, 2)
    scored(['{"id":"a","plan":' + plan + "}"]).refused("r.jsonl, line 1")


def test_half_characters_in_texts_are_kept_as_escapes_in_the_items(scored: Scorer, tmp_path: Path):
    half = [{"type": "quote", "args": {"symbol": "\ud83d"}}]
    right = [{"id": "a", "plan": half, "query": "\ude00?"}, {"id": "b", "plan": plan_of(2)}]
    answers = [{"id": "a", "plan": half}, {"id": "b", "text": "\ud83d"}]
    found = scored(right, answers, "--items", str(tmp_path / "items.jsonl"))
    assert found.hits() == (1, 2)
    rows = read_rows(tmp_path / "items.jsonl", ScoredItem)
    assert [row.candidate for row in rows] == ['[{"type":"quote","args":{"symbol":"\\ud83d"}}]', "\\ud83d"]
    assert rows[0].query == "\\ude00?"


def test_a_byte_order_mark_crlf_blank_lines_and_no_last_newline_change_nothing(scored: Scorer):
    plain = scored().out
    bom, lines = b"\xef\xbb\xbf", [[json.dumps(row).encode() for row in rows] for rows in (RIGHT, ANSWERS)]
    assert scored(bom + b"\r\n\r\n".join(lines[0]), bom + b"\n \t\r\n" + b"\n\n".join(lines[1])).out == plain
    scored(bom + bom + lines[0][0]).refused("line 1")


def test_further_keys_are_left_aside_and_known_ones_of_another_type_are_refused(scored: Scorer):
    more = [{**row, "note": [1], "source": None, "version": 9} for row in RIGHT]
    answers = [{**row, "finish_reason": ["x"], "seconds": "soon", "prompt_tokens": -1} for row in ANSWERS]
    assert scored(more, answers).out == scored().out
    for key, value in (
        ("query", 7),
        ("part", ["x"]),
        ("results", {"0": 1}),
        ("results", [1, 2]),
        ("allowed", {"quote": {}}),
        ("allowed", [{"quote": {"symbol": "S1"}}]),
    ):
        scored([{**RIGHT[0], key: value}]).refused("r.jsonl, line 1", repr(key))


def test_items_without_right_plans_are_unscored_and_not_wrong(scored: Scorer):
    rows: list[dict[str, Any]] = [{"id": "a", "plans": []}, {"id": "b", "plan": None}, {"id": "c", "plan": []}]
    found = scored(rows, [{"id": name, "plan": []} for name in "abc"])
    assert found.hits("parsed") == (3, 3)
    metric = found.score["metrics"]["equivalent"]
    assert (metric["hits"], metric["scored"], metric["unscored"]) == (1, 1, 2)


def test_an_items_file_never_replaces_its_source_and_stays_whole_when_scoring_is_refused(
    scored: Scorer, tmp_path: Path
):
    for name in ("r.jsonl", "c.jsonl"):
        scored(RIGHT, ANSWERS, "--items", str(tmp_path / "x" / ".." / name)).refused("would replace")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "c.jsonl")
    scored(RIGHT, ANSWERS, "--items", str(tmp_path / "link.jsonl")).refused("would replace")
    items = tmp_path / "items.jsonl"
    items.write_text("earlier\n")
    scored(RIGHT, [{"id": "a", "plan": []}, {"id": "b", "text": 7}], "--items", str(items)).refused("line 2")
    assert items.read_text() == "earlier\n"
    assert not list(tmp_path.glob(".items*"))
    scored(RIGHT, ANSWERS, "--items", str(tmp_path)).refused("cannot write")


class Meddling(Silent):
    """Does something when the work begins, and when a chunk is done."""

    def __init__(self, begin: Callable[[], None], chunk: Callable[[], None] = lambda: None) -> None:
        self.begin = begin
        self.chunk = chunk

    def start(self, what: str, total: int) -> None:
        self.begin()

    def advance(self, amount: int = 1, **values: float | str) -> None:
        self.chunk()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scoring, "MANY_ITEMS", 1)
    reference, candidate = tmp_path / "r.jsonl", tmp_path / "c.jsonl"
    reference.write_text("".join(json.dumps(row) + "\n" for row in RIGHT))
    for later, reason in ((["b", "a"], "was changed"), (["a"], "line 2")):
        candidate.write_text("".join(json.dumps(row) + "\n" for row in ANSWERS))
        rows = "".join(json.dumps({"id": name, "plan": []}) + "\n" for name in later)
        meddling = Meddling(lambda rows=rows: candidate.write_text(rows) and None)
        with pytest.raises(scoring.InputError, match=reason):
            scoring.score_files(CATALOG, reference, candidate, progress=meddling)


def test_a_scoring_process_that_is_killed_ends_the_work_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import multiprocessing

    monkeypatch.setattr(scoring, "MANY_ITEMS", 1)
    monkeypatch.setattr(scoring, "CHUNK", 2)
    rows = [{"id": i, "plan": plan_of(i)} for i in range(100)]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    meddling = Meddling(lambda: None, lambda: [child.kill() for child in multiprocessing.active_children()] and None)
    with pytest.raises(scoring.PlansmithError, match="--workers 1"):
        scoring.score_files(CATALOG, path, path, workers=2, progress=meddling, items=tmp_path / "items.jsonl")
    assert list(tmp_path.iterdir()) == [path]


lines = st.one_of(
    st.text(max_size=30),
    st.dictionaries(
        st.sampled_from(["id", "plan", "plans", "text", "query", "results", "allowed", "part", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.sampled_from(["a", "b", "[]", "quote"]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["type", "args", "after", "symbol", "$from"]), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    ).map(json.dumps),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(lines, max_size=3), st.lists(lines, max_size=3))
def test_no_files_crash_it(scored: Scorer, reference: list[str], candidate: list[str]):
    found = scored(
        "".join(line + "\n" for line in reference).encode("utf-8", "surrogatepass"),
        "".join(line + "\n" for line in candidate).encode("utf-8", "surrogatepass"),
    )
    assert found.code in (0, 2)
    assert bool(found.out) == (found.code == 0)


@pytest.mark.slow
def test_many_rows_give_the_same_numbers_in_one_process_and_in_several_with_bounded_memory(tmp_path: Path):
    count = 6_000
    CATALOG.save(tmp_path / "catalog.json")
    with (tmp_path / "r.jsonl").open("w") as right, (tmp_path / "c.jsonl").open("w") as given_rows:
        for i in range(count):
            right.write(json.dumps({"id": i, "plan": plan_of(i), "query": "x" * 2000, "part": f"p{i % 3}"}) + "\n")
            item = i if i % 2 else count - 2 - i
            text = "no plan" if i % 20 == 0 else json.dumps(plan_of(item if i % 7 else item + 1))
            if i % 50:
                given_rows.write(json.dumps({"id": item, "text": text}) + "\n")
    outputs: list[str] = []
    peaks: list[int] = []  # in KiB; VmHWM begins at 0 in the new process, while ru_maxrss is inherited from this one
    for workers in (1, 2):
        files = [f"--reference={tmp_path / 'r.jsonl'}", f"--candidate={tmp_path / 'c.jsonl'}", "--by-part"]
        command = ["score", f"--catalog={tmp_path / 'catalog.json'}", *files, f"--workers={workers}"]
        program = (
            "import sys; from pathlib import Path; from plansmith.cli import main\n"
            "if __name__ == '__main__':\n"
            f"    code = main({command!r}); sys.stdout.flush()\n"
            "    status = Path('/proc/self/status').read_text()\n"
            "    print(status.split('VmHWM:')[1].split()[0]); sys.exit(code)\n"
        )
        script = tmp_path / "run.py"
        script.write_text(program)
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=280, check=True)
        output, peak = done.stdout.splitlines()
        outputs.append(output)
        peaks.append(int(peak))
        assert f"items scored: {count}/{count}" in done.stderr
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["items"] == count
    assert max(peaks) < 400 * 1024, peaks
