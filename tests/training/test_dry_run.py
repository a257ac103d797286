"""The dry run shows what the loss will see: labels and weights of every plan token, and the counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.data.build import DataSet
from plansmith.training.config import TrainingConfig
from plansmith.training.dry_run import ENDS_SHOWN, dry_run_tables
from plansmith.training.encode import Corpus, encode_examples
from plansmith.training.model import load_tokenizer, vocab_rows
from plansmith.training.supervision import build_supervision

CONFIG = TrainingConfig(steps=3, batch_size=8, micro_batch_size=4)


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return load_tokenizer(base)


@pytest.fixture(scope="module")
def corpus(data: DataSet, tokenizer: Any) -> Corpus:
    return encode_examples(data.train, data.catalog, tokenizer, CONFIG, Silent())


def shown(corpus: Corpus, tokenizer: Any, row: str | None = None, *, colour: bool = False) -> str:
    console = Console(width=120, record=True, force_terminal=colour, color_system="standard" if colour else None)
    with console.capture() as capture:
        for table in dry_run_tables(corpus, tokenizer, CONFIG, row):
            console.print(table)
    return capture.get()


def test_with_the_validity_term_names_weigh_more_and_every_target_is_among_the_allowed(
    corpus: Corpus, tokenizer: Any, base: Path
):
    extra = build_supervision(corpus, tokenizer, CONFIG, vocab_rows(base), Silent())
    console = Console(width=120)
    with console.capture() as capture:
        for table in dry_run_tables(corpus, tokenizer, CONFIG, "row-3", extra.shown):
            console.print(table)
    extra.close(Silent())
    example = corpus.examples[corpus.names.index("row-3")]
    begin = len(corpus.prefix) + example.num_query
    rows = {place: row for place, row in cells(capture.get()).items() if place >= begin}
    named = "".join(row[1] for row in rows.values() if float(row[4]) == CONFIG.name_weight)
    assert "weather_get" in named
    assert "say" in named
    assert "city" not in named
    allowed = [int(row[5]) for row in rows.values()]
    assert min(allowed) == 1
    assert max(allowed) > 100
    assert rows[max(rows)][0] == str(tokenizer.eos_token_id)


def cells(text: str) -> dict[int, list[str]]:
    """Columns after the place, by place."""
    rows = ([cell.strip() for cell in line.split("│")] for line in text.splitlines())
    return {int(row[0]): row[1:] for row in rows if row[0].isdigit()}


def test_each_plan_token_is_its_own_label_and_no_prompt_token_has_one(corpus: Corpus, tokenizer: Any):
    index = corpus.names.index("row-3")
    example = corpus.examples[index]
    rows = cells(shown(corpus, tokenizer, "row-3"))
    begin = len(corpus.prefix) + example.num_query
    for place, (token, _, label, weight) in rows.items():
        if place < begin:
            assert (label, weight) == ("-", "-")
        else:
            assert label == token
            assert float(weight) == pytest.approx(example.weights[place - begin])
    assert max(rows) == len(corpus.prefix) + len(example.ids) - 1
    assert rows[max(rows)][0] == str(tokenizer.eos_token_id)
    hidden = len(corpus.prefix) - 2 * ENDS_SHOWN
    assert len(rows) == len(corpus.prefix) + len(example.ids) - hidden


def test_a_token_that_the_loss_does_not_see_is_shown_without_label(corpus: Corpus, tokenizer: Any):
    example = corpus.examples[0]
    blind = example._replace(weights=[0.0, *example.weights[1:]])
    rows = cells(shown(corpus._replace(examples=[blind, *corpus.examples[1:]]), tokenizer, corpus.names[0]))
    assert rows[len(corpus.prefix) + example.num_query][2:] == ["-", "0"]


def test_counts_are_those_of_the_corpus_and_the_config(corpus: Corpus, tokenizer: Any):
    text = shown(corpus._replace(given=18, dropped={"too_long": 2}), tokenizer)
    assert "left out: too_long" in text
    assert "24: each row 1.50 times" in text
    targets = sum(len(example.weights) for example in corpus.examples)
    assert f"{targets} of {targets}" in text


def test_prompt_and_plan_have_colours_of_their_own(corpus: Corpus, tokenizer: Any):
    text = shown(corpus, tokenizer, colour=True)
    assert "\x1b[2m" in text
    assert "\x1b[32m" in text


def test_a_row_that_is_not_trained_on_is_refused(corpus: Corpus, tokenizer: Any):
    with pytest.raises(InputError, match="no row that would be trained on has the id 'nobody'"):
        dry_run_tables(corpus, tokenizer, CONFIG, "nobody")
