"""Asks a teacher over HTTP from workers of Ray: the same client in each, with a share of the requests under way.

`RayPlanner` is a `Planner` like any other, and `teacher.py` asks through it as it asks an endpoint: that alone decides
what is asked, keeps the budget, and writes each answer the moment it comes. A worker gets one query at a time and hands
its answer back at once, so a worker that is killed loses only what it had under way. That is given to another worker
(counted as `asked_again`, and against the budget as a retry), and a new worker takes its place (`workers_lost`); what
the lost one had counted since its last answer is lost with it. A query on which the client's code fails, or that ended
three workers, is a failed request like any other. The key of the endpoint is read from the environment where the worker
runs and never sent. Ray is started by the first request and ended by `release`.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft, Planner
from plansmith.contract.errors import CatalogMismatchError, InputError, PlansmithError, ServiceError
from plansmith.data.ray_config import NoRayError, RayConfig
from plansmith.data.ray_session import ray_session, require_ray

_MOST_LOST = 3
"""Workers that one request may lose before it counts as failed; also starts of a worker that may fail in a row."""
_START_SECONDS = 180.0
"""How long to wait for the first worker."""


@runtime_checkable
class _Held(Protocol):
    """A planner that can prove that its endpoint decodes under a schema."""

    async def require_constraint(self) -> None: ...


class _Told(NamedTuple):
    """What a worker says about one request."""

    draft: Draft | None
    error: Exception | None
    counts: dict[str, int]
    """What its client counted since it last said something."""
    models: dict[str, int]


class _Asker:
    """What runs in a worker."""

    def __init__(self, make: Callable[[int], Planner], share: int, catalog: Catalog) -> None:
        self._catalog = catalog
        self._told: dict[str, Counter[str]] = {"counts": Counter(), "models": Counter()}
        self._planner: Planner | None = None
        self._error: Exception | None = None
        try:
            self._planner = make(share)
        except Exception as error:
            self._error = _portable(error)

    async def ready(self) -> Exception | None:
        """Why it cannot ask; None where it can."""
        return self._error

    async def plan(self, query: str, options: dict[str, Any]) -> _Told:
        """Ask for one plan; whatever goes wrong is part of the answer."""
        assert self._planner is not None, "the worker said that it cannot ask"
        try:
            return self._tell(draft=await self._planner.plan(query, self._catalog, **options))
        except Exception as error:
            return self._tell(error=_portable(error))

    async def require_constraint(self) -> _Told:
        """As `OpenAIPlanner.require_constraint`."""
        try:
            if isinstance(self._planner, _Held):
                await self._planner.require_constraint()
        except Exception as error:
            return self._tell(error=_portable(error))
        return self._tell()

    def _tell(self, draft: Draft | None = None, error: Exception | None = None) -> _Told:
        return _Told(draft, error, self._news("counts"), self._news("models"))

    def _news(self, name: str) -> dict[str, int]:
        now = Counter(cast("dict[str, int]", getattr(self._planner, name, {})))
        before, self._told[name] = self._told[name], now
        return dict(now - before)


def _portable(error: Exception) -> Exception:
    """An error that another process can read; one of the code itself is a request that failed."""
    if not isinstance(error, PlansmithError):
        return ServiceError(f"asking failed with {type(error).__name__}: {error}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = InputError if isinstance(error, InputError) else ServiceError
        return kind(str(error))
    return error


@dataclass
class _Seat:
    """The place of one worker, whoever sits there."""

    share: int
    starting: asyncio.Task[None]
    actor: Any = None
    """None while it starts."""
    under_way: int = 0

    @property
    def load(self) -> float:
        return self.under_way / self.share


class RayPlanner:
    """A `Planner` whose requests are made by workers of Ray."""

    def __init__(
        self, config: RayConfig, make: Callable[[int], Planner], catalog: Catalog, *, concurrency: int
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            config: where Ray is.
            make: makes the client for so many requests at once; runs in the workers, so it must be picklable.
            catalog: the workers that plans may call; sent once.
            concurrency: requests under way at once, in all workers together.

        Raises:
            MissingExtraError: Ray is not installed.

        """
        require_ray()
        self.counts: Counter[str] = Counter()
        """What all clients counted, and `workers_lost` and `asked_again`."""
        self.models: Counter[str] = Counter()
        """Names of the models that answered."""
        self._config, self._make, self._catalog, self._concurrency = config, make, catalog, concurrency
        self._stack = ExitStack()
        self._ray: Any = None
        self._unusable: NoRayError | None = None
        self._seats: list[_Seat] = []

    async def plan(
        self,
        query: str,
        catalog: Catalog,
        *,
        constrained: bool = True,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> Draft:
        """As `OpenAIPlanner.plan`.

        Raises:
            ServiceError: no answer came.
            NoRayError: no worker could be had.
            CatalogMismatchError: the workers have another catalog.

        """
        if catalog.hash != self._catalog.hash:
            raise CatalogMismatchError(what="the planner", expected=catalog.hash, found=self._catalog.hash)
        options: dict[str, Any] = {"constrained": constrained, "temperature": temperature, "seed": seed}
        options = {name: value for name, value in options.items() if value is not None}
        told = await self._ask(lambda actor: actor.plan.remote(query, options), query)
        assert told.draft is not None, "a worker that brings no error brings a draft"
        return told.draft

    async def require_constraint(self) -> None:
        """As `OpenAIPlanner.require_constraint`; one worker proves it for all."""
        await self._ask(lambda actor: actor.require_constraint.remote(), "whether plans are held to the schema")

    async def release(self) -> None:
        """End the workers, and Ray where it is our own; the planner stays usable."""
        tasks = [seat.starting for seat in self._seats]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for seat in self._seats:
            if seat.actor is not None:
                self._ray.kill(seat.actor)
        self._seats = []
        self._ray = self._unusable = None
        self._stack.close()

    async def _ask(self, send: Callable[[Any], Awaitable[_Told]], what: str) -> _Told:
        """What a worker says; another one is asked where it is lost."""
        for _ in range(_MOST_LOST):
            seat = await self._seat()
            told = await self._through(seat, send)
            if told is None:
                self.counts.update(("asked_again", "retried"))
                continue
            self.counts.update(told.counts)
            self.models.update(told.models)
            if told.error is not None:
                raise told.error
            return told
        raise ServiceError(f"{_MOST_LOST} workers of Ray ended one after the other while they asked {what!r:.80}.")

    async def _through(self, seat: _Seat, send: Callable[[Any], Awaitable[_Told]]) -> _Told | None:
        """What the worker of a seat says; None where it is lost."""
        actor = seat.actor
        seat.under_way += 1
        try:
            return await send(actor)
        except self._ray.exceptions.RayActorError:
            if seat.actor is actor:  # the first of its requests to hear of it
                self.counts["workers_lost"] += 1
                self._ray.kill(actor)
                seat.actor = None
                seat.starting = asyncio.create_task(self._start(seat))
            return None
        except self._ray.exceptions.RayError as error:
            raise ServiceError(f"a worker of Ray could not ask: {error}") from error
        finally:
            seat.under_way -= 1

    async def _seat(self) -> _Seat:
        """The seat with the least to do whose worker is there."""
        if self._ray is None:
            self._open()
        while not (ready := [seat for seat in self._seats if seat.actor is not None]):
            starts = [seat.starting for seat in self._seats if not seat.starting.done()]
            if not starts:
                self._seats[0].starting.result()  # raises why there is none
            done, _ = await asyncio.wait(starts, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise NoRayError(
                    f"Ray gave no worker within {_START_SECONDS:g} s. Look at 'ray status', or ask for fewer "
                    "(teach.ray.workers)."
                )
        return min(ready, key=lambda seat: seat.load)

    def _open(self) -> None:
        """Have Ray, and start all workers."""
        if self._unusable is not None:
            raise self._unusable
        try:
            self._ray = self._stack.enter_context(ray_session(self._config))
        except NoRayError as error:
            self._unusable = error  # for those that ask at the same time
            raise
        number = min(self._config.workers, self._concurrency)
        for turn in range(number):
            share = self._concurrency // number + (turn < self._concurrency % number)
            seat = _Seat(share, asyncio.create_task(asyncio.sleep(0)))
            seat.starting = asyncio.create_task(self._start(seat))
            self._seats.append(seat)

    async def _start(self, seat: _Seat) -> None:
        """Put a worker into a seat.

        Raises:
            InputError: as the client raises it where it is made (its key is not set there).
            NoRayError: the worker ends as soon as it is started.

        """
        options: dict[str, Any] = {"max_concurrency": 2 * seat.share + 8, "scheduling_strategy": "SPREAD"}
        if self._config.address is None:
            options["num_cpus"] = 1
        for _ in range(_MOST_LOST):
            actor = self._ray.remote(**options)(_Asker).remote(self._make, seat.share, self._catalog)
            try:
                problem = await actor.ready.remote()
            except self._ray.exceptions.RayActorError:
                self.counts["workers_lost"] += 1
                continue
            if problem is not None:
                self.counts["workers_unusable"] += 1
                raise problem if isinstance(problem, InputError) else NoRayError(f"a worker cannot ask: {problem}")
            seat.actor = actor
            return
        raise NoRayError(
            f"a worker of Ray ended {_MOST_LOST} times as it was started. See that its machine has the same plansmith, "
            "and memory enough; then run the command again."
        )
