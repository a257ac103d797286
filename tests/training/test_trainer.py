"""Training as a whole, on a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import CatalogMismatchError, InputError
from plansmith.contract.progress import Silent
from plansmith.contract.prompt import prompt_hash
from plansmith.contract.store import read_rows
from plansmith.data.build import DataSet
from plansmith.training.checkpoint import Card
from plansmith.training.config import ModelConfig, Schedule, TrainingConfig
from plansmith.training.metrics import StepMetrics
from plansmith.training.model import base_hash, load_model
from plansmith.training.trainee import build_trainee
from plansmith.training.trainer import (
    TrainingError,
    TrainResult,
    learning_rate,
    train,
)

MODEL = ModelConfig(base="tiny-random")
CONFIG = TrainingConfig(
    rank=8, alpha=16, steps=6, batch_size=4, micro_batch_size=3, learning_rate=5e-3, warmup_steps=1, checkpoint_every=2
)


class Stop(Exception):
    """Ends a run from outside, as a kill between two steps does."""


class Watcher(Silent):
    """Keeps what it is told; raises `Stop` after some steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.values: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.done = 0

    def advance(self, amount: int = 1, **values: float | str) -> None:
        self.done += amount
        self.values.append(values)
        if self.done == self.stop_after:
            raise Stop

    def note(self, text: str) -> None:
        self.notes.append(text)


def run(data: DataSet, base: Path, out: Path, config: TrainingConfig = CONFIG, **change: Any) -> TrainResult:
    arguments: dict[str, Any] = {"seed": 3, "progress": Silent()} | change
    return train(MODEL, config, data, base, out, **arguments)


@pytest.fixture(scope="module")
def finished(data: DataSet, base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, Watcher]:
    watcher = Watcher()
    return run(data, base, tmp_path_factory.mktemp("run") / "train", progress=watcher), watcher


def metrics(out: Path) -> list[tuple[int, float, float]]:
    return [(row.step, row.loss, row.grad_norm) for row in read_rows(out / "metrics.jsonl", StepMetrics)]


def test_training_lowers_the_loss_and_writes_an_adapter(finished: tuple[TrainResult, Watcher], base: Path) -> None:
    result, _ = finished
    rows = read_rows(result.adapter.parent / "metrics.jsonl", StepMetrics)
    assert [row.step for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1].loss < rows[0].loss - 0.1
    assert result == TrainResult(result.adapter, 6, rows[-1].loss, result.seconds, skipped=False)
    assert sorted(path.name for path in result.adapter.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "plansmith.json",
    ]
    assert [path.name for path in result.adapter.parent.glob("checkpoint-*")] == ["checkpoint-6"]


def test_the_adapter_that_is_saved_is_the_one_that_was_trained(
    finished: tuple[TrainResult, Watcher], base: Path
) -> None:
    result, _ = finished
    state = load_file(result.adapter.parent / "checkpoint-6" / "state.safetensors")
    trained = {name.removeprefix("weight/"): value for name, value in state.items() if name.startswith("weight/")}
    loaded = peft.PeftModel.from_pretrained(load_model(base, torch.float32), str(result.adapter))
    found = {name: value for name, value in loaded.named_parameters() if "lora_" in name}
    assert found.keys() == trained.keys()
    assert all(torch.equal(found[name], trained[name]) for name in trained)
    assert sum(float(value.abs().sum()) for name, value in found.items() if "lora_B" in name) > 0


def test_the_card_says_what_the_adapter_is(
    finished: tuple[TrainResult, Watcher], data: DataSet, base: Path, catalog: Catalog
) -> None:
    card = Card.model_validate_json((finished[0].adapter / "plansmith.json").read_bytes())
    assert (card.catalog_hash, card.prompt_hash) == (catalog.hash, prompt_hash(catalog))
    assert (card.base, card.base_hash, card.seed, card.steps) == ("tiny-random", base_hash(base), 3, 6)
    assert card.data == data.manifest.files
    assert card.final_loss == finished[0].final_loss
    settings = json.loads((finished[0].adapter / "adapter_config.json").read_text(encoding="utf-8"))
    assert settings["base_model_name_or_path"] == "tiny-random"
    assert settings["target_modules"] == sorted(CONFIG.target_modules)


