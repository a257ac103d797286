"""Reads text files under one root, and nothing beside it.

A path is opened part by part, each relative to the directory before it (`openat`) and without following links, so that
neither `..` nor a link, nor a directory that is swapped for a link meanwhile, leads outside. What is no regular file (a
pipe, a device, a directory) is refused without waiting for it. POSIX only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pydantic import BaseModel

from plansmith.contract.errors import InputError
from plansmith.serving.workers.base import FailureCode, WorkerError
from plansmith.serving.workers.decorator import FunctionWorker, worker

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
MAX_PARTS = 40


class FileText(BaseModel):
    """A file's text."""

    text: str
    bytes: int


def file_read(
    root: str | Path, *, max_bytes: int = 1 << 19, name: str = "file_read"
) -> FunctionWorker[[str], FileText]:
    """The worker that reads files under a root.

    Args:
        root: the directory; it may itself be reached through a link.
        max_bytes: largest file; a larger one is refused, never cut.
        name: of the worker.

    Raises:
        InputError: the root is no directory.

    """
    folder = Path(root).resolve()
    if not folder.is_dir():
        raise InputError(f"{str(root)!r} is no directory, so nothing under it can be read.")

    def read(path: str) -> FileText:
        """Read a text file (UTF-8).

        Args:
            path: relative to the root, parts separated by /.
        """
        handle = _open(folder, _parts(path))
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise _forbidden("regular", f"{path!r} is no regular file.")
            if about.st_size > max_bytes:
                raise _forbidden("size", f"{path!r} has {about.st_size} bytes; at most {max_bytes} are read.")
            content = _all(handle, max_bytes + 1)
        finally:
            os.close(handle)
        if len(content) > max_bytes:
            raise _forbidden("size", f"{path!r} has grown beyond {max_bytes} bytes.")
        try:
            return FileText(text=content.decode("utf-8"), bytes=len(content))
        except UnicodeDecodeError as error:
            raise WorkerError("NOT_TEXT", f"{path!r} is no UTF-8 text (byte {error.start}).") from error

    return worker(name=name, effect="read", idempotent=True, timeout_s=10)(read)


def _parts(path: str) -> list[str]:
    """The parts of a path that cannot lead anywhere else."""
    if not path or len(path) > 1000:
        raise _forbidden("length", f"a path has 1 to 1000 characters; found {len(path)}.")
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise _forbidden("characters", "a path has no control characters.")
    if "\\" in path or path.startswith(("/", "~")) or (len(path) > 1 and path[1] == ":"):
        raise _forbidden("relative", f"{path!r} is not relative to the root with parts separated by '/'.")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise _forbidden("parts", f"{path!r} has an empty part, '.' or '..'.")
    if len(parts) > MAX_PARTS:
        raise _forbidden("depth", f"{path!r} has more than {MAX_PARTS} parts.")
    return parts


def _open(root: Path, parts: list[str]) -> int:
    """Open part by part, without following links."""
    shown = "/".join(parts)
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise WorkerError(FailureCode.UNAVAILABLE, "the root cannot be opened.") from error
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        try:
            found = os.open(part, _FILE if last else _DIRECTORY, dir_fd=handle)
        except FileNotFoundError as error:
            raise WorkerError(FailureCode.NOT_FOUND, f"there is no file {shown!r}.") from error
        except OSError as error:
            raise _forbidden("links", f"{part!r} in {shown!r} is a link, no directory, or not readable.") from error
        finally:
            os.close(handle)
        handle = found
    return handle


def _all(handle: int, most: int) -> bytes:
    content = b""
    while len(content) < most and (more := os.read(handle, most - len(content))):
        content += more
    return content


def _forbidden(rule: str, message: str) -> WorkerError:
    return WorkerError(FailureCode.FORBIDDEN, f"rule {rule!r}: {message}")
