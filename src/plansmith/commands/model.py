r"""Make a base model smaller, or a trained planner ready for servers and other people.

`trim` keeps the part of a vocabulary that your texts need: a smaller, faster base that means the same. `export` writes
a run's planner as one folder with weights, tokenizer, generation config, catalog, hashes and a model card.

Examples:
  plansmith model trim gemma3-270m --texts out/quickstart/train.jsonl --catalog out/quickstart/catalog.json \
      --out small-base
  plansmith model export --run out/quickstart --to planner
  plansmith model export --run out/quickstart --to adapter --form adapter
  plansmith model trim planner --texts out/quickstart/train.jsonl --catalog planner/catalog.json --out small-planner
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError

_KEEP_MERGES = 40_000
_FORMS = ("merged", "adapter")
_WEIGHTS = ("auto", "float32", "bfloat16", "float16")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="{trim,export}")

    trim = actions.add_parser("trim", help="keep only the tokens that texts need", allow_abbrev=False)
    trim.add_argument("base", metavar="BASE", help="a folder with a transformers model, or gemma3-270m")
    trim.add_argument(
        "--texts",
        metavar="FILE",
        nargs="+",
        required=True,
        help='what the model shall read: JSONL rows {"query","plan"} or {"text"}; any other file is plain text',
    )
    trim.add_argument("--catalog", metavar="C.json", help="workers whose prompt the model shall read")
    trim.add_argument("--out", metavar="DIR", required=True, help="where the smaller model is written")
    trim.add_argument(
        "--keep-merges",
        type=_count,
        default=_KEEP_MERGES,
        metavar="N",
        help=f"plain English among the tokenizer's first N merges is kept too (default: {_KEEP_MERGES})",
    )
    trim.set_defaults(action_run=_trim)

    export = actions.add_parser("export", help="write a run's planner as a folder of its own", allow_abbrev=False)
    export.add_argument(
        "--run", metavar="RUN", required=True, help="a run with a finished adapter, e.g. out/quickstart"
    )
    export.add_argument("--to", metavar="DIR", required=True, help="where it is written")
    export.add_argument("--form", choices=_FORMS, default="merged", help="what is written (default: merged)")
    export.add_argument(
        "--weights", choices=_WEIGHTS, default="auto", help="number format of merged weights (default: the base's)"
    )
    export.set_defaults(action_run=_export)


def run(args: argparse.Namespace) -> int:
    return args.action_run(args)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of 0 or more, found {text!r}")
    return int(text)


def _trim(args: argparse.Namespace) -> int:
    catalog = None if args.catalog is None else Catalog.load(args.catalog)
    texts = [text for file in args.texts for text in read_texts(Path(file), catalog)]
    from plansmith.contract.prompt import render
    from plansmith.progress import shown_progress
    from plansmith.training.model import full_base, load_tokenizer
    from plansmith.training.trim_check import trim_model

    with shown_progress() as progress:
        base = full_base(args.base, progress)
        if catalog is not None:
            texts += render("", catalog, tokenizer=load_tokenizer(base))
        report = trim_model(base, Path(args.out).resolve(), texts, keep_merges=args.keep_merges, progress=progress)
    share = 1 - report.parameters / report.of_parameters
    lines = [
        f"{report.tokens:,} of {report.of_tokens:,} tokens, {report.parameters:,} of {report.of_parameters:,} "
        f"parameters ({share:.0%} fewer)",
        f"{report.texts:,} texts have the same tokens and come back; {report.logits} places have the full model's "
        f"logits (largest difference {report.logit_difference:.1e})",
        *([f"not taken along: {', '.join(report.left)}"] if report.left else []),
    ]
    print("\n".join(lines), file=sys.stderr)
    print(args.out)
    return 0


def read_texts(path: Path, catalog: Catalog | None) -> Iterator[str]:
    """The texts of a file, each as a model reads it: rows as query and plan of the prompt, other files line by line.

    Raises:
        InputError: the file cannot be read, or a row has none of the known keys.

    """
    from plansmith.contract.store import iter_lines

    if path.suffix == ".jsonl":
        text = _read(path)
        if text and not text.endswith("\n"):
            raise InputError(
                f"{str(path)!r} ends in the middle of a line; write the file anew, or end it with a newline."
            )
        for number, line in iter_lines(path):
            yield from _row_texts(line, f"{path}, line {number}", catalog)
        return
    text = _read(path)
    yield text
    yield from text.splitlines()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} is not UTF-8: {error.reason} at byte {error.start}.") from error


def _row_texts(line: str, place: str, catalog: Catalog | None) -> Iterator[str]:
    import json

    from plansmith.contract.plan import Plan
    from plansmith.contract.prompt import INSTRUCTION, render

    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{place}: not JSON: {error}.") from error
    found = {key: row[key] for key in ("query", "plan", "text") if key in row} if isinstance(row, dict) else {}
    if not found:
        raise InputError(
            f"{place}: expected an object with 'query' and 'plan', or with 'text', found {line.strip():.60}."
        )
    if "query" in found:
        empty = catalog or Catalog("none", [])
        yield INSTRUCTION
        yield render(str(found["query"]), empty).suffix
    if isinstance(found.get("plan"), list):
        yield Plan.from_json(found["plan"]).canonical(catalog)
    yield from (value for key in ("text", "plan") if isinstance(value := found.get(key), str))


def _export(args: argparse.Namespace) -> int:
    from plansmith.commands.shared import recipe_of
    from plansmith.progress import shown_progress
    from plansmith.stages import load_built_data, open_line, prepare_base, require_trained_on, trained_adapter

    source = argparse.Namespace(config=None, run=args.run, name=None, out=None, seed=None, settings=[], run_too=True)
    with shown_progress() as progress:
        line = open_line(recipe_of(source), progress)
        with line.run.locked():
            data = load_built_data(line)
            trained_adapter(line)
            base = prepare_base(line, data)
            adapter = require_trained_on(line, data, base)
            from plansmith.training.export import Form, Source, Weights, export

            found = export(
                Source(base.path, adapter, data, line.path / "report.json"),
                Path(args.to),
                Form(args.form),
                Weights(args.weights),
                progress=progress,
            )
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    if found.card.parity is not None:
        parity = found.card.parity
        print(
            f"merged weights in {found.card.dtype}: largest difference of a logit {parity.logit_difference:.1e}, same "
            f"likeliest token at {parity.same_token} of {parity.places} places",
            file=sys.stderr,
        )
    else:
        print(f"the adapter's base is {base.path} (hash {base.hash})", file=sys.stderr)
    print(args.to)
    return 0
