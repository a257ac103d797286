"""Rows checked and a teacher asked by Ray's workers: a killed one loses nothing, a bad row ends nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from pydantic import ValidationError

from plansmith.cli import main
from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import InputError, MissingExtraError
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Silent
from plansmith.contract.records import Query, Reject, TeacherDraft
from plansmith.contract.replay import Replay, recorded_calls
from plansmith.contract.store import read_rows
from plansmith.data import on_ray
from plansmith.data import ray_session as sessions
from plansmith.data.build import Helpers, build_data
from plansmith.data.config import DataConfig
from plansmith.data.drafts import DRAFTS, FAILED, Failure
from plansmith.data.on_ray import RayRunner, check_apart
from plansmith.data.ray_config import NoRayError, RayConfig
from plansmith.data.ray_session import ray_session
from plansmith.data.sources.lines import scan
from plansmith.data.stages.execution import Record
from plansmith.data.stages.rows import Checked, CheckSettings, Item
from plansmith.data.stages.runners import Chunk, InProcess, Runner
from plansmith.data.teacher import teach
from plansmith.data.teacher_config import TeachConfig
from plansmith.data.teacher_on_ray import RayPlanner
from plansmith.data.verify_config import VerifyConfig, rules_for
from plansmith.serving.config import EndpointConfig
from plansmith.serving.openai_planner import OpenAIPlanner
from tests.data.conftest import CATALOG as CATALOG_JSON

WITH_RAY = pytest.mark.skipif(
    any(sessions.importlib.util.find_spec(name) is None for name in ("ray", "pyarrow", "pandas")),
    reason="Ray Data is not installed (extra 'ray')",
)
SERVER = Path(__file__).parent / "teacher_server.py"
WORKERS, CONCURRENCY, QUERIES = 2, 8, 160
WAIT, RAISE, END = "wait to be killed", "raise", "end the process"
NAMES = ("one", "two", "three")


class Notes(Silent):
    """Progress that keeps what it is told, and calls back where it advances."""

    def __init__(self, advanced: Callable[[int], None] = lambda done: None) -> None:
        self.notes: list[str] = []
        self._done = 0
        self._advanced = advanced

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, amount: int = 1, **values: float | str) -> None:
        self._done += amount
        self._advanced(self._done)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One Ray for all tests of this file: its start takes most of their time."""
    with ray_session(RayConfig(workers=WORKERS)) as module:
        module.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield module
    assert not module.is_initialized()


class Hostile(NamedTuple):
    """Executors under which some recorded plans do things to the code or the process that runs them."""

    folder: Path

    def __call__(self, record: Record) -> Replay:
        what = record.plan[0]["args"]["a"]
        if what == RAISE:
            raise RuntimeError("the code does not know such a row")
        if what == END:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == WAIT and not (self.folder / "waited").exists():
            (self.folder / "pid").write_text(str(os.getpid()))
            time.sleep(60)
        return Replay(recorded_calls(Plan.from_json(record.plan), record.results))


class With(NamedTuple):
    """A runner with other executors."""

    runner: Runner
    executors: Hostile

    def run(self, chunks: Iterable[Chunk], settings: CheckSettings) -> Iterator[Checked]:
        return self.runner.run(chunks, replace(settings, executors=self.executors))


def kill_the_waiting(folder: Path) -> threading.Thread:
    """Kill the worker that waits for it, once it does."""

    def work() -> None:
        while not (folder / "pid").exists() or not (pid := (folder / "pid").read_text()):
            time.sleep(0.02)
        (folder / "waited").touch()
        os.kill(int(pid), signal.SIGKILL)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def row(number: int, what: str = "x") -> dict[str, Any]:
    plan = [{"type": NAMES[number % 3], "args": {"a": what}}]
    return {"query": f"query {number} {what}", "plan": plan, "results": [{"x": "y"}]}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.slow
@WITH_RAY
def test_a_killed_worker_and_a_bad_row_change_no_byte_of_what_is_built(
    ray: Any, catalog_file: Path, write_jsonl: Callable[..., Path], tmp_path: Path
):
    special = {2500: WAIT, 1200: RAISE}
    rows: list[Any] = [row(number, special.get(number, "x")) for number in range(5000)]
    path = write_jsonl([*rows, b'{"query": 1}\n', {"query": "bad", "plan": [{"type": "four", "args": {}}]}])
    config = DataConfig.model_validate(
        {
            "source": {"kind": "jsonl", "path": path, "catalog": catalog_file},
            "verify": {"execution": {"rule": "reject"}},
            "split": {"val": 0.1, "seen": 0.2, "unseen": 0},
            "ray": {"workers": WORKERS},
        }
    )
    hostile = Hostile(tmp_path)
    killer = kill_the_waiting(tmp_path)
    told = Notes()
    runner = With(RayRunner(RayConfig(workers=WORKERS), tmp_path / "ray", told), hostile)
    manifest = build_data(config, tmp_path / "ray", seed=3, progress=told, helpers=Helpers(runner=runner))
    killer.join()
    local = build_data(
        config.model_copy(update={"ray": None}),
        tmp_path / "local",
        seed=3,
        progress=Silent(),
        helpers=Helpers(runner=With(InProcess(), hostile)),
    )
    assert files(tmp_path / "ray") == files(tmp_path / "local")
    assert manifest == local
    assert manifest.counts.rejects == {"bad_row": 1, "check": 1, "check_failed": 1}
    assert [note for note in told.notes if note.startswith("ray:")] == [
        "ray: 1 pieces were begun again because their worker ended"
    ]
    assert not [path for path in (tmp_path / "ray").iterdir() if path.is_dir()], "rows are left in the run's folder"


