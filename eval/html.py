"""Writes the report as one HTML file that opens from disk and needs no network.

Reads a `Report` and the scored items behind it; writes the page with its style, its script, the plots' library and the
data inside. Texts written by models are data to the page: they are embedded as escaped JSON and put on the screen as
text, and a Content-Security-Policy lets nothing run but the page's own scripts, each named by its hash. The layout is
in `page/`: a jinja2 template, one style sheet, and scripts that are joined in the order of `_SCRIPTS`. Altair makes the
plots (`html_plots.py`), vl-convert brings Vega for them. Not covered: more than `max_items` answers (the page says what
it leaves out and names the file that has it).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import MissingExtraError
from plansmith.contract.prompt import signature
from plansmith.contract.store import write_text
from plansmith.eval.html_items import embed
from plansmith.eval.html_plots import TOGETHER, measures, parts_of, plots
from plansmith.eval.html_text import DECISIVE, FAULTS, LOWER_IS_BETTER, MEANING
from plansmith.eval.items import ScoredItem
from plansmith.eval.results import MAIN_METRICS, METRICS, OVERALL, Report

EXTRA = "report"
_PACKAGES = ("altair", "vl_convert", "jinja2")
_SCRIPTS = ("base.js", "plots.js", "graph.js", "answer.js", "items.js")
_TEMPLATE, _STYLE = "report.html.j2", "report.css"
_MAX_SIGNATURE = 400
_UNSAFE_IN_JSON = re.compile("[<>&\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def require_packages() -> None:
    """Raise `MissingExtraError` (an `InputError`) where a package that the page needs is not installed."""
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError(package, EXTRA)


def write_html(
    report: Report,
    items: Sequence[ScoredItem],
    path: Path,
    *,
    catalogs: Mapping[str, Catalog] | None = None,
    max_items: int = 2000,
) -> None:
    """Write the page, replaced as a whole.

    Args:
        report: every number of the page.
        items: the scored answers; read three times, so a lazy sequence may stand here. Quantiles are taken over all.
        path: the file to write.
        catalogs: catalog by name of the suite (`plain`, or the variant); gives the workers' signatures.
        max_items: most answers that are embedded; wrong ones come first.

    Raises:
        MissingExtraError: a package of the extra `report` is not installed.
        StorageError: the file could not be written; the earlier file is kept.

    """
    write_text(path, html(report, items, catalogs=catalogs, max_items=max_items))


def html(
    report: Report,
    items: Sequence[ScoredItem],
    *,
    catalogs: Mapping[str, Catalog] | None = None,
    max_items: int = 2000,
) -> str:
    """The page's text; arguments as in `write_html`."""
    require_packages()
    main = _scored(report, [DECISIVE, *(name for name in MAIN_METRICS if name != DECISIVE)])
    others = _scored(report, [name for name in METRICS if name not in MAIN_METRICS])
    drawn = plots(report, measures(items), main + others)
    embedded = embed(items, max_items=max_items)
    workers, keys = _workers(report, catalogs or {})
    data = {
        "items": [item.model_dump(mode="json") for item in embedded.items],
        "plots": [plot._asdict() | {"choices": [choice._asdict() for choice in plot.choices]} for plot in drawn],
        "faults": [{"name": fault.value, "meaning": meaning} for fault, meaning in FAULTS.items()],
        "systems": [system.system for system in report.systems],
        "parts": list(report.parts),
        "workers": workers,
        "catalogOf": keys,
    }
    scripts = {"library": _library(), "program": "\n".join(map(_page_file, _SCRIPTS))}
    style = _page_file(_STYLE)
    return _template().render(
        report=report,
        places={system.system: place for place, system in enumerate(report.systems)},
        plots=drawn,
        embedded=embedded,
        max_items=max_items,
        parts=parts_of(report),
        overall=OVERALL,
        together=TOGETHER,
        decisive=DECISIVE,
        main=main,
        others=others,
        meaning=MEANING,
        lower_is_better=LOWER_IS_BETTER,
        faults=FAULTS,
        data=safe_json(data),
        style=style,
        policy=content_policy(scripts.values(), [style]),
        **scripts,
    )


def safe_json(value: Any) -> str:
    """JSON that can stand inside a `script` element: what could end it, or hide in it, is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _UNSAFE_IN_JSON.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def content_policy(scripts: Sequence[str] | Any, styles: Sequence[str]) -> str:
    """Nothing is loaded, and nothing runs but these scripts; images may be data."""
    allowed = " ".join(_hash(text) for text in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {' '.join(map(_hash, styles))}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def visible(text: str) -> str:
    """Text in which control characters and marks of writing direction can be seen and do nothing."""
    return _INVISIBLE.sub(lambda m: f"\u27e8U+{ord(m[0]):04X}\u27e9", text)


def _shown(value: Any) -> Any:
    """What a template expression gives: plain text made visible, everything else as it is."""
    return visible(value) if type(value) is str else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _scored(report: Report, names: Sequence[str]) -> list[str]:
    """The metrics that were scored for any system."""
    return [
        name
        for name in names
        if any(
            (metric := part.metrics.get(name)) is not None and metric.value is not None
            for system in report.systems
            for part in system.parts.values()
        )
    ]


def _workers(report: Report, catalogs: Mapping[str, Catalog]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Signatures of the workers by catalog, and the catalog of each part, where it is known."""
    found = {part: catalogs[suite.name] for suite in report.suites for part in suite.parts if suite.name in catalogs}
    used = {catalog.hash: catalog for catalog in found.values()}
    signatures = {
        name: {worker.name: signature(worker)[:_MAX_SIGNATURE] for worker in catalog.workers}
        for name, catalog in used.items()
    }
    return signatures, {part: catalog.hash for part, catalog in found.items()}


def _page_file(name: str) -> str:
    return (resources.files("plansmith.eval") / "page" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


@lru_cache(maxsize=1)
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; it takes seconds to make and is the same in every page."""
    bundle: str = import_module("vl_convert").javascript_bundle()
    return re.sub(r"<(?=/script|!--)", r"\\x3c", bundle.replace("\r\n", "\n"), flags=re.IGNORECASE)


def _template() -> Any:
    jinja2: Any = import_module("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_page_file),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {"percent": _percent, "points": _points, "number": number, "size": size}
    return environment.get_template(_TEMPLATE)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}".replace("-", "\u2212")


def _points(value: float) -> str:
    """Percentage points with a sign; a minus is a minus sign."""
    return "0.0" if round(100 * value, 1) == 0 else f"{100 * value:+.1f}".replace("-", "\u2212")


def number(value: float | None) -> str:
    """Three significant digits, whole numbers as they are, thousands apart."""
    if value is None:
        return "\u2013"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:#.3g}".rstrip(".")


def size(value: float | None) -> str:
    """Bytes in words."""
    if value is None:
        return "\u2013"
    for unit in ("B", "KiB", "MiB"):
        if value < 999.5:  # three digits at most, also after rounding
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB"
