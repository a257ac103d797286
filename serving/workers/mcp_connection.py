"""One MCP server that may die: a connection that is made anew, and calls that end in time whatever it does.

The client of the `mcp` package must be entered and left in one task, so a task of its own holds it. A call that finds
the connection gone makes a new one, once, under a lock; each is counted. A call that was under way when the server died
is never sent again, since nobody knows what the server did with it. Calls have a time limit of their own around
everything, because the client's read timeout starts only after the request has been written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from plansmith.contract.errors import MissingExtraError, ServiceError
from plansmith.serving.workers.mcp_transports import NOT_SENT

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")

_CLOSE_S = 10.0
"""Most seconds for an orderly end: the client closes the server's input, waits, then ends its processes."""


class GoneError(Exception):
    """The server cannot be reached, or was lost."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent
        """Whether the server may have received the request."""


class _Session:
    """One life of a connection, held by a task of its own."""

    def __init__(self, transport: Any, connect_timeout_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Client] = self.loop.create_future()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.reason = ""
        self._leave = asyncio.Event()
        self._timeout_s = connect_timeout_s
        self.task = self.loop.create_task(self._hold(transport))

    @property
    def alive(self) -> bool:
        return self.loop is asyncio.get_running_loop() and not self.ended.done()

    async def _hold(self, transport: Any) -> None:
        from mcp import Client

        try:
            async with asyncio.timeout(self._timeout_s) as limit, Client(_watched(transport, self.lost)) as client:
                limit.reschedule(None)
                self.ready.set_result(client)
                await self._leave.wait()
        except BaseException as error:  # the transport's task group ends with whatever its tasks raised
            self.reason = self.reason or reason_of(error)
            if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, SystemExit)):
                raise
        finally:
            self.lost()

    def lost(self) -> None:
        """The server is gone: wake whoever waits, and let the task leave."""
        self._leave.set()
        self.ready.cancel()
        if not self.ended.done():
            self.ended.set_result(None)

    async def close(self) -> None:
        self._leave.set()
        if self.loop is not asyncio.get_running_loop():  # its loop has ended, and its task with it
            return
        done, _ = await asyncio.wait({self.task}, timeout=_CLOSE_S)
        if not done:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=_CLOSE_S)


class Connection:
    """A server that is reached again when it was lost."""

    def __init__(self, name: str, transport: Callable[[], Any], *, connect_timeout_s: float) -> None:
        """Make no connection yet.

        Args:
            name: for messages.
            transport: gives a new transport of the `mcp` package for each life.
            connect_timeout_s: limit of starting the server and shaking hands.

        """
        self.name = name
        self.reconnects = 0
        """Connections that were made after the first one was lost."""
        self.losses = 0
        """Calls that ended because the server could not be reached or was lost."""
        self._transport = transport
        self._timeout_s = connect_timeout_s
        self._session: _Session | None = None
        self._closing: list[_Session] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            MissingExtraError: the package `mcp` is not installed.
            ServiceError: the server cannot be started or reached.

        """
        try:
            import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise MissingExtraError("mcp", "mcp") from error
        try:
            await self._client()
        except GoneError as error:
            raise ServiceError(f"MCP server {self.name!r} cannot be reached: {error.reason}.") from error

    async def request(self, work: Callable[[Client], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Run one request against the server.

        Raises:
            TimeoutError: it took longer than `timeout_s`, connecting included.
            GoneError: the server cannot be reached, or was lost meanwhile.
            Exception: whatever the request raised.

        """
        task = asyncio.get_running_loop().create_task(self._request(work))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()  # it says goodbye to the server by itself, which may take seconds: nobody waits for that
            raise TimeoutError
        return task.result()

    async def _request(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        before = self._session
        try:
            try:
                return await self._once(work)
            except GoneError as error:
                again = self._session is before and before is not None and not before.alive
                if error.sent or not again:
                    raise
                return await self._once(work)  # surely not carried out, and this call has not connected anew yet
        except GoneError:
            self.losses += 1
            raise

    async def _once(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        client, session = await self._client()
        task = session.loop.create_task(work(client))
        try:
            await asyncio.wait({task, session.ended}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                self._settle(task, session)
                return task.result()
        finally:
            task.cancel()
        await asyncio.wait({session.task}, timeout=_CLOSE_S)
        raise GoneError(session.reason or "the server ended", sent=True)

    def _settle(self, task: asyncio.Task[Any], session: _Session) -> None:
        """Raise for a request that failed because its connection was closed, or its session is unknown."""
        error = None if task.cancelled() else task.exception()
        if is_closed(error) or task.cancelled():
            reason = reason_of(error) if error else "the request was dropped"
            raise GoneError(session.reason or reason, sent=not is_unsent(error)) from error
        if is_terminated(error):
            session.lost()
            raise GoneError("the server does not know this session any more", sent=False) from error

    async def _client(self) -> tuple[Client, _Session]:
        async with self._lock():
            if self._closed:
                raise GoneError("the registry is closed", sent=False)
            if self._session is None or not self._session.alive:
                await self._connect()
            session = self._session
            assert session is not None
            return session.ready.result(), session

    async def _connect(self) -> None:
        if self._session is not None:
            self.reconnects += 1
            self._closing.append(self._session)
        session = self._session = _Session(self._transport(), self._timeout_s)
        try:
            await asyncio.wait({session.ready})
        except asyncio.CancelledError:
            session.task.cancel()
            raise
        if session.ready.cancelled():
            await asyncio.wait({session.task}, timeout=_CLOSE_S)
            raise GoneError(session.reason or "the server ended while connecting", sent=False)
        self._closing = [old for old in self._closing if not old.task.done()]

    def _lock(self) -> asyncio.Lock:
        """A lock of the running loop: a registry may outlive one `asyncio.run`."""
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening[0] is not loop:
            self._opening = (loop, asyncio.Lock())
        return self._opening[1]

    async def aclose(self) -> None:
        """End the calls under way and the server's process; a second time does nothing."""
        self._closed = True
        calls = [task for task in self._calls if task.get_loop() is asyncio.get_running_loop()]
        for task in calls:
            task.cancel()
        if calls:
            await asyncio.wait(calls, timeout=_CLOSE_S)
        for session in [*self._closing, *([] if self._session is None else [self._session])]:
            await session.close()


@contextlib.asynccontextmanager
async def _watched(transport: Any, lost: Callable[[], None]) -> AsyncGenerator[tuple[Any, Any], None]:
    """The transport, with a read stream that says at once when the server has ended."""
    async with transport as (read, write):
        yield _Watched(read, lost), write


class _Watched:
    """A read stream that passes everything on, and calls `lost` at its end."""

    def __init__(self, stream: Any, lost: Callable[[], None]) -> None:
        self._stream, self._lost = stream, lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                self._lost()
            raise

    async def receive(self) -> Any:
        """The next message."""
        return await self._stream.receive()

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


def leaves(error: BaseException) -> list[BaseException]:
    """The errors inside a group of groups."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return [leaf for part in parts for leaf in leaves(part)]


def reason_of(error: BaseException) -> str:
    """What ended a connection, in a few words."""
    found = leaves(error)[0]
    if isinstance(found, TimeoutError):
        return "it did not answer in time"
    if isinstance(found, asyncio.CancelledError):
        return "the connection was closed"
    text = (str(found).splitlines() or [""])[0].rstrip(".")
    if type(found).__name__ == "MCPError":
        return text or "the server refused"
    return f"{type(found).__name__}: {text}" if text else type(found).__name__


def is_closed(error: BaseException | None) -> bool:
    """Whether a request failed because its connection was closed, not because the server answered."""
    import anyio
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED

    if isinstance(error, MCPError):
        return error.code == CONNECTION_CLOSED
    return isinstance(error, (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream))


def is_unsent(error: BaseException | None) -> bool:
    """Whether our own transport says that no server has seen the request."""
    data = getattr(error, "data", None)
    return isinstance(data, dict) and cast("dict[str, Any]", data).get(NOT_SENT) is True


def is_terminated(error: BaseException | None) -> bool:
    """Whether an HTTP server, started anew, refused the session of the old one; then it did nothing else."""
    from mcp import MCPError

    return isinstance(error, MCPError) and error.message == "Session terminated"
