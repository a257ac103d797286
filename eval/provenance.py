"""Where a report's numbers come from: version of the code, and the machine in words."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def code_version() -> str:
    """Version of the package, and the commit of the checkout where it runs from one (`+` for changed files)."""
    here = Path(__file__).resolve().parent
    if not (here.parent / "pyproject.toml").exists():  # installed: a repository around it would be somebody else's
        return _version("plansmith")
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return _version("plansmith")
    return f"{_version('plansmith')} ({found.stdout.strip()})"


def machine_description(*, accelerator: str | None = None) -> str:
    """Processor, cores, memory, accelerator as the caller names it, system, and versions of what computes."""
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers", "llguidance"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {accelerator or 'no accelerator'}, "
        f"{platform.system()}, Python {platform.python_version()}, {packages}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
