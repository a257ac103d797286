"""What this machine has, what is missing, and the command that brings it.

Example:
  plansmith doctor
  plansmith doctor --json

Exit code 0, whatever is missing: the report says it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="directory for runs (default: out)"
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def run(args: argparse.Namespace) -> int:
    from plansmith.doctor import examine, render_findings

    findings = examine(args.out)
    print(json.dumps([f._asdict() for f in findings], indent=1) if args.json else render_findings(findings))
    return 0
