"""Serves a gateway with uvicorn: prints its address, stops gracefully.

On SIGTERM or Ctrl-C new work is refused (503), `/readyz` says so, and what runs may end within the grace time.
"""

from __future__ import annotations

import signal
import socket
import sys
from types import FrameType
from typing import Any

import uvicorn

from plansmith.contract.errors import InputError
from plansmith.serving.gateway.app import Gateway
from plansmith.serving.runs.pauses import fewer_pauses


class _Server(uvicorn.Server):
    """Tells the gateway that it is to stop before anything is closed."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._gateway.service.stopping = True
        super().handle_exit(sig, frame)


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket; raises `InputError` where the address is taken or no address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol is named, since asyncio turns Nagle's algorithm off only then; left on it costs 40 ms a request
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        found.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}. Choose another --gateway.port.") from error
    found.set_inheritable(False)
    return found


async def serve(gateway: Gateway) -> None:
    """Serve until told to stop."""
    config = gateway.service.config
    bound = listening_socket(config.host, config.port)
    options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "date_header": True}
    grace = int(config.limits.grace_s) + 1
    server = _Server(uvicorn.Config(gateway, timeout_graceful_shutdown=grace, **options), gateway)
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    fewer_pauses()
    print(f"listening on http://{shown}:{port}", file=sys.stderr, flush=True)
    # uvicorn raises the signal that ended it once more when all is done; it has been heeded by then
    before = {number: signal.signal(number, _heeded) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        await server.serve(sockets=[bound])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        bound.close()


def _heeded(number: int, frame: FrameType | None) -> None:
    del number, frame
