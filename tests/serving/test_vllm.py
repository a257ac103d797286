"""vLLM as a process, with a stand-in for its server: flags, refusals, readiness, proofs, deaths, ends, adapters."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.errors import InputError, ServiceError
from plansmith.contract.prompt import render
from plansmith.serving.vllm.checks import PROBE_QUERY, Parity, TokenProbe, probe_of
from plansmith.serving.vllm.config import VllmConfig
from plansmith.serving.vllm.diagnosis import likely_cause
from plansmith.serving.vllm.flags import command, lora_rank, require_servable
from plansmith.serving.vllm.server import ServerState, VllmServer

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "stand_in"
CATALOG = Catalog("c", [Worker(name="find", args={"type": "object", "properties": {}})])


def model(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def adapter(folder: Path, rank: int = 8, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, **config}))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def settings(tmp_path: Path, mode: str = "ok", **more: Any) -> VllmConfig:
    notes = {f"STAND_IN_{name}": str(tmp_path / name.lower()) for name in ("ARGS", "REQUESTS", "PIDS")}
    env = {"STAND_IN": mode, "PYTHONPATH": str(STAND_IN), **notes, **more.pop("env", {})}
    options: dict[str, Any] = {"backoff_s": 0.05, "stop_grace_s": 5.0, "ready_timeout_s": 30.0, **more}
    return VllmConfig(model=model(tmp_path / "model"), env=env, **options)


def noted(tmp_path: Path, name: str) -> list[Any]:
    file = tmp_path / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def trained() -> TokenProbe:
    prompt = render(PROBE_QUERY, CATALOG)
    return probe_of(PROBE_QUERY, [2, *(prompt.prefix + prompt.suffix).encode()])


def serve(config: VllmConfig, work: Callable[[VllmServer], Awaitable[Any]], **options: Any) -> tuple[Any, list[str]]:
    told: list[str] = []

    async def main() -> Any:
        async with VllmServer(config, CATALOG, told=told.append, **options) as server:
            return await work(server)

    return asyncio.run(main()), told


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def alive(pids: list[int]) -> list[int]:
    found: list[int] = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_it_is_started_proved_asked_and_ended_with_its_children(tmp_path: Path):
    async def work(server: VllmServer) -> Any:
        assert server.state is ServerState.READY
        draft = await server.plan("Find it.", CATALOG)
        return draft, server.proof

    (draft, proof), told = serve(settings(tmp_path), work, probe=trained())
    assert (draft.text, draft.check.valid) == ("[]", True)
    assert proof.parity is Parity.SAME
    assert any("loading weights" in line for line in told)
    assert any("constraints hold, tokens: same" in line for line in told)
    assert alive(noted(tmp_path, "pids")[0]) == []
    paths = [one["path"] for one in noted(tmp_path, "requests")]
    assert paths == ["/v1/completions", "/tokenize", "/v1/completions", "/v1/completions"]
    words = noted(tmp_path, "args")[0]
    outputs = json.loads(words[words.index("--structured-outputs-config") + 1])
    assert outputs == {"backend": "guidance", "disable_any_whitespace": True}
    assert "guided" not in (tmp_path / "requests").read_text()


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("unconstrained", "does not decode under the schema"),
        ("nobos", "The first ids differ: does its tokenizer add bos"),
    ],
)
def test_a_server_that_fails_its_checks_is_refused_and_ended(tmp_path: Path, mode: str, says: str):
    with pytest.raises(InputError, match=says):
        serve(settings(tmp_path, mode), lambda server: server.plan("x", CATALOG), probe=trained())
    assert alive(noted(tmp_path, "pids")[0]) == []


def test_a_server_that_is_never_ready_is_given_up_in_time(tmp_path: Path):
    with pytest.raises(ServiceError, match="not ready within 1 s"):
        serve(settings(tmp_path, "slow", ready_timeout_s=1.0), lambda server: server.plan("x", CATALOG))
    assert alive(noted(tmp_path, "pids")[0]) == []


def test_one_that_ignores_its_end_is_killed(tmp_path: Path):
    async def work(server: VllmServer) -> None:
        return

    begun = time.monotonic()
    serve(settings(tmp_path, "stubborn", stop_grace_s=0.3), work)
    assert time.monotonic() - begun < 20
    assert alive(noted(tmp_path, "pids")[0]) == []


def test_a_failed_start_says_the_likely_cause_and_shows_the_log(tmp_path: Path):
    env = {"STAND_IN_LOG": "INFO hello\nOSError: [Errno 98] Address already in use"}
    with pytest.raises(ServiceError) as caught:
        serve(settings(tmp_path, "fails", env=env, log=tmp_path / "vllm.log"), lambda server: server.plan("x", CATALOG))
    assert "Likely cause: the port is taken" in str(caught.value)
    assert "\n  INFO hello\n" in str(caught.value)
    assert "vllm.log" in str(caught.value)
    assert "INFO hello" in (tmp_path / "vllm.log").read_text()


def test_an_interpreter_without_vllm_is_named_as_the_cause(tmp_path: Path):
    config = settings(tmp_path).model_copy(update={"env": {"PYTHONPATH": ""}})
    with pytest.raises(ServiceError, match="vLLM is not installed in that environment"):
        serve(config, lambda server: server.plan("x", CATALOG))


def test_one_that_dies_fails_requests_at_once_and_comes_back(tmp_path: Path):
    async def work(server: VllmServer) -> Any:
        with pytest.raises(ServiceError):
            await server.plan("die now", CATALOG)
        await until(lambda: server.deaths == 1)
        if server.state is not ServerState.READY:
            with pytest.raises(ServiceError, match="vLLM is"):
                await server.plan("x", CATALOG)
        await until(lambda: server.state is ServerState.READY)
        return await server.plan("x", CATALOG)

    draft, told = serve(settings(tmp_path, "dies"), work)
    assert draft.check.valid
    assert len(noted(tmp_path, "args")) == 2
    assert any("vLLM died: it ended with code 3" in line for line in told)
    assert alive([pid for pids in noted(tmp_path, "pids") for pid in pids]) == []


def test_one_that_keeps_dying_is_given_up(tmp_path: Path):
    async def work(server: VllmServer) -> Any:
        for _ in range(3):
            await until(lambda: server.state in (ServerState.READY, ServerState.GIVEN_UP))
            if server.state is ServerState.GIVEN_UP:
                break
            before = server.deaths
            with pytest.raises(ServiceError):
                await server.plan("die now", CATALOG)
            await until(lambda before=before: server.deaths > before)
        await until(lambda: server.state is ServerState.GIVEN_UP)
        with pytest.raises(ServiceError, match="it died 3 times within 600 s"):
            await server.plan("x", CATALOG)

    serve(settings(tmp_path, "dies", restarts=2), work)


HELD = """
import asyncio, sys
from tests.serving.test_vllm import *
async def main():
    async with VllmServer(settings(Path(sys.argv[1])), CATALOG):
        print("ready", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def test_nothing_is_left_where_this_process_is_killed(tmp_path: Path):
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (pids,) = noted(tmp_path, "pids")
    assert alive(pids) == pids
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    process.stdout.close()
    asyncio.run(until(lambda: alive(pids) == []))


def test_an_adapter_is_exchanged_under_a_new_path_and_name_without_a_gap(tmp_path: Path):
    config = settings(tmp_path, adapter=adapter(tmp_path / "one", 12))
    second = adapter(tmp_path / "two")

    async def work(server: VllmServer) -> Any:
        running = True

        async def asks() -> int:
            count = 0
            while running:
                assert (await server.plan("x", CATALOG)).check.valid
                count += 1
            return count

        asking = asyncio.create_task(asks())
        name = await server.load_adapter(second)
        with pytest.raises(InputError, match="was served before"):
            await server.load_adapter(second)
        with pytest.raises(InputError, match="was served before"):
            await server.load_adapter(tmp_path / "two" / ".." / "one")
        with pytest.raises(InputError, match="rank"):
            await server.load_adapter(adapter(tmp_path / "big", 200))
        running = False
        return name, await asking

    (name, count), told = serve(config, work)
    assert name == "planner-v2"
    assert count > 0
    assert any("planner-v2 serves in the place of planner" in line for line in told)
    words = noted(tmp_path, "args")[0]
    assert words[words.index("--max-lora-rank") + 1] == "16"
    assert words[words.index("--lora-modules") + 1] == f"planner={tmp_path / 'one'}"
    requests = noted(tmp_path, "requests")
    routes = [one["path"] for one in requests if "lora" in one["path"]]
    assert routes == ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"]
    gone = next(at for at, one in enumerate(requests) if "unload" in one["path"])
    assert all(one["body"]["model"] == "planner-v2" for one in requests[gone + 1 :])


def test_merged_weights_exchange_nothing(tmp_path: Path):
    async def work(server: VllmServer) -> None:
        with pytest.raises(InputError, match="merged weights"):
            await server.load_adapter(adapter(tmp_path / "a"))

    serve(settings(tmp_path), work)


@pytest.mark.parametrize(("rank", "told"), [(1, 1), (4, 8), (8, 8), (9, 16), (64, 64), (400, 512)])
def test_the_rank_is_one_that_vllm_takes(tmp_path: Path, rank: int, told: int):
    assert lora_rank(adapter(tmp_path / "a", rank)) == told
    assert lora_rank(adapter(tmp_path / "b", 1, rank_pattern={"q": rank})) == told


@pytest.mark.parametrize(
    ("config", "says"),
    [({"r": 600}, "above 512"), ({"r": None}, "no rank"), ({"r": True}, ""), ({"r": 8, "use_dora": True}, "DoRA")],
)
def test_adapters_that_vllm_cannot_serve_are_refused(tmp_path: Path, config: dict[str, Any], says: str):
    folder = adapter(tmp_path / "a")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    if config["r"] is True:
        assert lora_rank(folder) == 1
        return
    with pytest.raises(InputError, match=says):
        lora_rank(folder)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("modeling.py", "x", "holds code"),
        ("pytorch_model.bin", "x", "may run code"),
        ("config.json", '{"auto_map": {}}', "auto_map"),
        ("config.json", "[]", "no JSON object"),
        ("config.json", "{", "no JSON"),
    ],
)
def test_folders_that_could_run_code_are_refused(tmp_path: Path, name: str, content: str, says: str):
    folder = model(tmp_path / "m")
    require_servable(folder)
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=says):
        require_servable(folder)


