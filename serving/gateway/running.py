"""A run under way behind the gateway: its task, and who listens to what happens in it."""

from __future__ import annotations

import asyncio
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
