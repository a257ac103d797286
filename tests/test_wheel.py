"""The wheel alone, in a fresh environment without torch: checking, catalogs, scores, runs with a planner elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.openai_server import OpenAIServer, answers

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[1]
PLAN = [{"type": "stock_level", "args": {"sku": "A-100"}}]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires, nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder / "dist", ROOT], check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    (wheel,) = (folder / "dist").glob("plansmith-*.whl")
    own = [folder / "env" / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*own, "install", "--no-compile", wheel], check=True)
    return folder / "env" / "bin"


def test_an_empty_folder_and_the_wheel_are_enough_for_everything_but_models(environment: Path, tmp_path: Path):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def plansmith(*arguments: str, code: int = 0) -> str:
        command = [environment / "plansmith", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=clean, timeout=120, check=False
        )
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    workers = ROOT / "examples" / "warehouse" / "workers.py"
    (tmp_path / "workers.py").write_bytes(workers.read_bytes())
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    plansmith("catalog", "import", "workers.py", "--out", "catalog.json")
    assert "stock_level" in plansmith("catalog", "show", "catalog.json")
    plansmith("check", "--catalog", "catalog.json", "--plan", "plan.json")
    (tmp_path / "wrong.json").write_text(json.dumps([{"type": "stock_lvl", "args": {}}]))
    assert "stock_level" in plansmith("check", "--catalog", "catalog.json", "--plan", "wrong.json", code=1)
    row = json.dumps({"id": "1", "plan": PLAN}) + "\n"
    (tmp_path / "right.jsonl").write_text(row)
    scored = ("--reference", "right.jsonl", "--candidate", "right.jsonl", "--catalog", "catalog.json")
    assert '"valid": {"value": 1.0' in plansmith("score", *scored)
    where = ("--workers", "workers.py:REGISTRY", "--catalog", "catalog.json")
    with OpenAIServer(answers(json.dumps(PLAN))) as server:
        said = plansmith("run", "How many bolts?", "--url", server.url, *where)
        assert '"stock": 40' in said
        assert "complete" in said
        assert server.requests[0].body["model"] == "planner"
    for words in (("train", "--config", str(ROOT / "configs" / "smoke.yaml")), ("serve", "--model", ".")):
        missing = plansmith(*words, code=2)
        assert "Traceback" not in missing
    packages = {path.name.split("-")[0] for path in (environment.parent / "lib").rglob("*.dist-info")}
    assert not {"torch", "transformers", "vllm", "fastapi", "datasets"} & packages
