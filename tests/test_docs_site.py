"""The documentation: its reference is what the code says, its site builds without a warning and asks no other site."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse writes its help otherwise from Python 3.13 on")
def test_the_reference_is_what_the_code_says():
    command = [sys.executable, str(ROOT / "scripts" / "docs_reference"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, f"{done.stderr} Run scripts/docs_reference."


def test_every_page_is_in_the_navigation():
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    named = set(re.findall(r"'([\w/-]+\.md)'", str(config["project"]["nav"])))
    assert named == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "out" / "site" / "index.html").read_text(encoding="utf-8")
    assert "plansmith" in page
    loaded = re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?://[^"]+)"', page)
    assert [url for url in loaded if "canonical" not in url] == []
