"""The answer of a run that has to stop: a model's from what is known, where budget and time allow, else a list.

Takes the state of a run that ended for another reason than an answer. The model gets the query and the results, no
tools (`runs/answer.py`), within what the token budget and the deadline leave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from plansmith.contract.endpoint import Message, Text, TextModel
from plansmith.contract.errors import ServiceError
from plansmith.serving.react.config import ReActConfig
from plansmith.serving.react.state import AgentState, End
from plansmith.serving.runs.answer import INSTRUCTION, Answer, ModelAnswerer, TemplateAnswerer
from plansmith.serving.runs.events import RunResult, RunStatus, StepOutcome, StepStatus

_WHY = {
    End.MAX_STEPS: "the agent used all its turns",
    End.TOKEN_BUDGET: "the token budget is used up",
    End.DEADLINE: "the time was over",
    End.REPEATED_ACTION: "the agent repeated itself",
    End.BAD_CALLS: "the agent kept asking for calls that cannot be made",
    End.CONTEXT_FULL: "the conversation no longer fits the model's context",
    End.MODEL_FAILED: "the agent's model gave no turn",
}
_OVERHEAD = 256
"""Tokens of an answer's prompt besides query and results."""
_CALM_CHARS = 4000


async def close(state: AgentState, end: End, model: TextModel, config: ReActConfig, deadline: float) -> Answer:
    """Answer from what is known; never raises for what a model does."""
    steps = tuple(call.outcome.model_copy(update={"step": at}) for at, call in enumerate(state.calls))
    gaps = [f"{one.worker} has no result: {_reason(one)}" for one in steps if one.status is not StepStatus.DONE]
    run = RunResult(
        run_id=state.run_id,
        query=state.query,
        status=RunStatus.PARTIAL,
        steps=steps,
        plan=[{"type": call.worker, "args": call.args} for call in state.calls],
        missing=(f"The run stopped early: {_WHY[end]}.", *gaps),
    )
    if end is not End.MODEL_FAILED and time.monotonic() < deadline:
        answer = await _by_model(state, run, model, config, deadline)
        if answer is not None and answer.text:
            return answer
    listed = await TemplateAnswerer().answer(run)
    return listed.model_copy(update={"for_person": True})


async def _by_model(
    state: AgentState, run: RunResult, model: TextModel, config: ReActConfig, deadline: float
) -> Answer | None:
    left = min(config.token_budget - state.tokens, config.window_tokens) - config.answer_tokens - _OVERHEAD
    bare = len((INSTRUCTION + run.query + str(run.plan)).encode("utf-8", "surrogatepass"))
    chars = int((left / state.tokens_a_byte - bare) / max(1, len(run.steps)) / 4)  # a character has up to four bytes
    if chars < 20:
        return None
    asking = _Bounded(model, state, config)
    answerer = ModelAnswerer(asking, min_confidence=config.min_confidence, result_chars=min(chars, _CALM_CHARS))
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            return await answerer.answer(run)
    except TimeoutError:
        return None


class _Bounded:
    """A model that is not asked beyond the token budget; counts what it is asked."""

    def __init__(self, model: TextModel, state: AgentState, config: ReActConfig) -> None:
        self._model, self._state, self._config = model, state, config

    async def write(
        self,
        messages: Sequence[Message],
        *,
        temperature: float | None = None,
        seed: int | None = None,
        max_tokens: int | None = None,
        schema: dict[str, Any] | None = None,
    ) -> Text:
        del max_tokens
        state, config = self._state, self._config
        size = sum(len(message["content"].encode("utf-8", "surrogatepass")) for message in messages)
        prompt = int(size * state.tokens_a_byte) + 1
        room = min(config.answer_tokens, config.token_budget - state.tokens - prompt)
        if room < 1:
            raise ServiceError("the token budget has no room for another request.")
        state.asked += 1
        text = await self._model.write(messages, temperature=temperature, seed=seed, max_tokens=room, schema=schema)
        state.prompt_tokens += text.prompt_tokens
        state.completion_tokens += text.completion_tokens
        return text


def _reason(one: StepOutcome) -> str:
    return one.failure.message if one.failure is not None else one.reason or one.status.value
