"""Check plans against a catalog; every fault is reported, one JSON object a plan on standard output.

  {"id", "valid", "findings": [{"fault", "severity", "step", "path", "message"}], "repairs": [], "plan": [...] or null}

Examples:
  plansmith check --catalog examples/assistant/catalog.json --plan plan.json
  echo '[]' | plansmith check --catalog examples/assistant/catalog.json --plan -
  plansmith check --catalog examples/assistant/catalog.json --plan plans.jsonl --jsonl

Exit code 0: all valid; 1: some plan is invalid; 2: unusable input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import CheckResult, check_plan
from plansmith.contract.errors import InputError
from plansmith.contract.parse import ParseError, parse_json
from plansmith.contract.plan import canonical_json, dumps


class Row(NamedTuple):
    """One plan to check, or why its line cannot be used."""

    id: Any
    plan: Any
    problem: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--catalog", required=True, metavar="C.json", help="the catalog file")
    parser.add_argument(
        "--plan", required=True, metavar="FILE|-", help="text of one plan, or rows with --jsonl; - is stdin"
    )
    parser.add_argument("--jsonl", action="store_true", help='rows {"id","plan"} or {"id","text"}, one a line')
    parser.add_argument(
        "--lenient", action="store_true", help="repair fences, prose, quotes, commas; repairs are listed"
    )


def run(args: argparse.Namespace) -> int:
    catalog = Catalog.load(args.catalog)
    data = _read(args.plan)
    rows = read_rows(data.split(b"\n")) if args.jsonl else [Row(None, _text(data, args.plan))]
    invalid = unusable = 0
    for number, row in enumerate(rows, 1):
        if row.problem:
            unusable += 1
            print(f"plansmith: {args.plan}, line {number}: {row.problem}", file=sys.stderr)
        elif row.plan is not _BLANK:
            result = check_plan(row.plan, catalog, lenient=args.lenient)
            invalid += not result.valid
            print(dumps(report(row.id, result, catalog)))
    if unusable:
        print(f"plansmith: {unusable} unusable line(s); the other rows were checked.", file=sys.stderr)
        return 2
    return 1 if invalid else 0


_BLANK = object()


def read_rows(lines: Iterable[bytes]) -> Iterator[Row]:
    """One `Row` a line, blank lines included (their plan is a marker), so that numbers stay right."""
    for line in lines:
        yield _row(line) if line.strip() else Row(None, _BLANK)


def _row(line: bytes) -> Row:
    try:
        row = parse_json(line.decode())
    except (ParseError, UnicodeDecodeError) as error:
        return Row(None, None, f'no JSON object with "plan" or "text": {error}')
    if not isinstance(row, dict) or not ("plan" in row or "text" in row):
        return Row(None, None, 'no JSON object with "plan" or "text".')
    if "plan" in row and "text" in row:
        return Row(None, None, 'has both "plan" and "text"; give one.')
    if "text" in row and not isinstance(row["text"], str):
        return Row(None, None, '"text" is no string; a plan as JSON goes under "plan".')
    try:
        dumps(row.get("id"))
    except (ValueError, RecursionError):
        return Row(None, None, '"id" is a number too large to be written, or nested too deeply.')
    if "text" in row:
        return Row(row.get("id"), row["text"])
    plan = row["plan"]
    return Row(
        row.get("id"), dumps(plan) if isinstance(plan, str) else plan
    )  # a string is JSON here, not text to parse


def report(row_id: Any, result: CheckResult, catalog: Catalog) -> dict[str, Any]:
    """What is printed for one plan."""
    return {
        "id": row_id,
        "valid": result.valid,
        "findings": [finding.to_json() for finding in result.findings],
        "repairs": list(result.repairs),
        "plan": canonical_json(result.plan.to_json(), catalog) if result.plan is not None else None,
    }


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InputError(f"plan file {name!r} cannot be read: {error.strerror or error}.") from error


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"plan file {name!r} is not UTF-8: {error.reason} at byte {error.start}.") from error
