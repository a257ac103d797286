"""The local engine with Gemma 3 270M, its whole vocabulary of 262,144 tokens and its real sliding windows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from plansmith.contract.catalog import Catalog
from plansmith.contract.grammar import STRUCTURAL
from plansmith.contract.progress import Silent
from plansmith.contract.prompt import encode_prompt
from plansmith.contract.records import FinishReason
from plansmith.serving.config import EngineConfig
from plansmith.serving.local_engine import LocalEngine
from plansmith.training.config import ModelConfig
from plansmith.training.model import prepare_base

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(1200)]

CATALOG = Path(__file__).parents[1] / "golden" / "demo_catalog.json"
QUERIES = [
    "What does ACME cost on the NASDAQ?",
    "Look up ACME, and if there is news about it, mail me a summary of the three latest articles.",
    "hello",
]


def long_catalog() -> Catalog:
    """The demo workers under three names each: a prompt longer than the model's sliding window of 512 tokens."""
    workers = Catalog.load(CATALOG).workers
    return Catalog("long", [w.model_copy(update={"name": f"{w.name}_{i}"}) for i in range(3) for w in workers])


@pytest.fixture(scope="module")
def base() -> Path:
    return prepare_base(ModelConfig(base="gemma3-270m", trim_vocabulary=False), texts=[], progress=Silent())


@pytest.fixture(scope="module")
def engine(base: Path) -> Iterator[LocalEngine]:
    with LocalEngine(base, config=EngineConfig(max_new_tokens=24, device="cpu", dtype="float32")) as engine:
        yield engine


def test_a_free_batch_equals_transformers_one_by_one(engine: LocalEngine, base: Path) -> None:
    catalog = long_catalog()
    drafts = engine.plan_batch(QUERIES, catalog, constrained=False)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="sdpa").eval()
    tokenizer = engine._model.tokenizer
    for query, draft in zip(QUERIES, drafts, strict=True):
        ids = encode_prompt(query, catalog, tokenizer)
        prompt = torch.tensor([ids.prefix + ids.suffix])
        assert len(ids.prefix) > 512, "the catalog is no longer than the sliding window"
        seen = torch.ones_like(prompt)
        out = model.generate(input_ids=prompt, attention_mask=seen, max_new_tokens=24, do_sample=False)[0]
        written = [token for token in out[prompt.shape[1] :].tolist() if token != tokenizer.eos_token_id]
        assert draft.text == tokenizer.decode(written, clean_up_tokenization_spaces=False)


def test_under_the_grammar_nothing_but_a_plan_or_its_beginning_is_written(engine: LocalEngine) -> None:
    catalog = Catalog.load(CATALOG)
    drafts = engine.plan_batch(QUERIES, catalog)
    for draft in drafts:
        assert draft.text.startswith("[")
        assert "\n" not in draft.text
        if draft.finish_reason is FinishReason.STOP:
            assert json.loads(draft.text) is not None
            assert not {finding.fault for finding in draft.check.findings} & STRUCTURAL


def test_no_control_token_is_allowed_inside_a_string(engine: LocalEngine) -> None:
    masks = engine._masks
    grammar = masks.compile({"type": "string"})
    matcher = grammar.start()
    tokenizer = engine._model.tokenizer
    matcher.consume(tokenizer.encode('"a', add_special_tokens=False))
    [allowed_V] = masks.allowed([matcher])
    names = ["<eos>", "<bos>", "<pad>", "<start_of_turn>", "<end_of_turn>", "<unused7>", "<start_of_image>"]
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in names}
    assert not [name for name, token in ids.items() if token is not None and allowed_V[token]]
    assert allowed_V.sum() > 100_000
