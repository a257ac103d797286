"""Hand-made workers, registries and plans for the tests of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from plansmith.contract.catalog import Effect, Worker
from plansmith.serving.runs.config import BreakerConfig, RetryConfig, RunConfig
from plansmith.serving.runs.orchestrator import Orchestrator
from plansmith.serving.workers.base import CallInfo
from plansmith.serving.workers.registry import Registry

ANY_ARGS = {"type": "object", "properties": {}, "additionalProperties": True}
FAST = RetryConfig(max_attempts=3, initial_s=0, max_s=0, jitter_s=0)
CALM = RunConfig(retries=FAST, breaker=BreakerConfig(failures=1000), deadline_s=20)
Code = Callable[[dict[str, Any], CallInfo], Awaitable[Any]]


class Made:
    """A callable worker around a coroutine function; notes its calls."""

    def __init__(
        self, name: str, code: Code, *, secrets: Sequence[str] = (), approval: bool = False, **entry: Any
    ) -> None:
        self.worker = Worker(name=name, **{"args": ANY_ARGS, "effect": Effect.PURE, **entry})
        self.secrets = frozenset(secrets)
        self.approval = approval
        self.calls: list[tuple[dict[str, Any], CallInfo]] = []
        self._code = code

    async def call(self, args: dict[str, Any], info: CallInfo) -> Any:
        self.calls.append((args, info))
        return await self._code(args, info)


async def echo(args: dict[str, Any], info: CallInfo) -> Any:
    return args


def raises(*errors: BaseException | None) -> Code:
    """Raises the errors in turn, then gives "ok"; None is a result at once."""
    left = list(errors)

    async def code(args: dict[str, Any], info: CallInfo) -> Any:
        error = left.pop(0) if left else None
        if error is not None:
            raise error
        return "ok"

    return code


async def hangs(args: dict[str, Any], info: CallInfo) -> Any:
    await asyncio.Event().wait()


async def swallows(args: dict[str, Any], info: CallInfo) -> Any:
    """Does not end when it is cancelled, for half a second."""
    end = asyncio.get_running_loop().time() + 0.5
    while asyncio.get_running_loop().time() < end:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


def step(name: str, after: Sequence[int] = (), **args: Any) -> dict[str, Any]:
    return {"type": name, "args": args} | ({"after": list(after)} if after else {})


def from_(pointer: str) -> dict[str, str]:
    return {"$from": pointer}


def orchestrator(*workers: Made, config: RunConfig = CALM, **options: Any) -> Orchestrator:
    return Orchestrator(Registry("test", workers), config, **options)
