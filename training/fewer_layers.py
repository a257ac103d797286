"""A shallower copy of a base model: the decoder layers that change the hidden states least are left out.

Reads a model directory and texts like those that it will see; writes the same kind of directory with fewer layers. How
much a layer does is one minus the mean cosine between what goes into it and what comes out ("block influence" of
ShortGPT, Men et al. 2024), measured once, on the whole model. The copy means something else than the model that it came
from and has to be trained; what is left is why it learns faster than a model made anew.

Not covered, and refused: models whose layers are not one list (encoders and decoders), quantised weights, and
configurations with a list for each layer whose meaning is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from transformers import PreTrainedModel

from plansmith.contract.errors import InputError
from plansmith.training.files import TERMS_FILES, copy_files

CUT_FILE = "layers.json"
"""Which layers were kept, beside the weights."""
_LISTS = ("layer_types",)
"""Settings with one entry a layer that are cut along."""
_TOKENS = 2048
"""Of the texts, for the measurement."""
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json", "trimmed.json"),
)


class Cut(NamedTuple):
    """What was left of a model."""

    kept: tuple[int, ...]
    """Numbers of the kept layers in the model that it came from."""
    influence: tuple[float, ...]
    """Of each of that model's layers."""


def influence(model: PreTrainedModel, ids: torch.Tensor) -> list[float]:
    """How much each layer changes the hidden states: 0 for one that changes nothing but their length.

    Args:
        model: a decoder.
        ids: tokens of one text, of shape (1, length).

    """
    found: list[float] = []

    def measure(_: Any, inputs: tuple[Any, ...], output: Any) -> None:
        before, after = inputs[0].float(), (output[0] if isinstance(output, tuple) else output).float()
        found.append(1.0 - float(torch.cosine_similarity(before, after, dim=-1).mean()))

    hooks = [layer.register_forward_hook(measure) for layer in _layers(model)]
    try:
        with torch.no_grad():
            cast("Any", model.eval())(ids, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def cut(model: PreTrainedModel, keep: Sequence[int]) -> None:
    """Leave only the given layers, in their order; the model and its configuration are changed.

    Raises:
        InputError: the model cannot be cut.

    """
    layers, config = _layers(model), model.config.get_text_config()
    total = len(layers)
    unknown = [
        name
        for name, value in config.to_dict().items()
        if isinstance(value, list | tuple)
        and len(cast("Any", value)) == total > 1
        and name not in (*_LISTS, "architectures")
        and not name.endswith("_token_id")
    ]
    if unknown or getattr(model.config, "quantization_config", None) is not None:
        why = f"its configuration has a list for each layer ({', '.join(unknown)})" if unknown else "it is quantised"
        raise InputError(f"layers cannot be left out of this model: {why}. Unset model.layers.")
    model.get_decoder().layers = torch.nn.ModuleList(layers[index] for index in keep)
    for index, layer in enumerate(_layers(model)):
        for part in layer.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = index
    for name in _LISTS:
        if (listed := getattr(config, name, None)) is not None:
            setattr(config, name, [listed[index] for index in keep])
    config.num_hidden_layers = len(keep)


def write_cut(base: Path, out: Path, layers: int, texts: Sequence[str]) -> Cut:
    """Write a copy of a model with fewer layers into an existing directory.

    Args:
        base: the model's directory.
        out: where the copy goes.
        layers: how many are kept.
        texts: what the model will see; the first 2,048 tokens of all of them together are used.

    Raises:
        InputError: it has not more layers than that, or cannot be cut.

    """
    from plansmith.training.model import load_stored, load_tokenizer

    model = load_stored(base)
    total = len(_layers(model))
    if layers >= total:
        raise InputError(f"model.layers is {layers}, but {str(base)!r} has {total} layers; give fewer, or unset it.")
    tokenizer = load_tokenizer(base)
    ids = tokenizer("".join(texts), return_tensors="pt", truncation=True, max_length=_TOKENS)["input_ids"]
    if not ids.shape[1]:
        raise InputError("there are no texts to measure layers with, so none can be left out.")
    measured = influence(model, ids)
    least = set(sorted(range(total), key=lambda index: (measured[index], index))[: total - layers])
    found = Cut(tuple(index for index in range(total) if index not in least), tuple(measured))
    cut(model, found.kept)
    model.save_pretrained(out)
    copy_files(base, out, (*_TOKENIZER_FILES, *TERMS_FILES))
    text = json.dumps({"kept": found.kept, "of": total, "influence": [round(value, 6) for value in measured]})
    (out / CUT_FILE).write_text(text + "\n", encoding="utf-8")
    return found


def _layers(model: PreTrainedModel) -> Any:
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise InputError(f"a {type(model).__name__} has no list of decoder layers; unset model.layers.")
    return layers
