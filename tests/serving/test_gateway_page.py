"""The playground in headless Chromium: planning, live runs, a person's word, keys, errors, small and dark windows.

Slow: real local engine behind it in one test, a scripted planner in the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog, Effect
from plansmith.serving.config import EngineConfig
from plansmith.serving.gateway.service import Parts
from plansmith.serving.local_engine import LocalEngine
from plansmith.serving.runs.answer import TemplateAnswerer
from plansmith.serving.runs.journal import Journal
from plansmith.serving.workers.base import CallInfo, WorkerError
from plansmith.serving.workers.registry import Registry
from tests.eval.browser import chromium, until
from tests.serving.gateway_parts import INVALID, OSLO, Served, parts, says, served
from tests.serving.run_parts import Made, echo, from_, step

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


class Page:
    """The playground of a gateway, with what the browser complained about and asked for."""

    def __init__(self, browser: Any, gateway: Served, **context: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        view = {"width": context.pop("width", 1280), "height": 900}
        self.page = browser.new_context(viewport=view, reduced_motion="reduce", **context).new_page()
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(gateway.url)
        self.page.wait_for_selector("#catalog li")

    def ask(self, query: str, button: str = "run") -> None:
        self.page.fill("#query", query)
        self.page.click(f"#{button}")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def wait(self, selector: str) -> None:
        self.page.wait_for_selector(selector, timeout=20_000)


def test_a_query_is_planned_and_the_plan_drawn_with_the_catalog_beside_it(browser: Any):
    with served(parts(says(OSLO))) as gateway:
        shown = Page(browser, gateway)
        until(shown.page, "document.getElementById('state').dataset.ready === 'yes'")
        shown.ask("Weather in Oslo?", "plan")
        shown.wait("#graph .step-node")
        assert "weather_get" in shown.text("#graph")
        assert "valid" in shown.text("#facts")
        assert "weather_get" in shown.text("#catalog")
        assert "city: string" in shown.text("#catalog")
        assert '"valid": true' in shown.page.text_content("#raw")
        assert shown.complaints == []
        assert all(url.startswith((gateway.url, "data:")) for url in shown.requests), "nothing but the gateway is asked"


def test_steps_change_while_they_run_and_the_answer_comes_last(browser: Any):
    gate = threading.Event()

    async def slow(args: dict[str, Any], info: CallInfo) -> Any:
        await asyncio.to_thread(gate.wait, 20)
        return {"price": 7}

    async def broken(args: dict[str, Any], info: CallInfo) -> Any:
        raise WorkerError("NOT_FOUND", "nothing <b>of</b> that name.")

    workers = [Made("slow", slow, effect=Effect.READ), Made("broken", broken, effect=Effect.READ)]
    registry = Registry("s", [*workers, Made("echo", echo, effect=Effect.READ)])
    plan = [step("slow"), step("broken"), step("echo", a=from_("/0/price")), step("echo", b=from_("/1"))]
    with served(parts(says(plan), registry=registry, answerer=TemplateAnswerer())) as gateway:
        shown = Page(browser, gateway)
        shown.ask("Do it.")
        shown.wait("#graph .step-node.running")
        shown.wait("#graph .step-node.failed")
        assert shown.page.locator("#graph path.data").count() == 2
        gate.set()
        shown.wait("#answer-part:not([hidden])")
        states = shown.page.eval_on_selector_all(".step-node", "all => all.map(one => one.getAttribute('class'))")
        assert states == ["step-node done", "step-node failed", "step-node done", "step-node skipped"]
        assert "No model wrote this" in shown.text("#answer")
        assert "nothing <b>of</b> that name." in shown.page.text_content("#steps")
        assert "partial" in shown.text("#facts")
        assert shown.complaints == []


def test_a_person_is_asked_on_the_page(browser: Any, tmp_path: Any):
    order = Made("order", echo, effect=Effect.WRITE, approval=True)
    journal = Journal(tmp_path / "runs.sqlite")
    made = parts(says([step("order", n=1)]), registry=Registry("o", [order]), journal=journal)
    with served(made) as gateway:
        shown = Page(browser, gateway)
        shown.ask("Order it.")
        shown.wait("#waiting button")
        assert 'order {"n":1}' in shown.text("#waiting")
        assert order.calls == []
        shown.page.click("#waiting button >> nth=0")
        shown.wait("#steps .done")
        assert "complete" in shown.text("#facts")
        assert len(order.calls) == 1
        asyncio.run_coroutine_threadsafe(journal.aclose(), gateway.loop).result(20)


def test_a_query_without_a_valid_plan_shows_findings_and_what_was_tried(browser: Any):
    with served(parts(says(INVALID))) as gateway:
        shown = Page(browser, gateway)
        shown.ask("Weather?")
        shown.wait("#error:not([hidden])")
        assert "no valid plan" in shown.text("#error")
        assert "town" in shown.text("#findings")
        assert shown.page.locator("#rungs tbody tr").count() == 2
        shown.ask("Weather?", "plan")
        shown.wait("#findings-part:not([hidden])")
        assert "none that is valid" in shown.text("#facts")


def test_a_key_is_asked_for_and_kept_for_the_session(browser: Any):
    keys = [{"name": "alice", "sha256": hashlib.sha256(b"psk-1").hexdigest()}]
    with served(parts(says(OSLO)), {"keys": keys}) as gateway:
        shown = Page(browser, gateway)
        assert "Give a key" in shown.text("#catalog")
        shown.ask("Weather?", "plan")
        shown.wait("#error:not([hidden])")
        assert "give a key" in shown.text("#error")
        shown.page.fill("#key", "psk-1")
        shown.page.press("#key", "Tab")
        shown.wait("#catalog code")
        shown.ask("Weather?", "plan")
        shown.wait("#graph .step-node")
        shown.page.reload()
        shown.wait("#catalog code")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_sticks_out_of_the_window_and_words_can_be_read(browser: Any, scheme: str, width: int):
    plan = [step("weather_get", city="Oslo"), step("weather_get", city="x" * 300)]
    with served(parts(says(plan), answerer=TemplateAnswerer())) as gateway:
        shown = Page(browser, gateway, width=width, color_scheme=scheme)
        shown.ask("Weather in Oslo and elsewhere?")
        shown.wait("#answer-part:not([hidden])")
        wide = shown.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        assert shown.page.evaluate(CONTRAST) == []


CONTRAST = """() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts(color).slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (parts(color).length < 4 || parts(color)[3] === 1) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [];
  const words = "h1, h2, p, label, button, dt, dd, th, td, summary, code, li, .args, .tag, .note";
  for (const node of document.querySelectorAll(words)) {
    if (!node.innerText || !node.innerText.trim() || !node.offsetParent || node.disabled) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(node.tagName + ": " + node.innerText.slice(0, 40));
  }
  return faint;
}"""


def test_a_real_local_engine_plans_behind_the_page(browser: Any, qwen: Path, catalog: Catalog):
    """The model is tiny and random: its plans are cut or odd, but they come from real decoding under the grammar."""
    engine = LocalEngine(qwen, config=EngineConfig(max_new_tokens=120, max_steps=2, device="cpu"))
    try:
        with served(Parts(planner=engine, catalog=catalog)) as gateway:
            shown = Page(browser, gateway)
            until(shown.page, "document.getElementById('state').dataset.ready === 'yes'")
            assert shown.page.is_hidden("#run"), "without workers there is nothing to run"
            shown.ask("Weather in Paris for three days?", "plan")
            shown.wait("#rungs-part:not([hidden])")
            assert int(shown.text("#rungs tbody td >> nth=2").split(" + ")[0]) > 50
            assert catalog.names[0] in shown.text("#catalog")
            made, told = engine.computed, gateway.metrics()
            assert made.passes > 0
            assert 0 < made.grammar_seconds < made.seconds
            assert told["plansmith_engine_passes_total"] == made.passes
            assert told["plansmith_engine_seconds_total"] == made.seconds
            assert told["plansmith_engine_grammar_seconds_total"] == made.grammar_seconds
            written = [told[f'plansmith_engine_tokens_total{{kind="{kind}"}}'] for kind in ("chosen", "forced")]
            assert (sum(written), written[1]) == (made.tokens, made.forced)
    finally:
        engine.close()
