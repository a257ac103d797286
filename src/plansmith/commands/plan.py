"""One plan for a query of yours, with a model that you trained.

Prints the plan's canonical text on standard output (the model's text where the plan is not valid), and what was found
on standard error. Exit code 0: the plan is valid; 1: it is not.

Examples:
  plansmith plan "Do I need an umbrella in Lisbon tomorrow?" --config configs/quickstart.yaml
  plansmith plan "Do I need an umbrella in Lisbon tomorrow?" --run out/quickstart --free
  plansmith plan "Do I need an umbrella in Lisbon tomorrow?" --model planner   (what plansmith model export wrote)
  plansmith plan "Is it raining in Rome?" --url http://localhost:8000/v1 --catalog planner/catalog.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.commands.shared import add_recipe_options, recipe_of, settings_asked

if TYPE_CHECKING:
    from plansmith.contract.catalog import Catalog
    from plansmith.contract.endpoint import Draft
    from plansmith.serving.config import EngineConfig

    _Asked = tuple[Path, Path | None, Catalog, EngineConfig]


def configure(parser: argparse.ArgumentParser) -> None:
    add_planner_options(parser)


def add_planner_options(parser: argparse.ArgumentParser) -> None:
    """The query, and which planner is asked."""
    parser.add_argument("query", nargs="?", metavar="QUERY", help="the query, in quotes")
    add_recipe_options(parser, run_too=True)
    parser.add_argument("--model", metavar="DIR", help="an exported planner, in place of --config and --run")
    parser.add_argument("--adapter", metavar="DIR", help="an adapter for --model, which is then its base")
    parser.add_argument("--catalog", metavar="C.json", help="the workers of --model (default: its own catalog.json)")
    parser.add_argument("--url", help="a planner behind an OpenAI-compatible endpoint; needs --catalog")
    parser.add_argument("--url-model", metavar="NAME", default="planner", help="its name there (default: planner)")
    chat = "ask --url in a conversation: for models that were not trained here"
    parser.add_argument("--url-chat", action="store_true", help=chat)
    parser.add_argument("--url-key-env", metavar="VAR", help="environment variable that holds the key of --url")
    parser.add_argument("--free", action="store_true", help="decode without the plan grammar")
    parser.add_argument("--base", action="store_true", help="ask the base model, without the adapter")


def run(args: argparse.Namespace) -> int:
    if settings_asked(args):
        return 0
    draft, catalog = planned(args)
    if draft.error is not None:
        print(f"plansmith: no plan: {draft.error}", file=sys.stderr)
        return 1
    for finding in draft.check.findings:
        print(
            f"{finding.severity.value}: {finding.fault.value} at {finding.path or 'the plan'}: {finding.message}",
            file=sys.stderr,
        )
    mode = "without grammar" if args.free else "under the plan grammar"
    print(f"{draft.completion_tokens} tokens in {draft.seconds:.1f} s, {mode}", file=sys.stderr)
    plan = draft.check.plan
    print(plan.canonical(catalog) if plan is not None else draft.text)
    return 0 if draft.check.valid else 1


def planned(args: argparse.Namespace) -> tuple[Draft, Catalog]:
    """Ask the planner that the command line names; its draft, and the catalog that it planned for."""
    if not args.query or not args.query.strip():
        from plansmith.contract.errors import InputError

        raise InputError('give a query in quotes, e.g. plansmith plan "Is it raining in Rome?" --run out/quickstart')
    if args.url:
        return _by_url(args)
    base, adapter, catalog, config = _of_folder(args) if args.model else _of_run(args)
    from plansmith.serving.local_engine import LocalEngine

    with LocalEngine(base, None if args.base else adapter, config=config) as engine:
        (draft,) = engine.plan_batch([args.query], catalog, constrained=not args.free)
    return draft, catalog


def _by_url(args: argparse.Namespace) -> tuple[Draft, Catalog]:
    """A planner behind an endpoint; needs neither torch nor a model on this machine."""
    import asyncio

    from plansmith.contract.catalog import Catalog
    from plansmith.contract.errors import InputError
    from plansmith.serving.config import EndpointConfig, Route
    from plansmith.serving.openai_planner import OpenAIPlanner

    given = [
        f"--{name}"
        for name in ("config", "run", "model", "adapter", "name", "out", "seed", "base")
        if getattr(args, name)
    ]
    if given or args.settings:
        raise InputError(f"--url is a planner of its own; {(given or args.settings)[0]} cannot be used with it.")
    if not args.catalog:
        raise InputError("--url needs the workers that plans may call: --catalog C.json.")
    catalog = Catalog.load(args.catalog)
    route = Route.CHAT if args.url_chat else Route.COMPLETIONS
    endpoint = EndpointConfig(url=args.url, model=args.url_model, route=route, api_key_env=args.url_key_env, retries=2)

    async def ask() -> Draft:
        async with OpenAIPlanner(endpoint) as planner:
            return await planner.plan(args.query, catalog, constrained=not args.free)

    return asyncio.run(ask()), catalog


def _of_folder(args: argparse.Namespace) -> _Asked:
    """A planner that lies in a folder, with its own catalog where none is given."""
    from plansmith.contract.catalog import Catalog
    from plansmith.contract.errors import InputError
    from plansmith.serving.config import EngineConfig

    given = [f"--{name}" for name in ("config", "run", "name", "out", "seed", "base") if getattr(args, name)]
    if given or args.settings:
        raise InputError(f"--model is a planner of its own; {(given or args.settings)[0]} cannot be used with it.")
    base, adapter = Path(args.model), Path(args.adapter) if args.adapter else None
    catalog = Path(args.catalog) if args.catalog else (adapter or base) / "catalog.json"
    return base, adapter, Catalog.load(catalog), EngineConfig()


def _of_run(args: argparse.Namespace) -> _Asked:
    from plansmith.contract.catalog import Catalog
    from plansmith.contract.errors import InputError
    from plansmith.progress import shown_progress
    from plansmith.stages import open_line, prepared_base, trained_adapter

    given = [f"--{name}" for name in ("adapter", "catalog") if getattr(args, name)]
    if given:
        raise InputError(f"{given[0]} belongs to --model DIR; a run has its own.")
    with shown_progress() as progress:
        line = open_line(recipe_of(args), progress)
        adapter = trained_adapter(line)
        base = prepared_base(line)
    return base.path, adapter, Catalog.load(line.path / "catalog.json"), line.recipe.engine
