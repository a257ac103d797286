"""The tutorial, command by command: with the smoke recipe in the quickstart's place, and a scripted model.

The random model of the smoke recipe may write any valid plan, so commands that run a plan may end with exit code 1.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plansmith.cli import main
from plansmith.serving.workers.loading import load_registry
from tests.serving.openai_server import Asked, OpenAIServer, Reply, completion
from tests.serving.react_parts import asks, final

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
MAY_FAIL = ("run", "react")


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def answers(asked: Asked) -> Reply:
    if "tools" in asked.body:
        return asks(asked, final("Take one."))
    return completion(asked, json.dumps({"answer": "Take one.", "confidence": 0.5}))


def test_every_command_of_the_tutorial_works_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    smoke = (ROOT / "configs" / "smoke.yaml").read_text(encoding="utf-8").replace("name: smoke", "name: quickstart")
    (tmp_path / "configs" / "quickstart.yaml").write_text(smoke, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = []
    with OpenAIServer(answers) as server:
        for command in commands():
            words = [server.url if word == "http://localhost:8000/v1" else word for word in command]
            if words[0] == "python":
                shown = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
                assert shown.returncode == 0, shown.stderr
                assert len(shown.stdout.splitlines()) == 5
                continue
            assert words[0] == "plansmith"
            code = main(words[1:])
            said = capsys.readouterr()
            allowed = (0, 1) if words[1] in MAY_FAIL else (0,)
            assert code in allowed, f"{shlex.join(words)} gave {code}: {said.err}"
            done.append(words[1])
    assert done == [
        *("catalog", "catalog", "catalog", "data", "data", "train", "pipeline", "plan"),
        *("run", "run", "run", "react", "model", "plan"),
    ]
    assert said.out.startswith("[")
    assert (tmp_path / "out" / "quickstart" / "report.html").is_file()
    assert any(asked.body.get("tools") for asked in server.requests)


def test_the_workers_of_the_page_can_be_registered_as_they_stand(tmp_path: Path):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.py").write_text(block, encoding="utf-8")
    registry = load_registry(f"{tmp_path / 'mine.py'}:REGISTRY")
    assert registry.catalog.names == ("stock_level", "stock_reorder")
    assert registry.catalog.workers[0].properties["sku"]["description"].startswith("the item")
    assert set(registry.catalog.workers[1].properties) == {"sku", "count"}
