"""`plansmith serve` as a process: from a recorded or an exported planner, stopped gracefully; refusals; keys."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from plansmith.cli import main

ROOT = Path(__file__).resolve().parents[1]
WORKERS = '''
import time
from plansmith.serving.workers.decorator import worker
from plansmith.serving.workers.registry import Registry

@worker(effect="read", timeout_s=20)
def wait_for(file: str) -> str:
    """Wait until a file is there."""
    from pathlib import Path
    Path(file + ".waiting").touch()
    while not Path(file).exists():
        time.sleep(0.01)
    return "there"

REGISTRY = Registry("waiting", [wait_for])
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "workers.py").write_text(WORKERS)
    plan = [{"type": "wait_for", "args": {"file": str(tmp_path / "go")}}]
    (tmp_path / "plans.jsonl").write_text(json.dumps({"query": "Wait.", "plan": plan}) + "\n")
    config = {
        "planner": {"kind": "recorded", "file": str(tmp_path / "plans.jsonl")},
        "workers": [f"{tmp_path / 'workers.py'}:REGISTRY"],
        "journal": str(tmp_path / "runs.sqlite"),
        "gateway": {"port": 0, "ready": {"query": "Wait."}},
    }
    (tmp_path / "serve.yaml").write_text(json.dumps(config))
    return tmp_path


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, its address, and what it has said."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "plansmith.cli", "serve", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    said: list[str] = []
    heard = threading.Event()
    assert process.stderr is not None

    def listen() -> None:
        for line in process.stderr or ():
            said.append(line)
            if "listening on" in line:
                heard.set()
        heard.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert heard.wait(120)
    found = re.search(r"listening on (http://\S+)", "".join(said))
    assert found is not None, "".join(said)
    try:
        yield process, found[1], said
    finally:
        process.kill()
        process.wait(20)
        listener.join(20)
        process.stderr.close()


def until(condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_a_process_that_is_told_to_stop_ends_what_runs_first(folder: Path):
    with serving("--config", str(folder / "serve.yaml")) as (process, url, said), httpx2.Client(timeout=30) as client:
        until(lambda: client.get(f"{url}/readyz").status_code == 200)
        answers: list[httpx2.Response] = []
        runs = threading.Thread(
            target=lambda: answers.append(httpx2.post(f"{url}/v1/runs", json={"query": "Wait."}, timeout=60))
        )
        runs.start()
        until(lambda: (folder / "go.waiting").exists())
        process.send_signal(signal.SIGTERM)
        until(
            lambda: any("Shutting down" in line or "Waiting for" in line for line in said) or process.poll() is not None
        )
        assert process.poll() is None
        (folder / "go").touch()
        runs.join(30)
        assert process.wait(30) == 0
    assert answers[0].json()["status"] == "complete"
    assert answers[0].json()["steps"][0]["result"] == "there"


def test_a_key_is_made_shown_once_and_works(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--new-key", "alice"]) == 0
    shown = capsys.readouterr()
    key = shown.out.strip()
    digest = hashlib.sha256(key.encode()).hexdigest()
    assert f"name: alice, sha256: {digest}" in shown.err
    assert main(["serve", "--new-key", "no spaces"]) == 2
    keys = json.dumps([{"name": "alice", "sha256": digest}])
    with serving("--config", str(folder / "serve.yaml"), "--gateway.keys", keys) as (_, url, said):
        assert httpx2.get(f"{url}/v1/catalog").status_code == 401
        assert httpx2.get(f"{url}/v1/catalog", headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert key not in "".join(said)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "say what to serve"),
        (["--run", "a", "--model", "b"], "two planners"),
        (["--run", "nowhere"], "is no run"),
        (["--model", "nowhere"], "nowhere"),
        (["--config", "{}", "--gateway.host", "0.0.0.0"], "there are no keys"),
        (["--config", "{}", "--gateway.limits.concurrency", "0"], "concurrency"),
        (["--config", "{}", "--gateway.limits.frob", "0"], "frob"),
        (["--config", "{}", "--planner.file", "nowhere.jsonl"], "nowhere.jsonl"),
        (
            ["--url", "http://127.0.0.1:9/v1", "--catalog", str(ROOT / "examples/assistant/catalog.json")],
            "gave no answer",
        ),
    ],
)
def test_what_cannot_be_served_is_said(
    folder: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("asyncio.sleep", lambda _: _nothing())
    given = [str(folder / "serve.yaml") if word == "{}" else word for word in arguments]
    code = main(["serve", *given])
    assert code in (2, 3)
    assert says in capsys.readouterr().err


async def _nothing() -> None:
    return


def test_a_vllm_that_dies_under_load_is_errors_then_recovery_without_a_restart_of_the_gateway(tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(b"")
    (model / "catalog.json").write_text((ROOT / "examples/assistant/catalog.json").read_text(encoding="utf-8"))
    stand_in = str(ROOT / "tests" / "serving" / "stand_in")
    server = {"model": str(model), "env": {"STAND_IN": "dies", "PYTHONPATH": stand_in}, "backoff_s": 1.0}
    config = {"planner": {"kind": "vllm", "server": server}, "gateway": {"port": 0, "ready": {"every_s": 0.2}}}
    (tmp_path / "serve.yaml").write_text(json.dumps(config))
    with serving("--config", str(tmp_path / "serve.yaml")) as (process, url, said), httpx2.Client(timeout=30) as client:

        def plan(query):
            return client.post(f"{url}/v1/plans", json={"query": query})

        until(lambda: client.get(f"{url}/readyz").status_code == 200)
        assert plan("Hello.").json()["valid"]
        assert plan("die now").json()["error"]["code"] == "planner_unavailable"
        assert client.get(f"{url}/readyz").status_code == 503
        until(lambda: "vLLM is" in plan("Hello.").text)
        until(lambda: client.get(f"{url}/readyz").status_code == 200)
        assert plan("Hello.").json()["valid"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
    assert any("vLLM died" in line for line in said)
