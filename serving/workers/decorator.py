"""`@worker`: a Python function with its catalog entry, callable by plans and, as before, by its own name.

The entry comes from signature and docstring (`contract.importers.functions`). Arguments are validated and handed over
as typed objects (`arguments.py`), results become JSON data (`results.py`), sync functions run in daemon threads
(`threads.py`), async ones in a task of their own. So a caller who is cancelled goes at once, and whatever a function
raises ends the call and nothing else, `SystemExit` included. Not covered: tasks and threads that a function starts by
itself, and an async function that swallows its cancellation (nobody waits for it, but it lives on in the event loop).
Time limits, retries and permissions are the orchestrator's.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from plansmith.contract.catalog import Effect, Worker
from plansmith.contract.errors import InputError
from plansmith.contract.importers.functions import read_signature, worker_from_function
from plansmith.contract.importers.result import Notes
from plansmith.contract.plan import Json
from plansmith.serving.workers.arguments import ArgumentReader
from plansmith.serving.workers.base import CallInfo, FailureCode, WorkerError
from plansmith.serving.workers.marks import has_mark, is_secret
from plansmith.serving.workers.results import MAX_RESULT_BYTES, ResultReader
from plansmith.serving.workers.threads import Outcome, WorkerThreads, shared_threads

P = ParamSpec("P")
R = TypeVar("R")


class FunctionWorker(Generic[P, R]):
    """A function that plans can call (`call`), and that code can still call as it is (`__call__`)."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        effect: Effect | str = Effect.WRITE,
        idempotent: bool = False,
        permission: str | None = None,
        timeout_s: float = 30.0,
        approval: bool = False,
        max_result_bytes: int = MAX_RESULT_BYTES,
        threads: WorkerThreads | None = None,
    ) -> None:
        """Read the function; see `worker` for the arguments.

        Raises:
            InputError: it cannot be a worker; the message says why.

        """
        signature, what = read_signature(fn), f"function {getattr(fn, '__name__', repr(fn))!r}"
        target = inspect.unwrap(cast("Callable[..., Any]", getattr(fn, "func", fn)))  # of a partial
        if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
            raise InputError(f"{what} is a generator, but a call has one result. Return a list.")
        if max_result_bytes < 1:
            raise InputError(f"{what}: max_result_bytes must be at least 1, found {max_result_bytes}.")
        notes = Notes()
        annotations = {key: parameter.annotation for key, parameter in signature.parameters.items()}
        self._hidden = frozenset(key for key, found in annotations.items() if has_mark(found, CallInfo))
        self._secrets = frozenset(key for key, found in annotations.items() if is_secret(found))
        self._worker = worker_from_function(
            cast("Callable[..., Any]", fn),
            name=name,
            effect=effect,
            idempotent=idempotent,
            permission=permission,
            timeout_s=timeout_s,
            hidden=self._hidden,
            notes=notes,
        )
        self.fn = fn
        self.notes: tuple[str, ...] = notes.lines()
        """What the signature left open, e.g. a parameter without annotation."""
        self._approval = approval
        self._threads = threads
        self._arguments = ArgumentReader(self._worker, fn, self._hidden, self._secrets)
        returned = signature.return_annotation
        annotation = Any if returned is inspect.Signature.empty else returned
        self._results = ResultReader(self._worker.returns, annotation, max_bytes=max_result_bytes)
        self._is_async = inspect.iscoroutinefunction(fn)
        self._tasks: set[asyncio.Task[Outcome]] = set()
        self._late = 0
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The plain function, with nothing validated or converted."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"FunctionWorker({self._worker.name!r})"

    @property
    def worker(self) -> Worker:
        """Its catalog entry."""
        return self._worker

    @property
    def secrets(self) -> frozenset[str]:
        """Parameters whose annotation holds `Secret()` or a pydantic secret type, at any depth."""
        return self._secrets

    @property
    def approval(self) -> bool:
        """Whether a person must agree to each call."""
        return self._approval

    @property
    def threads(self) -> WorkerThreads:
        """Where it runs if it is a sync function."""
        return shared_threads() if self._threads is None else self._threads

    @property
    def late_results(self) -> int:
        """Results of this async worker that came after its caller had gone; a sync worker's are in `threads`."""
        return self._late

    async def call(self, args: dict[str, Json], info: CallInfo) -> Json:
        """Validate, run, and give the result as JSON data.

        Args:
            args: references resolved; a parameter for `CallInfo` must not be among them.
            info: which call this is.

        Raises:
            WorkerError: a wrong argument, an unusable result, the function's own, or anything that is no `Exception`.
            Exception: whatever else the function raised.
            CancelledError: the caller was cancelled. One that the function raised by itself is a `WorkerError`.

        """
        given = self._arguments.read(args) | dict.fromkeys(self._hidden, info)
        run = cast("Callable[..., Any]", self.fn)
        if self._is_async:
            outcome = await self._in_task(functools.partial(run, **given))
        else:
            outcome = await self.threads.run(functools.partial(self._sync, run, given))
        if outcome.error is None and inspect.isawaitable(outcome.value):
            awaitable = outcome.value
            outcome = await self._in_task(lambda: awaitable)
        if outcome.error is not None:
            raise _as_exception(outcome.error)
        return outcome.value

    def _sync(self, run: Callable[..., Any], given: dict[str, Any]) -> Any:
        """In the thread: call, and convert there too, so that a large result does not hold up the event loop."""
        value = run(**given)
        return value if inspect.isawaitable(value) else self._results.read(value)

    async def _in_task(self, work: Callable[[], Awaitable[Any]]) -> Outcome:
        """Run what can be awaited apart from the caller, who can thereby leave while it still ends."""
        task = asyncio.get_running_loop().create_task(_guarded(work, self._results.read))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # cancelled before its first step by somebody who cancels every task
                return Outcome(error=asyncio.CancelledError())
            task.add_done_callback(self._count_late)
            task.cancel()
            raise

    def _count_late(self, task: asyncio.Task[Outcome]) -> None:
        if not task.cancelled() and not isinstance(task.result().error, asyncio.CancelledError):
            self._late += 1