def test_progress_shows_loss_rate_and_time_left(finished: tuple[TrainResult, Watcher]) -> None:
    watcher = finished[1]
    assert watcher.done == 6
    assert watcher.values[-1].keys() == {"loss", "examples_per_second", "time_left"}
    assert watcher.values[-1]["time_left"] == "0:00"
    assert "validity term over" in watcher.notes[0]
    assert "16 of 16 rows (0 left out)" in watcher.notes[1]
    assert "s a step" in watcher.notes[-1]


@pytest.mark.parametrize(("stop_after", "repeated"), [(1, 0), (3, 2), (4, 4)])
def test_a_killed_run_goes_on_to_the_same_weights_bit_by_bit(
    finished: tuple[TrainResult, Watcher], data: DataSet, base: Path, tmp_path: Path, stop_after: int, repeated: int
) -> None:
    with pytest.raises(Stop):
        run(data, base, tmp_path, progress=Watcher(stop_after))
    assert not (tmp_path / "adapter").exists()
    torch.manual_seed(99)
    watcher = Watcher()
    run(data, base, tmp_path, progress=watcher)
    assert watcher.done == 6
    assert len(watcher.values) == 6 - repeated + (1 if repeated else 0)
    whole = finished[0].adapter
    assert metrics(tmp_path) == metrics(whole.parent)
    name = "adapter_model.safetensors"
    assert (tmp_path / "adapter" / name).read_bytes() == (whole / name).read_bytes()


def test_a_killed_run_with_dropout_goes_on_to_the_same_weights(data: DataSet, base: Path, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"dropout": 0.2, "steps": 4})
    run(data, base, tmp_path / "whole", config)
    with pytest.raises(Stop):
        run(data, base, tmp_path / "cut", config, progress=Watcher(3))
    run(data, base, tmp_path / "cut", config)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_a_finished_run_is_not_run_again(finished: tuple[TrainResult, Watcher], data: DataSet, base: Path) -> None:
    result, watcher = finished[0], Watcher()
    again = run(data, base, result.adapter.parent, progress=watcher)
    assert again == result._replace(skipped=True)
    assert watcher.done == 0
    assert "skipped" in watcher.notes[0]


def test_settings_without_effect_on_the_weights_do_not_make_a_run_another(
    finished: tuple[TrainResult, Watcher], data: DataSet, base: Path
) -> None:
    config = CONFIG.model_copy(update={"checkpoint_every": 3})
    assert run(data, base, finished[0].adapter.parent, config).skipped


def test_other_settings_seed_or_rows_are_refused_with_the_differences(
    finished: tuple[TrainResult, Watcher], data: DataSet, base: Path, make_data: Any
) -> None:
    out = finished[0].adapter.parent
    config = CONFIG.model_copy(update={"learning_rate": 1e-3})
    with pytest.raises(InputError, match=r"config.learning_rate: 0.001 here, 0.005 there"):
        run(data, base, out, config)
    with pytest.raises(InputError, match=r"seed: 4 here, 3 there"):
        run(data, base, out, seed=4)
    with pytest.raises(InputError, match=r"train_hash: "):
        run(make_data(data.catalog, data.train[:-1]), base, out)


