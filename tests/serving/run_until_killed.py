"""A process that starts a journalled run and is killed at a point: `python FILE JOURNAL EFFECTS KIND POINT`.

`KIND` is pure, idempotent or write; `POINT` is where it gets SIGKILL. The worker appends a line with its key to
`EFFECTS` each time it takes effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from plansmith.contract.catalog import Effect
from plansmith.serving.runs.journal import Journal
from plansmith.serving.runs.orchestrator import Orchestrator
from plansmith.serving.workers.base import CallInfo
from plansmith.serving.workers.registry import Registry
from tests.serving.run_parts import CALM, Made, from_, step

POINTS = ("before_dispatch", "after_dispatch", "in_call", "after_effect", "before_record", "after_record")
PLAN = [step("first", n=1), step("effect", n=from_("/0/n")), step("last", n=from_("/1"))]
KINDS: dict[str, dict[str, Any]] = {
    "pure": {"effect": Effect.PURE},
    "idempotent": {"effect": Effect.WRITE, "idempotent": True},
    "write": {"effect": Effect.WRITE},
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def workers(effects: Path, kind: str, point: str | None) -> Registry:
    async def takes_effect(args: dict[str, Any], info: CallInfo) -> Any:
        if point == "in_call":
            die()
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{info.idempotency_key}\n")
        if point == "after_effect":
            die()
        return args["n"] + 1

    async def plain(args: dict[str, Any], info: CallInfo) -> Any:
        with effects.with_suffix(".first").open("a", encoding="utf-8") as file:
            file.write(f"{info.step}\n")
        return args

    return Registry("kill", [Made("first", plain), Made("effect", takes_effect, **KINDS[kind]), Made("last", plain)])


class DyingJournal(Journal):
    """Dies around the second step's records."""

    point = ""

    async def dispatched(self, run_id: str, step: int, key: str) -> None:
        if self.point == "before_dispatch":
            die()
        await super().dispatched(run_id, step, key)
        if self.point == "after_dispatch":
            die()

    async def ended(self, run_id: str, step: int, *rest: Any) -> None:
        if self.point == "before_record" and step == 1:
            die()
        await super().ended(run_id, step, *rest)
        if self.point == "after_record" and step == 1:
            die()


async def main(path: str, effects: str, kind: str, point: str) -> None:
    journal = DyingJournal(path)
    journal.point = point
    await Orchestrator(workers(Path(effects), kind, point), CALM, journal).run(PLAN, run_id="r")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
