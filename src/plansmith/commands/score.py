"""Metrics of plans made by anything, from two files joined by id; JSON on standard output.

Rows are {"id","plan"} or {"id","text"}; a reference row may hold several right plans in "plans", and also "query"
(for grounded), "results" (for executed, answer_match), "allowed" (for bfcl_ast) and "part". An item without a
candidate is a miss in every metric that it is scored in. Printed:

  {"items":n,"metrics":{NAME:{"value","hits","scored","unscored","low","high"},...},
   "only_in_reference":n,"only_in_candidate":n}

Examples:
  plansmith score --catalog catalog.json --reference right.jsonl --candidate mine.jsonl
  plansmith score --catalog catalog.json --reference right.jsonl --candidate mine.jsonl --items mine.items.jsonl --table

Exit code 0: scored; 2: unusable input. What a reader of the numbers should know is said on standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from plansmith.eval.stats import Metric


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--catalog", required=True, metavar="C.json", help="the workers that may be called")
    parser.add_argument("--reference", required=True, metavar="R.jsonl", help="right plans; every row is an item")
    parser.add_argument("--candidate", required=True, metavar="K.jsonl", help="plans to score")
    parser.add_argument("--by-part", action="store_true", help='also each "part" of the references, under "parts"')
    parser.add_argument("--items", metavar="FILE", help="write one row an item, for `plansmith compare`")
    parser.add_argument("--system", metavar="NAME", help="name of the system in those rows (default: from the file)")
    parser.add_argument("--table", action="store_true", help="a table for people in place of JSON")
    add_work_options(parser)


def add_work_options(parser: argparse.ArgumentParser) -> None:
    """Options of the work itself, which change no number but the bootstrap's."""
    parser.add_argument("--workers", type=positive, metavar="N", help="processes (default: all cores for many items)")
    parser.add_argument("--bootstrap-seed", type=int, default=0, metavar="N", help="of the intervals (default: 0)")


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 1024, found {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from plansmith.contract.catalog import Catalog
    from plansmith.eval.score import score_files
    from plansmith.progress import shown_progress
    from plansmith.terminal import draw

    catalog = Catalog.load(args.catalog)
    with shown_progress() as progress:
        score = score_files(
            catalog,
            args.reference,
            args.candidate,
            seed=args.bootstrap_seed,
            by_part=args.by_part,
            items=args.items,
            system=args.system,
            workers=args.workers,
            progress=progress,
        )
    for note in score.notes:
        print(f"plansmith: {note}", file=sys.stderr)
    if not args.table:
        print(json.dumps(score.to_json(), ensure_ascii=False))
        return 0
    without = f", {score.only_in_reference} of them without a candidate (misses)" if score.only_in_reference else ""
    draw(table(f"{score.items} items{without}", score.metrics))
    for name, part in (score.parts or {}).items():
        draw(table(f"{name}: {part.items} items", part.metrics))
    return 0


def table(title: str, metrics: Mapping[str, Metric]) -> Table:
    """Metrics for people; those in which nothing could be scored are left out and named below."""
    from rich.table import Table

    empty = [name for name, metric in metrics.items() if metric.value is None]
    found = Table(title=title, title_justify="left", caption_justify="left")
    found.caption = f"no item could be scored in: {', '.join(empty)}" if empty else None
    for column in ("metric", "value", "95% interval", "hits", "scored", "unscored"):
        found.add_column(column, justify="left" if column == "metric" else "right")
    for name, metric in metrics.items():
        if metric.value is not None:
            interval = f"{metric.low:.4f} to {metric.high:.4f}"
            counts = map(str, (metric.hits, metric.scored, metric.unscored))
            found.add_row(name, f"{metric.value:.4f}", interval, *counts)
    return found