@pytest.mark.slow
@WITH_RAY
def test_a_row_that_ends_every_worker_is_a_reject_and_the_rows_around_it_are_kept(ray: Any, tmp_path: Path):
    items = [item(number, END if number == 70 else "x") for number in range(120)]
    settings = checked_with(Hostile(tmp_path))
    told = Notes()
    chunks = [items[at : at + 40] for at in range(0, 120, 40)]
    found = list(RayRunner(RayConfig(workers=WORKERS), tmp_path, told).run(chunks, settings))
    expected = list(InProcess().run([items[:70], items[71:]], settings))
    assert [len(one.lines) for one in found] == [40, 40, 40]
    lines = [line for one in found for line in one.lines]
    assert [*lines[:70], *lines[71:]] == [line for one in expected for line in one.lines]
    reject = Reject.model_validate_json(lines[70].text)
    assert (reject.reason, reject.detail) == ("check_failed", "checking the row ended the process that did it.")
    assert any("1 pieces that no worker could check" in note for note in told.notes)


def item(number: int, what: str = "x") -> Item:
    from plansmith.data.sources.base import candidate_or_reject

    values = row(number, what)
    made = candidate_or_reject(values, where="test", defaults={"id": f"row-{number}", "source": "t", "part": None})
    assert not isinstance(made, Reject)
    return Item(made)


def checked_with(executors: Hostile) -> CheckSettings:
    rules = rules_for(VerifyConfig.model_validate({"execution": {"rule": "reject"}}), "jsonl")
    return CheckSettings(Catalog.from_json(CATALOG_JSON), rules, executors=executors)


def test_a_row_that_ends_its_process_is_a_reject_and_no_other_is(tmp_path: Path):
    items = [item(number, END if number == 1 else "x") for number in range(4)]
    found = check_apart([*items], checked_with(Hostile(tmp_path)))
    assert [line.kind.value for line in found.lines] == ["kept", "dropped", "kept", "kept"]
    counts = {one.stage.value: (one.read, one.rejected) for one in found.tallies.counts()}
    assert counts["check"] == (4, {"check_failed": 1})
    assert counts["source"] == (4, {})


def test_a_file_that_has_gone_is_named(write_jsonl: Callable[..., Path], tmp_path: Path):
    path = write_jsonl([row(number) for number in range(20)])
    [place] = on_ray.put_down(scan(path), tmp_path)
    path.unlink()
    sent = on_ray.Sent(None, 1)
    with pytest.raises(InputError, match=r"rows\.jsonl.*cannot be read"):
        list(on_ray.in_order([(0, sent)], [place], checked_with(Hostile(tmp_path)), on_ray.Mended()))


@pytest.mark.parametrize(("sent", "said"), [([], "gave 0 of 2"), ([1], "piece 1"), ([0], "gave 1 of 2")])
def test_a_piece_that_ray_leaves_out_ends_the_build(sent: list[int], said: str, tmp_path: Path):
    settings = checked_with(Hostile(tmp_path))
    places = on_ray.put_down([[item(0)], [item(1)]], tmp_path)
    checked = next(InProcess().run([[item(0)]], settings))
    with pytest.raises(NoRayError, match=said):
        list(on_ray.in_order([(at, on_ray.Sent(checked, 1)) for at in sent], places, settings, on_ray.Mended()))


class Odd(OpenAIPlanner):
    """A client with a fault of its own."""

    async def plan(self, query: str, catalog: Catalog, **options: Any) -> Draft:
        if query == "query 7":
            raise RuntimeError("no such query")
        return await super().plan(query, catalog, **options)


def client(url: str, concurrency: int) -> Odd:
    return Odd(EndpointConfig(url=url, model="m", concurrency=concurrency))


