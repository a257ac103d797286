"""The command line of a vLLM server for a planner, and what of a model folder is refused before anything starts. Pure.

Facts of vLLM 0.32: the backend must be named and compact white space asked for, or a small model writes newlines to the
token limit; a rank above `--max-lora-rank` (16 unless told) fails at load; only certain ranks can be named.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

from plansmith.contract.errors import InputError
from plansmith.serving.vllm.config import Backend, VllmConfig

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes for `--max-lora-rank`."""
_ROUND = 256


def command(config: VllmConfig, *, port: int, workers: int, prefix_tokens: int) -> list[str]:
    """The command that starts the server.

    Args:
        config: the settings.
        port: where it listens.
        workers: how many workers the catalog has.
        prefix_tokens: tokens of the catalog's prompt.

    Raises:
        InputError: the folders cannot be served.

    """
    require_servable(config.model)
    python = str(config.python or sys.executable)
    outputs = {"backend": backend(config, workers), "disable_any_whitespace": True}
    found = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(config.model)]
    found += ["--host", "127.0.0.1", "--port", str(port), "--dtype", config.dtype]
    found += ["--max-model-len", str(model_length(config, prefix_tokens)), "--enable-prefix-caching"]
    found += ["--structured-outputs-config", json.dumps(outputs, separators=(",", ":"))]
    found += ["--quantization", config.quantization] if config.quantization is not None else []
    if config.adapter is None:
        found += ["--served-model-name", config.name]
    else:
        found += ["--served-model-name", f"{config.name}-base", "--enable-lora"]
        found += ["--max-lora-rank", str(lora_rank(config.adapter)), "--max-loras", "2"]
        found += ["--lora-modules", f"{config.name}={config.adapter}"]
    return [*found, *config.args]


def backend(config: VllmConfig, workers: int) -> str:
    """The grammar engine for so many workers."""
    if config.backend is not Backend.AUTO:
        return config.backend.value
    return (Backend.GUIDANCE if workers <= config.guidance_workers else Backend.XGRAMMAR).value


def model_length(config: VllmConfig, prefix_tokens: int) -> int:
    """Longest prompt and plan together, rounded up."""
    if config.max_model_len is not None:
        return config.max_model_len
    need = prefix_tokens + config.query_tokens + config.max_plan_tokens
    return -(-need // _ROUND) * _ROUND


def lora_rank(adapter: Path) -> int:
    """The smallest rank that vLLM can be told and that the adapter fits."""
    settings = _settings(adapter / "adapter_config.json", "an adapter")
    ranks = [settings.get("r"), *cast("dict[str, Any]", settings.get("rank_pattern") or {}).values()]
    if not all(isinstance(rank, int) and rank > 0 for rank in ranks):
        raise InputError(f"{str(adapter)!r}: adapter_config.json names no rank; it is no LoRA adapter.")
    if settings.get("use_dora"):
        raise InputError(f"{str(adapter)!r} is a DoRA adapter, which vLLM does not serve; export it merged.")
    most = max(cast("list[int]", ranks))
    found = next((rank for rank in LORA_RANKS if rank >= most), None)
    if found is None:
        raise InputError(f"the adapter's rank {most} is above {LORA_RANKS[-1]}, vLLM's largest; export it merged.")
    _require_plain_files(adapter)
    return found


def require_servable(model: Path) -> None:
    """Refuse a folder that is no model, would run its own code, or has weights in a form that can hold code.

    Raises:
        InputError: it is refused; the message says why.

    """
    settings = _settings(model / "config.json", "a model")
    if "auto_map" in settings:
        raise InputError(f"{str(model)!r}: config.json has 'auto_map', so it would run code of its own; it is refused.")
    _require_plain_files(model)
    if not list(model.glob("*.safetensors")):
        raise InputError(f"{str(model)!r} has no *.safetensors; export the planner again, or convert its weights.")


def _require_plain_files(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py":
            raise InputError(f"{str(folder)!r} holds code ({path.name}); a planner has none. It is refused.")
        if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"):
            raise InputError(f"{str(folder)!r} holds {path.name}, which may run code when it is read. It is refused.")


def _settings(path: Path, what: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{str(path.parent)!r} is not {what}: {path.name} cannot be read: {error.strerror}."
        ) from error
    except ValueError as error:
        raise InputError(f"{str(path)!r} is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InputError(f"{str(path)!r} is no JSON object.")
    return cast("dict[str, Any]", found)
