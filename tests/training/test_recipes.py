"""The recipes for other base models, tried on random tiny models of the same architectures."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM

from plansmith.contract.progress import Silent
from plansmith.data.build import DataSet
from plansmith.recipe import Recipe, load_recipe
from plansmith.training.batches import batch_of
from plansmith.training.config import TrainingConfig
from plansmith.training.dry_run import dry_run_tables
from plansmith.training.encode import Corpus, encode_examples
from plansmith.training.model import load_model, load_tokenizer, vocab_rows
from plansmith.training.supervision import build_supervision
from plansmith.training.trainee import build_trainee
from plansmith.training.trainer import train_step

CONFIGS = Path(__file__).parent.parent.parent / "configs"
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "dtype": "float32",
}


def qwen(ids: dict[str, int]) -> Any:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **ids))


def phi(ids: dict[str, int]) -> Any:
    return Phi3ForCausalLM(Phi3Config(**SIZES | {"num_key_value_heads": 4}, **ids, sliding_window=64))


ARCHITECTURES = {"qwen2.5-1.5b": qwen, "multi-gpu": qwen, "phi-3-mini": phi, "gemma-3-270m": None}


@pytest.fixture(params=sorted(ARCHITECTURES))
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return load_recipe(CONFIGS / f"{request.param}.yaml")


@pytest.fixture
def tiny(recipe: Recipe, base: Path, tmp_path: Path) -> Path:
    """A directory with a random model of the recipe's architecture and the tiny tokenizer; more rows than tokens."""
    out = tmp_path / "tiny"
    shutil.copytree(base, out)
    build = ARCHITECTURES[recipe.name]
    if build is not None:
        tokenizer = load_tokenizer(base)
        ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = build({"vocab_size": len(tokenizer) + 16, "pad_token_id": tokenizer.pad_token_id, **ids})
        model.save_pretrained(out)
    return out


def small(recipe: Recipe) -> TrainingConfig:
    """The recipe's own settings with a batch that a test can run."""
    return recipe.training.model_copy(update={"batch_size": 4, "micro_batch_size": 4})


def encoded(data: DataSet, tiny: Path, config: TrainingConfig) -> Corpus:
    return encode_examples(data.train, data.catalog, load_tokenizer(tiny), config, Silent())


def test_a_dry_run_of_the_recipe_shows_tokens_weights_and_counts(recipe: Recipe, tiny: Path, data: DataSet):
    corpus = encoded(data, tiny, recipe.training)
    console = Console(record=True, width=120, file=io.StringIO())
    for table in dry_run_tables(corpus, load_tokenizer(tiny), recipe.training):
        console.print(table)
    shown = console.export_text()
    assert f"{recipe.training.steps}, {recipe.training.batch_size}" in shown
    assert f"each row {recipe.training.steps * recipe.training.batch_size / 16:.2f} times" in shown
    assert "<eos>" in shown


def test_a_step_of_the_recipe_trains_every_target_in_every_layer(recipe: Recipe, tiny: Path, data: DataSet):
    config = small(recipe)
    corpus = encoded(data, tiny, config)
    trainee = build_trainee(tiny, config, seed=0)
    extra = build_supervision(corpus, load_tokenizer(tiny), config, vocab_rows(tiny), Silent())
    row = train_step(trainee, corpus, extra, config, 0, seed=0)
    extra.close(Silent())
    assert row.cross_entropy > 0
    assert row.grad_norm > 0
    layers = json.loads((tiny / "config.json").read_text())["num_hidden_layers"]
    adapted = {name.split(".lora_B")[0] for name in trainee.parameters if "lora_B" in name}
    assert len(adapted) == layers * len(config.target_modules)
    moved = {name for name, value in trainee.parameters.items() if "lora_B" in name and bool(value.any())}
    assert len(moved) == len(adapted)


def test_the_shared_prefix_gives_the_loss_of_separate_rows(recipe: Recipe, tiny: Path, data: DataSet):
    config = small(recipe)
    corpus = encoded(data, tiny, config)
    trainee = build_trainee(tiny, config, seed=0)
    extra = build_supervision(corpus, load_tokenizer(tiny), config, vocab_rows(tiny), Silent())
    shared = train_step(trainee, corpus, extra, config, 0, seed=0).cross_entropy
    extra.close(Silent())
    model, total, count = load_model(tiny, torch.float32), 0.0, 0
    for index in batch_of(0, corpus.groups, 4, 4, seed=0):
        example = corpus.examples[index]
        ids = torch.tensor([[*corpus.prefix, *example.ids]])
        start = len(corpus.prefix) + example.num_query
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, start - 1 : -1]
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, start:], reduction="sum"))
        count += ids.shape[1] - start
    assert shared == pytest.approx(total / count, rel=2e-6)
