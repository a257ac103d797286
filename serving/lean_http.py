"""HTTP/1.1 requests over plain TCP with little work a request, for servers on this machine or network.

The official client's transport takes milliseconds a request where hundreds are under way, which a local server answers
faster. Connections are kept open and used again, the last one first. Answers may have a length, come in chunks, or end
with the connection. Whatever is no such answer is an `HttpError`. Not covered: TLS, proxies, redirects, compression
(none is asked for), HTTP/2.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

MAX_HEAD = 64 * 1024
MAX_CONTENT = 64 * 1024 * 1024
_HANDED_OUT_AT_ONCE = 8
"""Answers that are handed out in one turn of the event loop. Where hundreds come together, what their callers do with
them would otherwise keep the loop from everything else."""


class HttpError(Exception):
    """No connection, one that broke, or an answer that is no HTTP."""


class Response(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case; one that comes several times has its values joined with commas."""
    content: bytes


class LeanPool:
    """Connections to one server, for one event loop."""

    def __init__(self, host: str, port: int, *, connect_seconds: float) -> None:
        self.host = host
        self.port = port
        self._connect_seconds = connect_seconds
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._ready: deque[tuple[asyncio.Future[Response], Response]] = deque()

    async def exchange(self, request: bytes) -> Response:
        """Send a whole request and return the answer; a cancelled one takes its connection with it.

        Raises:
            HttpError: there is no connection, it broke, or the answer is none.

        """
        connection = self._take() or await self._connect()
        try:
            response = await connection.exchange(request)
        except BaseException:
            connection.transport.abort()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.transport.close()
        return response

    async def close(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.transport.abort()
        while self._open:
            await asyncio.sleep(0)

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection in self._open and not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(lambda: _Connection(self), self.host, self.port)
        except TimeoutError:
            raise HttpError(f"no connection to {self.host}:{self.port} within {self._connect_seconds:g} s") from None
        except OSError as error:
            raise HttpError(f"{error.strerror or error} ({self.host}:{self.port})") from error
        return connection

    def opened(self, connection: _Connection) -> None:
        self._open.add(connection)

    def lost(self, connection: _Connection) -> None:
        self._open.discard(connection)

    def hand_out(self, answer: asyncio.Future[Response], response: Response) -> None:
        """Give an answer to who waits for it, soon."""
        self._ready.append((answer, response))
        if len(self._ready) == 1:
            asyncio.get_running_loop().call_soon(self._hand_out)

    def _hand_out(self) -> None:
        for _ in range(min(_HANDED_OUT_AT_ONCE, len(self._ready))):
            answer, response = self._ready.popleft()
            if not answer.done():
                answer.set_result(response)
        if self._ready:
            asyncio.get_running_loop().call_soon(self._hand_out)


class _Head(NamedTuple):
    """The head of an answer, and how its content ends."""

    status: int
    headers: dict[str, str]
    start: int
    """Where the content starts in the buffer."""
    length: int | None
    """Bytes of content; None: chunks, or up to the end of the connection."""
    chunked: bool
    keep: bool
    """Whether the connection may be used again."""


class _Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self, pool: LeanPool) -> None:
        self.reusable = True
        self._pool = pool
        self._answer: asyncio.Future[Response] | None = None
        self._buffer = bytearray()
        self._head: _Head | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._pool.opened(self)

    async def exchange(self, request: bytes) -> Response:
        answer = self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            return await answer
        finally:
            self._answer = None

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.reusable = False  # bytes that nobody asked for
            self.transport.close()
            return
        self._buffer += data
        try:
            response = self._read()
        except ValueError as error:
            self._fail(f"the answer is no HTTP: {error}")
            return
        if response is not None:
            self._finish(response)

    def eof_received(self) -> None:
        head = self._head
        if head is not None and head.length is None and not head.chunked and self._waiting():
            self._finish(Response(head.status, head.headers, bytes(self._buffer[head.start :])))

    def connection_lost(self, exc: Exception | None) -> None:
        self.eof_received()
        self._pool.lost(self)
        self.reusable = False
        read = len(self._buffer)
        self._fail(f"the connection broke after {read} bytes of the answer" + (f" ({exc})" if exc else ""))

    def _waiting(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def _finish(self, response: Response) -> None:
        assert self._head is not None
        self.reusable = self.reusable and self._head.keep
        self._buffer.clear()
        self._head = None
        if self._answer is not None:
            self._pool.hand_out(self._answer, response)
            self._answer = None

    def _fail(self, found: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(HttpError(found))

    def _read(self) -> Response | None:
        """The answer in the buffer; None as long as it is not whole. Raises `ValueError` where it is none."""
        while self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 and len(self._buffer) > MAX_HEAD:
                raise ValueError(f"its head has over {MAX_HEAD} bytes")
            if end < 0:
                return None
            head = _parse_head(bytes(self._buffer[:end]))
            if head.status < 200:  # only tells that the answer will come
                del self._buffer[: end + 4]
            else:
                self._head = head
        head = self._head
        if len(self._buffer) > head.start + MAX_CONTENT:
            raise ValueError(f"it has over {MAX_CONTENT} bytes")
        if head.chunked:
            found = _join_chunks(self._buffer, head.start)
        elif head.length is not None and len(self._buffer) >= head.start + head.length:
            found = bytes(self._buffer[head.start : head.start + head.length]), head.start + head.length
        else:
            found = None
        if found is None:
            return None
        self.reusable = self.reusable and found[1] == len(self._buffer)
        return Response(head.status, head.headers, found[0])


@lru_cache(maxsize=16)
def _parse_head(head: bytes) -> _Head:
    """Answers of one server have the same head for a second, up to the next `date`."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise ValueError(f"it begins with {first!r:.60}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"its head has the line {line!r:.60}")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    status = int(rest[:3])
    chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    if ("transfer-encoding" in headers and not chunked) or headers.get("content-encoding", "identity") != "identity":
        raise ValueError("it is encoded in a way that was not asked for")
    length = 0 if status in (204, 304) else _length(headers) if not chunked else None
    tokens = headers.get("connection", "").lower()
    keep = "close" not in tokens if version != "HTTP/1.0" else "keep-alive" in tokens
    return _Head(
        status, headers, len(head) + 4, length, chunked and length is None, keep and (chunked or length is not None)
    )


def _length(headers: dict[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    lengths = {part.strip() for part in text.split(",")}
    if len(lengths) != 1 or not (only := lengths.pop()).isdecimal():
        raise ValueError(f"its length is {text!r:.40}")
    return int(only)


def _join_chunks(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    """The content of chunks and where they end; None as long as the last one is missing."""
    parts: list[bytes] = []
    while True:
        end = buffer.find(b"\r\n", start)
        if end < 0:
            return None
        size = _chunk_size(bytes(buffer[start:end]))
        start = end + 2
        if size == 0:
            break
        if len(buffer) < start + size + 2:
            return None
        if not buffer.startswith(b"\r\n", start + size):
            raise ValueError("a chunk is longer than it says")
        parts.append(bytes(buffer[start : start + size]))
        start += size + 2
    while (end := buffer.find(b"\r\n", start)) != start:  # headers after the content, which nobody needs
        if end < 0:
            return None
        start = end + 2
    return b"".join(parts), start + 2


def _chunk_size(line: bytes) -> int:
    with suppress(ValueError):
        size = line.partition(b";")[0].strip()
        if size and size.isalnum():
            return int(size, 16)
    raise ValueError(f"a chunk has the size {line!r:.40}")
