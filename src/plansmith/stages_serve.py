"""The serve stage of a pipeline: `plansmith serve` on what was just exported, for as long as the evaluation asks it.

Starts the command in a process of its own, on a free loopback port, waits until it is ready, and ends it afterwards; it
ends with this process too, however that goes. Its output is kept in `out/NAME/serve.log`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from plansmith.contract.errors import ServiceError
from plansmith.contract.store import write_text
from plansmith.recipe import ServeStage
from plansmith.serving.config import EndpointConfig, Route
from plansmith.serving.vllm.process import LEASH
from plansmith.stages import Base, Line

LOG = "serve.log"
_SHOWN_LINES = 12


class Opened(NamedTuple):
    """A planner that is served."""

    endpoint: EndpointConfig
    pid: int
    """Of the process at the top of those that serve it."""


@contextmanager
def served(line: Line, stage: ServeStage, base: Base) -> Iterator[Opened]:
    """Serve the run's export.

    Raises:
        ServiceError: it did not get ready; the message ends with its last output.

    """
    config = line.path / "serve.json"
    write_text(config, json.dumps(_config(line, stage, base), indent=1) + "\n")
    command = [
        sys.executable,
        "-I",
        str(LEASH),
        sys.executable,
        "-m",
        "plansmith.cli",
        "serve",
        "--config",
        str(config),
    ]
    line.progress.note(f"serve: plansmith serve --config {config} (output in {line.path / LOG})")
    with (line.path / LOG).open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=_environment())
        try:
            url = _ready(process, line.path / LOG, stage.ready_timeout_s)
            line.progress.note(f"serve: ready at {url}")
            seconds = stage.limits.deadline_s + 30
            endpoint = EndpointConfig(
                url=f"{url}/v1",
                model="planner",
                route=Route.PLANS,
                concurrency=stage.limits.concurrency,
                timeout_seconds=seconds,
            )
            yield Opened(endpoint, process.pid)
        finally:
            _end(process, stage.limits.grace_s)


def _config(line: Line, stage: ServeStage, base: Base) -> dict[str, Any]:
    """What `plansmith serve` reads."""
    export, is_adapter = line.path / "export", line.recipe.export == "adapter"
    model, adapter = (str(base.path), str(export)) if is_adapter else (str(export), None)
    engine = line.recipe.engine
    planner: dict[str, Any]
    if stage.by == "local":
        planner = {"kind": "local", "model": model, "adapter": adapter, "engine": engine.model_dump(mode="json")}
    else:
        server = stage.vllm.model_dump(mode="json") | {"model": model, "adapter": adapter}
        lengths = {"max_plan_tokens": engine.max_new_tokens, "max_steps": engine.max_steps}
        planner = {"kind": "vllm", "server": server | lengths}
    gateway = {
        "port": 0,
        "limits": stage.limits.model_dump(mode="json"),
        "ready": {"timeout_s": stage.ready_timeout_s},
    }
    return {"planner": planner, "journal": None, "gateway": gateway}


def _environment() -> dict[str, str]:
    """The environment in which this package is found again, and Python does not buffer what is read at once."""
    package = str(Path(__file__).parents[1])
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(filter(None, (package, known)))}


def _ready(process: subprocess.Popen[bytes], log: Path, seconds: float) -> str:
    """The address, once a plan was made there."""
    opener, limit, url = build_opener(ProxyHandler({})), time.monotonic() + seconds, None
    why = "it does not listen"
    while time.monotonic() < limit:
        if process.poll() is not None:
            raise ServiceError(f"plansmith serve ended with {process.returncode}. {_last(log)}")
        if url is None:
            found = re.search(r"^listening on (\S+)$", log.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            url = found.group(1) if found else None
        else:
            try:
                with opener.open(f"{url}/readyz", timeout=10):
                    return url
            except (URLError, OSError) as error:
                why = f"{url}/readyz: {error}"
        time.sleep(0.2)
    raise ServiceError(f"plansmith serve was not ready within {seconds:g} s ({why}). {_last(log)}")


def _last(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
    return f"The end of {str(log)!r}:\n" + "\n".join(lines)


def _end(process: subprocess.Popen[bytes], grace: float) -> None:
    """The leash ends what it holds when its standard input ends."""
    stdin: IO[bytes] | None = process.stdin
    if stdin is not None:
        with suppress(OSError):
            stdin.close()
    try:
        process.wait(grace + 30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
