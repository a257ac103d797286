"""HTTP GET over TLS: the connection goes to the address that was checked, the certificate must be the name's."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from plansmith.serving.workers.base import CallInfo, WorkerError
from plansmith.serving.workers.builtin.web import WebConfig, http_get
from tests.serving.test_builtin_web import Handler


class Server(NamedTuple):
    port: int
    authority: Path
    seen: list[Any]
    names: list[str]
    """Names that clients asked for in the handshake."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves a certificate for shop.test only, on a local address."""
    authority = trustme.CA()
    pem = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("shop.test").configure_cert(context)
    names: list[str] = []
    context.sni_callback = lambda _, name, __: names.append(name or "")
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.seen = []  # type: ignore[attr-defined]
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    httpd.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield Server(httpd.server_address[1], pem, httpd.seen, names)  # type: ignore[attr-defined]
    httpd.shutdown()
    httpd.server_close()


def fetch(server: Server, host: str, *, trusted: bool = True) -> Any:
    async def resolve(name: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    hosts = ("shop.test", "other.test")
    ca_file = server.authority if trusted else None
    config = WebConfig(hosts=hosts, local_hosts=hosts, ports=frozenset({server.port}), ca_file=ca_file)
    return asyncio.run(
        http_get(config, resolve=resolve).call({"url": f"https://{host}:{server.port}/json"}, CallInfo("r", 0))
    )


def test_the_name_is_asked_for_and_its_certificate_taken(server: Server):
    page = fetch(server, "shop.test")
    assert page["body"] == {"city": "Oslo"}
    assert page["url"] == f"https://shop.test:{server.port}/json"
    assert server.names[-1] == "shop.test"
    assert server.seen[-1][1]["Host"] == f"shop.test:{server.port}"


@pytest.mark.parametrize(("host", "trusted"), [("other.test", True), ("shop.test", False)])
def test_another_names_certificate_and_an_unknown_authority_are_no_answer(server: Server, host: str, trusted: bool):
    before = len(server.seen)
    with pytest.raises(WorkerError) as caught:
        fetch(server, host, trusted=trusted)
    assert caught.value.code == "NETWORK"
    assert len(server.seen) == before, "nothing was asked of a server that is somebody else"
