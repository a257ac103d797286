"""The model in training: a frozen base with adapter layers inside, and what moves them.

Reads a base model's directory; gives a `Trainee`, and writes its adapter. Everything that a setting changes about the
model itself is decided here: number format, quantization of the frozen weights (QLoRA, Dettmers et al. 2023), gradient
checkpointing, which layers get an adapter, and whether the examples of a micro-batch can share the prompt of their
catalog.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from plansmith.contract.errors import InputError
from plansmith.contract.store import write_text
from plansmith.training import prefix
from plansmith.training.checkpoint import CARD, Card
from plansmith.training.config import Precision, Quantization, TrainingConfig
from plansmith.training.loss import Head
from plansmith.training.model import load_model
from plansmith.training.parallel import ALONE


@dataclass
class Trainee:
    """The model in training, with what moves it."""

    model: PreTrainedModel
    """Base model with the adapter's layers inside."""
    peft: PeftModel
    parameters: dict[str, Parameter]
    optimizer: torch.optim.AdamW
    head: Head
    device: torch.device
    separate: str | None = None
    """Why the prompt of a catalog runs in every example; None where it is shared."""
    flex: bool = False
    """Whether attention goes through FlexAttention."""

    def pack(self, shared: Sequence[int], examples: Sequence[prefix.Encoded]) -> prefix.Packed:
        """A micro-batch as one row."""
        return prefix.pack(shared, examples, self.device, flex=self.flex)

    def hidden_at_targets(self, packed: prefix.Packed) -> Tensor:
        """Hidden states (N, D) that predict the targets of a micro-batch."""
        if self.separate is None:
            return prefix.hidden_at_targets(self.model, packed)
        return prefix.separate_hidden_at_targets(self.model, packed)


def build_trainee(base: Path, config: TrainingConfig, *, seed: int, device: torch.device | None = None) -> Trainee:
    """Load the base model, put fresh adapter layers into it, and make the optimizer.

    Raises:
        InputError: no layer has one of the target names, or the machine cannot hold the base as asked.

    """
    device = device or ALONE.device
    if config.flex_attention and device.type != "cuda":
        raise InputError(
            f"training.flex_attention needs a CUDA device; this machine trains on {device.type!r}. Set it to false."
        )
    dtype = model_dtype(config.precision, device)
    model = load_model(base, dtype, quantization=quantization(config.quantization, dtype, device))
    separate = prefix.obstacle(model)
    if separate is None:
        prefix.prepare(model)
    elif getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # the only one that caps
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    torch.manual_seed(seed)
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.target_modules),
        layers_to_transform=_top_layers(model, config.top_layers),
        use_rslora=config.rank_stabilized,
    )
    try:
        peft = get_peft_model(model, lora)
    except ValueError as error:
        raise InputError(f"no adapter can be put into {str(base)!r}: {error}") from error
    if config.quantization is Quantization.NONE:
        peft.to(device)
    peft.train()
    parameters = {name: p for name, p in peft.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )
    return Trainee(model, peft, parameters, optimizer, output_head(model), device, separate, config.flex_attention)


def quantization(kind: Quantization, dtype: torch.dtype, device: torch.device) -> Any:
    """What transformers is told of the frozen weights; None leaves them as they are.

    Raises:
        InputError: the machine has no CUDA device, or `bitsandbytes` is not installed.

    """
    if kind is Quantization.NONE:
        return None
    if device.type != "cuda":
        raise InputError(
            f"training.quantization is {kind.value!r}, which needs a CUDA device; this machine trains on "
            f"{device.type!r}. Set it to none."
        )
    if find_spec("bitsandbytes") is None:
        raise InputError(
            f"training.quantization is {kind.value!r}, but the package bitsandbytes is not installed. "
            "Run: pip install bitsandbytes"
        )
    return quantization_settings(kind, dtype, device)


def quantization_settings(kind: Quantization, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Arguments of `from_pretrained` for quantized frozen weights, computed in `dtype`."""
    from transformers import BitsAndBytesConfig

    if kind is Quantization.INT8:
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    return {"quantization_config": config, "device_map": {"": device}}


def _top_layers(model: PreTrainedModel, count: int | None) -> list[int] | None:
    layers = model.config.get_text_config().num_hidden_layers
    if count is not None and count > layers:
        raise InputError(f"training.top_layers is {count}, but the model has {layers} layers.")
    return None if count is None else list(range(layers - count, layers))


def model_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Number format of the frozen weights."""
    if precision is Precision.AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if precision is Precision.BFLOAT16 else torch.float32


def output_head(model: PreTrainedModel) -> Head:
    """Hidden states to logits, as the model itself does it."""
    layer: Any = model.get_output_embeddings()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if not cap:
        return layer
    return lambda hidden_ND: torch.tanh(layer(hidden_ND) / cap) * cap


def write_adapter(peft: PeftModel, card: Card, draft: Path) -> None:
    """Write weights, settings and card of the trained adapter into an existing directory."""
    peft.peft_config["default"].base_model_name_or_path = card.base
    peft.save_pretrained(
        str(draft), safe_serialization=True, save_embedding_layers=False, selected_adapters=["default"]
    )
    (draft / "README.md").unlink(missing_ok=True)
    settings = json.loads((draft / "adapter_config.json").read_text(encoding="utf-8"))
    settings["target_modules"].sort()
    write_text(draft / "adapter_config.json", json.dumps(settings, indent=1) + "\n")
    write_text(draft / CARD, card.model_dump_json(indent=1) + "\n")
