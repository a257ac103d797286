"""Metrics of plans made by anything, from two files joined by id; JSON on standard output.

Rows are {"id","plan"} or {"id","text"}; a reference row may hold several right plans in "plans". An item without a
candidate is a miss in every metric.

Example:
  plansmith score --catalog catalog.json --reference right.jsonl --candidate mine.jsonl
"""

from __future__ import annotations

import argparse
import json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--catalog", required=True, metavar="C.json", help="the workers that may be called")
    parser.add_argument("--reference", required=True, metavar="R.jsonl", help="right plans; every row is an item")
    parser.add_argument("--candidate", required=True, metavar="K.jsonl", help="plans to score")
    parser.add_argument("--bootstrap-seed", type=int, default=0, metavar="N", help="of the F1 intervals (default: 0)")


def run(args: argparse.Namespace) -> int:
    from plansmith.contract.catalog import Catalog
    from plansmith.eval.score import score_files

    score = score_files(Catalog.load(args.catalog), args.reference, args.candidate, seed=args.bootstrap_seed)
    print(json.dumps(score.to_json(), ensure_ascii=False))
    return 0
