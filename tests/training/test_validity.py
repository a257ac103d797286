"""Masks of the plan grammar for targets: equal to llguidance's own answer, kept once, every target allowed."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.grammar import plan_schema
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Silent
from plansmith.contract.prompt import encode_target
from plansmith.contract.records import Example
from plansmith.contract.token_grammar import TokenGrammars
from plansmith.data.build import DataSet
from plansmith.training.config import TrainingConfig
from plansmith.training.encode import Corpus, encode_examples
from plansmith.training.loss import unpack_masks
from plansmith.training.model import build_tiny, load_tokenizer, vocab_rows
from plansmith.training.supervision import Supervision, build_supervision
from plansmith.training.validity import (
    MaskTable,
    PlanMasks,
    Target,
    name_positions,
    name_spans,
    require_allowed,
)
from tests.contract.strategies import catalogs_with_plans

CPU = torch.device("cpu")
PADDING = 13


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return load_tokenizer(base)


@pytest.fixture(scope="module")
def grammars(base: Path, tokenizer: Any) -> TokenGrammars:
    """Of an output layer with more rows than the tokenizer has tokens."""
    return TokenGrammars(tokenizer, vocab_rows=vocab_rows(base) + PADDING, stop_ids=frozenset([tokenizer.eos_token_id]))


@pytest.fixture(scope="module")
def corpus(data: DataSet, tokenizer: Any) -> Corpus:
    return encode_examples(data.train, data.catalog, tokenizer, TrainingConfig(), Silent())


def targets_of(corpus: Corpus, catalog: Catalog) -> list[Target]:
    return [Target(catalog, tuple(example.ids[example.num_query :])) for example in corpus.examples]


def supervise(corpus: Corpus, data: DataSet, base: Path, **change: Any) -> Supervision:
    tokenizer = load_tokenizer(base)
    config = TrainingConfig(**change)
    return build_supervision(corpus, tokenizer, config, vocab_rows(base), Silent())


def direct(grammars: TokenGrammars, catalog: Catalog, ids: tuple[int, ...], max_steps: int) -> torch.Tensor:
    """What llguidance allows before each token, asked one token after another through its plainest call."""
    matcher = grammars.compile(plan_schema(catalog, max_steps=max_steps)).start()._matcher
    rows = []
    for token in ids:
        bias = np.frombuffer(matcher.compute_logit_bias(), dtype=np.uint8)
        rows.append(torch.from_numpy(bias[: grammars.vocab_rows] > 0))
        assert matcher.consume_token(token)
    return torch.stack(rows)


def test_masks_equal_what_llguidance_allows_but_for_special_tokens(
    grammars: TokenGrammars, corpus: Corpus, catalog: Catalog
) -> None:
    masks = PlanMasks(grammars, max_steps=8)
    targets = targets_of(corpus, catalog)
    places = masks.places(targets)
    words = masks.table.words(CPU)
    for target, place in zip(targets, places, strict=True):
        expected = direct(grammars, catalog, target.ids, 8)
        expected[:, grammars.never] = False
        found = unpack_masks(words, torch.from_numpy(place), grammars.vocab_rows)
        assert torch.equal(found, expected)
        assert bool(found[range(len(target.ids)), list(target.ids)].all())
    assert not bool(unpack_masks(words, torch.arange(len(masks.table)), grammars.vocab_rows)[:, -PADDING:].any())


def test_each_mask_is_kept_once_and_made_once(grammars: TokenGrammars, corpus: Corpus, catalog: Catalog) -> None:
    masks = PlanMasks(grammars, max_steps=8)
    targets = targets_of(corpus, catalog)
    first = masks.places(targets[:4])
    before = masks.table.words(CPU).clone()
    masks.places([*targets, *targets])
    made = masks.tokens
    again = masks.places(targets)
    assert masks.tokens == made == sum(len(ids) for ids in {target.ids for target in targets})
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=False))
    words = masks.table.words(CPU)
    assert torch.equal(words[: len(before)], before)
    assert len(words.unique(dim=0)) == len(words) == len(masks.table) < made / 3


def test_masks_made_in_the_background_are_the_same(grammars: TokenGrammars, corpus: Corpus, catalog: Catalog) -> None:
    targets = targets_of(corpus, catalog)
    plain, ahead = PlanMasks(grammars, max_steps=8), PlanMasks(grammars, max_steps=8)
    ahead.prefetch(targets)
    ahead.prefetch(targets[:2])
    found, expected = ahead.places(targets), plain.places(targets)
    rows = ahead.table.words(CPU), plain.table.words(CPU)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(rows[0][a], rows[1][b])
    assert ahead.tokens == plain.tokens
    ahead.close()
    assert not any(thread.name.startswith("masks") and thread.is_alive() for thread in threading.enumerate())


def test_many_masks_are_made_in_parts(
    grammars: TokenGrammars, corpus: Corpus, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = targets_of(corpus, catalog)
    expected = PlanMasks(grammars, max_steps=8)
    wanted = expected.places(targets)
    monkeypatch.setattr("plansmith.training.validity._BATCH_WORDS", 50 * grammars.num_words)
    parts = PlanMasks(grammars, max_steps=8)
    found = parts.places(targets)
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_examples_of_two_catalogs_have_masks_of_their_own_grammar(
    grammars: TokenGrammars, corpus: Corpus, catalog: Catalog
) -> None:
    other = Catalog("other", [catalog.workers[0]])
    target = targets_of(corpus, catalog)[1]
    masks = PlanMasks(grammars, max_steps=8)
    here, there = masks.places([target, Target(other, target.ids)])
    words = masks.table.words(CPU)
    assert not torch.equal(words[here], words[there])
    for place, one in ((here, catalog), (there, other)):
        expected = direct(grammars, one, target.ids, 8)
        expected[:, grammars.never] = False
        assert torch.equal(unpack_masks(words, torch.from_numpy(place), grammars.vocab_rows), expected)


def test_a_plan_outside_its_grammar_is_refused_with_the_place(
    grammars: TokenGrammars, corpus: Corpus, catalog: Catalog, tokenizer: Any
) -> None:
    masks = PlanMasks(grammars, max_steps=8)
    good = targets_of(corpus, catalog)[1]
    text = '[{"type":"weather_get","args":{"town":"Oslo"}}]'
    bad = Target(catalog, tuple(encode_target(text, tokenizer)))
    require_allowed(masks, [good], ["a"], tokenizer.decode)
    with pytest.raises(
        InputError, match=r"1 of 2 rows have a plan that the plan grammar.*row 'b'.*args.*validity to f"
    ):
        require_allowed(masks, [good, bad], ["a", "b"], tokenizer.decode)
    with pytest.raises(PlansmithError, match=r"at place \d+ is not allowed by the grammar of catalog 'tiny'"):
        masks.places([bad])
    masks.prefetch([bad])
    with pytest.raises(PlansmithError, match="not allowed"):
        masks.places([good])


def test_a_target_without_stop_token_or_with_a_special_one_inside_is_not_allowed(
    grammars: TokenGrammars, corpus: Corpus, catalog: Catalog, tokenizer: Any
) -> None:
    masks = PlanMasks(grammars, max_steps=8)
    ids = targets_of(corpus, catalog)[1].ids
    assert masks.first_forbidden(Target(catalog, ids)) is None
    assert masks.first_forbidden(Target(catalog, (*ids[:3], ids[-1], *ids[3:]))) == 3
    assert masks.first_forbidden(Target(catalog, (*ids[:-1], tokenizer.bos_token_id))) == len(ids) - 1


def test_name_spans_hold_the_name_and_its_closing_quote() -> None:
    text = '[{"type":"get_é","args":{"type":"x"}},{"type":"say","args":{},"after":[0]}]'
    assert [text.encode()[a:b].decode() for a, b in name_spans(text)] == ['get_é"', 'say"']
    assert name_spans("[]") == []
    with pytest.raises(InputError, match="not the canonical text"):
        name_spans('[{"type": "say", "args": {}}]')
    with pytest.raises(InputError, match="not the canonical text"):
        name_spans('[{"args":{},"type":"say"}]')


def test_name_positions_are_the_tokens_that_write_a_part_of_a_name() -> None:
    text = '[{"type":"say","args":{"text":"say"}}]'
    pieces = [b"[", b'{"type', b'":"s', b"ay", b'","args', b'":{"text":"', b"say", b'"}}]', b"<eos>"]
    assert name_positions(pieces, text).tolist() == [False, False, True, True, True, False, False, False, False]
    assert name_positions([b"[]", b"<eos>"], "[]").tolist() == [False, False]
    with pytest.raises(InputError, match="the tokens of the plan write"):
        name_positions(pieces[1:], text)


@settings(max_examples=12, deadline=None)
@given(catalogs_with_plans())
def test_any_plan_has_as_many_name_bytes_as_its_names(case: Any) -> None:
    catalog, plan = case
    text = Plan.from_json(plan).canonical(catalog)
    pieces = [bytes([byte]) for byte in text.encode()]
    marked = name_positions([*pieces, b""], text)
    found = b"".join(piece for piece, mark in zip(pieces, marked, strict=False) if mark).decode()
    assert found == "".join(json.dumps(step["type"], ensure_ascii=False)[1:] for step in json.loads(text))


def test_the_tensors_of_a_micro_batch_belong_to_its_rows(corpus: Corpus, data: DataSet, base: Path) -> None:
    extra = supervise(corpus, data, base, name_weight=4.0, lambda_validity=0.5)
    rows = [5, 2, 9]
    terms = extra.terms(rows, CPU)
    assert terms.teacher is None
    validity = terms.validity
    assert validity is not None
    assert validity.scale == 0.5
    ids = [token for row in rows for token in corpus.examples[row].ids[corpus.examples[row].num_query :]]
    allowed = unpack_masks(validity.words_MW, validity.index_N, vocab_rows(base))
    assert bool(allowed[range(len(ids)), ids].all())
    assert validity.weight_N.tolist() == [4.0 if name else 1.0 for name in validity.name_N.tolist()]
    names = validity.name_N.tolist()
    runs = [b > a for a, b in pairwise([False, *names])]
    assert sum(runs) == sum(len(corpus.rows[row].plan) for row in rows)
    assert [name for row in rows for name in extra.names[row].tolist()] == names


def test_a_token_that_the_loss_does_not_see_has_no_weight(corpus: Corpus, data: DataSet, base: Path) -> None:
    example = corpus.examples[0]
    blind = example._replace(weights=[0.0, *example.weights[1:]])
    extra = supervise(corpus._replace(examples=[blind, *corpus.examples[1:]]), data, base)
    validity = extra.terms([0], CPU).validity
    assert validity is not None
    assert float(validity.weight_N[0]) == 0
    assert bool((validity.weight_N[1:] > 0).all())


def test_without_terms_no_grammar_is_made(corpus: Corpus, data: DataSet, base: Path) -> None:
    extra = supervise(corpus, data, base, validity=False)
    extra.prefetch([0])
    assert extra.terms([0, 1], CPU) == (None, None)
    assert extra.mask_seconds() == 0


def test_a_long_plan_widens_the_grammar(data: DataSet, base: Path, catalog: Catalog, make_data: Any) -> None:
    step = {"type": "say", "args": {"text": "hi"}}
    row = data.train[0].model_copy(update={"plan": [step] * 11})
    long = make_data(catalog, [row])
    corpus = encode_examples(long.train, catalog, load_tokenizer(base), TrainingConfig(), Silent())
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    build_supervision(corpus, load_tokenizer(base), TrainingConfig(), vocab_rows(base), Notes())
    assert "up to 11 steps" in notes[0]


def test_a_row_that_the_grammar_cannot_write_stops_training_before_the_first_step(
    data: DataSet, base: Path, catalog: Catalog, make_data: Any
) -> None:
    plan = [{"type": "say", "args": {"text": {"$literal": "hi"}}}]
    row = data.train[0].model_copy(update={"id": "odd", "plan": plan})
    odd = make_data(catalog, [*data.train[:3], row])
    corpus = encode_examples(odd.train, catalog, load_tokenizer(base), TrainingConfig(), Silent())
    with pytest.raises(InputError, match=r"1 of 4 rows.*row 'odd'"):
        supervise(corpus, odd, base)
    assert supervise(corpus, odd, base, validity=False).masks is None


def test_a_worker_name_of_any_characters_has_its_positions(tmp_path: Path, rows: list[Example]) -> None:
    names = ("Get_Hotel_Reviews(Tips)", 'say"it\\', "東京🙂")
    args = {"type": "object", "properties": {}}
    catalog = Catalog("odd", [Worker(name=name, args=args) for name in names])
    texts = [Plan.from_json([{"type": name, "args": {}}]).canonical(catalog) for name in names]
    build_tiny(tmp_path, texts, vocabulary=300)
    tokenizer = load_tokenizer(tmp_path)
    stop = frozenset([tokenizer.eos_token_id])
    grammars = TokenGrammars(tokenizer, vocab_rows=vocab_rows(tmp_path), stop_ids=stop)
    masks = PlanMasks(grammars, max_steps=8)
    for text in texts:
        target = Target(catalog, tuple(encode_target(text, tokenizer)))
        assert masks.first_forbidden(target) is None
        pieces = [grammars.token_bytes(token) for token in target.ids]
        assert name_positions(pieces, text).any()
    targets = [Target(catalog, tuple(encode_target(text, tokenizer))) for text in texts]
    for target, place in zip(targets, masks.places(targets), strict=True):
        allowed = unpack_masks(masks.table.words(CPU), torch.from_numpy(place), grammars.vocab_rows)
        assert bool(allowed[range(len(target.ids)), list(target.ids)].all())
    assert masks.added == 1, "llguidance offers one spelling of forced text, byte by byte inside a character"


def test_a_table_grows_without_moving_what_it_has() -> None:
    table = MaskTable(2)
    rows = np.array([[1, 2], [3, 4], [1, 2]], dtype=np.int32)
    assert table.add(rows).tolist() == [0, 1, 0]
    assert table.words(CPU).tolist() == [[1, 2], [3, 4]]
    assert table.add(np.array([[5, 6], [3, 4]], dtype=np.int32)).tolist() == [2, 1]
    assert table.words(CPU).tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_token_that_no_plan_may_hold_is_taken_out_of_every_mask(
    grammars: TokenGrammars, corpus: Corpus, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = targets_of(corpus, catalog)[:4]
    used = {token for target in targets for token in target.ids}
    before = PlanMasks(grammars, max_steps=8)
    before.places(targets)
    allowed = unpack_masks(before.table.words(CPU), torch.arange(len(before.table)), grammars.vocab_rows)
    banned = next(
        token for token in range(31, grammars.vocab_rows) if token not in used and bool(allowed[:, token].any())
    )
    monkeypatch.setattr(grammars, "never", [*grammars.never, banned])
    after = PlanMasks(grammars, max_steps=8)
    after.places(targets)
    left = unpack_masks(after.table.words(CPU), torch.arange(len(after.table)), grammars.vocab_rows)
    assert not bool(left[:, banned].any())
    assert bool(left.any())
