"""The model in training: checkpointed activations, bases that cannot share a prompt, quantized bases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.data.build import DataSet
from plansmith.training import prefix
from plansmith.training.config import ModelConfig, Quantization, TrainingConfig
from plansmith.training.encode import encode_examples
from plansmith.training.model import load_model, load_tokenizer, vocab_rows
from plansmith.training.supervision import build_supervision
from plansmith.training.trainee import Trainee, build_trainee, quantization, quantization_settings
from plansmith.training.trainer import train, train_step

CONFIG = TrainingConfig(rank=8, batch_size=4, micro_batch_size=4, steps=2, warmup_steps=0, validity=False)
SMALL: dict[str, Any] = {
    "vocab_size": 416,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "dtype": "float32",
}


def changed(config: TrainingConfig = CONFIG, **more: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(config.model_dump() | more)


def other_base(base: Path, out: Path, model: Any) -> Path:
    """A random model with the tiny tokenizer."""
    shutil.copytree(base, out)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (out / name).unlink(missing_ok=True)
    model.save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def bases(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    torch.manual_seed(0)
    return {
        "gemma3": base,
        "qwen2": other_base(base, folder / "qwen2", Qwen2ForCausalLM(Qwen2Config(**SMALL, **ids))),
        "gemma2": other_base(
            base, folder / "gemma2", Gemma2ForCausalLM(Gemma2Config(**SMALL, **ids, query_pre_attn_scalar=16))
        ),
        "mamba": other_base(
            base,
            folder / "mamba",
            MambaForCausalLM(MambaConfig(vocab_size=416, hidden_size=32, num_hidden_layers=2, state_size=8, **ids)),
        ),
    }


def one_step(data: DataSet, base: Path, config: TrainingConfig, *, separate: bool = False) -> tuple[Trainee, Any]:
    """The gradients of a step, clipped to nothing less, as the optimizer's first moments; and what was logged."""
    corpus = encode_examples(data.train, data.catalog, load_tokenizer(base), config, Silent())
    trainee = build_trainee(base, config, seed=0)
    with torch.no_grad():  # so that the layers before the last get gradients too
        for name, parameter in trainee.parameters.items():
            if "lora_B" in name:
                parameter.normal_(std=0.02, generator=torch.Generator().manual_seed(1))
    if separate:
        trainee.separate = "a test"
    extra = build_supervision(corpus, load_tokenizer(base), config, vocab_rows(base), Silent())
    row = train_step(trainee, corpus, extra, config, 0, seed=0)
    extra.close(Silent())
    return trainee, row


def moments(trainee: Trainee) -> torch.Tensor:
    return torch.cat([trainee.optimizer.state[p]["exp_avg"].flatten() for p in trainee.parameters.values()])


def same_gradients(one: Trainee, two: Trainee, tolerance: float) -> None:
    left, right = moments(one), moments(two)
    assert float(left.norm()) > 0
    assert float((left - right).norm() / left.norm()) < tolerance


@pytest.mark.parametrize("name", ["gemma3", "qwen2"])
@pytest.mark.parametrize("micro", [4, 3])
def test_checkpointed_activations_change_neither_loss_nor_gradients(
    data: DataSet, bases: dict[str, Path], name: str, micro: int
):
    plain, row = one_step(data, bases[name], changed(micro_batch_size=micro))
    checkpointed, same = one_step(data, bases[name], changed(micro_batch_size=micro, gradient_checkpointing=True))
    assert same.loss == pytest.approx(row.loss, rel=1e-6)
    same_gradients(plain, checkpointed, 1e-5)


