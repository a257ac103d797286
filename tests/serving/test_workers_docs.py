"""The examples of docs/workers.md run, in their order, in one folder with the files that the page shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plansmith.serving.workers.base import FailureCode
from plansmith.serving.workers.decorator import FunctionWorker

PAGE = Path(__file__).parents[2] / "docs" / "workers.md"
TEXT = PAGE.read_text(encoding="utf-8")


class Block(NamedTuple):
    """A fenced block: the words of its first line, its text, and the line where it starts."""

    words: list[str]
    text: str
    line: int


BLOCKS = [
    Block(m[1].split(), m[2], TEXT[: m.start()].count("\n") + 1)
    for m in re.finditer(r"^```(\w[^\n]*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
]


def test_every_python_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {block.words[0] for block in BLOCKS} == {"python", "toml"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    space: dict[str, Any] = {"__name__": "example"}
    files = [block for block in BLOCKS if len(block.words) == 2]
    for block in files:
        (tmp_path / block.words[1]).write_text(block.text, encoding="utf-8")
    try:
        for block in BLOCKS:
            if block.words == ["python"]:
                exec(compile(block.text, f"{PAGE.name}, line {block.line}", "exec"), space)
    finally:
        sys.modules.pop("shop_workers", None)
    assert [block.words[1] for block in files] == ["shop_workers.py", "mcp_shop.py"]
    assert isinstance(space["shop_price"], FunctionWorker)


def test_the_page_names_only_codes_that_there_are() -> None:
    named = set(re.findall(r"`([A-Z]+_?[A-Z]+)`", TEXT))
    others = {"PATH", "HOME", "TOOL_ERROR"}
    assert named - others <= {str(code) for code in FailureCode}
