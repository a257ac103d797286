"""The page in a real browser: opens from disk, draws, filters, obeys keys, fits a phone, runs nobody's script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plansmith.eval.html import write_html
from tests.eval.browser import Watched, chromium, until, wait_for_plots, watch
from tests.eval.pages import evaluation

pytestmark = pytest.mark.slow

ANSWERS = 22
CONTRAST = """
() => {
  const channel = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const background = (node) => {
    for (; node; node = node.parentElement) {
      const found = parse(getComputedStyle(node).backgroundColor);
      if (found[3] === 1) return found;
    }
    return [255, 255, 255, 1];
  };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest("svg, option, :disabled, .sr, script")) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(background(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${node.tagName}.${node.className} ${ratio.toFixed(2)} ${node.textContent.slice(0, 30)}`);
  }
  return bad;
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trial = evaluation()
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_html(trial.report, trial.items, path, catalogs=trial.catalogs)
    return path


def shown(page: Any) -> str:
    return page.text_content("#count")


def rows(page: Any) -> int:
    return page.locator("#list button.open").count()


def close(watched: Watched) -> None:
    """The end of a test: nothing was complained about, and nothing but the file was asked for."""
    assert watched.complaints == []
    assert {url.split(":")[0] for url in watched.requests} <= {"file", "data"}
    assert len([url for url in watched.requests if url.startswith("file:")]) <= 2
    watched.page.context.close()


def test_the_page_opens_from_disk_and_draws_its_plots(browser: Any, file: Path):
    watched = watch(browser, file)
    page = watched.page
    wait_for_plots(page, 4)
    for place in range(4):
        figure = page.locator("figure.plot").nth(place)
        marks = figure.locator("svg .role-mark path").count()
        assert marks >= 2, figure.locator("h3").text_content()
    assert file.stat().st_size < 2_000_000
    close(watched)


def test_another_choice_draws_another_plot(browser: Any, file: Path):
    watched = watch(browser, file)
    page = watched.page
    wait_for_plots(page, 4)
    figure = page.locator("figure.plot").nth(0)
    before = figure.locator("svg").inner_html()
    figure.locator("select").select_option(label="parsed")
    until(page, f"document.querySelector('figure.plot svg')?.innerHTML !== {json.dumps(before)}")
    assert "parsed" in figure.locator("svg").text_content()
    close(watched)


def test_filters_change_the_rows_and_the_address_keeps_them(browser: Any, file: Path):
    watched = watch(browser, file)
    page = watched.page
    assert shown(page).startswith(f"{ANSWERS} of {ANSWERS} answers")
    page.select_option("#filter-system", "small")
    assert rows(page) == ANSWERS // 2
    page.select_option("#filter-part", "unseen")
    assert rows(page) == 5
    page.select_option("#filter-fault", "missing step")
    assert (rows(page), shown(page)) == (1, f"1 of {ANSWERS} answers, 1 wrong")
    page.reload()
    page.wait_for_selector("#count:not(:empty)")
    assert shown(page) == f"1 of {ANSWERS} answers, 1 wrong"
    page.click("#reset")
    until(page, f"document.querySelector('#count').textContent.startsWith('{ANSWERS} of')")
    page.fill("#filter-q", "price chf")
    assert rows(page) == 2
    page.fill("#filter-q", "no such words")
    assert (rows(page), shown(page)) == (0, f"0 of {ANSWERS} answers, 0 wrong")
    close(watched)


def test_only_items_on_which_two_systems_differ_can_be_shown(browser: Any, file: Path):
    watched = watch(browser, file, fragment="#system=small&against=large")
    page = watched.page
    assert page.input_value("#filter-against") == "large"
    differing = rows(page)
    page.select_option("#filter-fault", "right")
    assert rows(page) == 0
    page.select_option("#filter-fault", "")
    page.select_option("#filter-against", "")
    assert rows(page) > differing
    close(watched)


def test_the_keyboard_opens_steps_through_and_closes_answers(browser: Any, file: Path):
    watched = watch(browser, file)
    page = watched.page
    focused = "document.activeElement.closest('#list') && document.activeElement.textContent"
    page.focus("#reset")
    page.keyboard.press("Tab")
    first = page.evaluate(focused)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) not in (first, None, False)
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('#answer').open")
    assert page.evaluate("document.querySelector('#answer').contains(document.activeElement)")
    query = page.text_content("#answer-query")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.text_content("#answer-query") != query
    page.keyboard.press("Escape")
    assert not page.evaluate("document.querySelector('#answer').open")
    assert page.evaluate(focused) == page.locator("#list button.open").nth(4).text_content()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    close(watched)


def test_an_answer_opened_by_its_address_can_be_left_for_the_next(browser: Any, file: Path):
    watched = watch(browser, file, fragment="#system=small&item=item-0&of=small")
    page = watched.page
    page.evaluate("location.hash = 'system=small&item=item-4&of=small'")
    until(page, "document.querySelector('#answer').dataset.item === 'item-4'")
    page.wait_for_timeout(100)
    page.keyboard.press("ArrowRight")
    assert page.text_content("#answer-query") == "nothing to do"
    assert "item=item-5" in page.url
    close(watched)


def test_an_answer_stands_beside_its_reference_with_marks_and_graphs(browser: Any, file: Path):
    watched = watch(browser, file, fragment="#item=item-0&of=small")
    page = watched.page
    dialog = page.locator("#answer")
    assert dialog.locator(".pair").count() == 4
    changed = dialog.locator(".arg.changed")
    assert changed.locator("dt").all_text_contents() == ["target", "target"]
    assert [text[:5] for text in changed.locator("dd").all_text_contents()] == ['"EUR"', '"USD"']
    assert dialog.locator(".step.extra .worker").all_text_contents() == ["sned"]
    assert dialog.locator("svg.graph").count() == 2
    graph = dialog.locator("svg.graph").first
    assert (graph.locator(".box").count(), graph.locator(".edge").count()) == (4, 3)
    assert graph.locator(".edge.after").count() == 1
    assert "step 3 send needs 1, 2" in (graph.get_attribute("aria-label") or "")
    assert "unknown_worker" in (dialog.locator(".finding").text_content() or "")
    dialog.locator(".tab", has_text="large").click()
    assert dialog.locator(".arg.changed, .step.extra, .step.missing").count() == 0
    assert "of=large" in page.url
    close(watched)


def test_boxes_and_lines_of_a_graph_do_not_cross(browser: Any, file: Path):
    watched = watch(browser, file, fragment="#item=item-0&of=large")
    boxes = watched.page.evaluate(
        "[...document.querySelectorAll('dialog .two > :first-child .box rect')]"
        ".map((r) => r.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == 4
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            apart = (
                a["right"] <= b["left"] or b["right"] <= a["left"] or a["bottom"] <= b["top"] or b["bottom"] <= a["top"]
            )
            assert apart, (a, b)
    close(watched)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_enough_contrast(browser: Any, file: Path, theme: str):
    watched = watch(browser, file, color_scheme=theme)
    page = watched.page
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.evaluate(CONTRAST) == []
    for item in ("item-0", "item-2", "item-6", "item-7"):
        page.evaluate(f"location.hash = 'item={item}&of=small'")
        until(page, f"document.querySelector('#answer').dataset.item === '{item}'")
        page.evaluate("document.querySelectorAll('dialog details').forEach((d) => (d.open = true))")
        assert page.evaluate(CONTRAST) == []
    close(watched)


def test_the_theme_can_be_chosen_and_plots_follow(browser: Any, file: Path):
    watched = watch(browser, file, color_scheme="light")
    page = watched.page
    wait_for_plots(page, 4)
    background = "getComputedStyle(document.body).backgroundColor"
    label = "document.querySelector('figure.plot svg .role-axis-label text').getAttribute('fill')"
    before = page.evaluate(f"[{background}, {label}]")
    page.click("#theme")
    page.click("#theme")
    assert page.text_content("#theme") == "Theme: dark"
    until(page, f"{label} !== '{before[1]}'")
    dark = page.evaluate(background)
    assert dark != before[0]
    page.reload()
    assert page.evaluate(background) == dark
    close(watched)


def test_nothing_is_wider_than_a_phone(browser: Any, file: Path):
    watched = watch(browser, file, width=360, height=740)
    page = watched.page
    wait_for_plots(page, 4)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    width = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
    assert page.evaluate(width) == [360, 360]
    assert page.evaluate(
        "[...document.querySelectorAll('figure.plot svg')].every((s) => s.getBoundingClientRect().right <= 360)"
    )
    for item in range(9):
        page.evaluate(f"location.hash = 'item=item-{item}&of=small'")
        until(page, f"document.querySelector('#answer').dataset.item === 'item-{item}'")
        page.evaluate("document.querySelectorAll('dialog details').forEach((d) => (d.open = true))")
        assert page.evaluate("document.querySelector('#answer').scrollWidth") <= 360
    close(watched)


def test_plots_take_the_width_of_a_turned_phone(browser: Any, file: Path):
    watched = watch(browser, file, width=360, height=740)
    page = watched.page
    wait_for_plots(page, 4)
    width = "document.querySelector('figure.plot svg').getBoundingClientRect().width"
    narrow = page.evaluate(width)
    page.set_viewport_size({"width": 740, "height": 360})
    until(page, f"{width} > {narrow} + 200")
    close(watched)


def test_hostile_texts_are_shown_and_do_nothing(browser: Any, file: Path):
    watched = watch(browser, file)
    page = watched.page
    for item in range(9):
        for system in ("small", "large"):
            page.evaluate(f"location.hash = 'item=item-{item}&of={system}'")
            until(
                page,
                f"document.querySelector('#answer').dataset.item === 'item-{item}' && "
                f"document.querySelector('#answer').dataset.system === '{system}'",
            )
            page.evaluate("document.querySelectorAll('dialog details').forEach((d) => (d.open = true))")
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    page.evaluate("location.hash = 'item=item-1&of=small'")
    until(page, "document.querySelector('#answer').dataset.item === 'item-1'")
    assert "<img src=x onerror=" in page.text_content("#answer .pair pre")
    page.evaluate("location.hash = 'item=item-2&of=small'")
    until(page, "document.querySelector('#answer').dataset.item === 'item-2'")
    assert {"U+202E", "U+2069", "U+0000"} <= set(page.locator("#answer-query .control").all_text_contents())
    assert "\u202e" not in page.text_content("#answer")
    page.evaluate("location.hash = 'item=item-5&of=small'")
    until(page, "document.querySelector('#answer').dataset.item === 'item-5'")
    assert page.locator("#answer .arg.extra dt").all_text_contents() == ["symbol", "__proto__"]
    close(watched)


def test_the_policy_stops_scripts_that_are_not_the_pages_own(browser: Any, file: Path):
    watched = watch(browser, file)
    page = watched.page
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 3';"
        " document.body.append(s); }"
    )
    page.evaluate("void setTimeout(() => { try { eval('window.pwned = 4') } catch (e) { window.stopped = e.name } })")
    until(page, "window.stopped !== undefined || window.pwned")
    assert page.evaluate("[window.pwned, window.stopped]") == [None, "EvalError"]
    assert any("Content Security Policy" in text for text in watched.complaints)
    page.context.close()


def test_without_script_the_tables_are_there(browser: Any, file: Path):
    page = browser.new_context(java_script_enabled=False, offline=True).new_page()
    page.goto(file.as_uri())
    assert page.locator("table.metrics").first.locator("tbody tr").count() == 2
    assert "need JavaScript" in page.locator("noscript").first.inner_text()
    page.context.close()


def test_motion_is_left_out_where_the_reader_asks_for_it(browser: Any, file: Path):
    for wish, behaviour in (("reduce", "auto"), ("no-preference", "smooth")):
        watched = watch(browser, file, reduced_motion=wish)
        assert watched.page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == behaviour
        close(watched)
