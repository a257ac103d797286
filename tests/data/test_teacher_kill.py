"""The command killed at random moments, against a real server that counts what it is asked."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.contract.records import TeacherDraft
from plansmith.contract.store import read_rows
from plansmith.data.drafts import DRAFTS
from tests.data.conftest import CATALOG as CATALOG_JSON

SERVER = Path(__file__).parent / "teacher_server.py"
QUERIES, CONCURRENCY, KILLS = 240, 8, 3
SECONDS = 0.04


@pytest.fixture
def server() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, str(SERVER), str(SECONDS)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def stats(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/stats") as response:
        return json.loads(response.read())


@pytest.fixture
def config(tmp_path: Path, server: str) -> Path:
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG_JSON))
    (tmp_path / "log.txt").write_text("".join(f"query {number}\n" for number in range(QUERIES)))
    values = {
        "name": "run",
        "out": str(tmp_path),
        "catalog": str(tmp_path / "catalog.json"),
        "queries": {"sources": [{"kind": "log", "path": str(tmp_path / "log.txt")}]},
        "teacher": {"kind": "openai", "endpoint": {"url": server, "model": "m", "concurrency": CONCURRENCY}},
        "teach": {"constrained": False},
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(values))
    assert finish(path, "queries") == 0
    return path


def command(config: Path, action: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "plansmith.cli", "data", action, "--config", str(config)]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(config: Path, action: str) -> int:
    with command(config, action) as process:
        process.communicate()
    return process.returncode


def answers(config: Path) -> list[TeacherDraft]:
    path = config.parent / "run" / DRAFTS
    return read_rows(path, TeacherDraft) if path.exists() else []


def wait_for(url: str, requests: int) -> None:
    while stats(url)["asked"] < requests:
        time.sleep(0.01)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_loses_nothing_and_asks_nothing_twice(config: Path, server: str):
    rng = random.Random(4)
    for _ in range(KILLS):
        with command(config, "teach") as process:
            wait_for(server, stats(server)["asked"] + rng.randrange(1, QUERIES // (2 * KILLS)))
            time.sleep(rng.uniform(0, 3 * SECONDS))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        asked, kept = stats(server), answers(config)
        time.sleep(2 * SECONDS)
        assert len({row.key for row in kept}) == len(kept)
        assert asked["answered"] - CONCURRENCY * KILLS <= len(kept) <= asked["answered"]
        assert 0 <= asked["different"] - len(kept) <= CONCURRENCY, "an answer that came before the last is lost"
    before = stats(server)["asked"]
    missing = QUERIES - len(answers(config))
    assert finish(config, "teach") == 0
    asked, kept = stats(server), answers(config)
    assert asked["asked"] - before == missing, "the last run asked for more than was missing"
    assert asked["different"] == QUERIES
    assert asked["asked"] - QUERIES <= CONCURRENCY * KILLS, "more was asked twice than was under way at a kill"
    assert sorted(row.query for row in kept) == sorted(f"query {number}" for number in range(QUERIES))
    assert (finish(config, "teach"), stats(server)["asked"]) == (0, asked["asked"])


@pytest.mark.slow
def test_a_second_process_in_the_same_run_directory_is_refused(config: Path, server: str):
    with command(config, "teach") as first:
        wait_for(server, 20)
        first.send_signal(signal.SIGSTOP)
        try:
            with command(config, "teach") as second:
                told = second.communicate()[1]
        finally:
            first.send_signal(signal.SIGCONT)
        assert second.returncode == 2
        assert "another plansmith process is writing" in told
        first.communicate()
    assert first.returncode == 0
    assert len(answers(config)) == stats(server)["different"] == QUERIES


@pytest.mark.slow
def test_an_interrupted_run_keeps_its_answers_and_says_how_to_go_on(config: Path, server: str):
    with command(config, "teach") as process:
        wait_for(server, 50)
        process.send_signal(signal.SIGINT)
        told = process.communicate()[1]
    assert process.returncode == 130
    assert "run the same command again" in told
    asked, kept = stats(server), answers(config)
    assert asked["different"] - CONCURRENCY <= len(kept) <= asked["different"]
