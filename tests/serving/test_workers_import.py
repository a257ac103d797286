"""`plansmith catalog import` takes decorated workers and registries, which are the usual way to write workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.cli import main
from plansmith.contract.catalog import Catalog
from plansmith.contract.importers import import_catalog
from plansmith.serving.workers.loading import load_registry

MODULE = '''
from plansmith.serving.workers.decorator import worker
from plansmith.serving.workers.registry import Registry

def helper(*words: object) -> str:
    return ""

@worker(effect="read", timeout_s=3)
def find(text: str) -> str:
    """Find it."""
    return helper(text)

@worker(effect="write", permission="notes")
def note(text: str) -> None:
    """Note it."""
'''


def test_decorated_workers_are_taken_with_their_entries_and_other_functions_left_out_and_said(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MODULE)
    found = import_catalog(str(tmp_path / "mine.py"))
    assert [(one.name, one.effect, one.timeout_s, one.permission) for one in found.catalog.workers] == [
        ("find", "read", 3, None),
        ("note", "write", 30, "notes"),
    ]
    assert found.catalog.name == "mine"
    assert any("'helper'" in note and "left out" in note for note in found.notes)


@pytest.mark.parametrize("attribute", ["", ":REGISTRY"])
def test_a_registry_gives_its_own_catalog(tmp_path: Path, attribute: str):
    (tmp_path / "mine.py").write_text(MODULE + '\nREGISTRY = Registry("shop", [note, find])\n')
    spec = f"{tmp_path / 'mine.py'}{attribute}"
    found = import_catalog(spec).catalog
    assert found.name == "shop"
    assert found.hash == load_registry(f"{tmp_path / 'mine.py'}:REGISTRY").catalog.hash


@pytest.mark.parametrize("example", ["assistant", "warehouse"])
def test_the_examples_can_be_imported_as_they_stand(tmp_path: Path, example: str):
    workers = Path(__file__).parents[2] / "examples" / example / "workers.py"
    assert main(["catalog", "import", str(workers), "--out", str(tmp_path / "c.json")]) == 0
    assert Catalog.load(tmp_path / "c.json").hash == load_registry(f"{workers}:REGISTRY").catalog.hash
