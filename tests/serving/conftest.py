"""Tiny random decoders with a small byte-level tokenizer, made in a second, and small catalogs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from plansmith.contract.catalog import Catalog, Worker
from plansmith.serving.config import EngineConfig

VOCAB_ROWS = 416
"""More than the tokenizer has tokens: padded, as many real models are."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=390,
        special_tokens=["<pad>", "<eos>", "<bos>", "<turn>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [
        '[{"type":"weather_get","args":{"city":"Paris","days":3}},{"type":"mail_send","args":{"text":{"$from":"/0/x"}}}]'
    ]
    backend.train_from_iterator(texts * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        additional_special_tokens=["<turn>"],
    )


def save_model(model: Any, path: Path) -> Path:
    """Save a model whose attention counts: what it writes depends on all of the prompt."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data *= 6
    model.generation_config.eos_token_id = 1
    model.save_pretrained(path, safe_serialization=True)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3 whose sliding window is shorter than a catalog's prompt."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=VOCAB_ROWS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"],
        max_position_embeddings=2048,
        initializer_range=0.4,
        query_pre_attn_scalar=16,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    return save_model(Gemma3ForCausalLM(config), tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 with an output layer of its own."""
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=VOCAB_ROWS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    return save_model(Qwen2ForCausalLM(config), tmp_path_factory.mktemp("qwen"))


def prefer(base: Path, out: Path, biases: dict[str | int, float]) -> Path:
    """A copy of a Qwen2 that likes some tokens better: the output layer reads it from a hidden unit made constant."""
    model: Any = Qwen2ForCausalLM.from_pretrained(base)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    model.model.embed_tokens.weight.data[:, 0] = 10.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data[0] = 0.0
        layer.mlp.down_proj.weight.data[0] = 0.0
    for token, bias in biases.items():
        index = token if isinstance(token, int) else tokenizer.convert_tokens_to_ids(token)
        assert index is not None, token
        model.lm_head.weight.data[index, 0] += bias
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


@pytest.fixture
def make_preferring(qwen: Path, tmp_path: Path) -> Callable[[dict[str | int, float]], Path]:
    """Makes a model with the given token biases (token text in the byte-level alphabet, or an id)."""
    return lambda biases: prefer(qwen, tmp_path / "preferring", biases)


def _worker(name: str, **properties: Any) -> Worker:
    args = {"type": "object", "properties": properties, "required": list(properties)}
    return Worker(name=name, description=f"Does {name}.", args=args)


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    day = {"type": "integer"}
    return Catalog(
        "small",
        [
            _worker("weather_get", city={"type": "string"}, days=day),
            _worker("mail_send", to={"type": "string"}, text={"type": "string"}),
            _worker("Hotels.Find(All)", stars={"enum": [1, 2, 3]}),
        ],
    )


@pytest.fixture(scope="session")
def other_catalog() -> Catalog:
    return Catalog(
        "other", [_worker("clock_read", zone={"type": "string"}), _worker("light_set", on={"type": "boolean"})]
    )


@pytest.fixture(scope="session")
def queries() -> list[str]:
    return [
        "weather in Oslo",
        "Write to Ada that it rains in Shanghai tomorrow, and that she should take an umbrella.",
        "hotels",
        "",
        "Ünïcödé 天气 <eos> with the text of a special token",
        "x" * 150,
    ]


@pytest.fixture(scope="session")
def config() -> EngineConfig:
    return EngineConfig(batch_size=3, max_new_tokens=16, device="cpu")
