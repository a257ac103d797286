"""Options that several subcommands have: which recipe, which run."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.contract.errors import InputError

if TYPE_CHECKING:
    from plansmith.recipe import Recipe

SETTINGS_HELP = """\
Any setting of the config can be given as a flag: --training.steps 20, --data.split.val=0.1.
`--settings` lists them all with type, default and meaning.
"""


def add_recipe_options(parser: argparse.ArgumentParser, *, run_too: bool = False) -> None:
    """`--config FILE`, the flags that override it, and `--settings`; with `run_too` also `--run DIR`."""
    parser.epilog = SETTINGS_HELP
    parser.add_argument("--config", metavar="FILE", help="the recipe, YAML (configs/ has examples)")
    if run_too:
        parser.add_argument("--run", metavar="DIR", help="a finished run, e.g. out/quickstart, in place of --config")
    else:
        parser.set_defaults(run=None)
    parser.add_argument("--name", help="name of the run, in place of the recipe's")
    parser.add_argument("--out", metavar="DIR", help="directory that holds the runs, in place of the recipe's")
    parser.add_argument("--seed", metavar="N", help="seed, in place of the recipe's")
    parser.add_argument("--settings", dest="list_settings", action="store_true", help="list all settings and end")
    parser.set_defaults(settings=[], run_too=run_too)


def settings_asked(args: argparse.Namespace) -> bool:
    """Print all settings where `--settings` was given, and say whether it was."""
    if args.list_settings:
        print(settings_text())
    return bool(args.list_settings)


def settings_text() -> str:
    """Every setting of a recipe: name, type, default, meaning."""
    from plansmith.contract.settings import iter_settings
    from plansmith.recipe import Recipe

    lines: list[str] = []
    for setting in iter_settings(Recipe):
        lines.append(f"--{setting.name} {setting.type}  (default: {setting.default})")
        lines.extend([f"    {setting.help}"] if setting.help else [])
    return "\n".join(lines)


def overrides(args: argparse.Namespace) -> list[str]:
    """The flags that override the recipe, as given."""
    direct = [f"--{name}={value}" for name in ("name", "out", "seed") if (value := getattr(args, name)) is not None]
    return [*direct, *args.settings]


def source_flags(args: argparse.Namespace) -> list[str]:
    """The part of the command line that says which recipe, to be repeated in other commands."""
    return ["--run", args.run] if args.run else ["--config", args.config, *overrides(args)]


def program() -> str:
    """How the user can call this program again: by name where that finds it, else by its path."""
    found, own = shutil.which("plansmith"), Path(sys.argv[0]).absolute()
    if (found is not None and Path(found).absolute() == own) or own.name != "plansmith":
        return "plansmith"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe that the command line names; raises `InputError`."""
    from plansmith.recipe import Recipe, load_recipe

    if (args.config is None) == (args.run is None):
        other = ", or --run DIR of a finished run (one of both)" if args.run_too else ""
        raise InputError(f"give --config FILE, e.g. --config configs/quickstart.yaml{other}.")
    if args.config is not None:
        return load_recipe(args.config, overrides(args))
    if overrides(args):
        raise InputError(f"--run takes the recipe as it was run; {overrides(args)[0]!r} cannot be used with it.")
    file = Path(args.run) / "recipe.json"
    try:
        recipe = Recipe.model_validate(json.loads(file.read_text(encoding="utf-8"))["recipe"])
    except OSError as error:
        raise InputError(f"{args.run!r} is no run: {str(file)!r} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{str(file)!r} is not a recipe of this version: {' '.join(str(error).split())}.") from error
    directory = Path(args.run)
    return recipe.model_copy(update={"out": directory.absolute().parent, "name": directory.absolute().name})
