"""Loads a base model, its tokenizer and, merged into it, an adapter.

Reads a transformers directory (`config.json`, safetensors, tokenizer files) and an adapter directory of peft; our
`plansmith.json` (`catalog_hash`, `prompt_hash`) lies in the adapter's directory, or in that of a model into which an
adapter was merged. Writes nothing. Refused: code from a model directory,
pickled weights, and models whose attention does not go through transformers' attention interface.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError, MissingExtraError
from plansmith.contract.prompt import prompt_hash, stop_id
from plansmith.serving import ragged_attention
from plansmith.serving.config import EngineConfig
from plansmith.serving.packed_linear import can_pack, pack_linears

ADAPTER_CARD = "plansmith.json"
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class AdapterCard:
    """What an adapter, or a model with one merged into it, was made for; None where its directory does not say."""

    path: Path
    catalog_hash: str | None
    prompt_hash: str | None
    what: str = "adapter"
    """`adapter` or `model`, for messages."""

    def require(self, catalog: Catalog) -> None:
        """Refuse a catalog or a prompt that the adapter was not trained on.

        Raises:
            CatalogMismatchError: other catalog; the message names both hashes.
            InputError: same catalog, but the prompt is rendered otherwise today; the message names both hashes.

        """
        if self.catalog_hash is not None:
            catalog.require_hash(self.catalog_hash, what=f"{self.what} {str(self.path)!r}")
        rendered = prompt_hash(catalog)
        if self.prompt_hash is not None and self.prompt_hash != rendered:
            raise InputError(
                f"{self.what} {str(self.path)!r} was trained on prompt {self.prompt_hash}, but this version renders "
                f"{rendered} for the same catalog. Train again, or use the version of plansmith that trained it."
            )


@dataclass(frozen=True, slots=True)
class PlannerModel:
    """A model ready for decoding."""

    backbone: Any
    """Decoder without its output layer: ids [1,N] to hidden states [1,N,D]."""
    head: Any
    """Output layer: hidden states [B,D] to one score a vocabulary row [B,V]."""
    tokenizer: Any
    stop_ids: frozenset[int]
    vocab_rows: int
    """Rows of the output layer; may be more than the tokenizer has tokens."""
    num_tokens: int
    """Tokens that the tokenizer can decode; ids above are padding and never chosen."""
    max_positions: int
    num_layers: int
    device: torch.device
    card: AdapterCard | None


def load_planner_model(base: Path, adapter: Path | None, config: EngineConfig) -> PlannerModel:
    """Load base, tokenizer and adapter; raises `InputError` where one of them cannot be used."""
    transformers = _transformers()
    check_model_directory(base)
    if adapter is not None:
        check_adapter_directory(adapter)
    device = _device(config)
    ragged_attention.register()
    with _quiet(transformers):
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(base, **_LOCAL)
        stop_id(tokenizer)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            base,
            dtype=_dtype(config, device),
            use_safetensors=True,
            **_LOCAL,
        )
    _check_architecture(model, base)
    if adapter is not None:
        model = _merge(model, adapter)
    model.set_attn_implementation(ragged_attention.ATTENTION_NAME)
    model.to(device).eval().requires_grad_(False)
    card = _card_of(base, adapter)
    return _planner_model(model, tokenizer, device, base, card, pack=can_pack(device, model.dtype))


def planner_over(model: Any, tokenizer: Any, base: Path) -> PlannerModel:
    """A model that is in memory, adapter layers inside, as the engine sees it; nothing of the model is changed.

    The caller sets the attention implementation to `ragged_attention.ATTENTION_NAME` while the engine runs it.

    Raises:
        InputError: the local engine cannot run this architecture.

    """
    ragged_attention.register()
    _check_architecture(model, base)
    device = next(model.parameters()).device
    return _planner_model(model, tokenizer, device, base, None, pack=False)


def _planner_model(
    model: Any, tokenizer: Any, device: torch.device, base: Path, card: AdapterCard | None, *, pack: bool
) -> PlannerModel:
    text_config = model.config.get_text_config()
    vocab_rows = int(model.get_output_embeddings().weight.shape[0])
    if len(tokenizer) > vocab_rows:
        raise InputError(
            f"model {str(base)!r} has {vocab_rows} output rows, but its tokenizer has {len(tokenizer)} "
            "tokens. Use the tokenizer that belongs to the model."
        )
    if pack:
        pack_linears(model)
    return PlannerModel(
        backbone=model.base_model,
        head=model.get_output_embeddings(),
        tokenizer=tokenizer,
        stop_ids=stop_ids(model, tokenizer),
        vocab_rows=vocab_rows,
        num_tokens=len(tokenizer),
        max_positions=int(getattr(text_config, "max_position_embeddings", 0)) or 1 << 30,
        num_layers=int(text_config.num_hidden_layers),
        device=device,
        card=card,
    )


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokenizer's stop token, and those that the model's generation config adds (`<end_of_turn>`)."""
    extra = getattr(model.generation_config, "eos_token_id", None)
    listed = cast("list[int]", extra if isinstance(extra, list) else [] if extra is None else [extra])
    return frozenset([stop_id(tokenizer), *listed])


