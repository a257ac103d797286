"""A ReAct agent: the baseline that plans are compared with, and the last fallback behind a planner.

A model is asked turn by turn which workers to call (Yao et al., 2022, https://arxiv.org/abs/2210.03629), in OpenAI's
form of tool calls. Takes a model, a registry and limits; gives an `AgentResult`, always within the deadline. Several
runs may be under way at once in one event loop. As a fallback it gets workers that are pure or read, unless its config
says otherwise. Not covered: streaming of the model's words.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from plansmith.contract.endpoint import ChatModel
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Plan
from plansmith.serving.react.calling import Calling
from plansmith.serving.react.closing import close
from plansmith.serving.react.config import ReActConfig
from plansmith.serving.react.episode import Episode
from plansmith.serving.react.state import AgentResult, AgentState, End, Phase
from plansmith.serving.react.tools import Tools
from plansmith.serving.runs.breaker import Breaker
from plansmith.serving.runs.events import EventKind, RunEvent, RunStatus
from plansmith.serving.runs.orchestrator import OnEvent
from plansmith.serving.runs.running import Approve
from plansmith.serving.runs.secrecy import Secrets
from plansmith.serving.runs.tracing import note, span
from plansmith.serving.workers.registry import Registry

LOG = logging.getLogger(__name__)
OnState = Callable[[AgentState], None]
"""Gets a state of its own after every change of phase, without secrets."""
_REDACTED = ("query", "history", "facts", "pending", "calls", "removed", "answer")


class ReActAgent:
    """Answers queries by calling workers one turn at a time."""

    def __init__(
        self,
        model: ChatModel,
        registry: Registry,
        config: ReActConfig | None = None,
        *,
        approve: Approve | None = None,
    ) -> None:
        """Take what all runs share.

        Args:
            model: is asked what to do; whoever made it releases it.
            registry: the workers with their code.
            config: limits and what may be called.
            approve: asks a person about calls of workers that need it.

        Raises:
            InputError: a worker is named `final_answer`.

        """
        self.config = config or ReActConfig()
        self.registry = registry
        self.tools = Tools(registry, self.config)
        self._model = model
        self._approve = approve
        self._breakers: dict[str, Breaker] = {}

    async def run(
        self,
        query: str,
        *,
        run_id: str | None = None,
        deadline_s: float | None = None,
        on_event: OnEvent | None = None,
        on_state: OnState | None = None,
    ) -> AgentResult:
        """Answer a query; never raises for what model and workers do."""
        state = AgentState(run_id=run_id or uuid.uuid4().hex, query=query, catalog=self.registry.catalog.hash)
        return await self._go(state, deadline_s, on_event, on_state, resumed=False)

    async def resume(
        self,
        state: AgentState,
        *,
        deadline_s: float | None = None,
        on_event: OnEvent | None = None,
        on_state: OnState | None = None,
    ) -> AgentResult:
        """Go on with a saved run; one that has ended gives its result again, and nothing is asked.

        Raises:
            InputError: the state is of a run with other workers.

        """
        if state.catalog != self.registry.catalog.hash:
            raise InputError(
                f"the state is of a run with the catalog {state.catalog[:12]}, but the workers here are "
                f"{self.registry.catalog.hash[:12]} ({self.registry.name!r}); give the workers that it began with."
            )
        return await self._go(state.model_copy(deep=True), deadline_s, on_event, on_state, resumed=True)

    async def _go(
        self,
        state: AgentState,
        deadline_s: float | None,
        on_event: OnEvent | None,
        on_state: OnState | None,
        *,
        resumed: bool,
    ) -> AgentResult:
        begun = time.monotonic()
        seconds = self.config.deadline_s if deadline_s is None else deadline_s
        spent = state.seconds
        secrets = Secrets(Plan(()), self.registry)
        tell = _teller(state.run_id, on_event)

        def saved() -> None:
            state.seconds = spent + time.monotonic() - begun
            if on_state is not None:
                on_state(_without(state, secrets))

        calling = Calling(self.registry, self.config, self._breaker, self._approve, secrets, tell, resumed=resumed)
        with span("plansmith.react", {"plansmith.run": state.run_id}) as on:
            if state.end is None:
                tell(EventKind.RUN_STARTED, message="resumed" if resumed else None)
                episode = Episode(state, self._model, self.tools, calling, self.config, tell, saved)
                state.end = await episode.go(begun + seconds * (1 - self.config.answer_share))
                if state.answer is None:
                    state.answer = await close(state, state.end, self._model, self.config, begun + seconds)
                state.phase = Phase.END
                saved()
                result = self._result(state, calling)
                tell(EventKind.ANSWER, status=state.end)
                tell(EventKind.RUN_FINISHED, status=result.status, seconds=result.seconds)
            else:
                result = self._result(state, calling)
            note(on, "status", result.status)
        return result

    def _result(self, state: AgentState, calling: Calling) -> AgentResult:
        assert state.end is not None
        assert state.answer is not None
        if state.end in (End.ANSWERED, End.PLAIN_TEXT):
            status = RunStatus.COMPLETE
        else:
            known = any(call.outcome.failure is None and call.outcome.reason is None for call in state.calls)
            status = RunStatus.PARTIAL if known or state.answer.by_model else RunStatus.FAILED
        return AgentResult(
            run_id=state.run_id,
            query=state.query,
            status=status,
            end=state.end,
            answer=state.answer,
            calls=tuple(state.calls),
            turns=state.turns,
            asked=state.asked,
            prompt_tokens=state.prompt_tokens,
            completion_tokens=state.completion_tokens,
            bad_calls=state.bad_calls,
            compactions=state.compactions,
            cut=state.cut,
            removed=state.removed,
            withheld=self.tools.withheld,
            abandoned=len(calling.abandoned),
            seconds=state.seconds,
        )

    def _breaker(self, worker: str) -> Breaker:
        found = self._breakers.get(worker)
        if found is None:
            found = self._breakers[worker] = Breaker(self.config.breaker)
        return found


def _without(state: AgentState, secrets: Secrets) -> AgentState:
    """A copy to keep."""
    told = state.model_dump(mode="json")
    told |= {name: secrets.value(told[name]) for name in _REDACTED}
    return AgentState.model_validate(told)


def _teller(run_id: str, on_event: OnEvent | None) -> Callable[..., None]:
    def tell(kind: EventKind, **fields: Any) -> None:
        LOG.info("%s %s", kind.value, run_id)
        if on_event is None:
            return
        try:
            on_event(RunEvent(kind=kind, run_id=run_id, **fields))
        except Exception as error:
            LOG.warning("a listener of run %s raised %s at %s", run_id, type(error).__name__, kind.value)

    return tell
