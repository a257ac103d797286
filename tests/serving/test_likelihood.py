"""The likelihood of a plan is that of the model alone, whatever is kept of the prompt and however it is cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from plansmith.contract.catalog import Catalog
from plansmith.contract.prompt import encode_prompt, encode_target
from plansmith.serving.config import EngineConfig
from plansmith.serving.local_engine import LocalEngine

PLAN = '[{"type":"find","args":{"city":"Oslo"}}]'


def mean_nll_alone(base: Path, query: str, text: str, catalog: Catalog) -> float:
    """One plain forward pass of transformers over prompt and plan."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model: Any = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").eval()
    prompt = encode_prompt(query, catalog, tokenizer)
    target = encode_target(text, tokenizer)
    ids = [*prompt.prefix, *prompt.suffix, *target]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -len(target) - 1 : -1, : len(tokenizer)].float()
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(target)))


@pytest.mark.parametrize("name", ["gemma", "qwen"])
@pytest.mark.parametrize("prefill", [7, 64, 4096])
def test_it_equals_a_plain_pass_of_transformers(
    name: str, prefill: int, request: pytest.FixtureRequest, catalog: Catalog, queries: list[str], config: EngineConfig
):
    base: Path = request.getfixturevalue(name)
    with LocalEngine(base, config=config.model_copy(update={"prefill_tokens": prefill})) as engine:
        for query in queries[:2]:
            for text in (PLAN, "[]"):
                expected = mean_nll_alone(base, query, text, catalog)
                assert engine.mean_nll(query, text, catalog) == pytest.approx(expected, rel=1e-4)


def test_plans_decoded_before_and_after_are_the_same(gemma: Path, catalog: Catalog, queries: list[str]):
    with LocalEngine(gemma, config=EngineConfig(max_new_tokens=12)) as engine:
        before = [draft.text for draft in engine.plan_batch(queries, catalog, constrained=False)]
        engine.mean_nll(queries[0], PLAN, catalog)
        assert [draft.text for draft in engine.plan_batch(queries, catalog, constrained=False)] == before


def test_the_text_that_the_model_prefers_is_likelier(
    make_preferring: Callable[[dict[str | int, float]], Path], catalog: Catalog, queries: list[str]
):
    with LocalEngine(make_preferring({"]": 4.0})) as engine:
        assert engine.mean_nll(queries[0], "]]]", catalog) < engine.mean_nll(queries[0], "{{{", catalog) - 1


def test_what_is_too_long_for_the_model_has_no_likelihood(gemma: Path, catalog: Catalog):
    with LocalEngine(gemma) as engine:
        assert math.isnan(engine.mean_nll("word " * 20_000, PLAN, catalog))
