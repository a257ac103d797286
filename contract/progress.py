"""How long work tells what it does. Stages take a `Progress`; the command line hands in one that draws bars."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of one piece of long work."""

    def start(self, what: str, total: int) -> None:
        """Begin a task of `total` units, `what` in words (`training steps`)."""
        ...

    def advance(self, amount: int = 1, **values: float | str) -> None:
        """Count units done; `values` are shown beside the bar (`loss=0.41`)."""
        ...

    def finish(self) -> None:
        """End the task."""
        ...

    def note(self, text: str) -> None:
        """Tell the user one thing (a count of drops, a path)."""
        ...


class Silent:
    """Progress that shows nothing, for tests and libraries."""

    def start(self, what: str, total: int) -> None: ...

    def advance(self, amount: int = 1, **values: float | str) -> None: ...

    def finish(self) -> None: ...

    def note(self, text: str) -> None: ...
