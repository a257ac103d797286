"""A vLLM process: started on a leash, its output read, ended with its children. Knows nothing of planners.

The leash (`leash.py`) ends the whole group of processes when this one is gone, however it went.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

LEASH = Path(__file__).with_name("leash.py")
KEPT_LINES = 400
_PHASES = (
    (
        re.compile(r"Loading (safetensors )?(checkpoint|weights)|Starting to load model", re.IGNORECASE),
        "loading weights",
    ),
    (re.compile(r"torch\.compile|Compiling|Dynamo bytecode", re.IGNORECASE), "compiling"),
    (re.compile(r"Capturing CUDA graph|Graph capturing", re.IGNORECASE), "capturing graphs"),
    (re.compile(r"KV cache size|GPU KV cache|# GPU blocks", re.IGNORECASE), "making room for keys and values"),
    (re.compile(r"Application startup complete|Starting vLLM API server", re.IGNORECASE), "starting the server"),
)


class VllmProcess:
    """One start of a server."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        grace_s: float,
        log: Path | None,
        told: Callable[[str], None],
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            command: what is run.
            env: environment variables on top of this process's.
            grace_s: how long it may take to end by itself.
            log: file that its output is added to; None keeps the last lines only.
            told: is told of each phase of the start.

        """
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        """The last lines of its output."""
        self._command, self._env, self._grace, self._log = list(command), dict(env), grace_s, log
        self._told = told
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.begun = 0.0

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def start(self) -> None:
        """Start it."""
        env = {**os.environ, "HF_HUB_OFFLINE": "1", **self._env, "PLANSMITH_GRACE_S": str(self._grace)}
        self.begun = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(LEASH), *self._command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=env,
            limit=1 << 20,
        )
        self._reading = asyncio.create_task(self._read(), name="vllm-output")

    async def wait(self) -> int:
        """Wait until it has ended and all its output is read; its exit code."""
        assert self._process is not None
        code = await self._process.wait()
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=5)
        return code

    async def stop(self) -> None:
        """End it and its children; returns when nothing is left."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._grace + 10)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        phase = ""
        file: IO[bytes] | None = None
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            file = self._log.open("ab")
        try:
            while True:
                try:
                    line = await self._process.stdout.readline()
                except ValueError:  # a line longer than the limit; what follows is read again
                    continue
                if not line:
                    return
                if file is not None:
                    file.write(line)
                    file.flush()
                text = line.decode("utf-8", "replace").rstrip()
                self.lines.append(text)
                found = next((name for pattern, name in _PHASES if pattern.search(text)), phase)
                if found != phase:
                    phase = found
                    self._told(f"{phase} ({time.monotonic() - self.begun:.0f} s)")
        finally:
            if file is not None:
                file.close()
