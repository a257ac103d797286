"""docs/known-problems.md names tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "known-problems.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_is_there(file: str, name: str):
    assert (ROOT / file).is_file()
    assert name in functions(file)


def test_every_problem_has_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) == 30
    assert all("::test_" in row for row in rows)