def test_a_checkpoint_of_other_inputs_is_refused(data: DataSet, base: Path, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run(data, base, tmp_path, progress=Watcher(2))
    with pytest.raises(Stop):
        run(data, base, tmp_path, progress=Watcher(3))
    with pytest.raises(InputError, match=r"checkpoint.*other inputs \(seed: 8 here, 3 there\)"):
        run(data, base, tmp_path, seed=8)
    (tmp_path / "checkpoint-2" / "state.safetensors").write_bytes(b"short")
    with pytest.raises(InputError, match=r"checkpoint.*cannot be read.*Remove it"):
        run(data, base, tmp_path)


def test_data_of_another_catalog_is_refused_by_both_hashes(data: DataSet, base: Path, tmp_path: Path) -> None:
    other = Catalog("other", data.catalog.workers[:1])
    mixed = DataSet(other, data.train, data.val, data.test, data.manifest)
    with pytest.raises(CatalogMismatchError, match=f"{data.catalog.hash}.*{other.hash}"):
        run(mixed, base, tmp_path)


def test_a_loss_that_is_no_number_stops_before_the_weights_change(data: DataSet, base: Path, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"learning_rate": 1e30, "warmup_steps": 0, "checkpoint_every": 1})
    with pytest.raises(TrainingError, match=r"step 2: the loss is nan.*left alone.*learning_rate.*'row-"):
        run(data, base, tmp_path, config)
    assert [step for step, *_ in metrics(tmp_path)] == [1]
    state = load_file(tmp_path / "checkpoint-1" / "state.safetensors")
    assert all(bool(value.isfinite().all()) for value in state.values())


def test_how_a_step_is_cut_changes_its_gradient_by_rounding_only(data: DataSet, base: Path, tmp_path: Path) -> None:
    found = []
    for cut in (1, 2, 8):
        config = CONFIG.model_copy(update={"steps": 1, "batch_size": 8, "micro_batch_size": cut})
        run(data, base, tmp_path / str(cut), config)
        state = load_file(tmp_path / str(cut) / "checkpoint-1" / "state.safetensors")
        found.append((metrics(tmp_path / str(cut)), {k: v for k, v in state.items() if k.startswith("exp_avg/")}))
    (reference_metrics, reference) = found[0]
    assert max(float(value.abs().max()) for value in reference.values()) > 1e-3
    for other_metrics, other in found[1:]:
        assert other_metrics[0] == pytest.approx(reference_metrics[0], rel=1e-5)
        for name, value in reference.items():
            torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-6)


def test_a_target_module_that_no_layer_has_is_refused(base: Path) -> None:
    config = CONFIG.model_copy(update={"target_modules": ("qkv",)})
    with pytest.raises(InputError, match="qkv"):
        build_trainee(base, config, seed=0)


def test_only_adapter_weights_are_trained(base: Path) -> None:
    trainee = build_trainee(base, CONFIG, seed=0)
    assert all("lora_" in name for name in trainee.parameters)
    assert all(value.dtype == torch.float32 for value in trainee.parameters.values())


def test_top_layers_puts_adapters_into_the_uppermost_layers_only(base: Path) -> None:
    trainee = build_trainee(base, CONFIG.model_copy(update={"top_layers": 1}), seed=0)
    assert trainee.parameters
    assert all(".layers.3." in name for name in trainee.parameters)
    with pytest.raises(InputError, match="top_layers is 5, but the model has 4 layers"):
        build_trainee(base, CONFIG.model_copy(update={"top_layers": 5}), seed=0)


@pytest.mark.parametrize("rank", [0, 2, 24, 1024])
def test_ranks_that_no_server_loads_are_refused(rank: int) -> None:
    with pytest.raises(ValidationError, match="cannot be served; choose one of 1, 8, 16"):
        TrainingConfig(rank=rank)


def test_the_learning_rate_rises_then_falls() -> None:
    config = TrainingConfig(steps=20, warmup_steps=4, learning_rate=1.0)
    rates = [learning_rate(step, config) for step in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.02
    linear = config.model_copy(update={"schedule": Schedule.LINEAR})
    assert learning_rate(12, linear) == pytest.approx(0.5)
    assert learning_rate(19, config.model_copy(update={"schedule": Schedule.CONSTANT})) == 1.0
