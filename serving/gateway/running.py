"""Runs behind the gateway: one under way, with who listens to it, and those that ended lately."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from plansmith.serving.gateway.wire import RunResponse
from plansmith.serving.runs.events import RunEvent


class Running:
    """A run under way, and who listens to it."""

    task: asyncio.Task[RunResponse]

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.steps_begun = False
        """Whether workers may have been called."""
        self.events: asyncio.Queue[tuple[str, dict[str, Any]]] | None = None
        """What happens, for a listener; None where nobody listens."""

    def tell(self, kind: str, data: dict[str, Any]) -> None:
        """Tell the listener."""
        if self.events is not None:
            self.events.put_nowait((kind, data))

    def tell_of_run(self, event: RunEvent) -> None:
        """An event of the orchestrator."""
        self.tell(event.kind.value, event.model_dump(mode="json", exclude_none=True))

    def tell_of_agent(self, event: RunEvent) -> None:
        """An event of the agent: its calls begin while the ladder is still climbed."""
        if event.kind == "step_started":
            self.steps_begun = True
        self.tell(
            event.kind.value,
            event.model_copy(update={"run_id": self.run_id}).model_dump(mode="json", exclude_none=True),
        )

    def leave(self) -> bool:
        """The caller went away: end it if no step has begun; whether it was ended."""
        self.events = None
        return not self.steps_begun and self.task.cancel()


class RecentRuns:
    """The runs begun last, by id: at most so many, and of those that ended at most so many bytes of JSON."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[str, tuple[RunResponse, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, run_id: str) -> RunResponse | None:
        """A run; None where it is too long ago, or was too large to keep."""
        found = self._kept.get(run_id)
        return found[0] if found is not None else None

    def keep(self, response: RunResponse) -> None:
        """Keep a run in the place of what was known of it; the oldest go."""
        _, before = self._kept.pop(response.run_id, (None, 0))
        size = len(response.model_dump_json())
        self._kept[response.run_id] = (response, size)
        self._bytes += size - before
        while self._kept and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            _, (_, gone) = self._kept.popitem(last=False)
            self._bytes -= gone
