"""HTTP over plain sockets: every form of an answer, cut anywhere, and every way to break one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.serving.config import EndpointConfig
from plansmith.serving.lean_http import MAX_HEAD, HttpError, LeanPool, Response
from plansmith.serving.openai_wire import Wire, is_plain
from tests.serving import openai_server as scripted
from tests.serving.openai_server import OpenAIServer, Reply

T = TypeVar("T")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
Talk = Callable[[LeanPool], Coroutine[Any, Any, T]]
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


class Server:
    """Answers each request on a connection with the next list of pieces; None closes the connection."""

    def __init__(self, *answers: list[bytes | None]) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.ended = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                await reader.readexactly(len(REQUEST))
                for piece in self.answers.pop(0):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.001)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.ended += 1


def talk(server: Serve, what: Talk[T]) -> T:
    async def main() -> T:
        served: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            served.add(task)
            try:
                await server(reader, writer)
            finally:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        pool = LeanPool("127.0.0.1", listening.sockets[0].getsockname()[1], connect_seconds=5)
        try:
            return await asyncio.wait_for(what(pool), 10)
        finally:
            await pool.close()
            listening.close()
            await listening.wait_closed()
            await asyncio.gather(*served, return_exceptions=True)

    return asyncio.run(main())


def one(*pieces: bytes | None) -> Response:
    return talk(Server(list(pieces)), lambda pool: pool.exchange(REQUEST))


ANSWERS = {
    "length": (OK, b"hello"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=1\r\nlo\r\n0\r\n\r\n", b"hello"),
    "trailers": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx: y\r\nz: w\r\n\r\n",
        b"hello",
    ),
    "after 100": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + OK, b"hello"),
    "old": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
    "error": (b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nno", b"no"),
    "twice the same length": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok", b"ok"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_in_every_form(name: str):
    answer, content = ANSWERS[name]
    assert one(answer).content == content
    assert one(*(answer[start : start + 1] for start in range(len(answer)))).content == content


def test_an_answer_may_end_with_the_connection():
    assert one(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", None) == Response(200, {}, b"hello")
    assert one(OK, None).content == b"hello"
    assert one(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello", None).content == b"hello"


def test_headers_have_lower_case_names_and_are_joined():
    found = one(b"HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nVary: a\r\nVARY: b\r\nContent-Length: 0\r\n\r\n")
    assert (found.status, found.headers) == (429, {"retry-after": "3", "vary": "a, b", "content-length": "0"})


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([None], "broke after 0 bytes"),
        ([OK[:-2], None], "broke after 41 bytes"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel", None], "broke after"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "no HTTP: it begins with 'SSH"),
        ([b"HTTP/1.1 abc\r\n\r\n"], "no HTTP"),
        ([b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"], "no colon"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"], "its length is '-1'"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"], "its length is '1, 2'"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n"], "not asked for"),
        ([b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n"], "not asked for"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+5\r\nhello\r\n"], "a chunk has the size"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhello\r\n"], "longer than it says"),
        ([b"x" * (MAX_HEAD + 1)], "its head has over"),
    ],
)
def test_what_is_no_answer_is_an_error(pieces: list[bytes | None], message: str):
    with pytest.raises(HttpError, match=message):
        one(*pieces)


@settings(max_examples=60, deadline=None)
@given(answer=st.binary(max_size=80), start=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", OK[:30]]))
def test_no_bytes_break_more_than_their_own_exchange(answer: bytes, start: bytes):
    with suppress(HttpError):
        one(start + answer, None)


def test_a_connection_is_used_again_unless_it_may_not():
    async def three(pool: LeanPool) -> list[bytes]:
        return [(await pool.exchange(REQUEST)).content for _ in range(3)]

    server = Server([OK], [OK], [OK])
    assert talk(server, three) == [b"hello"] * 3
    assert server.connections == 1
    for last in (
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        OK + b"more than was asked for",
    ):
        server = Server([last], [last], [last])
        assert talk(server, three) == [b"hello"] * 3
        assert server.connections == 3


def test_a_connection_that_the_server_closed_meanwhile_is_not_used():
    async def later(pool: LeanPool) -> bytes:
        await pool.exchange(REQUEST)
        await asyncio.sleep(0.05)
        return (await pool.exchange(REQUEST)).content

    server = Server([OK, None], [OK])
    assert talk(server, later) == b"hello"
    assert server.connections == 2


def test_a_request_that_is_given_up_takes_its_connection_with_it():
    async def impatient(pool: LeanPool) -> bytes:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pool.exchange(REQUEST)
        content = (await pool.exchange(REQUEST)).content
        while server.ended < 1:
            await asyncio.sleep(0.01)
        return content

    server = Server([], [OK])
    assert talk(server, impatient) == b"hello"
    assert (server.connections, server.ended) == (2, 1)


def test_no_server_is_an_error():
    async def refused() -> None:
        await LeanPool("127.0.0.1", 9, connect_seconds=5).exchange(REQUEST)

    with pytest.raises(HttpError, match=r"127\.0\.0\.1:9"):
        asyncio.run(refused())


def test_many_answers_at_once_leave_the_event_loop_time_for_others():
    """Each caller keeps the loop for 2 ms; without turns a timer would wait for all of them."""

    async def crowd(pool: LeanPool) -> float:
        async def busy() -> None:
            await pool.exchange(REQUEST)
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass

        late = [0.0]

        async def watch() -> None:
            while True:
                begun = time.perf_counter()
                await asyncio.sleep(0)
                late.append(time.perf_counter() - begun)

        timer = asyncio.create_task(watch())
        await asyncio.gather(*(busy() for _ in range(100)))
        timer.cancel()
        return max(late)

    release = asyncio.Event()

    async def together(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST))
        waiting.append(writer)
        if len(waiting) == 100:
            release.set()
        await release.wait()
        writer.write(OK)
        await writer.drain()
        await reader.read()

    waiting: list[asyncio.StreamWriter] = []
    assert talk(together, crowd) < 0.15  # 100 x 2 ms at once would be 200 ms


def wire(server_url: str, key: str | None = None, **settings: Any) -> tuple[Response, Wire]:
    async def main() -> tuple[Response, Wire]:
        made = Wire(EndpointConfig(url=server_url, model="m", **settings), key)
        try:
            return await made.post(b'{"model":"m","messages":[{"role":"user","content":"Query: q\\nPlan:"}]}'), made
        finally:
            await made.close()

    return asyncio.run(main())


@pytest.mark.parametrize("key", [None, "sk-secret"])
def test_plain_requests_have_the_official_clients_headers(key: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    with OpenAIServer(scripted.answers("[]")) as server:
        lean, _ = wire(server.url, key)
        monkeypatch.setattr("plansmith.serving.openai_wire.is_plain", lambda url: False)
        official, _ = wire(server.url, key)
        ours, theirs = (dict(asked.headers) for asked in server.requests)
        paths = {asked.path for asked in server.requests}
    per_request = {"connection", "accept-encoding", "x-stainless-retry-count", "x-stainless-read-timeout"}
    assert {k: v for k, v in theirs.items() if k not in per_request} == {
        k: v for k, v in ours.items() if k not in per_request
    }
    assert ours.get("authorization") == (f"Bearer {key}" if key else None)
    assert (lean.status, lean.content) == (official.status, official.content)
    assert paths == {"/v1/chat/completions"}


def test_errors_come_back_with_their_status_on_both_ways(monkeypatch: pytest.MonkeyPatch):
    with OpenAIServer(scripted.rate_limited(retry_after="7")) as server:
        lean, _ = wire(server.url)
        monkeypatch.setattr("plansmith.serving.openai_wire.is_plain", lambda url: False)
        official, _ = wire(server.url)
    for response in (lean, official):
        assert (response.status, response.headers["retry-after"]) == (429, "7")
        assert b"slow down" in response.content
    for plain in (True, False):
        monkeypatch.setattr("plansmith.serving.openai_wire.is_plain", lambda url, plain=plain: plain)
        with pytest.raises(HttpError):
            wire("http://127.0.0.1:9/v1")


def test_a_redirect_is_followed_by_the_official_client():
    with OpenAIServer(scripted.answers("[]")) as target:
        moved = Reply(b"", 307, {"location": f"{target.url}/chat/completions"})
        with OpenAIServer(scripted.always(moved)) as server:
            response, _ = wire(server.url)
    assert response.status == 200
    assert b"choices" in response.content


@pytest.mark.parametrize(
    ("url", "proxies", "plain"),
    [
        ("http://localhost:8000/v1", {}, True),
        ("https://api.example.org/v1", {}, False),
        ("http://api.example.org/v1", {"http_proxy": "http://proxy:3128"}, False),
        ("http://api.example.org/v1", {"all_proxy": "http://proxy:3128"}, False),
        ("http://api.example.org/v1", {"https_proxy": "http://proxy:3128"}, True),
        ("http://localhost:8000/v1", {"http_proxy": "http://proxy:3128", "no_proxy": "localhost"}, True),
    ],
)
def test_only_plain_http_without_a_proxy_goes_past_the_clients_transport(
    url: str, proxies: dict[str, str], plain: bool, monkeypatch: pytest.MonkeyPatch
):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    assert is_plain(url) is plain


def test_connections_are_spread_over_several_official_clients(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plansmith.serving.openai_wire.is_plain", lambda url: False)

    async def main(url: str) -> int:
        made = Wire(EndpointConfig(url=url, model="m", concurrency=40), None)
        try:
            await asyncio.gather(*(made.post(b'{"model":"m","prompt":""}') for _ in range(40)))
            return len(made._clients)
        finally:
            await made.close()

    with OpenAIServer(scripted.answers("[]", delay_s=0.05)) as server:
        assert asyncio.run(main(server.url)) == 3
        assert server.answered == 40
