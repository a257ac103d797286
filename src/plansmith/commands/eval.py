r"""Any planner on test items, then the report: how often it is right, what goes wrong, what it costs.

With a recipe or a run: its base and tuned model (or the systems that its config names) on its test parts. With files:
any planner on any examples. What has an answer is not asked again, so it goes on after a stop; several planners asked
with the same --name are compared in one report.

Examples:
  plansmith eval --config configs/quickstart.yaml
  plansmith eval --run out/quickstart
  plansmith eval --examples test.jsonl --catalog catalog.json --name trial \
      --planner http://localhost:8000/v1 --model my-planner
  plansmith eval --examples test.jsonl --catalog catalog.json --name trial --planner answers.jsonl --system teacher
  plansmith eval --config teacher-and-student.yaml     (keys: name, examples, catalog, eval.systems, eval.teacher)
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.commands.shared import add_recipe_options, overrides, recipe_of, settings_asked, source_flags
from plansmith.contract.errors import InputError

if TYPE_CHECKING:
    from plansmith.evaluation import Evaluation

_FILE_FLAGS = ("examples", "catalog", "planner", "model", "adapter", "system", "constrained", "key_env", "server_pid")


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe_options(parser, run_too=True)
    files = parser.add_argument_group("evaluation of files, in place of --config and --run")
    files.add_argument("--examples", metavar="E.jsonl", help='rows {"query","plan"}, e.g. the test.jsonl of a run')
    files.add_argument("--catalog", metavar="C.json", help="the workers that plans may call")
    files.add_argument("--planner", metavar="WHAT", help="OpenAI-compatible URL, JSONL of answers, or model's folder")
    files.add_argument("--model", metavar="NAME", help="the model's name at the URL")
    files.add_argument("--key-env", metavar="VAR", help="environment variable that holds the URL's key")
    files.add_argument("--server-pid", type=int, metavar="N", help="process of the server, to measure its memory")
    files.add_argument("--adapter", metavar="DIR", help="adapter for the model's folder")
    files.add_argument("--system", metavar="NAME", help="name in the report (default: made from the planner)")
    files.add_argument("--constrained", action="store_true", help="decode under the plan grammar")


def run(args: argparse.Namespace) -> int:
    if settings_asked(args):
        return 0
    evaluation = _evaluation(args)
    return _run_files(args, evaluation) if evaluation is not None else _run_recipe(args)


def _run_recipe(args: argparse.Namespace) -> int:
    from plansmith.progress import shown_progress
    from plansmith.stages import load_built_data, open_line, prepare_base, require_trained_on, trained_adapter
    from plansmith.stages_eval import evaluate, report
    from plansmith.stages_export import export_planner
    from plansmith.terminal import draw

    recipe = recipe_of(args)
    with shown_progress() as progress:
        line = open_line(recipe, progress)
        with line.run.locked():
            data = load_built_data(line)
            trained_adapter(line)
            base = prepare_base(line, data)
            adapter = require_trained_on(line, data, base)
            if recipe.serve is not None:
                export_planner(line, data, base, adapter)
            bench = evaluate(line, data, base, adapter)
            table = report(line, data, base, bench, ["plansmith", "eval", *source_flags(args)])
    draw(table)
    return 0


def _run_files(args: argparse.Namespace, evaluation: Evaluation) -> int:
    from plansmith.progress import shown_progress
    from plansmith.stages_eval import evaluate_files
    from plansmith.terminal import draw

    with shown_progress() as progress:
        table = evaluate_files(evaluation, progress, ["plansmith", "eval", *_flags(args)])
    draw(table)
    print(f"\nReport: {evaluation.directory / 'report.html'} (also .md and .json)")
    return 0


def _evaluation(args: argparse.Namespace) -> Evaluation | None:
    """What the command line says about files; None where it names a recipe or a run."""
    from plansmith.contract.settings import load_settings
    from plansmith.evaluation import Evaluation

    given = [name for name in _FILE_FLAGS if getattr(args, name)]
    if not given:
        is_files = args.config is not None and _has_key(Path(args.config), "examples")
        return load_settings(Evaluation, args.config, overrides(args)) if is_files else None
    if args.config is not None or args.run is not None:
        raise InputError(f"--{given[0].replace('_', '-')} cannot be used together with --config or --run.")
    missing = [name for name in ("examples", "catalog", "planner") if not getattr(args, name)]
    if missing:
        raise InputError(f"to evaluate files give --examples, --catalog and --planner; --{missing[0]} is absent.")
    values = {"name": args.name or "eval", "examples": args.examples, "catalog": args.catalog}
    values |= {key: value for key in ("out", "seed") if (value := getattr(args, key)) is not None}
    system = _system(args)
    return load_settings(Evaluation, None, [*_as_flags(values), f"--eval.systems=[{_json(system)}]", *args.settings])


def _system(args: argparse.Namespace) -> dict[str, Any]:
    """The system that the flags describe."""
    planner: str = args.planner
    common = {"constrained": args.constrained}
    if re.match(r"https?://", planner):
        if not args.model:
            raise InputError("give --model NAME: which model the endpoint shall use.")
        endpoint = {"url": planner, "model": args.model, "api_key_env": args.key_env}
        found = {"kind": "openai", "endpoint": endpoint, "server_pid": args.server_pid, "name": args.model}
    elif Path(planner).is_dir():
        folder = Path(args.adapter or planner).resolve()
        found = {"kind": "local", "base": planner, "adapter": args.adapter, "name": folder.name}
    elif Path(planner).is_file():
        found = {"kind": "recorded", "path": planner, "name": Path(planner).stem}
    else:
        raise InputError(f"planner {planner!r} is no URL, no file and no folder; expected one of them.")
    name = args.system or re.sub(r"[\s:]+", "-", str(found["name"]))
    return common | found | {"name": name}


def _as_flags(values: dict[str, Any]) -> list[str]:
    return [f"--{key}={value}" for key, value in values.items()]


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


def _has_key(path: Path, key: str) -> bool:
    """Whether a YAML file has a key at its top; what is wrong with the file is told by who reads it for good."""
    import yaml

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(value, dict) and key in value


def _flags(args: argparse.Namespace) -> list[str]:
    """The command line again, for the report."""
    if args.config is not None:
        return source_flags(args)
    given = {name: getattr(args, name) for name in _FILE_FLAGS if name != "constrained"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    return [*flags, *(["--constrained"] if args.constrained else []), *overrides(args)]
