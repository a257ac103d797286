"""LoRA training of the base model on the data that `plansmith data build` made.

Stops and resumes: the same command goes on from the last checkpoint. Other settings begin anew; earlier work is kept.

Examples:
  plansmith train --config configs/quickstart.yaml
  plansmith train --config configs/quickstart.yaml --training.steps 80 --training.learning_rate 5e-4
  plansmith train --config configs/quickstart.yaml --dry-run     (tokens, labels, weights, counts; no step is made)
  torchrun --nproc-per-node 4 -m plansmith.cli train --config configs/quickstart.yaml     (one process a GPU)
  plansmith train --config configs/quickstart.yaml --stage policy --policy.steps 20     (on the student's own plans)
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack

from plansmith.commands.shared import add_recipe_options, recipe_of, settings_asked, source_flags
from plansmith.contract.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe_options(parser)
    parser.add_argument(
        "--stage",
        choices=("supervised", "policy"),
        default="supervised",
        help="policy: train the finished adapter further on its own plans, by reward or by a teacher (extra: rl)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what training would see, and make no step")
    parser.add_argument("--row", metavar="ID", help="with --dry-run: the row that is shown (default: the longest plan)")


def run(args: argparse.Namespace) -> int:
    if settings_asked(args):
        return 0
    if args.dry_run:
        if args.stage != "supervised":
            raise InputError("--dry-run shows the supervised stage; give it without --stage policy.")
        return _dry_run(args)
    if args.row is not None:
        raise InputError("--row chooses the row that --dry-run shows; give --dry-run too.")
    if args.stage == "policy":
        return _policy(args)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return _together(args)
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


def _together(args: argparse.Namespace) -> int:
    """In one of several processes that a launcher started; the first holds the run and speaks."""
    from plansmith.contract.progress import Silent
    from plansmith.progress import shown_progress
    from plansmith.stages import load_built_data, open_line, prepare_base, prepared_base, train_together, write_recipe
    from plansmith.training.parallel import joined

    with joined() as world, ExitStack() as stack:
        progress = stack.enter_context(shown_progress()) if world.leads else Silent()
        line = open_line(recipe_of(args), progress)
        if world.leads:
            stack.enter_context(line.run.locked())
            write_recipe(line, ["plansmith", "train", *source_flags(args)])
            prepare_base(line, load_built_data(line))
        world.wait()
        adapter = train_together(line, load_built_data(line), prepared_base(line), world)
        if world.leads:
            print(adapter)
    return 0


def _policy(args: argparse.Namespace) -> int:
    from plansmith.policy import train_policy
    from plansmith.progress import shown_progress
    from plansmith.stages import load_built_data, open_line, prepared_base, write_recipe

    with shown_progress() as progress:
        line = open_line(recipe_of(args), progress)
        with line.run.locked():
            data = load_built_data(line)
            write_recipe(line, ["plansmith", "train", "--stage", "policy", *source_flags(args)])
            adapter = train_policy(line, data, prepared_base(line))
    print(adapter)
    return 0


def _dry_run(args: argparse.Namespace) -> int:
    from plansmith.progress import shown_progress
    from plansmith.stages import load_built_data, open_line, prepare_base
    from plansmith.terminal import draw
    from plansmith.training.dry_run import dry_run_tables
    from plansmith.training.encode import encode_examples
    from plansmith.training.model import load_tokenizer, vocab_rows
    from plansmith.training.supervision import build_supervision

    with shown_progress() as progress:
        line = open_line(recipe_of(args), progress)
        with line.run.locked():
            data = load_built_data(line)
            base = prepare_base(line, data).path
        tokenizer, config = load_tokenizer(base), line.recipe.training
        corpus = encode_examples(data.train, data.catalog, tokenizer, config, progress, catalogs=data.catalogs)
        extra = build_supervision(corpus, tokenizer, config, vocab_rows(base), progress)
        tables = dry_run_tables(corpus, tokenizer, config, args.row, extra.shown)
        extra.close(progress)
    draw(*tables)
    print("No step was made.")
    return 0