def check_model_directory(base: Path) -> None:
    """Refuse a directory that is no transformers model, holds code, or has weights in another form than safetensors."""
    config_file = base / "config.json"
    if not config_file.is_file():
        raise InputError(f"model {str(base)!r} has no 'config.json'. Give a directory with a transformers model.")
    if "auto_map" in _read_json(config_file) or any(base.glob("*.py")):
        raise InputError(f"model {str(base)!r} brings its own Python code, which is never run. Use another.")
    if not any(base.glob("*.safetensors")):
        raise InputError(f"model {str(base)!r} has no '*.safetensors' file, and no other weights are loaded.")


def check_adapter_directory(adapter: Path) -> None:
    """Refuse a directory that is no adapter in safetensors."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (adapter / name).is_file():
            raise InputError(f"adapter {str(adapter)!r} has no {name!r}. Give the directory that training wrote.")


def _card_of(base: Path, adapter: Path | None) -> AdapterCard | None:
    """The adapter's card; without an adapter that of the model, where it is one into which an adapter was merged."""
    if adapter is not None:
        return read_card(adapter)
    return read_card(base, "model") if (base / ADAPTER_CARD).is_file() else None


def read_card(folder: Path, what: str = "adapter") -> AdapterCard:
    """What an adapter, or a model with one merged into it, was made for."""
    path = folder / ADAPTER_CARD
    values = _read_json(path) if path.is_file() else {}
    return AdapterCard(folder, values.get("catalog_hash"), values.get("prompt_hash"), what)


@contextmanager
def _quiet(transformers: Any) -> Generator[None]:
    """Loading without the library's own progress bars, which would run into ours."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "local") from error
    return transformers


def _merge(model: Any, adapter: Path) -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft", "local") from error
    wrapped: Any = cast("Any", peft.PeftModel).from_pretrained(model, str(adapter), is_trainable=False)
    return wrapped.merge_and_unload(safe_merge=True)


def _check_architecture(model: Any, base: Path) -> None:
    config = model.config.get_text_config()
    layers = set(cast("list[str]", getattr(config, "layer_types", None) or ["full_attention"]))
    other = layers - _LAYER_TYPES
    problems = [
        None if model._supports_attention_backend else "its attention cannot be exchanged",
        f"it has layers of type {', '.join(map(repr, sorted(other)))}" if other else None,
        "its attention sees both directions" if getattr(config, "use_bidirectional_attention", False) else None,
        "its layers share keys" if getattr(config, "num_kv_shared_layers", 0) else None,
    ]
    found = [problem for problem in problems if problem]
    if found:
        raise InputError(
            f"model {str(base)!r} ({type(model).__name__}) cannot run in the local engine: {'; '.join(found)}. "
            "Use a plain decoder (Gemma 3, Qwen, Llama, Mistral), or serve it through an OpenAI-compatible endpoint."
        )


def _device(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch sees no CUDA device. Use device 'cpu' or 'auto'.")
    name = config.device if config.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be read as JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{str(path)!r} must hold a JSON object, found {value!r:.60}.")
    return cast("dict[str, Any]", value)
