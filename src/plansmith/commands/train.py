"""LoRA training of the base model on the data that `plansmith data build` made.

Stops and resumes: the same command goes on from the last checkpoint. Other settings begin anew; earlier work is kept.

Examples:
  plansmith train --config configs/quickstart.yaml
  plansmith train --config configs/quickstart.yaml --training.steps 80 --training.learning_rate 5e-4
"""

from __future__ import annotations

import argparse

from plansmith.commands.shared import add_recipe_options, recipe_of, settings_asked, source_flags


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe_options(parser)


def run(args: argparse.Namespace) -> int:
    if settings_asked(args):
        return 0
    from plansmith.progress import shown_progress
    from plansmith.stages import load_built_data, open_line, prepare_base, train, write_recipe

    with shown_progress() as progress:
        line = open_line(recipe_of(args), progress)
        with line.run.locked():
            data = load_built_data(line)
            write_recipe(line, ["plansmith", "train", *source_flags(args)])
            adapter = train(line, data, prepare_base(line, data))
    print(adapter)
    return 0
