"""Ray for the time of a block: quiet, on this machine's own address only, and gone at the end.

Starts a Ray of its own, or joins a cluster (`RayConfig.address`); a Ray that the calling program has started is used
and left as it is. Sends no usage statistics and opens no dashboard. Its log files lie in a temporary folder that is
removed at the end. Ray itself keeps the token by which its processes know each other in `~/.ray`. Not covered: how a
cluster is started and what it reports; that is decided where `ray start` is called.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import socket
import tempfile
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from plansmith.contract.errors import MissingExtraError
from plansmith.data.ray_config import NoRayError, RayConfig

EXTRA = "ray"
_STORE_BYTES = 512 * 2**20
"""Memory for rows on their way between processes, where Ray is our own."""
_ANSWER_SECONDS = 10.0
"""How long a cluster may take to answer."""
_LONGEST_PATH = 24
"""Characters of a folder for temporary files; a socket's path may have 107, and Ray needs most of them."""
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray turns 127.0.0.1 into an address that others can reach, unless it may have no other machines at all; the name is
that of the two systems on which this is the default. Read when Ray is imported."""


def require_ray() -> None:
    """Raise `MissingExtraError` (an `InputError`) where a package that Ray Data needs is not installed."""
    for package in ("ray", "pyarrow", "pandas"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, EXTRA)


def load_ray() -> Any:
    """The module, with Ray Data; while it is first read it warns about settings of its own, which nobody here made."""
    require_ray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.data")
        ray.data.DataContext.get_current()
    return ray


@contextmanager
def ray_session(config: RayConfig) -> Generator[Any]:
    """Have Ray for the block; gives the module. A cluster that does not answer at all is noticed at once.

    Raises:
        MissingExtraError: it is not installed.
        NoRayError: it could not be started or joined.

    """
    require_ray()
    _require_cluster(config.address)
    with ExitStack() as stack:
        stack.enter_context(_environment(_ENVIRONMENT if config.address is not None else _ENVIRONMENT | _ALONE))
        ray = load_ray()
        stack.enter_context(_quiet("ray", "ray.data"))
        stack.enter_context(_without_news(ray))
        if not ray.is_initialized():
            stack.callback(ray.shutdown)
            _start(ray, config, stack)
        yield ray


def _require_cluster(address: str | None) -> None:
    """Raise `NoRayError` where nothing answers at an address; Ray itself would try for minutes."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise NoRayError(
            f"no cluster of Ray answers at {address!r} ({error}). Look at 'ray status' there, or set ray.address to "
            "nothing for a Ray of the command's own."
        ) from error


def _start(ray: Any, config: RayConfig, stack: ExitStack) -> None:
    usual: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
        "include_dashboard": False if config.address is None else None,
    }
    own: dict[str, Any] = {}
    if config.address is None:
        folder = stack.enter_context(_folder())
        stack.callback(ray.shutdown)  # before the folder goes
        own = {
            "num_cpus": config.workers + 1,
            "object_store_memory": _STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": folder,
        }
    try:
        with _without_stderr():
            ray.init(config.address or "local", **usual, **own)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"the cluster {config.address!r}" if config.address is not None else "Ray on this machine"
        raise NoRayError(
            f"{where} cannot be used: {error}. Look at 'ray status', or set ray.address to nothing for a Ray of the "
            "command's own."
        ) from error


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where a Ray of our own keeps its files; its sockets need a short path."""
    usual = tempfile.gettempdir()
    short = "/tmp" if len(usual) > _LONGEST_PATH and os.access("/tmp", os.W_OK) else usual
    return tempfile.TemporaryDirectory(prefix="ray-", dir=short, ignore_cleanup_errors=True)


@contextmanager
def _environment(values: dict[str, str]) -> Generator[None]:
    """Environment variables for the time of a block; what the user set stays."""
    mine = [name for name in values if name not in os.environ]
    os.environ.update({name: values[name] for name in mine})
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)


@contextmanager
def _without_stderr() -> Generator[None]:
    """Nothing on standard error for a block: Ray's core says there that it was told to say nothing."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _without_news(ray: Any) -> Generator[None]:
    """Ray prints on standard output what befell a worker, whatever is asked for; its debugger has this switch."""
    module, switch = ray._private.worker, "_worker_logs_enabled"
    before = getattr(module, switch, None)
    if before is None:  # another Ray, which may have another way
        yield
        return
    setattr(module, switch, False)
    try:
        yield
    finally:
        setattr(module, switch, before)


@contextmanager
def _quiet(*names: str) -> Generator[None]:
    """Only errors of these loggers for the time of a block: standard error belongs to our progress."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
