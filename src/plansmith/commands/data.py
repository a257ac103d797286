"""Build the train, val and test parts of a recipe; count them; show rows.

Examples:
  plansmith data build --config configs/quickstart.yaml
  plansmith data stats --run out/quickstart
  plansmith data show --run out/quickstart --part handwritten --limit 5
  plansmith data show --run out/quickstart --part rejects
"""

from __future__ import annotations

import argparse

from plansmith.commands.shared import add_recipe_options, recipe_of, settings_asked, source_flags


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="{build,stats,show}")
    build = actions.add_parser("build", help="read the source, check every plan, split, write", allow_abbrev=False)
    add_recipe_options(build)
    build.set_defaults(action_run=_build)
    stats = actions.add_parser("stats", help="how many rows of each part; what was dropped and why", allow_abbrev=False)
    add_recipe_options(stats, run_too=True)
    stats.set_defaults(action_run=_stats)
    show = actions.add_parser("show", help="rows with their plans", allow_abbrev=False)
    add_recipe_options(show, run_too=True)
    show.add_argument("--part", help="only this part: train, val, a test part, rejects, or a reject's reason")
    show.add_argument("--worker", metavar="NAME", help="only rows whose plan calls this worker")
    show.add_argument("--text", metavar="WORDS", help="only rows whose query holds these words")
    show.add_argument("--id", dest="row_id", metavar="ID", help="only the row of this id")
    show.add_argument("--start", type=int, default=0, metavar="N", help="pass over so many rows (default: 0)")
    show.add_argument("--limit", type=int, default=10, metavar="N", help="at most so many rows (default: 10)")
    show.set_defaults(action_run=_show)


def run(args: argparse.Namespace) -> int:
    return 0 if settings_asked(args) else args.action_run(args)


def _build(args: argparse.Namespace) -> int:
    from plansmith.progress import shown_progress
    from plansmith.stages import build_data, open_line, write_recipe

    with shown_progress() as progress:
        line = open_line(recipe_of(args), progress)
        with line.run.locked():
            write_recipe(line, ["plansmith", "data", "build", *source_flags(args)])
            build_data(line)
    return _stats(args)


def _stats(args: argparse.Namespace) -> int:
    from plansmith.data.show import stats
    from plansmith.stages import require_data
    from plansmith.terminal import draw

    folder = recipe_of(args).directory
    require_data(folder)
    draw(*stats(folder))
    return 0


def _show(args: argparse.Namespace) -> int:
    from plansmith.data.show import Selection, show_rows
    from plansmith.stages import require_data
    from plansmith.terminal import draw

    folder = recipe_of(args).directory
    require_data(folder)
    selection = Selection(args.part, args.worker, args.text, args.row_id, max(args.start, 0), max(args.limit, 0))
    draw(*show_rows(folder, selection))
    return 0