def test_a_folder_without_weights_or_config_is_no_model(tmp_path: Path):
    with pytest.raises(InputError, match="is not a model"):
        require_servable(tmp_path)
    (model(tmp_path / "m") / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no \*\.safetensors"):
        require_servable(tmp_path / "m")


@pytest.mark.parametrize(("workers", "backend"), [(50, "guidance"), (51, "xgrammar")])
def test_many_workers_take_the_other_grammar_engine(tmp_path: Path, workers: int, backend: str):
    words = command(settings(tmp_path), port=1, workers=workers, prefix_tokens=1000)
    assert json.loads(words[words.index("--structured-outputs-config") + 1])["backend"] == backend
    assert words[words.index("--max-model-len") + 1] == "2560"
    assert "--trust-remote-code" not in words


def test_quantized_weights_are_a_flag_and_none_is_none(tmp_path: Path):
    words = command(settings(tmp_path, quantization="fp8"), port=1, workers=1, prefix_tokens=1)
    assert words[words.index("--quantization") + 1] == "fp8"
    assert "--quantization" not in command(settings(tmp_path), port=1, workers=1, prefix_tokens=1)


@pytest.mark.parametrize("arg", ["--port=1", "--trust-remote-code", "--max_model_len=9", "--model", "--api-key=x"])
def test_flags_of_ours_cannot_be_given_twice(arg: str):
    with pytest.raises(ValidationError, match="set by plansmith"):
        VllmConfig(model=Path("m"), args=(arg,))


LOGS = [
    ("ModuleNotFoundError: No module named 'vllm'", "not installed"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "GPU has too little"),
    (
        "ValueError: Free memory on device (3.1/23.6 GiB) on startup is less than desired GPU memory utilization",
        "GPU has too little",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "keys and values",
    ),
    (
        "ValueError: To serve at least one request with the model's max seq len (131072), (4.5 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (1.2 GiB).",
        "keys and values",
    ),
    ("OSError: [Errno 98] Address already in use", "port is taken"),
    ("ValueError: LoRA rank 64 is greater than max_lora_rank 16.", "rank is above"),
    (
        "ValueError: User-specified max_model_len (99999) is greater than the derived max_model_len (32768)",
        "beyond what the model",
    ),
    ("ValueError: Model architectures ['FooForCausalLM'] are not supported for now.", "architecture"),
    ("api_server.py: error: unrecognized arguments: --frob", "does not take one of the flags"),
    ("RuntimeError: Failed to infer device type, please set the environment variable", "no GPU was found"),
    (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
        "dtype to float16",
    ),
    ("ImportError: cannot import name 'AutoFoo' from 'transformers' (/x/__init__.py)", "do not go together"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "incomplete"),
    ("OSError: [Errno 28] No space left on device", "disk is full"),
    ("Traceback\nKeyError: 'frob'\nsomething", "KeyError: 'frob'"),
]


@pytest.mark.parametrize(("log", "cause"), LOGS)
def test_the_cause_is_said_in_words(log: str, cause: str):
    assert cause in likely_cause(["INFO starting", *log.split("\n"), "INFO bye"], 1)


def test_without_an_error_the_code_is_all_there_is_to_say():
    assert "killed" in likely_cause(["WARNING OSError: [Errno 24] Too many open files"], 137)
    assert "code 7" in likely_cause(["INFO"], 7)
