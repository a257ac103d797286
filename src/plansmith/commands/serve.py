"""Serve a planner over HTTP: plans, runs with live events, an OpenAI-compatible route, metrics, a page to try it.

The planner is a model on this machine (--run, --model) or an endpoint (--url, e.g. vLLM); with --workers queries are
run as well. Keys are made with --new-key; without keys only this machine is let in. SIGTERM and Ctrl-C let what runs
end.

Examples:
  plansmith serve --run out/quickstart --workers examples/assistant/workers.py:REGISTRY
  plansmith serve --model out/planner --gateway.port 9000
  plansmith serve --url http://localhost:8000/v1 --url-model planner --catalog out/planner/catalog.json
  plansmith serve --config examples/deploy/serve.yaml --gateway.limits.concurrency 32
  plansmith serve --new-key alice
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from plansmith.contract.errors import InputError

if TYPE_CHECKING:
    from plansmith.serve_config import ServeConfig


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Any setting can be given as a flag: --gateway.limits.concurrency 32. `--settings` lists them all."
    parser.add_argument("--config", metavar="FILE", help="what is served, YAML")
    parser.add_argument("--run", metavar="DIR", help="a finished run, e.g. out/quickstart")
    parser.add_argument("--model", metavar="DIR", help="an exported planner")
    parser.add_argument("--url", help="an OpenAI-compatible endpoint of a planner of ours (its completions route)")
    parser.add_argument("--url-model", metavar="NAME", default="planner", help="the planner's name there")
    parser.add_argument("--catalog", metavar="C.json", help="the workers that plans may call")
    where = "workers with code: module:attribute or file.py:attribute; may be given again"
    parser.add_argument("--workers", metavar="WHERE", action="append", default=[], help=where)
    parser.add_argument("--new-key", metavar="NAME", help="make a key, print it once with its line for the config, end")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning"), help="default: info")
    parser.add_argument("--settings", dest="list_settings", action="store_true", help="list all settings and end")
    parser.set_defaults(settings=[])


def run(args: argparse.Namespace) -> int:
    if args.list_settings:
        _list_settings()
        return 0
    if args.new_key:
        return _new_key(args.new_key)
    config = _config(args)
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    asyncio.run(_serve(config))
    return 0


async def _serve(config: ServeConfig) -> None:
    from plansmith.serving.gateway.app import make_app
    from plansmith.serving.gateway.server import serve
    from plansmith.serving_line import open_parts

    async with AsyncExitStack() as stack:
        parts = await open_parts(config, stack)
        runs = f"{len(parts.registry)} workers" if parts.registry is not None else "plans only"
        keys = f"{len(config.gateway.keys)} keys" if config.gateway.keys else "no keys"
        print(f"catalog {parts.catalog.name} ({parts.catalog.hash[:12]}), {runs}, {keys}", file=sys.stderr, flush=True)
        await serve(make_app(parts, config.gateway))


def _config(args: argparse.Namespace) -> ServeConfig:
    from plansmith.contract.settings import load_settings
    from plansmith.serve_config import ServeConfig

    given = [name for name in ("run", "model", "url") if getattr(args, name)]
    if len(given) > 1:
        raise InputError(f"--{given[0]} and --{given[1]} are two planners; give one.")
    if not given and not args.config:
        raise InputError("say what to serve: --run DIR, --model DIR, --url URL, or --config FILE.")
    if given and args.config:
        raise InputError(f"--config names the planner already; leave out --{given[0]}, or write it into the file.")
    flags: list[str] = []
    if args.run or args.model:
        name = given[0]
        flags.append(f"--planner={json.dumps({'kind': 'local', name: getattr(args, name)})}")
    elif args.url:
        endpoint = {"url": args.url, "model": args.url_model, "route": "completions"}
        flags.append(f"--planner={json.dumps({'kind': 'url', 'endpoint': endpoint})}")
    if args.catalog:
        flags.append(f"--catalog={args.catalog}")
    if args.workers:
        flags.append(f"--workers={json.dumps(args.workers)}")
    return load_settings(ServeConfig, args.config, [*flags, *args.settings])


def _new_key(name: str) -> int:
    from pydantic import ValidationError

    from plansmith.serving.gateway.admission import new_key
    from plansmith.serving.gateway.config import KeyConfig

    made = new_key()
    try:
        KeyConfig(name=name, sha256=made.sha256)
    except ValidationError as error:
        raise InputError(f"--new-key {name!r}: a name has 1 to 32 letters, digits, dots or underscores.") from error
    print(made.key)
    print("Shown once: keep it. In the config, under gateway.keys:", file=sys.stderr)
    print(f"    - {{name: {name}, sha256: {made.sha256}}}", file=sys.stderr)
    return 0


def _list_settings() -> None:
    from plansmith.contract.settings import iter_settings
    from plansmith.serve_config import ServeConfig

    for setting in iter_settings(ServeConfig):
        print(f"--{setting.name} {setting.type}  (default: {setting.default})")
        if setting.help:
            print(f"    {setting.help}")
