"""Run directory: one process at a time, and what each stage was last made from.

Reads and writes `out/<name>/stages.json` (stage -> its inputs, and whether it is done) and holds a lock on `.lock`.
A stage whose inputs are the same and that is done is skipped; same inputs but not done is gone on with; other inputs
begin anew, and what the earlier inputs made is moved aside, never deleted. Not covered: network file systems that
have no locks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from plansmith.contract.errors import InputError
from plansmith.contract.store import write_text


class State(StrEnum):
    """What a stage finds when it is asked to run."""

    NEW = "new"
    """nothing was made yet"""
    DONE = "done"
    """complete for the same inputs"""
    PARTIAL = "partial"
    """begun with the same inputs, not finished"""
    STALE = "stale"
    """made from other inputs"""


class Stamp(BaseModel):
    """What a stage was made from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: dict[str, Any]
    done: bool
    result: dict[str, str] = {}
    """Where the stage's output lies, when it is not in the run directory."""


class _Stamps(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = 1
    stages: dict[str, Stamp] = {}


class RunDirectory:
    """The directory of one run, with the stamps of its stages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def stamps_file(self) -> Path:
        return self.path / "stages.json"

    def stamps(self) -> dict[str, Stamp]:
        """The stamps on disk; an unreadable file counts as none, because every stage can be made again."""
        try:
            return _Stamps.model_validate_json(self.stamps_file.read_text(encoding="utf-8")).stages
        except (OSError, ValidationError, UnicodeDecodeError):
            return {}

    def state(self, stage: str, inputs: Mapping[str, Any]) -> State:
        stamp = self.stamps().get(stage)
        if stamp is None:
            return State.NEW
        if stamp.inputs != plain(inputs):
            return State.STALE
        return State.DONE if stamp.done else State.PARTIAL

    def differences(self, stage: str, inputs: Mapping[str, Any]) -> list[str]:
        """What changed since the stage was made, as `training.steps: 20 -> 40`."""
        stamp = self.stamps().get(stage)
        return list(_differences(stamp.inputs, plain(inputs))) if stamp else []

    def mark(
        self, stage: str, inputs: Mapping[str, Any], *, done: bool, result: Mapping[str, str] | None = None
    ) -> None:
        """Record that a stage begins or is done with these inputs."""
        stages = self.stamps() | {stage: Stamp(inputs=plain(inputs), done=done, result=dict(result or {}))}
        write_text(self.stamps_file, _Stamps(stages=stages).model_dump_json(indent=1) + "\n")

    def set_aside(self, name: str) -> Path | None:
        """Move a file or directory of the run to `name.1` (or the next free number) and return where it is now."""
        source = self.path / name
        if not source.exists():
            return None
        target = self.free_name(name)
        source.rename(target)
        return target

    def free_name(self, name: str) -> Path:
        """`name.1`, or the next number that is free."""
        source = self.path / name
        number = 1
        while (target := source.with_name(f"{source.name}.{number}")).exists():
            number += 1
        return target

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process.

        Raises:
            InputError: another process holds it, or the directory cannot be made.

        """
        import fcntl

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a")
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError(f"{str(self.path)!r} cannot be the run's directory: a file is in the way.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"another plansmith process is writing {str(self.path)!r}. "
                    "Wait until it ends, or give this run another name (--name)."
                ) from error
            yield


def plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as JSON gives them back, so that stored and new ones compare equal."""
    return json.loads(json.dumps(dict(inputs), sort_keys=True, default=str))


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield f"{name}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:12] + "..."
