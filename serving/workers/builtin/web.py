"""HTTP GET from hosts on a list, and from nowhere else.

For each request, redirects included: the URL is checked, the name is resolved once, every address it has must be public
(`addresses.py`), and the connection goes to the very address that was checked, with the name for TLS and `Host`; so a
name that answers otherwise a moment later leads nowhere. No proxies or credentials from the environment, no cookies, no
compressed bodies, a limit on bytes and on time. A body that is too large is refused, never cut.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from pydantic import BaseModel, ConfigDict, Field

from plansmith.contract.plan import Json
from plansmith.serving.workers.base import FailureCode, WorkerError
from plansmith.serving.workers.builtin.addresses import obstacle
from plansmith.serving.workers.decorator import FunctionWorker, worker

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives all addresses of a host name."""
_TYPES = ("text/", "application/json", "application/xml", "application/xhtml+xml")


class WebConfig(BaseModel):
    """What may be fetched."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    hosts: tuple[str, ...]
    """Host names that may be asked; `*.example.com` stands for all names below example.com, not for itself."""
    local_hosts: frozenset[str] = frozenset()
    """Those of them that may have addresses which are not public, for services of your own."""
    ports: frozenset[int] = frozenset({80, 443})
    """Ports that may be asked."""
    max_bytes: int = Field(default=1 << 19, ge=1)
    """Largest body."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Time limit of a call, redirects included."""
    redirects: int = Field(default=3, ge=0)
    """Most redirects that are followed."""
    ca_file: Path | None = None
    """PEM file of authorities to trust in place of the system's, e.g. your company's; None trusts the system's."""


class Page(BaseModel):
    """What was fetched."""

    url: str
    """After redirects."""
    status: int
    type: str
    """Content type, without parameters."""
    body: Json
    """Data where the type is JSON, else text."""


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def http_get(config: WebConfig, *, resolve: Resolve = _resolve, name: str = "http_get") -> FunctionWorker[..., Any]:
    """The worker that fetches pages.

    Args:
        config: what may be fetched.
        resolve: asks the name service.
        name: of the worker.

    """

    async def get(url: str) -> Page:
        """Fetch a page or a JSON document.

        Args:
            url: http or https.
        """
        try:
            async with asyncio.timeout(config.timeout_s):
                return await _follow(url, config, resolve)
        except TimeoutError as error:
            message = f"nothing complete came within {config.timeout_s:g} s."
            raise WorkerError(FailureCode.TIMEOUT, message, retryable=True) from error

    return worker(name=name, effect="read", idempotent=True, timeout_s=config.timeout_s + 2)(get)


async def _follow(url: str, config: WebConfig, resolve: Resolve) -> Page:
    for _ in range(config.redirects + 1):
        parts = _checked(url, config)
        address = await _address(parts, config, resolve)
        found = await _fetch(parts, address, config)
        if isinstance(found, Page):
            return found
        url = urljoin(url, found)
    raise _forbidden("redirects", f"more than {config.redirects} redirects.")


