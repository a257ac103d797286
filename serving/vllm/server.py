"""A vLLM server that is kept running: started, proved, watched, started again when it dies, ended with us.

An async context manager. `planner` asks it, and fails at once with a `ServiceError` while it is not there. Adapters
are exchanged under a new path and a new name: a path that is loaded again keeps answers of the old weights in vLLM's
prefix cache. Every change of state is told to `told` in words.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Self

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import InputError, PlansmithError, ServiceError
from plansmith.contract.prompt import Tokenizer, encode_prompt, render
from plansmith.serving.config import EndpointConfig, Route
from plansmith.serving.openai_planner import OpenAIPlanner
from plansmith.serving.vllm.checks import PROBE_QUERY, Proof, TokenProbe, probe_of, prove
from plansmith.serving.vllm.config import VllmConfig
from plansmith.serving.vllm.diagnosis import likely_cause
from plansmith.serving.vllm.flags import command, lora_rank
from plansmith.serving.vllm.process import VllmProcess

_SHOWN_LINES = 15
_LONGEST_WAIT = 60.0


class ServerState(StrEnum):
    """Whether the server can be asked."""

    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"
    """it died and waits for its restart"""
    GIVEN_UP = "given up"
    """it died too often"""
    STOPPED = "stopped"


class VllmServer:
    """Serves one planner."""

    def __init__(
        self,
        config: VllmConfig,
        catalog: Catalog,
        *,
        tokenizer: Tokenizer | None = None,
        probe: TokenProbe | None = None,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            config: the settings.
            catalog: the workers that plans may call.
            tokenizer: the planner's; prompts then go out as token ids. None sends text.
            probe: a prompt whose trained tokens are known; made from the tokenizer where there is one.
            told: is told what happens.

        """
        self.config, self.catalog = config, catalog
        self.state = ServerState.STOPPED
        self.cause: str | None = None
        """Why it is not there."""
        self.proof: Proof | None = None
        self.deaths = 0
        self._tokenizer, self._told = tokenizer, told
        self._prefix_tokens = len(render("", catalog).prefix.encode()) // 2
        self._probe = probe
        if tokenizer is not None:
            ids = encode_prompt(PROBE_QUERY, catalog, tokenizer)
            self._prefix_tokens = len(ids.prefix)
            self._probe = _probe_of_ids([*ids.prefix, *ids.suffix], tokenizer)
        self._port = config.port or _free_port()
        self._name, self._adapter = config.name, config.adapter
        self._seen = {config.adapter.resolve()} if config.adapter is not None else set[Path]()
        self._versions = 1
        self._process: VllmProcess | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._inner = self._planner_of(self._name)
        self._exchange = asyncio.Lock()

    @property
    def url(self) -> str:
        """Base URL of its OpenAI-compatible routes."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def lines(self) -> list[str]:
        """The last lines of its output."""
        return list(self._process.lines) if self._process is not None else []

    async def plan(self, query: str, catalog: Catalog, *, constrained: bool = True) -> Draft:
        """As a `Planner`.

        Raises:
            ServiceError: it is not there, or did not answer.

        """
        if self.state is not ServerState.READY:
            raise ServiceError(f"vLLM is {self.state.value}: {self.cause or 'not asked for yet'}.")
        return await self._inner.plan(query, catalog, constrained=constrained)

    async def __aenter__(self) -> Self:
        """Start it, wait until it is ready, prove it.

        Raises:
            InputError: the folders cannot be served, or the server fails its checks.
            ServiceError: it did not start; the message has the likely cause and the end of its log.

        """
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise
        self._keeper = asyncio.create_task(self._keep(), name="vllm-keeper")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End it and all that belongs to it."""
        self.state, self.cause = ServerState.STOPPED, "it was ended"
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
            self._keeper = None
        if self._process is not None:
            await self._process.stop()
        await self._inner.release()

    async def load_adapter(self, adapter: Path) -> str:
        """Serve another adapter of the same base, without a gap; its name at the server.

        The new one is loaded, proved, and asked from then on; the old one is unloaded when its requests are done.

        Raises:
            InputError: there is no adapter to exchange, the path was served before, or it does not fit.
            ServiceError: the server did not take it.

        """
        async with self._exchange:
            if self._adapter is None:
                raise InputError("this server has merged weights; only a base with an adapter can exchange adapters.")
            place = adapter.resolve()
            if place in self._seen:
                raise InputError(
                    f"{str(adapter)!r} was served before, and vLLM may keep answers of what was there; copy the new "
                    "version to a new path."
                )
            if lora_rank(adapter) > lora_rank(self._adapter):
                raise InputError(f"the rank of {str(adapter)!r} is above what the server was started with; restart it.")
            name = f"{self.config.name}-v{self._versions + 1}"
            await self._post("load_lora_adapter", {"lora_name": name, "lora_path": str(place)})
            self._seen.add(place)
            self._versions += 1
            fresh = self._planner_of(name)
            try:
                self.proof = await prove(fresh, self.catalog, self._probe)
            except PlansmithError:
                await fresh.release()
                await self._post("unload_lora_adapter", {"lora_name": name})
                raise
            old, old_name = self._inner, self._name
            self._inner, self._name, self._adapter = fresh, name, place
            while old.limiter.under_way:
                await asyncio.sleep(0.05)
            await self._post("unload_lora_adapter", {"lora_name": old_name})
            await old.release()
            self._told(f"adapter {name} serves in the place of {old_name}")
            return name

    async def _post(self, route: str, body: dict[str, str]) -> None:
        import httpx2

        try:
            async with httpx2.AsyncClient(trust_env=False, timeout=120) as client:
                response = await client.post(f"{self.url}/{route}", json=body)
        except httpx2.HTTPError as error:
            raise ServiceError(f"vLLM did not answer at {route} ({type(error).__name__}).") from error
        if response.status_code != 200:
            raise ServiceError(f"vLLM answered {response.status_code} at {route}: {response.text[:300]}")

    def _planner_of(self, name: str) -> OpenAIPlanner:
        endpoint = EndpointConfig(
            url=self.url,
            model=name,
            route=Route.COMPLETIONS,
            max_tokens=self.config.max_plan_tokens,
            max_steps=self.config.max_steps,
            concurrency=256,
            retries=0,  # a request that killed the server shall not kill the next one too
        )
        return OpenAIPlanner(endpoint, tokenizer=self._tokenizer)

    async def _start(self) -> None:
        self.state, self.cause = ServerState.STARTING, "it is being started"
        config = self.config.model_copy(update={"adapter": self._adapter, "name": self._name})
        words = command(config, port=self._port, workers=len(self.catalog.workers), prefix_tokens=self._prefix_tokens)
        env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"} if self._adapter is not None else {}
        process = self._process = VllmProcess(
            words, env={**env, **config.env}, grace_s=config.stop_grace_s, log=config.log, told=self._told
        )
        await process.start()
        self._told(f"vLLM is being started at {self.url}")
        if config.quantization is not None:
            self._told(
                f"weights are quantized ({config.quantization}), so plans may differ; gate them with plansmith compare"
            )
        try:
            async with asyncio.timeout(config.ready_timeout_s):
                await self._until_healthy(process)
                self.proof = await prove(self._inner, self.catalog, self._probe)
        except TimeoutError as error:
            await process.stop()
            raise ServiceError(
                self._failed(f"it was not ready within {config.ready_timeout_s:g} s", process)
            ) from error
        self.state, self.cause = ServerState.READY, None
        took = time.monotonic() - process.begun
        self._told(f"vLLM is ready after {took:.0f} s; constraints hold, tokens: {self.proof.parity.value}")

    async def _until_healthy(self, process: VllmProcess) -> None:
        import httpx2

        ended = asyncio.ensure_future(process.wait())
        try:
            async with httpx2.AsyncClient(trust_env=False, timeout=5) as client:
                while True:
                    done, _ = await asyncio.wait((ended,), timeout=0.25)
                    if done:
                        raise ServiceError(self._failed("it ended while it started", process))
                    try:
                        if (await client.get(f"http://127.0.0.1:{self._port}/health")).status_code == 200:
                            return
                    except httpx2.HTTPError:
                        continue
        finally:
            ended.cancel()

    def _failed(self, what: str, process: VllmProcess) -> str:
        cause = likely_cause(list(process.lines), process.returncode)
        log = "\n  ".join(list(process.lines)[-_SHOWN_LINES:]) or "(it wrote nothing)"
        where = f" (all of it in {str(self.config.log)!r})" if self.config.log is not None else ""
        return f"vLLM did not start: {what}. Likely cause: {cause.rstrip('.')}.\nThe end of its log{where}:\n  {log}"

    async def _keep(self) -> None:
        """Start it again whenever it dies, not too often."""
        deaths: deque[float] = deque()
        while True:
            assert self._process is not None
            code = await self._process.wait()
            self.deaths += 1
            cause = likely_cause(list(self._process.lines), code)
            self.state, self.cause = ServerState.DEAD, f"it died ({cause.rstrip('.')}) and is started again"
            self._told(f"vLLM died: {cause}")
            while True:
                now = time.monotonic()
                deaths.append(now)
                while deaths and deaths[0] < now - self.config.restart_window_s:
                    deaths.popleft()
                if len(deaths) > self.config.restarts:
                    self.state = ServerState.GIVEN_UP
                    window = f"{len(deaths)} times within {self.config.restart_window_s:g} s"
                    self.cause = f"it died {window}; the last cause: {cause}"
                    self._told(f"vLLM is given up: {self.cause}")
                    return
                await asyncio.sleep(min(_LONGEST_WAIT, self.config.backoff_s * 2 ** (len(deaths) - 1)))
                await self._process.stop()
                try:
                    await self._start()
                    break
                except PlansmithError as error:
                    cause = str(error).partition("\n")[0]
                    self.state, self.cause = ServerState.DEAD, cause
                    self._told(f"vLLM did not come back: {cause}")


def _probe_of_ids(ids: list[int], tokenizer: Tokenizer) -> TokenProbe | None:
    """The probe of prompts that go out as ids: the text's own tokens, since bos is among the ids already."""
    if tokenizer.chat_template:
        return None
    without = ids[1:] if ids and ids[0] == tokenizer.bos_token_id else ids
    return probe_of(PROBE_QUERY, without, special=False)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