async def _guarded(work: Callable[[], Awaitable[Any]], read: Callable[[Any], Json]) -> Outcome:
    """What a coroutine gave or raised, as data: its `SystemExit` must not reach the event loop."""
    try:
        return Outcome(read(await work()))
    except BaseException as error:
        return Outcome(error=error)


def _as_exception(error: BaseException) -> Exception:
    """An error that may be raised inside a coroutine: what is no `Exception` would stop the loop, or mean cancelled."""
    if isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration)):
        return error
    failure = WorkerError(FailureCode.INTERNAL, f"it raised {type(error).__name__}, which ended the call.")
    failure.__cause__ = error
    return failure


@overload
def worker(fn: Callable[P, R], /) -> FunctionWorker[P, R]: ...


@overload
def worker(
    *,
    name: str | None = None,
    effect: Effect | str = Effect.WRITE,
    idempotent: bool = False,
    permission: str | None = None,
    timeout_s: float = 30.0,
    approval: bool = False,
    max_result_bytes: int = MAX_RESULT_BYTES,
    threads: WorkerThreads | None = None,
) -> Callable[[Callable[P, R]], FunctionWorker[P, R]]: ...


def worker(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a worker: `@worker`, `@worker(effect="read")`, `worker(fn)`.

    Args:
        fn: an annotated function, bound method or partial with a name, sync or async.
        **options: `name` (the function's own), `effect` (`write`: the careful guess), `idempotent` (False),
            `permission` (None), `timeout_s` (30), `approval` (False: no person need agree), `max_result_bytes` (1 MiB),
            `threads` (the pool that all workers of the process share).

    Returns:
        The `FunctionWorker`, or a decorator that makes one.

    Raises:
        InputError: the function cannot be a worker.

    """
    if fn is None:
        return functools.partial(_make, options)
    return _make(options, fn)


def _make(options: dict[str, Any], fn: Callable[..., Any]) -> FunctionWorker[..., Any]:
    return FunctionWorker(fn, **options)
