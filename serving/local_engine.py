"""Local planner engine: a transformers decoder in this process, batched, free or under the plan grammar.

Reads a base model and an adapter from disk (`model_loading`), writes nothing. The prompt prefix of a catalog runs once
and is kept; queries of one catalog share batches, whether they come as a list (`plan_batch`) or as concurrent calls
(`plan`), which one worker thread computes so that the event loop stays free. Decoding is greedy unless a temperature
is given. Every plan is checked here.

For laptops, CI and validation; a busy endpoint is better served by vLLM.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Self
from weakref import WeakKeyDictionary

import torch

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import InputError
from plansmith.contract.grammar import plan_schema
from plansmith.contract.prompt import encode_prompt, encode_target
from plansmith.contract.records import FinishReason
from plansmith.serving.config import EngineConfig
from plansmith.serving.decoding import Counts, Decoder, Row, Sampler
from plansmith.serving.grammar_masks import GrammarMasks, PlanGrammar, RowMatcher
from plansmith.serving.model_loading import PlannerModel, load_planner_model
from plansmith.serving.ragged_attention import SharedPrefix
from plansmith.serving.request_queue import EngineClosedError, Request, RequestQueue


@dataclass(slots=True)
class _CatalogState:
    """What is kept of a catalog: its prefix, and its grammar once it was needed."""

    prefix: SharedPrefix
    grammar: PlanGrammar | None = None


class LocalEngine:
    """A `Planner` over a local model. Close it (or use it in `with` / `async with`) to end its worker thread."""

    def __init__(
        self,
        base: Path,
        adapter: Path | None = None,
        *,
        config: EngineConfig | None = None,
        variants_of: Catalog | None = None,
    ) -> None:
        """Load base and adapter.

        Args:
            base: directory of a transformers decoder with safetensors and a fast tokenizer.
            adapter: directory of a peft adapter, merged into the weights in memory; None for the base alone.
            config: how to decode; None for the defaults.
            variants_of: the catalog that the adapter was made for; it may then be asked with others too, which is
                for measuring what a changed catalog does. None: any other catalog is refused.

        Raises:
            InputError: a directory cannot be used; the message says why.
            CatalogMismatchError: the adapter was not made for `variants_of`.

        """
        self.config = config or EngineConfig()
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        self._model: PlannerModel = load_planner_model(Path(base), adapter and Path(adapter), self.config)
        self._any_catalog = variants_of is not None
        if variants_of is not None and self._model.card is not None:
            self._model.card.require(variants_of)
        self._decoder = Decoder(
            self._model, self._allowed, batch_size=self.config.batch_size, prefill_tokens=self.config.prefill_tokens
        )
        self._catalogs: OrderedDict[str, _CatalogState] = OrderedDict()
        self._computing = threading.Lock()
        self._queue = RequestQueue()
        self._worker: threading.Thread | None = None
        self._starting = threading.Lock()
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def plan_batch(
        self,
        queries: Sequence[str],
        catalog: Catalog,
        *,
        constrained: bool = True,
        temperature: float = 0.0,
        seeds: Sequence[int] | None = None,
    ) -> list[Draft]:
        """Plan many queries in this thread; drafts come back in the order of the queries.

        A query that cannot be decoded (too long for the model) is a draft with `error`.

        Args:
            queries: the users' words.
            catalog: the workers that may be called.
            constrained: decode under the plan grammar.
            temperature: 0 is greedy; above it, tokens are drawn from those that the grammar allows.
            seeds: one for each query; the same seed gives the same text, whatever else is in the batch. None: 0, 1, ...

        Raises:
            InputError: temperature or seeds cannot be used.
            CatalogMismatchError: the adapter was made for another catalog.
            GrammarError: the catalog's plan schema cannot be compiled.

        """
        if self._queue.closed:
            raise EngineClosedError
        seeds = range(len(queries)) if seeds is None else seeds
        if len(seeds) != len(queries):
            raise InputError(f"{len(seeds)} seeds were given for {len(queries)} queries; expected one for each.")
        _require_temperature(temperature)
        requests = [
            Request(query, catalog, constrained, temperature, seed) for query, seed in zip(queries, seeds, strict=True)
        ]
        if requests:
            waiting = deque(sorted(requests, key=lambda request: len(request.query), reverse=True))
            self._serve(catalog, lambda: waiting.popleft() if waiting else None)
        return [request.future.result() for request in requests]

    def mean_nll(self, query: str, plan_text: str, catalog: Catalog) -> float:
        """How likely the model finds a plan: mean negative log-likelihood of its tokens, the stop token included.

        Args:
            query: the user's words.
            plan_text: the plan as canonical text.
            catalog: the workers that the prompt shows.

        Returns:
            Nats a token; NaN where prompt and plan are too long for the model.

        Raises:
            CatalogMismatchError: the adapter was made for another catalog.

        """
        with self._computing, self._timed():
            state = self._state_of(catalog)
            prompt = encode_prompt(query, catalog, self._model.tokenizer).suffix
            target = encode_target(plan_text, self._model.tokenizer)
            if state.prefix.length + len(prompt) + len(target) > self._model.max_positions:
                return math.nan
            return float(self._decoder.target_nll(state.prefix, prompt, target).mean())

    async def plan(
        self, query: str, catalog: Catalog, *, constrained: bool = True, temperature: float = 0.0, seed: int = 0
    ) -> Draft:
        """Plan one query; concurrent calls for one catalog share batches.

        Raises:
            CatalogMismatchError, GrammarError, InputError: as `plan_batch`.
            EngineClosedError: the engine was or is being closed.

        """
        loop = asyncio.get_running_loop()
        _require_temperature(temperature)
        request = Request(query, catalog, constrained, temperature, seed)
        async with self._places.setdefault(loop, asyncio.Semaphore(self.config.queue_size)):
            self._start_worker()
            self._queue.put(request)
            return await asyncio.wrap_future(request.future)

    async def stream(
        self, query: str, catalog: Catalog, *, constrained: bool = True, temperature: float = 0.0, seed: int = 0
    ) -> AsyncGenerator[str | Draft]:
        """Plan one query and give its text as it is written, the draft last; closing the generator ends the row.

        Raises:
            As `plan`.

        """
        loop = asyncio.get_running_loop()
        _require_temperature(temperature)
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        def put(piece: str | None) -> None:
            with suppress(RuntimeError):  # the loop of a caller who has gone may be closed
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        request = Request(query, catalog, constrained, temperature, seed, on_text=put)
        request.future.add_done_callback(lambda _: put(None))
        async with self._places.setdefault(loop, asyncio.Semaphore(self.config.queue_size)):
            self._start_worker()
            self._queue.put(request)
            try:
                while (piece := await pieces.get()) is not None:
                    yield piece
                yield request.future.result()
            finally:
                request.future.cancel()

    @property
    def waiting(self) -> int:
        """`plan` and `stream` calls that have not begun."""
        return self._queue.waiting

    @property
    def computed(self) -> Counts:
        """What was computed since the engine was made; a copy."""
        return dataclasses.replace(self._decoder.counts)

    def close(self) -> None:
        """End the worker thread; plans that are not done fail with `EngineClosedError`."""
        self._queue.close()
        if self._worker is not None:
            self._worker.join()

    async def aclose(self) -> None:
        """`close` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _start_worker(self) -> None:
        with self._starting:
            if self._worker is None and not self._queue.closed:
                self._worker = threading.Thread(target=self._work, name="plansmith-engine", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        """The worker thread: serve the first request, and with it those of its catalog that follow it in the queue."""
        config = self.config
        while (first := self._queue.take(gather=config.batch_size, wait_seconds=config.gather_seconds)) is not None:
            waiting = [first]
            catalog = first.catalog

            def take(waiting: list[Request] = waiting, catalog: Catalog = catalog) -> Request | None:
                return waiting.pop() if waiting else self._queue.take_alike(catalog)

            try:
                self._serve(catalog, take)
            except Exception as error:
                first.fail(error)

    def _serve(self, catalog: Catalog, take: Callable[[], Request | None]) -> None:
        """Decode what `take` gives until it gives None; if that fails, the requests in work fail with the error."""
        with self._computing, self._timed():
            state = self._state_of(catalog)
            active: list[Row] = []

            def admit() -> Row | None:
                return self._next_row(take, state)

            try:
                self._decoder.decode(state.prefix, admit, self._wanted, self._finished, active)
            except Exception as error:
                for row in active:
                    row.request.fail(error)
                raise

    @contextmanager
    def _timed(self) -> Generator[None]:
        begun = perf_counter()
        try:
            yield
        finally:
            self._decoder.counts.seconds += perf_counter() - begun

    def _state_of(self, catalog: Catalog) -> _CatalogState:
        """The catalog's prefix, computed now or kept from earlier."""
        if self._model.card is not None and not self._any_catalog:
            self._model.card.require(catalog)
        state = self._catalogs.pop(catalog.hash, None)
        if state is None:
            ids = encode_prompt("", catalog, self._model.tokenizer).prefix
            self._require_room(len(ids), "the catalog's prompt")
            state = _CatalogState(self._decoder.run_prefix(ids))
        self._catalogs[catalog.hash] = state
        while len(self._catalogs) > self.config.prefix_cache_size:
            self._catalogs.popitem(last=False)
        return state

    def _next_row(self, take: Callable[[], Request | None], state: _CatalogState) -> Row | None:
        """A row for the next request that still has a caller; a request that cannot become one fails alone."""
        while (request := take()) is not None:
            if request.future.cancelled():
                continue
            try:
                return self._row(request, state)
            except Exception as error:
                request.fail(error)
        return None

    def _row(self, request: Request, state: _CatalogState) -> Row:
        ids = encode_prompt(request.query, request.catalog, self._model.tokenizer)
        num_prompt = state.prefix.length + len(ids.suffix)
        self._decoder.counts.prompt_tokens += len(ids.suffix)
        matcher = None
        if request.constrained:
            with self._decoder.counts.timed_grammar():
                matcher = self._grammar_of(request.catalog, state).start()
        limit = min(self.config.max_new_tokens, self._model.max_positions - num_prompt)
        row = Row(
            request, num_prompt, list(ids.suffix), limit, matcher, self._model.stop_ids, sampler=_sampler_of(request)
        )
        try:
            self._require_room(num_prompt, "the prompt with this query")
        except InputError as error:
            row.fail(str(error))
        else:
            if matcher is not None:
                with self._decoder.counts.timed_grammar():
                    row.begin()
        return row

    def _grammar_of(self, catalog: Catalog, state: _CatalogState) -> PlanGrammar:
        if state.grammar is None:
            state.grammar = self._masks.compile(plan_schema(catalog, max_steps=self.config.max_steps))
        return state.grammar

    def _require_room(self, num_tokens: int, what: str) -> None:
        limit = self._model.max_positions
        if num_tokens >= limit:
            raise InputError(
                f"{what} has {num_tokens} tokens, but the model has {limit} positions and needs some for the plan. "
                "Shorten the query, give a smaller catalog, or use a model with a longer context."
            )

    def _wanted(self, row: Row) -> bool:
        if row.request.on_text is not None:
            row.request.tell(self._text(row.output), whole=False)
        return not (self._queue.closed or row.request.future.cancelled())

    def _finished(self, row: Row) -> None:
        """Hand over a row that left the batch."""
        if row.finish is None:
            row.request.fail(EngineClosedError())
            return
        request = row.request
        text = "" if row.finish is FinishReason.ERROR else self._text(row.output)
        request.tell(text, whole=True)
        draft = Draft(
            query=request.query,
            text=text,
            check=check_plan(text, request.catalog),
            prompt_tokens=row.prompt_tokens,
            completion_tokens=len(row.output),
            seconds=perf_counter() - request.started,
            finish_reason=row.finish,
            error=row.error,
        )
        request.answer(draft)

    def _text(self, tokens: Sequence[int]) -> str:
        """Special tokens stay visible, so that a plan with one never passes for strict JSON."""
        tokenizer = self._model.tokenizer
        return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _allowed(self, matchers: Sequence[RowMatcher | None]) -> torch.Tensor:
        return self._masks.allowed(matchers)

    @cached_property
    def _masks(self) -> GrammarMasks:
        model = self._model
        return GrammarMasks(model.tokenizer, vocab_rows=model.vocab_rows, stop_ids=model.stop_ids)


def _require_temperature(temperature: float) -> None:
    if not 0 <= temperature < float("inf"):
        raise InputError(f"the temperature must be 0 (greedy) or more, found {temperature}.")


def _sampler_of(request: Request) -> Sampler | None:
    if request.temperature == 0:
        return None
    return Sampler(request.temperature, torch.Generator().manual_seed(request.seed))
