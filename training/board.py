"""Event files for TensorBoard, where they are asked for: the numbers of `metrics.jsonl` and of the validations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from plansmith.contract.errors import MissingExtraError
from plansmith.training.metrics import StepMetrics
from plansmith.training.validation import Validation

FOLDER = "tensorboard"


class Board(Protocol):
    """Where numbers are shown beside the files."""

    def step(self, row: StepMetrics) -> None:
        """A training step."""
        ...

    def validation(self, row: Validation) -> None:
        """A validation."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class NoBoard:
    """Nobody asked."""

    def step(self, row: StepMetrics) -> None: ...

    def validation(self, row: Validation) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in a directory."""

    def __init__(self, out: Path, done: int) -> None:
        """Open them; what an earlier, killed run wrote of steps after `done` is hidden.

        Raises:
            MissingExtraError: the package tensorboard is not installed.

        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "board") from error
        self._writer: Any = SummaryWriter(str(out / FOLDER), purge_step=done + 1)

    def step(self, row: StepMetrics) -> None:
        for name, value in row.model_dump(exclude={"version", "step"}).items():
            if value is not None:
                self._writer.add_scalar(f"train/{name}", value, row.step)

    def validation(self, row: Validation) -> None:
        shares = row.rewards.model_dump(exclude={"version", "answers"})
        for name, value in {**shares, "cut": row.cut, "loss": row.loss, "seconds": row.seconds}.items():
            if value is not None:
                self._writer.add_scalar(f"validation/{name}", value, row.step)

    def close(self) -> None:
        self._writer.close()


def open_board(out: Path, done: int, *, wanted: bool) -> Board:
    """The board that the settings ask for."""
    return TensorBoard(out, done) if wanted else NoBoard()
