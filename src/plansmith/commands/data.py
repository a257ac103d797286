"""Collect queries, ask a teacher for their plans; build the train, val and test parts of a recipe; count and show them.

A recipe with `queries` and `teacher` goes through all of it (configs/teacher.yaml); queries and teach also take a
config that has nothing but name, catalog, queries, teacher, teach (and out, seed, grower). What the teacher answered is
never asked again: after a stop the same command goes on.

Examples:
  plansmith data queries --config configs/teacher.yaml
  plansmith data teach --config configs/teacher.yaml --teach.samples 3 --teach.temperature 0.7 --teach.budget.money=20
  plansmith data build --config configs/teacher.yaml
  plansmith data stats --run out/quickstart
  plansmith data show --run out/quickstart --part handwritten --limit 5
  plansmith data show --run out/quickstart --part rejects
  plansmith data export --run out/quickstart --to out/assistant     (Parquet, JSONL and a card, for load_dataset)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.commands.shared import add_recipe_options, overrides, recipe_of, settings_asked, source_flags
from plansmith.contract.errors import InputError

if TYPE_CHECKING:
    from plansmith.factory import Factory


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="{queries,teach,build,stats,show,export}")
    queries = actions.add_parser("queries", help="collect what the teacher is asked", allow_abbrev=False)
    add_recipe_options(queries)
    queries.set_defaults(action_run=_queries, factory=True)
    teach = actions.add_parser("teach", help="ask the teacher for every plan that is missing", allow_abbrev=False)
    add_recipe_options(teach)
    teach.set_defaults(action_run=_teach, factory=True)
    build = actions.add_parser("build", help="read the source, check every plan, split, write", allow_abbrev=False)
    add_recipe_options(build)
    build.set_defaults(action_run=_build)
    stats = actions.add_parser("stats", help="how many rows of each part; what was dropped and why", allow_abbrev=False)
    add_recipe_options(stats, run_too=True)
    stats.add_argument("--html", metavar="FILE", help="also write a page of plots")
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
    export = actions.add_parser("export", help="a folder to share: Parquet, JSONL, data card", allow_abbrev=False)
    add_recipe_options(export, run_too=True)
    export.add_argument("--to", required=True, metavar="DIR", help="the folder to write; an earlier export is replaced")
    export.add_argument("--title", help="title of the card (default: the run's name)")
    export.add_argument("--about", metavar="FILE", help="Markdown file that the card begins with")
    export.set_defaults(action_run=_export)


def run(args: argparse.Namespace) -> int:
    if getattr(args, "factory", False) and args.list_settings:
        print(_factory_settings())
        return 0
    return 0 if settings_asked(args) else args.action_run(args)


def _queries(args: argparse.Namespace) -> int:
    from plansmith.data.teacher_show import queries_tables
    from plansmith.progress import shown_progress
    from plansmith.stages_data import collect
    from plansmith.terminal import draw

    with shown_progress() as progress:
        manifest, stopped = collect(_factory_of(args), progress)
    draw(*queries_tables(manifest))
    if stopped is not None:
        raise stopped
    return 0


def _teach(args: argparse.Namespace) -> int:
    from plansmith.data.teacher_show import teach_tables
    from plansmith.progress import shown_progress
    from plansmith.stages_data import ask_teacher
    from plansmith.terminal import draw

    with shown_progress() as progress:
        manifest, stopped = ask_teacher(_factory_of(args), progress)
    draw(*teach_tables(manifest))
    if stopped is not None:
        raise stopped
    return 0


def _factory_of(args: argparse.Namespace) -> Factory:
    from plansmith.contract.settings import has_section, load_settings
    from plansmith.factory import Factory
    from plansmith.recipe import load_recipe

    if args.config is None:
        raise InputError("give --config FILE with the keys name, catalog, queries, teacher, teach.")
    if not has_section(args.config, "data"):
        return load_settings(Factory, args.config, overrides(args))
    factory = load_recipe(args.config, overrides(args)).factory
    if factory is None:
        raise InputError(
            f"{args.config!r} is a recipe without 'queries', so there is nothing to ask a teacher. Add 'queries' and "
            "'teacher' (configs/teacher.yaml shows how), or go on with 'plansmith data build'."
        )
    return factory


def _factory_settings() -> str:
    """Every setting of queries and teacher: name, type, default, meaning."""
    from plansmith.contract.settings import iter_settings
    from plansmith.factory import Factory

    return "\n".join(
        f"--{one.name} {one.type}  (default: {one.default})" + (f"\n    {one.help}" if one.help else "")
        for one in iter_settings(Factory)
    )


def _build(args: argparse.Namespace) -> int:
    from plansmith.progress import shown_progress
    from plansmith.stages import build_files, open_line, write_recipe

    with shown_progress() as progress:
        line = open_line(recipe_of(args), progress)
        with line.run.locked():
            write_recipe(line, ["plansmith", "data", "build", *source_flags(args)])
            build_files(line)
    return _stats(args)


def _stats(args: argparse.Namespace) -> int:
    from plansmith.data.show import stats
    from plansmith.stages import require_data
    from plansmith.terminal import draw

    folder = recipe_of(args).directory
    require_data(folder)
    draw(*stats(folder))
    if getattr(args, "html", None):
        from plansmith.data.stats import folder_stats
        from plansmith.data.stats_show import write_stats_html

        write_stats_html(folder_stats(folder), Path(args.html), title=folder.name)
        print(f"Plots: {args.html}")
    return 0


def _export(args: argparse.Namespace) -> int:
    from plansmith.data.card import CardText
    from plansmith.data.export import export_data
    from plansmith.data.stats_show import stats_tables
    from plansmith.stages import require_data
    from plansmith.terminal import draw

    folder = recipe_of(args).directory
    require_data(folder)
    try:
        about = Path(args.about).read_text(encoding="utf-8") if args.about else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--about {args.about!r} cannot be read as UTF-8 text: {error}.") from error
    draw(*stats_tables(export_data(folder, Path(args.to), CardText(args.title or folder.name, about))))
    print(f"Data set: {args.to} (datasets.load_dataset({args.to!r}))")
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