def test_checkpointed_activations_are_not_kept(data: DataSet, bases: dict[str, Path]):
    kept: dict[bool, int] = {}
    for checkpointing in (False, True):
        config = changed(gradient_checkpointing=checkpointing)
        corpus = encode_examples(data.train, data.catalog, load_tokenizer(bases["qwen2"]), config, Silent())
        trainee = build_trainee(bases["qwen2"], config, seed=0)
        packed = prefix.pack(corpus.prefix, corpus.examples[:4])
        sizes: list[int] = []

        def keep(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            trainee.hidden_at_targets(packed)
        kept[checkpointing] = sum(sizes)
    assert kept[True] < 0.3 * kept[False]


@pytest.mark.parametrize("name", ["gemma3", "qwen2"])
def test_separate_rows_give_the_loss_and_gradients_of_the_shared_prompt(
    data: DataSet, bases: dict[str, Path], name: str
):
    shared, row = one_step(data, bases[name], changed(micro_batch_size=3))
    apart, same = one_step(data, bases[name], changed(micro_batch_size=3), separate=True)
    assert same.loss == pytest.approx(row.loss, rel=1e-6)
    same_gradients(shared, apart, 1e-5)


@pytest.mark.parametrize("name", ["gemma3", "qwen2"])
def test_bfloat16_gives_nearly_the_loss_and_gradients_of_float32(data: DataSet, bases: dict[str, Path], name: str):
    exact, row = one_step(data, bases[name], CONFIG)
    short, near = one_step(data, bases[name], changed(precision="bfloat16"))
    assert near.loss == pytest.approx(row.loss, rel=1e-2)
    same_gradients(exact, short, 0.1)


def test_shared_and_separate_agree_in_bfloat16_too(data: DataSet, bases: dict[str, Path]):
    shared, row = one_step(data, bases["qwen2"], changed(precision="bfloat16"))
    apart, near = one_step(data, bases["qwen2"], changed(precision="bfloat16"), separate=True)
    assert near.loss == pytest.approx(row.loss, rel=1e-2)
    same_gradients(shared, apart, 0.1)


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("name", "why", "targets"),
    [
        ("gemma2", "attention with logit soft-capping", CONFIG.target_modules),
        ("mamba", "layers of the kind linear_attention", ("in_proj", "x_proj")),
    ],
)
def test_a_base_that_cannot_share_a_prompt_is_trained_with_a_counted_warning(
    data: DataSet, bases: dict[str, Path], tmp_path: Path, name: str, why: str, targets: tuple[str, ...]
):
    notes, config = Notes(), changed(target_modules=targets)
    result = train(ModelConfig(base=name), config, data, bases[name], tmp_path, seed=0, progress=notes)
    (warning,) = [note for note in notes.notes if note.startswith("warning")]
    assert why in warning
    assert "all 16 examples run with the whole catalog" in warning
    assert result.steps == 2


@pytest.mark.parametrize(("name", "targets"), [("gemma2", CONFIG.target_modules), ("mamba", ("in_proj", "x_proj"))])
def test_its_loss_is_that_of_each_example_alone(
    data: DataSet, bases: dict[str, Path], name: str, targets: tuple[str, ...]
):
    config = changed(target_modules=targets)
    corpus = encode_examples(data.train, data.catalog, load_tokenizer(bases[name]), config, Silent())
    trainee = build_trainee(bases[name], config, seed=0)
    packed = prefix.pack(corpus.prefix, corpus.examples[:4])
    trainee.model.eval()
    with torch.no_grad():
        logits_NV = trainee.head(trainee.hidden_at_targets(packed))
        found = torch.nn.functional.cross_entropy(logits_NV, packed.target_N, reduction="sum")
        model, alone = load_model(bases[name], torch.float32).eval(), 0.0
        if name == "gemma2":
            model.set_attn_implementation("eager")
        for example in corpus.examples[:4]:
            ids = torch.tensor([[*corpus.prefix, *example.ids]])
            start = len(corpus.prefix) + example.num_query
            logits = model(input_ids=ids).logits[0, start - 1 : -1]
            alone += float(torch.nn.functional.cross_entropy(logits, ids[0, start:], reduction="sum"))
    assert float(found) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("kind", [Quantization.NF4, Quantization.INT8])
def test_a_quantized_base_is_refused_where_there_is_no_cuda_device(bases: dict[str, Path], kind: Quantization):
    with pytest.raises(InputError, match=f"{kind.value}.*needs a CUDA device.*Set it to none"):
        quantization(kind, torch.float32, torch.device("cpu"))
    with pytest.raises(InputError, match="needs a CUDA device"):
        build_trainee(bases["qwen2"], changed(quantization=kind), seed=0, device=torch.device("cpu"))


def test_flex_attention_is_refused_where_there_is_no_cuda_device(bases: dict[str, Path]):
    with pytest.raises(InputError, match="flex_attention needs a CUDA device"):
        build_trainee(bases["qwen2"], changed(flex_attention=True), seed=0, device=torch.device("cpu"))


def test_without_the_package_a_quantized_base_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plansmith.training.trainee.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install bitsandbytes"):
        quantization(Quantization.NF4, torch.bfloat16, torch.device("cuda"))


def test_qlora_asks_for_nf4_with_double_quantization_computed_in_the_models_format():
    settings = quantization_settings(Quantization.NF4, torch.bfloat16, torch.device("cuda", 1))
    config = settings["quantization_config"]
    assert (config.load_in_4bit, config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant) == (True, "nf4", True)
    assert config.bnb_4bit_compute_dtype is torch.bfloat16
    assert settings["device_map"] == {"": torch.device("cuda", 1)}
    assert quantization_settings(Quantization.INT8, torch.bfloat16, torch.device("cuda"))[
        "quantization_config"
    ].load_in_8bit


def test_rank_stabilized_adapters_are_scaled_by_the_root_of_the_rank(bases: dict[str, Path]):
    def scale(config: TrainingConfig) -> float:
        module = build_trainee(bases["qwen2"], config, seed=0).peft.get_submodule(
            "base_model.model.model.layers.0.self_attn.q_proj"
        )
        return float(module.scaling["default"])  # type: ignore[index, operator, arg-type]

    plain, stable = scale(changed(rank=64)), scale(changed(rank=64, rank_stabilized=True))
    assert (plain, stable) == (CONFIG.alpha / 64, CONFIG.alpha / 8)
