"""Shows a run while it goes on: a table of its steps on a terminal, a line an event elsewhere; on standard error."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from plansmith.serving.runs.events import EventKind, RunEvent

_STYLES = {"done": "green", "failed": "red", "skipped": "yellow", "outcome_unknown": "bold red", "running": "cyan"}
_SILENT = {EventKind.RUN_STARTED, EventKind.PLAN_READY, EventKind.ANSWER}


class RunDisplay:
    """A context manager whose `show` is told of every event."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Prepare; `quiet` shows nothing."""
        self._quiet = quiet
        self._console = Console(file=sys.stderr, highlight=False)
        self._steps: dict[int, tuple[str, str, str]] = {}
        self._live = (
            Live(console=self._console, auto_refresh=False) if self._console.is_terminal and not quiet else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, event: RunEvent) -> None:
        """Take an event in."""
        if self._quiet or event.step is None or event.worker is None:
            return
        state = _state(event)
        more = event.message or (f"{event.failure.code}: {event.failure.message}" if event.failure else "")
        if event.seconds is not None:
            more = f"{event.seconds:.2f} s{', ' if more else ''}{more}"
        self._steps[event.step] = (event.worker or "", state, more)
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif event.kind not in _SILENT:
            print(f"step {event.step} {event.worker}: {state}{', ' if more else ''}{more}", file=sys.stderr, flush=True)

    async def ask(self, step: int, worker: str, args: str) -> bool:
        """Ask the person at the terminal about a call; anything but yes is no."""
        if self._live is not None:
            self._live.stop()
        print(f"step {step} wants to call {worker} with {args}", file=sys.stderr)
        answer = await asyncio.to_thread(input, "Agree? [y/N] ")
        if self._live is not None:
            self._live.start()
        return answer.strip().casefold() in ("y", "yes")

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for name in ("step", "worker", "state", ""):
            table.add_column(name)
        for step, (worker, state, more) in sorted(self._steps.items()):
            table.add_row(str(step), Text(worker), Text(state, style=_STYLES.get(state, "")), Text(more))
        return table


def _state(event: RunEvent) -> str:
    if event.kind is EventKind.STEP_STARTED:
        return "running"
    if event.kind is EventKind.STEP_RETRIED:
        return f"failed, call {(event.attempt or 0) + 1} follows"
    if event.kind is EventKind.APPROVAL_NEEDED:
        return "needs approval"
    return event.status or event.kind.value
