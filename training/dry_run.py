"""What training would do, without a step: the counts, and one example as the loss sees it.

Reads an encoded corpus; gives tables for a terminal. In the table of tokens a prompt token has no label; a plan token
has itself as its label (the model predicts it from all tokens before it), and the weight is its share in the loss.
With the validity term each plan token also has its weight in that term and the number of tokens that the plan grammar
allows in its place. Tokens are shown as they stand in the vocabulary, so that a space which belongs to a token can be
seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from plansmith.contract.errors import InputError
from plansmith.training.config import TrainingConfig
from plansmith.training.encode import Corpus

ENDS_SHOWN = 12
"""Tokens of the shared prompt that are shown at its beginning and at its end."""
_PROMPT, _TARGET, _HEAVY = "dim", "green", "bold magenta"


def dry_run_tables(
    corpus: Corpus,
    tokenizer: Any,
    config: TrainingConfig,
    row: str | None = None,
    validity: Callable[[int], list[tuple[float, int]] | None] = lambda index: None,
) -> list[RenderableType]:
    """The counts, and one example's tokens with labels and weights.

    Args:
        corpus: what training would see.
        tokenizer: the base model's.
        config: batch and steps.
        row: id of the example that is shown; None: the one with the longest plan.
        validity: gives the weight in the validity term and the number of allowed tokens at each target token of an
            example, where the term is on (`Supervision.shown`).

    Raises:
        InputError: no example has that id.

    """
    if row is not None and row not in corpus.names:
        dropped = f" ({sum(corpus.dropped.values())} rows were left out)" if corpus.dropped else ""
        raise InputError(f"no row that would be trained on has the id {row!r}{dropped}.")
    index = corpus.names.index(row) if row is not None else _longest(corpus)
    return [counts_table(corpus, config), token_table(corpus, tokenizer, index, validity(index)), _legend()]


def _longest(corpus: Corpus) -> int:
    return max(range(len(corpus.examples)), key=lambda index: len(corpus.examples[index].weights))


def counts_table(corpus: Corpus, config: TrainingConfig) -> Table:
    """Rows, tokens, steps."""
    examples = corpus.examples
    query = [example.num_query for example in examples]
    target = [len(example.weights) for example in examples]
    drawn = config.steps * config.batch_size
    prefix = [len(corpus.prefix_of(index)) for index in range(len(examples))]
    plain = mean(prefix) + mean(query) + mean(target)
    shared = mean(prefix) / min(config.micro_batch_size, config.batch_size) + mean(query) + mean(target)
    weights = [weight for example in examples for weight in example.weights]
    rows = [
        ("rows given", str(corpus.given)),
        *((f"left out: {reason}", str(number)) for reason, number in sorted(corpus.dropped.items())),
        ("rows trained on", str(len(examples))),
        ("catalogs", str(len(set(corpus.groups)))),
        ("shared prompt, tokens (mean, most)", f"{mean(prefix):.1f}, {max(prefix)}"),
        ("query, tokens (mean, most)", f"{mean(query):.1f}, {max(query)}"),
        ("plan, tokens (mean, most)", f"{mean(target):.1f}, {max(target)}"),
        ("plan tokens that the loss sees", f"{sum(weight > 0 for weight in weights)} of {len(weights)}"),
        ("weight of a plan token (least, most)", f"{min(weights):g}, {max(weights):g}"),
        ("longest example, tokens", str(max(p + len(e.ids) for p, e in zip(prefix, examples, strict=True)))),
        ("limit, tokens", str(config.max_tokens)),
        ("steps, examples a step", f"{config.steps}, {config.batch_size}"),
        ("examples drawn", f"{drawn}: each row {drawn / len(examples):.2f} times"),
        ("tokens an example through the model", f"{shared:.0f} ({plain:.0f} if the prompt were not shared)"),
    ]
    table = Table(title="What training would see", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("number", justify="right")
    for what, number in rows:
        table.add_row(Text(what), number)
    return table


def token_table(
    corpus: Corpus, tokenizer: Any, index: int, validity: Sequence[tuple[float, int]] | None = None
) -> Table:
    """One example: place, id, token, label, weight; with the validity term its weight there and the allowed tokens."""
    example = corpus.examples[index]
    table = Table(title=f"Row {corpus.names[index]}", title_justify="left", show_edge=False, pad_edge=False)
    further = () if validity is None else ("weight in V", "allowed")
    for name in ("place", "id", "token", "label", "weight", *further):
        table.add_column(name, justify="left" if name == "token" else "right")
    prefix = corpus.prefix_of(index)
    ids = [*prefix, *example.ids]
    first_target = len(prefix) + example.num_query
    names: Sequence[str] = tokenizer.convert_ids_to_tokens(ids)
    for place, (token, name) in enumerate(zip(ids, names, strict=True)):
        if ENDS_SHOWN <= place < len(prefix) - ENDS_SHOWN:
            if place == ENDS_SHOWN:
                table.add_row("...", "", f"({len(prefix) - 2 * ENDS_SHOWN} more of the shared prompt)", "", "")
            continue
        weight = example.weights[place - first_target] if place >= first_target else None
        extra = () if validity is None else ("-", "-")
        heavy = weight is not None and weight > 1
        if validity is not None and place >= first_target:
            own, allowed = validity[place - first_target]
            extra, heavy = (f"{own:g}", str(allowed)), heavy or own > 1
        style = _PROMPT if weight is None or not weight else _HEAVY if heavy else _TARGET
        seen = weight is not None and weight > 0 and math.isfinite(weight)
        label = str(token) if seen else "-"
        shown = "-" if weight is None else f"{weight:g}"
        table.add_row(str(place), str(token), Text(repr(name)[1:-1]), label, shown, *extra, style=style)
    return table


def _legend() -> Text:
    return Text.assemble(
        ("prompt: no label", _PROMPT),
        "   ",
        ("plan: label, weight 1", _TARGET),
        "   ",
        ("weight above 1, in the loss or in V", _HEAVY),
    )
