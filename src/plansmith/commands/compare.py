"""A gate: is B, the new system, at most --max-drop worse than A, the earlier one (baseline, teacher)?

A and B are each one of these, in any combination:
  a run directory, DIR or DIR:SYSTEM            scored items of a run (eval/items.jsonl)
  a file of scored items, FILE or FILE:SYSTEM   what `plansmith score --items` wrote
  a file of plans                               rows {"id","plan"} or {"id","text"}, with --catalog and --reference
  the JSON that `plansmith score` printed       no items: only values can be compared

Where both hold items they are compared item by item: difference with a paired bootstrap interval, McNemar's exact test
for rates. The drop is A - B (for repaired and abstained_wrong, where lower is better, B - A); its value decides.
Items that could not be scored on one side, whose request failed, or that A has no answer to fail the gate where they
are more than --max-unscored of all.

Examples:
  plansmith compare out/base:teacher out/new:tuned/grammar --max-drop 0.02
  plansmith compare old.jsonl new.jsonl --catalog catalog.json --reference right.jsonl --max-drop 0.02 --metric exact

Exit code 0: every metric passes; 1: some metric fails; 2: unusable input, such as different items.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from plansmith.commands.score import add_work_options

if TYPE_CHECKING:
    from rich.table import Table

    from plansmith.contract.progress import Progress
    from plansmith.eval.compare import Gate
    from plansmith.eval.sides import Side


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the earlier system")
    parser.add_argument("b", metavar="B", help="the new system")
    parser.add_argument("--max-drop", type=float, required=True, metavar="X", help="allowed drop, a share from 0 to 1")
    parser.add_argument(
        "--metric", action="append", metavar="NAME", help="several: all must pass (default: equivalent)"
    )
    parser.add_argument("--part", metavar="NAME", help="compare the items of this part only")
    parser.add_argument(
        "--max-unscored", type=float, default=0.0, metavar="Y", help="allowed share of items not scored (default: 0)"
    )
    parser.add_argument("--system-a", metavar="NAME", help="which system of A, in place of A:NAME")
    parser.add_argument("--system-b", metavar="NAME", help="which system of B, in place of B:NAME")
    parser.add_argument("--catalog", metavar="C.json", help="for files of plans: the workers that may be called")
    parser.add_argument("--reference", metavar="R.jsonl", help="for files of plans: right plans")
    parser.add_argument("--allow-different-items", action="store_true", help="compare what A and B share")
    parser.add_argument("--json", action="store_true", help="JSON in place of a table")
    add_work_options(parser)


def run(args: argparse.Namespace) -> int:
    from plansmith.eval.compare import Limits, compare, require_limits
    from plansmith.eval.sides import require_metrics
    from plansmith.progress import shown_progress
    from plansmith.terminal import draw

    limits = Limits(args.max_drop, args.max_unscored)
    names = args.metric or ["equivalent"]
    require_limits(limits)
    require_metrics(names)
    with shown_progress() as progress:
        a, b = _sides(args, names, progress)
        gate = compare(a, b, names, limits, allow_different_items=args.allow_different_items, seed=args.bootstrap_seed)
    for note in gate.notes:
        print(f"plansmith: {note}", file=sys.stderr)
    if args.json:
        print(json.dumps(gate.to_json(), ensure_ascii=False))
    else:
        draw(table(gate), *verdicts(gate))
    return 0 if gate.passed else 1


def _sides(args: argparse.Namespace, names: list[str], progress: Progress) -> tuple[Side, Side]:
    from plansmith.contract.catalog import Catalog
    from plansmith.contract.errors import InputError
    from plansmith.eval.sides import ScoredWith, read_side

    if (args.catalog is None) != (args.reference is None):
        raise InputError("give --catalog and --reference together: files of plans are scored with both.")
    scored_with = None
    if args.catalog is not None:
        scored_with = ScoredWith(Catalog.load(args.catalog), args.reference, args.workers, progress)
    first, second = (
        read_side(given, names=names, system=system, part=args.part, scored_with=scored_with)
        for given, system in ((args.a, args.system_a), (args.b, args.system_b))
    )
    return first, second


def table(gate: Gate) -> Table:
    """One row a metric."""
    from rich.table import Table

    how = "compared item by item" if gate.paired else "values compared, not item by item"
    found = Table(title=f"A {gate.a}\nB {gate.b}\n{gate.items} items, {how}", title_justify="left")
    for column in ("metric", "A", "B", "drop", "95% interval", "McNemar p", "only A / B", "scored", "unscored", "gate"):
        found.add_column(column, justify="left" if column in ("metric", "gate") else "right")
    for check in gate.checks:
        paired = check.low is not None and check.high is not None
        found.add_row(
            check.metric,
            _number(check.a),
            _number(check.b),
            _number(check.drop, sign=True),
            f"{check.low:+.4f} to {check.high:+.4f}" if paired else "-",
            f"{check.p_value:.4g}" if check.p_value is not None else "-",
            f"{check.only_a} / {check.only_b}" if paired else "-",
            str(check.scored),
            str(check.unscored),
            "pass" if check.passed else "FAIL",
        )
    return found


def verdicts(gate: Gate) -> list[str]:
    """One sentence a metric, and one for the gate."""
    lines = [f"{check.metric}: {'pass' if check.passed else 'FAIL'}: {check.reason}." for check in gate.checks]
    return [*lines, f"gate: {'pass' if gate.passed else 'FAIL'} (allowed drop {gate.limits.max_drop:g})"]


def _number(value: float | None, *, sign: bool = False) -> str:
    return "-" if value is None else f"{value:+.4f}" if sign else f"{value:.4f}"
