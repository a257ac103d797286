"""A planner over any OpenAI-compatible endpoint: vLLM, llama.cpp, hosted models, teachers.

Sends our prompt (`openai_request`) through the official client (`openai_wire`), reads whatever comes back
(`openai_reply`) and checks every plan here. Requests are retried after 429 (waiting as long as the endpoint asks), 5xx,
time-outs, broken connections and unusable answers; then the query fails with a `ServiceError`. What would fail for
every query (wrong key, model or URL, a field that the endpoint does not know) raises an `EndpointRefusedError` at once.
Everything odd is counted in `counts`. The key is read from the environment, and shown nowhere. Not covered: streaming.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn, Self
from weakref import WeakKeyDictionary

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import InputError, ServiceError
from plansmith.contract.prompt import Tokenizer
from plansmith.contract.records import FinishReason
from plansmith.contract.teaching import Teaching, answer_text
from plansmith.serving.config import Constraint, EndpointConfig, OtherModel, Route
from plansmith.serving.lean_http import HttpError, Response
from plansmith.serving.limiter import AdaptiveLimiter, Slot
from plansmith.serving.openai_errors import (
    EndpointRefusedError,
    QueryRefusedError,
    TryAgainError,
    explain_disconnect,
    judge_status,
)
from plansmith.serving.openai_reply import Event, Reply, UnusableReplyError, read_reply
from plansmith.serving.openai_request import Asked, canary_request, plan_request
from plansmith.serving.openai_wire import Wire

if TYPE_CHECKING:
    from tenacity import RetryCallState


class OpenAIPlanner:
    """A `Planner` over HTTP. Usable in several event loops one after the other; `release` it at the end of each."""

    def __init__(
        self,
        config: EndpointConfig,
        *,
        tokenizer: Tokenizer | None = None,
        teaching: Teaching | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Prepare the client; nothing is sent yet.

        Args:
            config: the endpoint and how it is asked.
            tokenizer: that of the served model; the completions route then sends token ids, exactly those that
                training saw. None sends text, to which the endpoint adds bos.
            teaching: rules, examples and answer form for a teacher; None asks as the student is asked.
            environ: where the key is looked up.

        Raises:
            InputError: the environment variable of the key is not set, or a teacher is not asked on the chat route.

        """
        if teaching is not None and config.route is not Route.CHAT:
            raise InputError(
                f"a teacher is asked in a conversation, but the route of {config.url!r} is {config.route.value!r}; set "
                "route to 'chat'."
            )
        importlib.import_module("openai")  # takes seconds, which shall not count as the first plan's
        self.config = config
        self.counts: Counter[str] = Counter()
        """How often each `Event` happened."""
        self.models: Counter[str] = Counter()
        """Names of the models that answered."""
        self.limiter = AdaptiveLimiter(config.concurrency)
        self._tokenizer = tokenizer
        self._teaching = teaching
        self._key = _read_key(config, environ)
        self._wires: WeakKeyDictionary[asyncio.AbstractEventLoop, Wire] = WeakKeyDictionary()
        self._accepted: set[tuple[str, bool]] = set()
        """Catalog hash and mode of requests that were answered: their form is right."""

    async def plan(
        self,
        query: str,
        catalog: Catalog,
        *,
        constrained: bool = True,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> Draft:
        """Plan one query.

        Args:
            query: the user's words.
            catalog: the workers that may be called.
            constrained: have the endpoint decode under the plan grammar.
            temperature: replaces the config's; None keeps it.
            seed: replaces the config's; None keeps it.

        Raises:
            ServiceError: the endpoint did not answer, also after all retries.
            EndpointRefusedError: the endpoint refuses what would be the same for every query.

        """
        self._wire()
        begun = perf_counter()
        asked = plan_request(
            query,
            catalog,
            self.config,
            constrained=constrained,
            temperature=temperature,
            seed=seed,
            tokenizer=self._tokenizer,
            teaching=self._teaching,
        )
        kind = (catalog.hash, constrained)
        try:
            reply = await self.ask(asked, known=kind in self._accepted)
        except QueryRefusedError as error:
            self.counts[error.event] += 1
            nothing = check_plan("", catalog)
            return Draft(query, "", nothing, 0, 0, perf_counter() - begun, FinishReason.ERROR, str(error))
        if reply.catalog is not None and reply.catalog != catalog.hash:
            raise EndpointRefusedError(
                f"{self._name} plans for the catalog {reply.catalog[:12]}; {catalog.name!r} is {catalog.hash[:12]}. "
                "Serve the planner of this catalog, or give the catalog that is served (GET /v1/catalog)."
            )
        self._accepted.add(kind)
        return Draft(
            query=query,
            text=reply.text,
            check=check_plan(reply.text if self._teaching is None else answer_text(reply.text), catalog),
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            seconds=perf_counter() - begun,
            finish_reason=reply.finish_reason,
            error=f"{self._name} withheld the answer (content filter)." if Event.FILTERED in reply.events else None,
            logprobs=reply.logprobs,
        )

    async def require_constraint(self) -> None:
        """Prove that the endpoint decodes under a schema, by one whose only value is a random word.

        Does nothing for `Constraint.NONE`, nor for a gateway, which checks its plans itself. An endpoint that ignores a
        field it does not know answers all the same, and its plans would pass for constrained ones.

        Raises:
            InputError: the answer is another; the message quotes it.
            ServiceError, EndpointRefusedError: as `plan`.

        """
        if self.config.constraint is Constraint.NONE or self.config.route is Route.PLANS:
            return
        secret = "word-" + secrets.token_hex(4)
        reply = await self.ask(canary_request(secret, self.config), known=False)
        try:
            held = json.loads(reply.text) == {"word": secret}
        except (ValueError, RecursionError):
            held = False
        if not held:
            raise InputError(
                f"{self._name} does not decode under the schema sent as {self.config.constraint.value!r}: it answered "
                f"{reply.text!r:.80}. Choose another constraint (response_format, structured_outputs, json_schema), or "
                "'none' and report the plans as unconstrained."
            )

    async def release(self) -> None:
        """Close the connections of the running event loop; the planner stays usable."""
        wire = self._wires.pop(asyncio.get_running_loop(), None)
        if wire is not None:
            await wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    @property
    def _name(self) -> str:
        return f"the endpoint {self.config.url!r} (model {self.config.model!r})"

    async def ask(self, asked: Asked, *, known: bool) -> Reply:
        """Send a request until it is answered or the retries are used up; `known`: its like was answered before.

        Raises:
            ServiceError, EndpointRefusedError: as `plan`.
            QueryRefusedError: the endpoint refuses this request, though it answers others.

        """
        try:
            try:
                reply = await self._attempt(asked, known)
            except TryAgainError as error:
                reply = await self._again(asked, known, error)
        except TryAgainError as error:
            self.counts[Event.FAILED] += 1
            tried = f" after {self.config.retries + 1} attempts" if self.config.retries and not error.final else ""
            raise ServiceError(f"{self._name} gave no answer{tried}: {error} {error.advice}") from None
        self._note(reply)
        return reply

    async def _again(self, asked: Asked, known: bool, first: TryAgainError) -> Reply:
        """Go on after a first attempt that failed."""
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

        failed: list[TryAgainError] = [first]

        async def attempt() -> Reply:
            if failed:
                raise failed.pop()
            return await self._attempt(asked, known)

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.config.retries + 1),
            wait=self._wait,
            retry=retry_if_exception(lambda error: isinstance(error, TryAgainError) and not error.final),
            before_sleep=self._count_retry,
            sleep=asyncio.sleep,
            reraise=True,
        )
        return await retrying(attempt)

    def _note(self, reply: Reply) -> None:
        """Count what was odd about an answer, and refuse another model's where that is asked for."""
        self.counts[Event.ANSWERED] += 1
        self.counts.update(event.value for event in reply.events)
        if reply.model is not None:
            self.models[reply.model] += 1
        if Event.OTHER_MODEL in reply.events and self.config.other_model is OtherModel.REFUSE:
            raise EndpointRefusedError(
                f"{self._name} answered with the model {reply.model!r:.100}. Ask for that one by name, or set "
                "other_model to 'count' if it is the same."
            )

    async def _attempt(self, asked: Asked, known: bool) -> Reply:
        """One HTTP request."""
        async with self.limiter.slot() as slot:
            self.counts[Event.SENT] += 1
            content = await self._send(asked, known, slot)
            try:
                reply = read_reply(content, asked, self.config.route)
            except UnusableReplyError as error:
                self.counts[error.event] += 1
                raise TryAgainError(f"{error}.", "Look at what the server logs.") from error
            self.limiter.succeeded()
            return reply

    async def _send(self, asked: Asked, known: bool, slot: Slot) -> bytes:
        """The body of a response with status 200; any other outcome raises, and is counted."""
        try:
            async with asyncio.timeout(self.config.timeout_seconds):
                response = await self._wire().post(asked.content)
        except TimeoutError as error:
            self.counts[Event.TIMEOUT] += 1
            raise TryAgainError(
                f"it did not answer within {self.config.timeout_seconds:g} s.",
                "Raise timeout_seconds, or ask with less concurrency.",
            ) from error
        except HttpError as error:
            self.counts[Event.DISCONNECTED] += 1
            raise TryAgainError(explain_disconnect(error), "Start the server, or correct the URL.") from error
        if response.status != 200:
            self._refused(response, known, slot)
        return self._without_key(response.content)

    def _refused(self, response: Response, known: bool, slot: Slot) -> NoReturn:
        """Raise what a response that is no success means, and slow down where it says so."""
        error = judge_status(
            response.status,
            response.headers,
            self._without_key(response.content),
            known=known,
            max_wait=self.config.retry_after_max_seconds,
        )
        if isinstance(error, TryAgainError):
            self.counts[Event.RATE_LIMITED if response.status == 429 else Event.SERVER_ERROR] += 1
            pause = 0.0 if error.final else error.retry_after or 0.0
            if response.status == 429:
                self.limiter.throttled(slot, pause_seconds=pause)
            raise error
        if isinstance(error, QueryRefusedError):
            raise QueryRefusedError(error.event, f"{self._name} {error}")
        raise EndpointRefusedError(f"{self._name} {error}")

    def _wait(self, state: RetryCallState) -> float:
        """Seconds before the next attempt: what the endpoint asked for, else exponential with full jitter."""
        from tenacity import wait_random_exponential

        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, TryAgainError) and error.retry_after is not None:
            return error.retry_after
        return wait_random_exponential(multiplier=self.config.backoff_seconds, max=self.config.backoff_max_seconds)(
            state
        )

    def _count_retry(self, _: RetryCallState) -> None:
        self.counts[Event.RETRIED] += 1

    def _wire(self) -> Wire:
        """The connections of the running event loop: they belong to the loop in which they were opened."""
        loop = asyncio.get_running_loop()
        wire = self._wires.get(loop)
        if wire is None:
            wire = self._wires[loop] = Wire(self.config, self._key)
        return wire

    def _without_key(self, content: bytes) -> bytes:
        """A body in which the endpoint does not quote the key."""
        return content.replace(self._key.encode(), b"[key]") if self._key else content


def _read_key(config: EndpointConfig, environ: Mapping[str, str]) -> str | None:
    if config.api_key_env is None:
        return None
    key = environ.get(config.api_key_env, "").strip()
    if not key:
        raise InputError(
            f"the environment variable {config.api_key_env!r}, which should hold the key of {config.url!r}, is not "
            "set. Set it, or name another in api_key_env."
        )
    return key
