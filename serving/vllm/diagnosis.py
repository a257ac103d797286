"""Why a vLLM server did not start or died, from what it wrote, in words that say what to do. Pure.

A table of patterns, the most telling first; where none fits, the last error of the log stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class _Known(NamedTuple):
    pattern: re.Pattern[str]
    cause: str


def _known(pattern: str, cause: str) -> _Known:
    return _Known(re.compile(pattern, re.IGNORECASE), cause)


_TABLE = (
    _known(
        r"No module named '?vllm",
        "vLLM is not installed in that environment. Install it there (pip install vllm), or name another "
        "interpreter in "
        "'python'.",
    ),
    _known(
        r"CUDA out of memory|OutOfMemoryError|Free memory on device .* is less than desired",
        "the GPU has too little free memory. Stop what else uses it, lower --gpu-memory-utilization in 'args', "
        "or shorten "
        "max_model_len.",
    ),
    _known(
        r"No available memory for the cache blocks|KV cache is needed, which is larger than|"
        r"larger than the available KV cache",
        "there is too little memory for keys and values. Shorten max_model_len, raise --gpu-memory-utilization, "
        "or on a "
        "CPU VLLM_CPU_KVCACHE_SPACE in 'env'.",
    ),
    _known(
        r"address already in use",
        "the port is taken. Choose another 'port', or 0 for a free one.",
    ),
    _known(
        r"LoRA rank \d+ is greater than max_lora_rank",
        "the adapter's rank is above --max-lora-rank. Its adapter_config.json may have changed since the start; start "
        "again.",
    ),
    _known(
        r"No adapter found for|Loading lora .* failed|LoRARequest.*not found",
        "the adapter cannot be loaded. Does the folder hold adapter_config.json and adapter_model.safetensors?",
    ),
    _known(
        r"max_model_len.{0,40}is greater than the derived max_model_len|User-specified max_model_len",
        "max_model_len is beyond what the model was made for. Lower it, or take a smaller catalog.",
    ),
    _known(
        r"Model architectures? \[.*\] (are|is) not supported|does not recognize this architecture|"
        r"Unsupported.*architecture",
        "that version of vLLM, or of its transformers, does not know the model's architecture. Upgrade vLLM.",
    ),
    _known(
        r"unrecognized arguments?:|invalid choice:|expected one argument",
        "that version of vLLM does not take one of the flags. Look at 'args', or install the version that the docs "
        "name.",
    ),
    _known(
        r"Failed to infer device type|No CUDA GPUs are available|no NVIDIA driver",
        "no GPU was found. On a machine without one install vllm-cpu in the environment that 'python' names.",
    ),
    _known(
        r"Bfloat16 is only supported on GPUs with compute capability",
        "the GPU does not know bfloat16. Set dtype to float16.",
    ),
    _known(
        r"(cannot import name|ImportError|No module named).{0,80}transformers|requires? transformers",
        "the versions of vLLM and transformers do not go together. Install vLLM in an environment of its own.",
    ),
    _known(
        r"safetensors.*(HeaderTooLarge|InvalidHeader|incomplete)|MetadataIncompleteBuffer",
        "the weights are incomplete. Export the planner again.",
    ),
    _known(
        r"No space left on device",
        "a disk is full. vLLM caches compiled code under ~/.cache/vllm.",
    ),
)
_ERROR = re.compile(r"\b(\w*(?:Error|Exception|Interrupt)): (.+)")
_KILLED = "it was killed (SIGKILL); on a machine short of memory that is the system's doing"


def likely_cause(lines: Sequence[str], returncode: int | None) -> str:
    """The likely cause, in one or two sentences.

    Args:
        lines: what the process wrote, oldest first.
        returncode: how it ended; None while it runs.

    """
    text = "\n".join(lines)
    for known in _TABLE:
        if known.pattern.search(text):
            return known.cause
    if returncode in (-9, 137):
        return _KILLED
    errors = _ERROR.findall(text)
    if errors:
        kind, message = errors[-1]
        return f"its last error was {kind}: {message[:300]}"
    return f"it ended with code {returncode} and named no error" if returncode is not None else "it named no error"
