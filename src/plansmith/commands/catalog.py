"""Show, import or lint a catalog, or print its plan grammar.

Examples:
  plansmith catalog show examples/assistant/catalog.json
  plansmith catalog show examples/assistant/catalog.json --prompt
  plansmith catalog import tools.json --kind openai --name shop --out shop.json
  plansmith catalog import my_workers.py --out catalog.json
  plansmith catalog lint examples/assistant/catalog.json
  plansmith catalog grammar examples/assistant/catalog.json --max-steps 4
"""

from __future__ import annotations

import argparse
import json
import sys

from plansmith.contract.catalog import Catalog

_KINDS = ("python", "openai", "mcp", "bfcl", "nestful", "file")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="{show,import,lint,grammar}")

    show = actions.add_parser("show", help="name, hash and workers of a catalog", allow_abbrev=False)
    show.add_argument("catalog", metavar="C.json")
    show.add_argument("--prompt", action="store_true", help="print what the planner sees of it instead")
    show.set_defaults(action_run=_show)

    load = actions.add_parser(
        "import",
        help="make a catalog of Python functions, OpenAI tools, an MCP list, BFCL docs or NESTFUL specs",
        description="What had to be dropped or mapped is said on standard error. A Python module's code is run.",
        allow_abbrev=False,
    )
    load.add_argument(
        "source", metavar="SOURCE", help="a JSON file, or module, module:attribute, file.py, file.py:attribute"
    )
    load.add_argument("--kind", choices=_KINDS, help="what SOURCE is; found out from its content where it can be")
    load.add_argument("--name", help="name of the catalog")
    load.add_argument("--out", metavar="C.json", help="where to write it; standard output where not given")
    load.add_argument("--trust-hints", action="store_true", help="believe what an MCP server says about its own tools")
    load.set_defaults(action_run=_import)

    lint = actions.add_parser("lint", help="advice on what makes a catalog hard to plan with", allow_abbrev=False)
    lint.add_argument("catalog", metavar="C.json")
    lint.add_argument("--strict", action="store_true", help="exit code 1 where there is any advice")
    lint.set_defaults(action_run=_lint)

    grammar = actions.add_parser("grammar", help="the JSON Schema that constrains decoding", allow_abbrev=False)
    grammar.add_argument("catalog", metavar="C.json")
    grammar.add_argument("--max-steps", type=_positive, default=8, metavar="N", help="longest plan (default: 8)")
    grammar.add_argument("--indent", type=int, metavar="N", help="indent the schema; compact where not given")
    grammar.set_defaults(action_run=_grammar)


def run(args: argparse.Namespace) -> int:
    return args.action_run(args)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, found {text!r}")
    return int(text)


def _show(args: argparse.Namespace) -> int:
    from plansmith.contract.prompt import render_catalog, signature

    catalog = Catalog.load(args.catalog)
    if args.prompt:
        print(render_catalog(catalog), end="")
        return 0
    print(f"{catalog.name}: {len(catalog.workers)} workers, hash {catalog.hash}")
    for worker in catalog.workers:
        permission = f", permission {worker.permission}" if worker.permission else ""
        print(f"\n{signature(worker)}")
        idempotent = "idempotent" if worker.idempotent else "not idempotent"
        print(f"  {worker.effect.value}, {idempotent}, {worker.timeout_s:g} s{permission}")
    return 0


def _import(args: argparse.Namespace) -> int:
    from plansmith.contract.importers import import_catalog

    result = import_catalog(args.source, args.kind, args.name, trust_hints=args.trust_hints)
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    catalog = result.catalog
    if args.out:
        from plansmith.contract.store import write_text

        write_text(args.out, json.dumps(catalog.to_json(), ensure_ascii=False, indent=1) + "\n")
        print(f"{args.out}: {catalog.name}, {len(catalog.workers)} workers, hash {catalog.hash}", file=sys.stderr)
    else:
        print(json.dumps(catalog.to_json(), ensure_ascii=False, indent=1))
    return 0


def _lint(args: argparse.Namespace) -> int:
    from plansmith.contract.lint import lint_catalog

    catalog = Catalog.load(args.catalog)
    notes = lint_catalog(catalog)
    for note in notes:
        print(note)
    print(f"{catalog.name}: {len(catalog.workers)} workers, {len(notes)} note(s)", file=sys.stderr)
    return 1 if notes and args.strict else 0


def _grammar(args: argparse.Namespace) -> int:
    from plansmith.contract.grammar import plan_schema

    schema = plan_schema(Catalog.load(args.catalog), max_steps=args.max_steps)
    separators = (",", ":") if args.indent is None else None
    print(json.dumps(schema, ensure_ascii=False, indent=args.indent, separators=separators))
    return 0
