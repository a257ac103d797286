"""Run as a process of its own by the kill test: asks an endpoint for a plan of each of `COUNT` items, and ends with 0.

Arguments: the endpoint's URL, the file for the rows, and how many requests may be under way.
"""

from __future__ import annotations

import sys
from pathlib import Path

from plansmith.contract.progress import Silent
from plansmith.eval.config import EvalConfig
from plansmith.eval.run import run_system
from plansmith.serving.config import EndpointConfig
from plansmith.serving.openai_planner import OpenAIPlanner
from tests.eval.cases import CATALOG, example

COUNT = 120


def main(url: str, runs: str, concurrency: str) -> None:
    endpoint = EndpointConfig(url=url, model="teacher", concurrency=int(concurrency))
    run_system(
        OpenAIPlanner(endpoint),
        "teacher",
        [example(number) for number in range(COUNT)],
        CATALOG,
        Path(runs),
        constrained=True,
        progress=Silent(),
        config=EvalConfig(concurrency=int(concurrency)),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