def _checked(url: str, config: WebConfig) -> SplitResult:
    """The parts of a URL that may be asked."""
    if len(url) > 2000 or any(ord(character) <= 32 or ord(character) > 126 or character == "\\" for character in url):
        raise _forbidden("url", "a URL has at most 2000 printable ASCII characters, without spaces and backslashes.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _forbidden("url", f"{url[:100]!r} is no URL.") from error
    if parts.scheme not in ("http", "https"):
        raise _forbidden("scheme", f"only http and https are fetched; found {parts.scheme!r}.")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise _forbidden("userinfo", "a URL holds no user name or password.")
    host = (parts.hostname or "").lower()
    if not _listed(host, config.hosts):
        raise _forbidden("hosts", f"{host!r} is not among the hosts that may be asked: {', '.join(config.hosts)}.")
    port = port or (443 if parts.scheme == "https" else 80)
    if port not in config.ports:
        raise _forbidden("ports", f"port {port} is not among {', '.join(map(str, sorted(config.ports)))}.")
    return parts


def _listed(host: str, hosts: Sequence[str]) -> bool:
    if not host or host.endswith(".") or host.startswith("."):
        return False
    return any(host == one.lower() or (one.startswith("*.") and host.endswith(one[1:].lower())) for one in hosts)


async def _address(parts: SplitResult, config: WebConfig, resolve: Resolve) -> str:
    """The address to connect to; all that the name has must be allowed."""
    host = (parts.hostname or "").lower()
    try:
        found = await resolve(host, parts.port or (443 if parts.scheme == "https" else 80))
    except OSError as error:
        raise WorkerError(FailureCode.NETWORK, f"{host!r} cannot be resolved.", retryable=True) from error
    if not found:
        raise WorkerError(FailureCode.NETWORK, f"{host!r} has no address.", retryable=True)
    if host not in config.local_hosts:
        for address in found:
            why = obstacle(address)
            if why is not None:
                raise _forbidden("addresses", f"{host!r} has the address {address}, and {why}.")
    return found[0]


async def _fetch(parts: SplitResult, address: str, config: WebConfig) -> Page | str:
    """One request to a checked address: the page, or where it redirects to."""
    import httpx2

    shown = f"[{address}]" if ":" in address else address
    port = f":{parts.port}" if parts.port else ""
    target = parts._replace(netloc=f"{shown}{port}", fragment="").geturl()
    headers = {"Host": f"{parts.hostname}{port}", "Accept-Encoding": "identity", "User-Agent": "plansmith"}
    extensions = {"sni_hostname": parts.hostname}
    trust: Any = ssl.create_default_context(cafile=str(config.ca_file)) if config.ca_file is not None else True
    client = httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=config.timeout_s, verify=trust)
    try:
        async with client, client.stream("GET", target, headers=headers, extensions=extensions) as response:
            place = response.headers.get("location")
            if response.is_redirect and place:
                return place
            content = await _body(response, config.max_bytes)
            return _page(parts.geturl(), response, content)
    except httpx2.TimeoutException as error:
        raise WorkerError(FailureCode.TIMEOUT, f"{parts.hostname!r} did not answer in time.", retryable=True) from error
    except httpx2.HTTPError as error:
        message = f"no whole answer from {parts.hostname!r} ({type(error).__name__})."
        raise WorkerError(FailureCode.NETWORK, message, retryable=True) from error


async def _body(response: Any, most: int) -> bytes:
    """The whole body, as it was sent."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise _forbidden("encoding", "the body is compressed, though that was not asked for.")
    content = bytearray()
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > most:
            raise _forbidden("size", f"the body has more than {most} bytes.")
    return bytes(content)


def _page(url: str, response: Any, content: bytes) -> Page:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code >= 400:
        retryable = response.status_code in (429, 500, 502, 503, 504)
        code = FailureCode.RATE_LIMITED if response.status_code == 429 else f"HTTP_{response.status_code}"
        raise WorkerError(code, f"the server answered with status {response.status_code}.", retryable=retryable)
    if not (kind.startswith(_TYPES) or kind.endswith(("+json", "+xml"))):
        raise _forbidden("types", f"the body is {kind or 'of no type'}; text, JSON and XML are read.")
    try:
        text = content.decode(response.charset_encoding or "utf-8")
    except (UnicodeDecodeError, LookupError) as error:
        raise WorkerError("NOT_TEXT", "the body is no text in the encoding that it says.") from error
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return Page(url=url, status=response.status_code, type=kind, body=json.loads(text))
        except ValueError as error:
            raise WorkerError("NOT_JSON", "the body says that it is JSON, but it is not.") from error
    return Page(url=url, status=response.status_code, type=kind, body=text)


def _forbidden(rule: str, message: str) -> WorkerError:
    return WorkerError(FailureCode.FORBIDDEN, f"rule {rule!r}: {message}")
