"""What a training run tells and keeps: metrics, validations, checkpoints, TensorBoard, the choice of the best weights.

Belongs to the process that leads. A step is kept in this order: its row in `metrics.jsonl`, its validation where one is
due, its checkpoint where one is due; a run that is killed in between repeats what came after its last checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from plansmith.contract.progress import Progress
from plansmith.contract.store import append_row, read_rows, write_rows
from plansmith.training.board import Board, NoBoard, open_board
from plansmith.training.checkpoint import Inputs, State, save_checkpoint
from plansmith.training.config import Keep, TrainingConfig
from plansmith.training.encode import Corpus
from plansmith.training.metrics import StepMetrics
from plansmith.training.trainee import Trainee
from plansmith.training.validation import Validation, Watch

METRICS = "metrics.jsonl"


class Chosen(NamedTuple):
    """Which weights became the adapter."""

    kept_step: int | None = None
    """None: those of the last step, which nobody compared."""
    validation: dict[str, float] | None = None
    """What they reach on held-out rows, where that was looked at."""
    told: str = ""
    """In words, to be added to the run's last line."""


class Log:
    """The files of one run."""

    def __init__(self, out: Path, config: TrainingConfig, inputs: Inputs, progress: Progress) -> None:
        self.progress = progress
        self.watch: Watch | None = None
        self._out, self._config, self._inputs = out, config, inputs
        self._board: Board = NoBoard()

    def begin(self, done: int, corpus: Corpus, trainee: Trainee) -> None:
        """Say what is about to run, and drop what is known of steps that will run again.

        Raises:
            MissingExtraError: TensorBoard is asked for and not installed.

        """
        self._board = open_board(self._out, done, wanted=self._config.tensorboard)
        path = self._out / METRICS
        rows = read_rows(path, StepMetrics) if path.is_file() else []
        write_rows(path, [row for row in rows if row.step <= done])
        if self.watch is not None:
            self.watch.resume(done)
        self.progress.note(_described(self._config, corpus) + (f"; going on after step {done}" if done else ""))
        if trainee.separate is not None:
            self.progress.note(_warning(trainee.separate, self._config, corpus))
        self.progress.start("training steps", self._config.steps)
        if done:
            self.progress.advance(done)

    @property
    def exhausted(self) -> bool:
        """Whether validations no longer get better."""
        return self.watch is not None and self.watch.exhausted

    def keep(self, row: StepMetrics, trainee: Trainee) -> bool:
        """Keep what a step gave; returns whether training ends here for want of improvement."""
        append_row(self._out / METRICS, row)
        self._board.step(row)
        if self.watch is not None and self.watch.due(row.step):
            self._board.validation(self.watch.validate(row.step, self._inputs))
        config, ended = self._config, self.exhausted
        if row.step % config.checkpoint_every == 0 or row.step == config.steps or ended:
            state = State(step=row.step, inputs=self._inputs)
            save_checkpoint(self._out, state, trainee.parameters, trainee.optimizer, keep=config.keep_checkpoints)
            if self.watch is not None:
                self.watch.tidy()
        self._show(row)
        return ended

    def choose(self) -> Chosen:
        """Which weights become the adapter; those of the best validation are put into the model."""
        if self.watch is None:
            return Chosen()
        if self._config.keep is Keep.LAST:
            return Chosen(None, _numbers(self.watch.found[-1]))
        best = self.watch.take_best(self._inputs)
        value = f"{self._config.metric.value} {best.value(self._config.metric):.3f}"
        return Chosen(best.step, _numbers(best), f" (the weights after step {best.step}, {value} on held-out rows)")

    def close(self) -> None:
        """No more steps come."""
        self.progress.finish()
        self._board.close()
        if self.watch is not None and self.watch.exhausted and self.watch.found[-1].step < self._config.steps:
            self.progress.note(
                f"training: stopped after step {self.watch.found[-1].step} of {self._config.steps}: "
                f"{self._config.patience} validations in a row were not better"
            )

    def _show(self, row: StepMetrics) -> None:
        left = round(row.seconds * (self._config.steps - row.step))
        self.progress.advance(
            1,
            loss=round(row.loss, 4),
            examples_per_second=round(row.examples / max(row.seconds, 1e-3), 2),
            time_left=f"{left // 60}:{left % 60:02d}",
        )


def _numbers(found: Validation) -> dict[str, float]:
    numbers = found.rewards.model_dump(exclude={"version", "answers"}) | {"rows": float(found.rewards.answers)}
    return numbers if found.loss is None else numbers | {"loss": found.loss}


def _described(config: TrainingConfig, corpus: Corpus) -> str:
    dropped = sum(corpus.dropped.values())
    return (
        f"training: {len(corpus.examples)} of {corpus.given} rows ({dropped} left out), {config.steps} steps of "
        f"{config.batch_size}, rank {config.rank}, {len(corpus.prefix)} prompt tokens shared, {len(corpus.prefixes)} "
        "catalogs"
    )


def _warning(why: str, config: TrainingConfig, corpus: Corpus) -> str:
    """What it costs that the prompt is not shared."""
    own = sum(corpus.lengths) / len(corpus.examples)
    shared = own + len(corpus.prefix) / min(config.micro_batch_size, config.batch_size)
    return (
        f"warning: the model has {why}, so the prompt is not shared: all {len(corpus.examples)} examples run with the "
        f"whole catalog, {own + len(corpus.prefix):.0f} tokens each instead of {shared:.0f}"
    )
