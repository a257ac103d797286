"""A run that is killed at any moment goes on with exactly what is missing; against a real HTTP server."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from plansmith.contract.records import Run
from plansmith.contract.store import read_rows
from tests.eval.asking import COUNT
from tests.eval.cases import example
from tests.serving.openai_server import OpenAIServer, answers

ROOT = Path(__file__).parents[2]
CONCURRENCY = 8
QUERIES = {example(number).query: example(number).id for number in range(COUNT)}


def start(server: OpenAIServer, runs: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.eval.asking", server.url, str(runs), str(CONCURRENCY)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


def answers_on_disk(runs: Path) -> list[str]:
    rows = read_rows(runs, Run) if runs.exists() else []
    assert all(row.error is None and row.text == "[]" for row in rows)
    return [row.id for row in rows]


def stop_at(server: OpenAIServer, process: subprocess.Popen[bytes], answered: int, how: signal.Signals) -> None:
    """Stop the process once the server has sent so many answers, a random moment later."""
    while server.answered < answered and process.poll() is None:
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.02))
    process.send_signal(how)
    process.wait(20)
    time.sleep(0.1)  # requests that were on their way arrive


def run_with_stops(runs: Path, stops: list[tuple[int, signal.Signals]]) -> None:
    with OpenAIServer(answers("[]", delay_s=0.02)) as server:
        for answered, how in stops:
            asked_before = len(server.requests)
            on_disk = set(answers_on_disk(runs))
            process = start(server, runs)
            stop_at(server, process, answered, how)
            assert process.returncode != 0, "the process ended before it was stopped"
            asked = [QUERIES[request.query] for request in server.requests[asked_before:]]
            assert len(asked) == len(set(asked))
            assert not on_disk & set(asked), "an item was asked again though its answer is on disk"
            found = answers_on_disk(runs)
            assert len(found) == len(set(found))
            lost = server.answered - len(found)
            times = stops.index((answered, how)) + 1
            assert 0 <= lost <= CONCURRENCY * times, "answers that came are lost, beyond those under way"
        asked_before = len(server.requests)
        missing = set(QUERIES.values()) - set(answers_on_disk(runs))
        with start(server, runs) as process:
            assert process.wait(60) == 0
        assert Counter(QUERIES[request.query] for request in server.requests[asked_before:]) == Counter(missing)
        assert server.most_under_way <= CONCURRENCY
    assert sorted(answers_on_disk(runs)) == sorted(QUERIES.values())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_keeps_what_came_and_asks_only_what_is_missing(tmp_path: Path, how: signal.Signals):
    run_with_stops(tmp_path / "eval" / "runs.jsonl", [(random.randint(1, COUNT - 30), how)])


@pytest.mark.slow
def test_a_run_that_is_stopped_again_and_again_ends_with_every_answer_once(tmp_path: Path):
    moments = sorted(random.sample(range(1, COUNT - 30), 4))
    kinds = [random.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]) for _ in moments]
    run_with_stops(tmp_path / "runs.jsonl", list(zip(moments, kinds, strict=True)))
