"""The repository's layout: top level, links to the stages, packaging table, file sizes."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STAGES = ("contract", "data", "training", "serving", "eval")
OWNERS = {"pyproject.toml", "training", "data", "serving", "eval", "configs", "scripts", "README.md"}
PLUMBING = {
    *("contract", "docs", "examples", "src", "tests"),
    *("LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", ".gitignore", ".ci", "zensical.toml"),
}
LARGEST_FILE = 1_000_000


def packaging() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def files() -> list[Path]:
    """Files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout, so there is nothing to list")
    return [path for name in done.stdout.split("\0")[:-1] if (path := ROOT / name).exists() or path.is_symlink()]


def test_the_top_level_is_the_expected_set():
    found = {path.relative_to(ROOT).parts[0] for path in files()}
    assert found - {".github"} == OWNERS | PLUMBING


@pytest.mark.parametrize("stage", STAGES)
def test_each_link_leads_to_its_stage(stage: str):
    link = ROOT / "src" / "plansmith" / stage
    assert link.is_symlink()
    assert link.resolve() == ROOT / stage
    assert not link.readlink().is_absolute()


def test_the_packages_of_pyproject_are_the_folders_with_python_files():
    table = packaging()
    folders = {
        ".".join(("plansmith", *path.parent.relative_to(ROOT).parts))
        for stage in STAGES
        for path in (ROOT / stage).rglob("*.py")
    }
    own = ROOT / "src" / "plansmith"
    folders |= {
        ".".join(("plansmith", *path.parent.relative_to(own).parts))
        for path in own.rglob("*.py")
        if path.relative_to(own).parts[0] not in STAGES
    }
    assert set(table["packages"]) == folders
    mapped = {"plansmith": "src/plansmith"} | {f"plansmith.{stage}": stage for stage in STAGES}
    assert table["package-dir"] == mapped


@pytest.mark.parametrize("stage", STAGES)
def test_every_folder_of_a_stage_is_a_package(stage: str):
    folders = {path.parent for path in (ROOT / stage).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_no_file_is_over_one_megabyte():
    large = {str(path.relative_to(ROOT)): path.stat().st_size for path in files() if path.is_file()}
    assert {name: size for name, size in large.items() if size > LARGEST_FILE} == {}


def test_data_is_code_and_not_ignored():
    lines = (ROOT / ".gitignore").read_text().split()
    assert "data/" not in lines
    assert "out/" in lines


@pytest.mark.parametrize("name", ["scripts/quickstart", "scripts/test", ".ci/run"])
def test_the_scripts_can_be_run_from_anywhere(name: str):
    path = ROOT / name
    assert path.stat().st_mode & 0o111
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n", str(path)], check=True)
