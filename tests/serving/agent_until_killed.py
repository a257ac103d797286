"""Runs an agent whose state is saved, in a process that kills itself in a call; then, run again, takes it up.

    python -m ... URL STATE EFFECTS MODE WHEN    MODE: read, idempotent, write; WHEN: before, after, never

The worker adds a line to EFFECTS: that is its side effect. `before` kills before the line, `after` behind it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from plansmith.contract.catalog import Effect
from plansmith.serving.config import EndpointConfig
from plansmith.serving.openai_text import OpenAIText
from plansmith.serving.react.agent import ReActAgent
from plansmith.serving.react.config import ReActConfig
from plansmith.serving.react.state import AgentResult, AgentState
from plansmith.serving.workers.base import CallInfo
from plansmith.serving.workers.registry import Registry
from tests.serving.run_parts import Made


async def main(url: str, state: Path, effects: Path, mode: str, when: str) -> AgentResult:
    async def work(args: dict[str, Any], info: CallInfo) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        with effects.open("a") as file:
            file.write(f"{args['n']} {info.idempotency_key}\n")
        if when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"done": args["n"]}

    effect = Effect.READ if mode == "read" else Effect.WRITE
    worker = Made("work", work, effect=effect, idempotent=mode == "idempotent")
    model = OpenAIText(EndpointConfig(url=url, model="m", retries=0))
    agent = ReActAgent(model, Registry("r", [worker]), ReActConfig(effects=frozenset(Effect)))

    def save(current):
        return current.save(state)

    try:
        if state.exists():
            return await agent.resume(AgentState.load(state), on_state=save)
        return await agent.run("Do it.", run_id="r1", on_state=save)
    finally:
        await model.release()


if __name__ == "__main__":
    url, state, effects, mode, when = sys.argv[1:]
    print(asyncio.run(main(url, Path(state), Path(effects), mode, when)).model_dump_json())
