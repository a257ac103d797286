"""Base against tuned model on the test parts, without and with grammar; then the report.

Asks only what has no answer yet, so it goes on after a stop.

Examples:
  plansmith eval --config configs/quickstart.yaml
  plansmith eval --run out/quickstart
"""

from __future__ import annotations

import argparse

from plansmith.commands.shared import add_recipe_options, recipe_of, settings_asked, source_flags


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe_options(parser, run_too=True)


def run(args: argparse.Namespace) -> int:
    if settings_asked(args):
        return 0
    from plansmith.progress import shown_progress
    from plansmith.stages import load_built_data, open_line, prepare_base, require_trained_on, trained_adapter
    from plansmith.stages_eval import evaluate, report
    from plansmith.terminal import draw

    recipe = recipe_of(args)

    with shown_progress() as progress:
        line = open_line(recipe, progress)
        with line.run.locked():
            data = load_built_data(line)
            trained_adapter(line)
            base = prepare_base(line, data)
            adapter = require_trained_on(line, data, base)
            evaluate(line, data, base, adapter)
            table = report(line, data, base, ["plansmith", "eval", *source_flags(args)])
    draw(table)
    return 0
