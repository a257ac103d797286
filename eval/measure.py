"""What a system costs while it is asked: time, answers, memory; and how large its model is.

Reads `/proc` of this process, or of a served endpoint's process and its children, and torch's own count of GPU memory;
keeps `SystemInfo` by system name in `eval/systems.json`, replaced as a whole. Sessions of one system add up: a run that
was stopped and resumed has the seconds and answers of both. A session that is killed leaves nothing, neither its
answers nor its seconds, so the rate stays right. Not covered: an endpoint on another machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import TypeAdapter, ValidationError

from plansmith.contract.errors import InputError
from plansmith.contract.store import write_text
from plansmith.eval.items import PlannerKind, SystemInfo

SAMPLE_EVERY_S = 0.2
"""Seconds between two looks at the memory of another process."""

_COST = {
    *("answered", "wall_seconds", "peak_memory_bytes", "model_bytes"),
    *("price_prompt", "price_completion", "price_hour"),
}
_INFOS = TypeAdapter(dict[str, SystemInfo])


class MemorySource(StrEnum):
    """Where a peak of memory comes from."""

    HIGH_WATER = "high_water"
    """Linux's own high-water mark of this process, set back when the measurement began"""
    LIFETIME = "lifetime"
    """the peak of this process since its start, where the mark cannot be set back: an upper bound"""
    TREE = "tree"
    """resident memory of another process and its children, looked at a few times a second"""
    NONE = "none"
    """not measured: the answers do not come from a process on this machine that is known"""


class _Peak(Protocol):
    """Measures the peak of memory from when it is made until `stop`."""

    source: MemorySource

    def stop(self) -> int | None: ...


class Measurement:
    """Measures one system for the length of a `with` block, and writes its `SystemInfo` at the end.

    Also where the block ends with an error. Hand it to `run_system` as `meter`.
    """

    def __init__(self, path: str | Path, info: SystemInfo, *, server_pid: int | None = None) -> None:
        """Prepare.

        Args:
            path: `systems.json`.
            info: what is known of the system beforehand; its costs are those of this session and are left at 0.
            server_pid: process of a served endpoint, whose memory is measured, with that of its children.

        Raises:
            InputError: there is no such process, or its memory may not be read.

        """
        self._path = Path(path)
        self._info = info
        self._pid = server_pid
        self._answers = 0
        self._seconds = 0.0
        self._peak: _Peak = _NotMeasured()

    @property
    def source(self) -> MemorySource:
        """Where the peak of memory comes from."""
        return self._peak.source

    def add(self, answers: int, seconds: float) -> None:
        """So many answers took so many seconds of asking."""
        self._answers += answers
        self._seconds += seconds

    def __enter__(self) -> Self:
        if self._pid is not None:
            self._peak = _TreePeak(self._pid)
        elif self._info.kind is PlannerKind.LOCAL:
            self._peak = _OwnPeak()
        return self

    def __exit__(self, *_: object) -> None:
        peak = self._peak.stop()
        measured = self._info.model_copy(
            update={
                "answered": self._answers,
                "wall_seconds": self._seconds if self._info.kind is not PlannerKind.RECORDED else 0.0,
                "peak_memory_bytes": peak if self._answers else None,
            }
        )
        save_system(self._path, _added(load_systems(self._path).get(self._info.system), measured))


