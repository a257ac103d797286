"""A headless Chromium for tests of the page: found on the machine, driven by playwright, watched while it works."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@dataclass
class Watched:
    """A page with everything that it complained about and asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def executable() -> str:
    """Path of the machine's Chromium; the test is skipped, with the reason, where there is none."""
    if find_spec("playwright") is None:
        pytest.skip("the package playwright is not installed (it is in the extra dev)")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(
            f"no browser on this machine: none of {', '.join(NAMES)} is on the PATH (Debian: apt install chromium)"
        )
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without network access of its own."""
    path = executable()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def watch(
    browser: Any, file: Path, *, width: int = 1280, height: int = 900, fragment: str = "", **context: Any
) -> Watched:
    """The file opened from disk in a window of that size; errors, policy violations and requests are noted."""
    context.setdefault("reduced_motion", "reduce")
    page = browser.new_context(viewport={"width": width, "height": height}, offline=True, **context).new_page()
    watched = Watched(page)
    page.on("console", lambda m: watched.complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (watched.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: watched.requests.append(request.url))
    page.goto(file.as_uri() + fragment)
    page.wait_for_selector("#count:not(:empty)", timeout=20_000)
    return watched


def until(page: Any, expression: str, *, seconds: float = 20) -> None:
    """Wait until an expression is true. (Playwright's own way evaluates text in the page, which its policy forbids.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"still not true: {expression}"
        page.wait_for_timeout(20)


def wait_for_plots(page: Any, number: int) -> None:
    """Until all plots are drawn."""
    until(page, f"document.querySelectorAll('figure.plot .chart svg').length >= {number}")