@pytest.fixture
def server() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, str(SERVER), "0.05"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def stats(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/stats") as response:
        return json.loads(response.read())


def askers() -> list[psutil.Process]:
    """The workers that ask."""
    children = psutil.Process().children(recursive=True)
    alive = [one for one in children if one.status() != psutil.STATUS_ZOMBIE]
    return [one for one in alive if "_Asker" in "".join(one.cmdline())]


@pytest.mark.slow
@WITH_RAY
def test_when_a_worker_is_killed_only_what_it_had_under_way_is_asked_again(
    ray: Any, server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    catalog = Catalog.from_json(CATALOG_JSON)
    queries = [Query(id=f"q{number}", query=f"query {number}", source="t") for number in range(QUERIES)]
    config = TeachConfig(constrained=False, concurrency=CONCURRENCY)
    killed: list[int] = []

    def kill_one(done: int) -> None:
        if done >= 40 and not killed and len(found := askers()) == WORKERS:
            killed.append(found[0].pid)
            found[0].kill()

    def run(progress: Silent) -> Any:
        planner = RayPlanner(RayConfig(workers=WORKERS), partial(client, server), catalog, concurrency=CONCURRENCY)
        return teach(queries, planner, catalog, tmp_path, config, progress, model="m", identity={})

    taught = run(Notes(kill_one))
    time.sleep(0.2)
    asked, kept = stats(server), read_rows(tmp_path / DRAFTS, TeacherDraft)
    assert len(killed) == 1
    assert sorted(one.query for one in kept) == sorted(one.query for one in queries if one.query != "query 7")
    assert (taught.answered, taught.failed, taught.stopped) == (QUERIES - 1, 1, None)
    assert taught.events["workers_lost"] == 1
    assert asked["different"] == QUERIES - 1
    again = taught.events["asked_again"]
    assert 0 <= asked["asked"] - asked["different"] <= again <= CONCURRENCY
    [failure] = read_rows(tmp_path / FAILED, Failure)
    assert failure.query == "query 7"
    assert "RuntimeError: no such query" in failure.error
    assert capfd.readouterr() == ("", ""), "Ray says something in between"
    assert run(Silent()).asked == 0
    assert stats(server)["asked"] == asked["asked"], "a rerun asked for what is there"


@pytest.mark.slow
@WITH_RAY
def test_the_command_asks_and_builds_with_ray_and_says_nothing_of_it(
    ray: Any, server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG_JSON))
    (tmp_path / "log.txt").write_text("".join(f"query {number}\n" for number in range(30)))
    values: dict[str, Any] = {
        "name": "run",
        "out": str(tmp_path),
        "catalog": str(tmp_path / "catalog.json"),
        "queries": {"sources": [{"kind": "log", "path": str(tmp_path / "log.txt")}]},
        "teacher": {"kind": "openai", "endpoint": {"url": server, "model": "m"}},
        "teach": {"constrained": False, "ray": {"workers": WORKERS}},
        "data": {
            "source": {"kind": "teacher"},
            "verify": {"grounding": {"rule": "off"}},
            "split": {"unseen": 0},
            "ray": {},
        },
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(values))
    assert main(["data", "queries", "--config", str(path)]) == 0
    command = [sys.executable, "-m", "plansmith.cli", "data", "teach", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert not re.search(r"Ray|raylet|WARNING|INFO|ERROR|session_", done.stderr + done.stdout), done.stderr
    assert stats(server)["asked"] == 30
    assert not list(tmp_path.glob("ray-*")), "Ray's files are left"
    assert main(["data", "build", "--config", str(path)]) == 0
    told = "".join(capfd.readouterr())
    assert not re.search(r"Ray|raylet|WARNING|INFO|ERROR|session_", told), told
    assert (tmp_path / "run" / "manifest.json").is_file()


@WITH_RAY
def test_where_there_is_no_ray_to_join_nothing_is_asked_and_no_request_has_failed(tmp_path: Path):
    catalog = Catalog.from_json(CATALOG_JSON)
    nowhere = RayConfig(address="127.0.0.1:9")
    planner = RayPlanner(nowhere, partial(client, "http://127.0.0.1:9/v1"), catalog, concurrency=4)
    queries = [Query(id=f"q{number}", query=f"query {number}", source="t") for number in range(10)]
    config = TeachConfig(constrained=False)
    taught = teach(queries, planner, catalog, tmp_path, config, Silent(), model="m", identity={})
    assert isinstance(taught.stopped, NoRayError)
    assert (taught.asked, taught.failed) == (0, 0)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sessions.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"plansmith\[ray\]"):
        RayRunner(RayConfig(), tmp_path, Silent())
    with pytest.raises(MissingExtraError, match=r"plansmith\[ray\]"):
        RayPlanner(
            RayConfig(), partial(client, "http://localhost:9/v1"), Catalog.from_json(CATALOG_JSON), concurrency=1
        )


@pytest.mark.parametrize("address", ["ray://head:10001", "somewhere", "", "http://head:8265"])
def test_an_address_that_ray_data_cannot_use_is_refused(address: str):
    with pytest.raises(ValidationError, match="give 'auto' or host:port"):
        RayConfig(address=address)


def test_processes_and_ray_do_not_go_together(catalog_file: Path):
    source = {"kind": "jsonl", "path": catalog_file, "catalog": catalog_file}
    with pytest.raises(ValidationError, match="unset one"):
        DataConfig.model_validate({"source": source, "processes": 2, "ray": {}})
