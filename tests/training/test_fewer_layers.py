"""Bases with fewer layers: the right ones go, what is left computes what it did, and odd models are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.data.build import DataSet
from plansmith.training.config import ModelConfig
from plansmith.training.encode import texts_of
from plansmith.training.fewer_layers import CUT_FILE, cut, influence, write_cut
from plansmith.training.model import base_hash, load_model, load_tokenizer, prepare_base

IDS = torch.tensor([[5, 9, 3, 17, 4, 8, 40, 2, 11, 6]])


def without(model: Any, dropped: set[int]) -> torch.Tensor:
    """Logits of the model with layers that hand on what they are given."""
    hooks = [
        layer.register_forward_hook(lambda _, inputs, output: inputs[0])
        for index, layer in enumerate(model.model.layers)
        if index in dropped
    ]
    with torch.no_grad():
        logits = model(IDS).logits
    for hook in hooks:
        hook.remove()
    return logits


def test_the_written_copy_is_the_model_with_the_other_layers_passed_over(data: DataSet, base: Path, tmp_path: Path):
    found = write_cut(base, tmp_path, 2, texts_of(data))
    whole, again = load_model(base, torch.float32), load_model(tmp_path, torch.float32)
    dropped = set(range(4)) - set(found.kept)
    with torch.no_grad():
        assert torch.allclose(again(IDS).logits, without(whole, dropped), atol=1e-5)
    kinds = whole.config.layer_types
    assert again.config.layer_types == [kinds[index] for index in found.kept]
    assert load_tokenizer(tmp_path).encode("São 東京") == load_tokenizer(base).encode("São 東京")
    assert json.loads((tmp_path / CUT_FILE).read_text())["kept"] == list(found.kept)


def test_generation_with_a_cache_works_after_the_cut_in_memory_too(base: Path):
    model: Any = load_model(base, torch.float32)
    cut(model, [0, 3])
    cached = model.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=True)
    plain = model.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=False)
    assert torch.equal(cached, plain)


def test_the_layer_that_does_nothing_has_no_influence_and_goes_first(base: Path, tmp_path: Path):
    model: Any = load_model(base, torch.float32)
    idle = model.model.layers[2]
    for norm in (idle.post_attention_layernorm, idle.post_feedforward_layernorm):
        torch.nn.init.constant_(norm.weight, -1.0)  # Gemma's norm scales by 1 + weight
    measured = influence(model, IDS)
    assert measured[2] == pytest.approx(0.0, abs=1e-6)
    assert min(value for index, value in enumerate(measured) if index != 2) > 1e-4
    changed = tmp_path / "idle"
    model.save_pretrained(changed)
    load_tokenizer(base).save_pretrained(changed)
    (tmp_path / "cut").mkdir()
    assert write_cut(changed, tmp_path / "cut", 3, ["weather"]).kept == (0, 1, 3)


def test_a_recipe_names_the_number_and_the_copy_is_made_once(
    data: DataSet, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PLANSMITH_CACHE", str(tmp_path / "cache"))
    config = ModelConfig(base=str(base), trim_vocabulary=False, layers=3)
    made = prepare_base(config, texts=texts_of(data), progress=Silent())
    before = (made / "model.safetensors").stat().st_mtime_ns
    assert prepare_base(config, texts=texts_of(data), progress=Silent()) == made
    assert (made / "model.safetensors").stat().st_mtime_ns == before
    assert load_model(made, torch.float32).config.num_hidden_layers == 3
    assert base_hash(made) != base_hash(base)
    tiny = prepare_base(ModelConfig(base="tiny-random", layers=1), texts=texts_of(data), progress=Silent())
    assert load_model(tiny, torch.float32).config.num_hidden_layers == 1


def test_too_many_layers_and_no_texts_are_refused(data: DataSet, base: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"model\.layers is 4, but .* has 4 layers"):
        write_cut(base, tmp_path, 4, texts_of(data))
    with pytest.raises(InputError, match="no texts"):
        write_cut(base, tmp_path, 2, [])


def test_a_configuration_with_unknown_lists_is_refused():
    size = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=64, num_hidden_layers=3, **size))
    cut(model, [0, 2])
    with torch.no_grad():
        assert model(IDS).logits.shape == (1, 10, 64)
    model.config.rope_each = [1, 2]
    with pytest.raises(InputError, match="rope_each"):
        cut(model, [0])
