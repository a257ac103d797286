"""HTTP GET: what it fetches from a real server, and every way to lead it elsewhere that it refuses."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from plansmith.serving.workers.base import CallInfo, WorkerError
from plansmith.serving.workers.builtin.addresses import obstacle
from plansmith.serving.workers.builtin.web import WebConfig, http_get

PUBLIC = "93.184.216.34"


class Handler(BaseHTTPRequestHandler):
    """One path a behaviour."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return

    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]
        path = self.path
        if path.startswith("/to/"):
            return self.send(b"", status=302, location=path.removeprefix("/to/"))
        if path == "/json":
            return self.send(json.dumps({"city": "Oslo"}).encode(), kind="application/json; charset=utf-8")
        if path == "/broken":
            return self.send(b"{", kind="application/json")
        if path == "/image":
            return self.send(b"\x89PNG", kind="image/png")
        if path == "/large":
            return self.send(b"x" * 5000)
        if path == "/gzip":
            return self.send(gzip.compress(b"x" * 5_000_000), encoding="gzip")
        if path == "/endless":
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            return None
        if path == "/cookie":
            return self.send(b"ok", cookie="a=b")
        if path in ("/500", "/404", "/429"):
            return self.send(b"no", status=int(path[1:]))
        return self.send("héllo".encode("latin-1"), kind="text/plain; charset=latin-1")

    def send(
        self,
        body: bytes,
        *,
        status: int = 200,
        kind: str = "text/plain",
        location: str = "",
        encoding: str = "",
        cookie: str = "",
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (("Location", location), ("Content-Encoding", encoding), ("Set-Cookie", cookie)):
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.seen = []  # type: ignore[attr-defined]
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


class Names:
    """A name service that is scripted: answers in turn, the last again and again."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): answer for name, answer in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        given = self.answers[host]
        return given.pop(0) if len(given) > 1 else given[0]


def get(url: str, names: Names | None = None, **settings: Any) -> Any:
    config = WebConfig.model_validate({"hosts": ["site.test"], "local_hosts": ["site.test"], "timeout_s": 5} | settings)
    one = http_get(config, resolve=names or Names(site_test=[["127.0.0.1"]]))
    return asyncio.run(one.call({"url": url}, CallInfo("run", 0)))


def refusal(url: str, names: Names | None = None, **settings: Any) -> str:
    with pytest.raises(WorkerError) as caught:
        get(url, names, **settings)
    return f"{caught.value.code}: {caught.value.message}"


@pytest.fixture
def site(server: ThreadingHTTPServer) -> str:
    server.seen.clear()  # type: ignore[attr-defined]
    return f"http://site.test:{server.server_port}"


def local(server_or_site: str) -> dict[str, Any]:
    return {"ports": [int(server_or_site.rpartition(":")[2])]}


def test_text_and_json_are_fetched_with_their_encoding(site: str):
    page = get(f"{site}/page#part", **local(site))
    assert (page["body"], page["status"], page["type"]) == ("héllo", 200, "text/plain")
    assert get(f"{site}/json", **local(site))["body"] == {"city": "Oslo"}


def test_the_connection_goes_to_the_address_that_was_checked_and_the_host_stays_the_name(
    site: str, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    names = Names(site_test=[["127.0.0.1"], ["192.0.2.1"]])
    assert get(f"{site}/page", names, **local(site))["status"] == 200
    assert names.asked == ["site.test"]
    headers = server.seen[-1][1]  # type: ignore[attr-defined]
    assert headers["Host"] == site.removeprefix("http://")
    assert headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in headers


def test_redirects_are_followed_within_the_list_and_counted(site: str):
    assert get(f"{site}/to/{site}/to//json", **local(site))["body"] == {"city": "Oslo"}
    assert "rule 'redirects'" in refusal(f"{site}/to/" * 5 + "/json", **local(site))


def test_cookies_are_not_sent_back(site: str, server: ThreadingHTTPServer):
    get(f"{site}/cookie", **local(site))
    get(f"{site}/page", **local(site))
    assert "Cookie" not in server.seen[-1][1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/large", "FORBIDDEN: rule 'size'"),
        ("/gzip", "FORBIDDEN: rule 'encoding'"),
        ("/image", "FORBIDDEN: rule 'types'"),
        ("/broken", "NOT_JSON"),
        ("/404", "HTTP_404"),
        ("/500", "HTTP_500"),
        ("/429", "RATE_LIMITED"),
        ("/endless", "TIMEOUT"),
    ],
)
def test_what_a_server_may_send_instead_of_a_page_is_a_failure_by_name(site: str, path: str, said: str):
    assert refusal(f"{site}{path}", **local(site), max_bytes=1000, timeout_s=1).startswith(said)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("ftp://site.test/x", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("gopher://site.test/", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("//site.test/x", "scheme"),
        ("http://user:pw@site.test/", "userinfo"),
        ("http://site.test@evil.test/", "userinfo"),
        ("http://evil.test/", "hosts"),
        ("http://site.test.evil.test/", "hosts"),
        ("http://site.test./", "hosts"),
        ("http://xsite.test/", "hosts"),
        ("http://127.0.0.1/", "hosts"),
        ("http://2130706433/", "hosts"),
        ("http://0x7f.1/", "hosts"),
        ("http://0177.0.0.1/", "hosts"),
        ("http://127.1/", "hosts"),
        ("http://[::1]/", "hosts"),
        ("http://[::ffff:127.0.0.1]/", "hosts"),
        ("http://[fe80::1%25eth0]/", "hosts"),
        ("http://169.254.169.254/latest/meta-data", "hosts"),
        ("http:///x", "hosts"),
        ("http://site.test:22/", "ports"),
        ("http://site.test:99999/", "url"),
        ("http://site.test\\@evil.test/", "url"),
        ("http://site.test/\r\nX: y", "url"),
        ("http://site.test/a b", "url"),
        ("http://ｓite.test/", "url"),
        ("http://site。test/", "url"),
        ("http://[::1/", "url"),
        ("http://site.test/" + "x" * 3000, "url"),
    ],
)
def test_a_url_that_leads_elsewhere_is_refused_before_anything_is_resolved(url: str, rule: str):
    names = Names(site_test=[["127.0.0.1"]])
    said = refusal(url, names)
    assert said.startswith("FORBIDDEN")
    assert f"rule {rule!r}" in said
    assert names.asked == []


ADDRESSES = [
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.1.1", "0.0.0.0", "255.255.255.255"),
    *("224.0.0.1", "100.64.0.1", "100.100.100.200", "169.254.169.254", "168.63.129.16", "192.0.0.192", "198.18.0.1"),
    *("192.0.2.1", "198.51.100.1", "203.0.113.1", "240.0.0.1", "192.88.99.1", "0.1.2.3"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:93.184.216.34", "::127.0.0.1", "2002:7f00:1::", "2002:5db8:d822::"),
    *("64:ff9b::7f00:1", "64:ff9b::5db8:d822", "64:ff9b:1::1", "2001:0:7f00:1::", "100::1", "2001:10::1"),
    *("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", ""),
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_is_not_public_is_refused_also_beside_a_public_one(address: str):
    assert obstacle(address) is not None
    names = Names(site_test=[[PUBLIC, address]])
    said = refusal("http://site.test/", names, local_hosts=[])
    assert said.startswith("FORBIDDEN")
    assert "rule 'addresses'" in said


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "1.1.1.1", "2606:2800:220:1:248:1893:25c8:1946"])
def test_public_addresses_are_allowed(address: str):
    assert obstacle(address) is None


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/",
        "http://evil.test/",
        "http://127.0.0.1:{port}/json",
        "file:///etc/passwd",
        "//evil.test/x",
    ],
)
def test_a_redirect_to_elsewhere_is_refused_by_the_rules_of_a_first_request(site: str, target: str):
    port = site.rpartition(":")[2]
    said = refusal(f"{site}/to/{target.format(port=port)}", **local(site))
    assert said.startswith("FORBIDDEN")
    assert "rule 'hosts'" in said or "rule 'scheme'" in said


def test_a_name_that_answers_otherwise_for_the_redirect_is_checked_again(site: str):
    names = Names(**{"site_test": [["127.0.0.1"]], "other_test": [["127.0.0.1"]]})
    said = refusal(
        f"{site}/to/http://other.test/",
        names,
        hosts=["site.test", "other.test"],
        ports=[int(site.rpartition(":")[2]), 80],
    )
    assert "rule 'addresses'" in said


def test_names_below_a_domain_can_be_listed():
    names = Names(a_site_test=[["127.0.0.1"]])
    assert "rule 'addresses'" in refusal("http://a.site.test/", names, hosts=["*.site.test"])
    assert "rule 'hosts'" in refusal("http://site.test/", names, hosts=["*.site.test"])
    assert "rule 'hosts'" in refusal("http://evilsite.test/", names, hosts=["*.site.test"])


def test_a_name_that_cannot_be_resolved_is_a_failure_that_may_be_tried_again():
    async def nothing(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    one = http_get(WebConfig(hosts=("site.test",)), resolve=nothing)
    with pytest.raises(WorkerError) as caught:
        asyncio.run(one.call({"url": "http://site.test/"}, CallInfo("run", 0)))
    assert (caught.value.code, caught.value.retryable) == ("NETWORK", True)