def load_systems(path: str | Path) -> dict[str, SystemInfo]:
    """What is known of each system, by its name; nothing where there is no file yet.

    Raises:
        InputError: the file cannot be read or is none of ours.

    """
    try:
        return _INFOS.validate_json(Path(path).read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = "/".join(map(str, first["loc"])) or "file"
        raise InputError(f"{path}: {where}: {first['msg']}. Move the file away; it is written again.") from error


def save_systems(path: str | Path, infos: Mapping[str, SystemInfo]) -> None:
    """Replace the file as a whole; raises `StorageError` where it cannot be written."""
    write_text(path, _INFOS.dump_json(dict(infos), indent=1).decode() + "\n")


def save_system(path: str | Path, info: SystemInfo) -> None:
    """Put one system in, in place of what was known of it; raises as `load_systems` and `save_systems`."""
    save_systems(path, load_systems(path) | {info.system: info})


def model_bytes(base: Path | None, adapter: Path | None = None) -> int | None:
    """Bytes of the weights (safetensors) of base and adapter on disk; None where there are none."""
    folders = [folder for folder in (base, adapter) if folder is not None]
    return sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors")) or None


def _added(earlier: SystemInfo | None, session: SystemInfo) -> SystemInfo:
    """A session's costs on top of earlier ones of the same system, asked in the same way."""
    if earlier is None or earlier.model_dump(exclude=_COST) != session.model_dump(exclude=_COST):
        return session
    peaks = [peak for peak in (earlier.peak_memory_bytes, session.peak_memory_bytes) if peak is not None]
    return session.model_copy(
        update={
            "answered": earlier.answered + session.answered,
            "wall_seconds": earlier.wall_seconds + session.wall_seconds,
            "peak_memory_bytes": max(peaks, default=None),
        }
    )


class _NotMeasured:
    source = MemorySource.NONE

    def stop(self) -> int | None:
        return None


class _OwnPeak:
    """Of this process: resident memory, and on CUDA what torch had allocated on all devices together."""

    def __init__(self) -> None:
        self.source = MemorySource.HIGH_WATER if _reset_high_water() else MemorySource.LIFETIME
        self._cuda = _cuda()
        if self._cuda is not None:
            for device in range(self._cuda.device_count()):
                self._cuda.reset_peak_memory_stats(device)

    def stop(self) -> int | None:
        resident = _high_water() if self.source is MemorySource.HIGH_WATER else _lifetime_peak()
        if resident is None or self._cuda is None:
            return resident
        return resident + sum(self._cuda.max_memory_allocated(device) for device in range(self._cuda.device_count()))


def _cuda() -> Any | None:
    """`torch.cuda`, where this process uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _reset_high_water() -> bool:
    """Set the high-water mark of this process back to what it holds now; whether that worked."""
    before = _high_water()
    if before is None:
        return False
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    after, now = _high_water(), _status("VmRSS")
    return after is not None and now is not None and (after < before or after <= now * 1.02)


def _high_water() -> int | None:
    return _status("VmHWM")


def _status(field: str) -> int | None:
    """A field of `/proc/self/status` in bytes; None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    values = [line.removeprefix(f"{field}:").split() for line in lines if line.startswith(f"{field}:")]
    return int(values[0][0]) * 1024 if values and len(values[0]) == 2 and values[0][0].isdigit() else None


def _lifetime_peak() -> int | None:
    try:
        import resource
    except ImportError:
        return None  # no such count on this system
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _TreePeak:
    """Another process and its children: resident memory together, and their GPU memory where nvidia-smi tells it."""

    source = MemorySource.TREE

    def __init__(self, pid: int) -> None:
        import psutil

        try:
            self._process = psutil.Process(pid)
            self._most, pids = self._look()
        except psutil.Error as error:
            raise InputError(
                f"the memory of process {pid} cannot be read: {error}. Give the process of the server, started by the "
                "same user on this machine."
            ) from error
        self._gpu = _gpu_memory(pids)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="plansmith-memory", daemon=True)
        self._thread.start()

    def stop(self) -> int | None:
        self._ended.set()
        self._thread.join()
        return self._most + self._gpu

    def _watch(self) -> None:
        import psutil

        while True:
            last = self._ended.wait(SAMPLE_EVERY_S)
            try:
                resident, pids = self._look()
            except psutil.Error:
                return  # the server has ended; what was seen stands
            self._most = max(self._most, resident)
            if last:
                self._gpu = max(self._gpu, _gpu_memory(pids))
                return

    def _look(self) -> tuple[int, set[int]]:
        """Resident bytes of the tree, and its pids; children that end meanwhile count nothing."""
        import psutil

        total = self._process.memory_info().rss
        pids = {self._process.pid}
        for child in self._process.children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.Error:
                continue
            pids.add(child.pid)
        return total, pids


def _gpu_memory(pids: set[int]) -> int:
    """Bytes of GPU memory that processes hold, as nvidia-smi tells it; 0 where it is absent or does not know them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    command = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
    held = [int(row[1]) for row in rows if len(row) == 2 and all(map(str.isdigit, row)) and int(row[0]) in pids]
    return sum(held) * 2**20
