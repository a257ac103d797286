"""Serve a planner over HTTP: plans, runs with live events, an OpenAI-compatible route, metrics, a page to try it.

The planner is a model in this process (--run, --model), in a vLLM server that is started here (--vllm), or behind an
endpoint that runs already (--url, with --model for the folder that it serves). With --workers queries are run as well.
Keys are made with --new-key; without keys only this machine is let in. SIGTERM and Ctrl-C let what runs end.

Examples:
  plansmith serve --run out/quickstart --workers examples/assistant/workers.py:REGISTRY
  plansmith serve --model out/planner --gateway.port 9000
  plansmith serve --vllm out/planner --vllm-python ~/vllm/bin/python
  plansmith serve --url http://localhost:8000/v1 --url-model planner --model out/planner
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
    parser.add_argument("--vllm", metavar="DIR", help="an exported planner, in a vLLM server that is started here")
    parser.add_argument("--adapter", metavar="DIR", help="an exported adapter for --model or --vllm, then its base")
    parser.add_argument("--vllm-python", metavar="FILE", help="the interpreter that has vLLM (default: this one)")
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

    planner = _planner(args)
    if planner is None and not args.config:
        raise InputError("say what to serve: --run DIR, --model DIR, --vllm DIR, --url URL, or --config FILE.")
    if planner is not None and args.config:
        raise InputError("--config names the planner already; leave the flag out, or write it into the file.")
    flags = [f"--planner={json.dumps(planner)}"] if planner is not None else []
    if args.catalog:
        flags.append(f"--catalog={args.catalog}")
    if args.workers:
        flags.append(f"--workers={json.dumps(args.workers)}")
    return load_settings(ServeConfig, args.config, [*flags, *args.settings])


def _planner(args: argparse.Namespace) -> dict[str, object] | None:
    """The planner that the flags name, as the config has it."""
    given = [name for name in ("run", "vllm", "url", "model") if getattr(args, name)]
    if len(given) > 1 and given != ["url", "model"]:
        raise InputError(f"--{given[0]} and --{given[1]} are two planners; give one.")
    if not given:
        return None
    if args.adapter and given[0] not in ("model", "vllm"):
        raise InputError(f"--adapter belongs to --model or --vllm; it cannot be used with --{given[0]}.")
    if given[0] == "url":
        endpoint = {"url": args.url, "model": args.url_model, "route": "completions"}
        return {"kind": "url", "endpoint": endpoint, "export": args.model}
    if given[0] == "vllm":
        return {"kind": "vllm", "server": {"model": args.vllm, "adapter": args.adapter, "python": args.vllm_python}}
    return {"kind": "local", given[0]: getattr(args, given[0]), "adapter": args.adapter}


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
