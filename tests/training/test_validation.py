"""Held-out rows planned while training: which weights are kept, when training ends, what a killed run repeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import TokenSample
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Silent
from plansmith.contract.records import Split
from plansmith.contract.store import read_rows
from plansmith.data.build import DataSet
from plansmith.held_out import agreement, judge_of
from plansmith.training.checkpoint import read_card
from plansmith.training.config import Keep, Metric, ModelConfig, TrainingConfig
from plansmith.training.metrics import StepMetrics
from plansmith.training.trainer import TrainResult, train
from plansmith.training.validation import VALIDATION, Judge, Validation

CONFIG = TrainingConfig(
    rank=8,
    alpha=16,
    steps=6,
    batch_size=4,
    micro_batch_size=3,
    learning_rate=5e-3,
    warmup_steps=1,
    checkpoint_every=3,
    validity=False,
    validate_every=2,
    validate_tokens=24,
)
Right = Callable[[int], int]
"""How many of the held-out rows are planned right in a call, by the number of the call."""


@pytest.fixture(scope="module")
def held_out(data: DataSet) -> DataSet:
    """Twelve rows to learn, four to hold out."""
    val = [row.model_copy(update={"split": Split.VAL, "part": "val"}) for row in data.train[:4]]
    files = data.manifest.files | {"val.jsonl": "1" * 64}
    return dataclasses.replace(
        data, train=data.train[4:], val=val, manifest=data.manifest.model_copy(update={"files": files})
    )


class Scripted:
    """Plans so many rows right, says nothing that parses to the others."""

    def __init__(self, data: DataSet, right: Right, calls: list[int]) -> None:
        self.plans = {row.query: Plan.from_json(row.plan).canonical(data.catalog) for row in data.val}
        self.right = right
        self.calls = calls

    def sample(self, queries: Sequence[str], catalog: Catalog, **_: Any) -> list[TokenSample]:
        right = self.right(len(self.calls))
        self.calls.append(right)
        return [
            TokenSample((1,), self.plans[query] if place < right else "no", stopped=True)
            for place, query in enumerate(queries)
        ]


def scripted(data: DataSet, right: Right, calls: list[int] | None = None) -> Judge:
    made = Scripted(data, right, [] if calls is None else calls)
    return Judge(lambda model, tokenizer, base: made, agreement)


def run(
    data: DataSet, base: Path, out: Path, judge: Judge, config: TrainingConfig = CONFIG, **more: Any
) -> TrainResult:
    arguments: dict[str, Any] = {"seed": 3, "progress": Silent()} | more
    return train(ModelConfig(base="tiny-random"), config, data, base, out, judge=judge, **arguments)


def validations(out: Path) -> list[Validation]:
    return read_rows(out / VALIDATION, Validation)


def weights(adapter: Path) -> dict[str, torch.Tensor]:
    return load_file(adapter / "adapter_model.safetensors")


def changed(**more: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(CONFIG.model_dump() | more)


def test_the_real_engine_plans_every_held_out_row_and_leaves_the_training_as_it_was(
    held_out: DataSet, base: Path, tmp_path: Path
):
    watched = run(held_out, base, tmp_path / "watched", judge_of(4))
    plain = run(held_out, base, tmp_path / "plain", judge_of(4), changed(validate_every=None))
    found = validations(tmp_path / "watched")
    assert [row.step for row in found] == [2, 4, 6]
    assert all(row.rewards.answers == 4 and len(row.answers) == 4 for row in found)
    losses = [row.loss for row in found if row.loss is not None]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    one, two = weights(watched.adapter), weights(plain.adapter)
    assert all(torch.equal(one[name], two[name]) for name in one)
    card = read_card(watched.adapter)
    assert card is not None
    assert card.validation is not None
    assert (card.kept_step, card.validation["loss"], card.validation["rows"]) == (None, losses[2], 4)


def test_a_validation_that_decides_nothing_leaves_a_finished_run_finished(
    held_out: DataSet, base: Path, tmp_path: Path
):
    run(held_out, base, tmp_path, judge_of(4), changed(validate_every=None))
    assert run(held_out, base, tmp_path, judge_of(4), changed(validate_every=3, tensorboard=True)).skipped
    with pytest.raises(InputError, match="made from other inputs"):
        run(held_out, base, tmp_path, judge_of(4), changed(keep="best"))


def test_the_weights_of_the_best_validation_become_the_adapter(held_out: DataSet, base: Path, tmp_path: Path):
    best = run(held_out, base, tmp_path / "best", scripted(held_out, [1, 3, 2].__getitem__), changed(keep="best"))
    card = read_card(best.adapter)
    assert card is not None
    assert card.validation is not None
    assert (card.kept_step, card.steps, card.validation["equivalent"]) == (4, 6, 0.75)
    assert [path.name for path in (tmp_path / "best").glob("best-*")] == ["best-4"]
    kept = load_file(tmp_path / "best" / "best-4" / "state.safetensors")
    last = load_file(tmp_path / "best" / "checkpoint-6" / "state.safetensors")
    written = weights(best.adapter)
    for name, value in written.items():
        key = f"weight/{name.replace('.weight', '.default.weight')}"
        assert torch.equal(value, kept[key])
    assert any(not torch.equal(kept[key], last[key]) for key in kept)


def test_of_equal_validations_the_one_with_the_lower_loss_is_kept_and_of_equal_losses_the_earlier(
    held_out: DataSet, base: Path, tmp_path: Path
):
    run(held_out, base, tmp_path, scripted(held_out, lambda call: 1), changed(keep="best"))
    found = validations(tmp_path)
    lowest = min(found, key=lambda row: row.loss or 0.0)
    card = read_card(tmp_path / "adapter")
    assert card is not None
    assert card.kept_step == lowest.step


@pytest.mark.parametrize(
    ("right", "patience", "steps"), [([2, 1, 1], 2, 6), ([2, 1, 1], 1, 4), ([1, 2, 3], 1, 6), ([1, 0, 2], 2, 6)]
)
def test_training_ends_after_as_many_worse_validations_as_patience_says(
    held_out: DataSet, base: Path, tmp_path: Path, right: list[int], patience: int, steps: int
):
    result = run(held_out, base, tmp_path, scripted(held_out, right.__getitem__), changed(patience=patience))
    assert result.steps == steps
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == [f"checkpoint-{steps}"]
    assert run(held_out, base, tmp_path, scripted(held_out, right.__getitem__), changed(patience=patience)).skipped


class Killed(Exception):
    """A kill."""


@pytest.mark.parametrize("call", [0, 1, 2])
def test_a_run_that_is_killed_in_a_validation_comes_to_the_same_choice_and_weights(
    held_out: DataSet, base: Path, tmp_path: Path, call: int
):
    config = changed(keep="best", metric="loss")
    whole = run(held_out, base, tmp_path / "whole", scripted(held_out, lambda call: 0), config)

    def kill(number: int) -> int:
        if number == call:
            raise Killed
        return 0

    with pytest.raises(Killed):
        run(held_out, base, tmp_path / "cut", scripted(held_out, kill), config)
    resumed = run(held_out, base, tmp_path / "cut", scripted(held_out, lambda call: 0), config)
    assert [(row.step, row.loss) for row in validations(tmp_path / "cut")] == [
        (row.step, row.loss) for row in validations(tmp_path / "whole")
    ]
    one, two = weights(whole.adapter), weights(resumed.adapter)
    assert all(torch.equal(one[name], two[name]) for name in one)
    steps = [row.step for row in read_rows(tmp_path / "cut" / "metrics.jsonl", StepMetrics)]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_run_that_is_killed_after_its_early_end_only_writes_the_adapter(
    held_out: DataSet, base: Path, tmp_path: Path
):
    config = changed(patience=1, keep="best")
    result = run(held_out, base, tmp_path, scripted(held_out, [2, 1].__getitem__), config)
    before = weights(result.adapter)
    for path in result.adapter.iterdir():
        path.unlink()
    result.adapter.rmdir()
    calls: list[int] = []
    again = run(held_out, base, tmp_path, scripted(held_out, lambda call: 4, calls), config)
    assert (calls, again.steps) == ([], 4)
    assert all(torch.equal(before[name], value) for name, value in weights(again.adapter).items())


@pytest.mark.parametrize("more", [{"keep": Keep.BEST}, {"patience": 2}])
def test_keeping_the_best_without_validations_is_refused(more: dict[str, Any]):
    with pytest.raises(ValidationError, match="needs validations; set validate_every"):
        TrainingConfig(**more)


def test_validations_without_val_rows_are_refused_before_the_first_step(data: DataSet, base: Path, tmp_path: Path):
    with pytest.raises(InputError, match="no val rows"):
        run(data, base, tmp_path, judge_of(4))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_every_metric_is_one_that_a_validation_has(held_out: DataSet, base: Path, tmp_path: Path):
    run(held_out, base, tmp_path, scripted(held_out, lambda call: 2))
    found = validations(tmp_path)[-1]
    assert {metric: found.value(metric) for metric in (Metric.EQUIVALENT, Metric.VALID)} == {
        Metric.EQUIVALENT: 0.5,
        Metric.VALID: 0.5,
    }
    assert found.value(Metric.REWARD) == pytest.approx(0.0)
    assert found.value(Metric.LOSS) == -(found.loss or 0.0)


def test_tensorboard_holds_the_numbers_of_both_files(held_out: DataSet, base: Path, tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(held_out, base, tmp_path, scripted(held_out, lambda call: call), changed(tensorboard=True))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    rows = read_rows(tmp_path / "metrics.jsonl", StepMetrics)
    assert losses == [(row.step, pytest.approx(row.loss)) for row in rows]
    shares = [(event.step, event.value) for event in events.Scalars("validation/equivalent")]
    assert shares == [(2, 0.0), (4, 0.25), (6, 0.5)]
