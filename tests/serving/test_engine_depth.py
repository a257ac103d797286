"""What the local engine saves, counted and not timed: forced tokens, kept prefixes; and its stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.endpoint import Draft
from plansmith.contract.grammar import plan_schema
from plansmith.contract.prompt import encode_prompt
from plansmith.contract.records import FinishReason
from plansmith.serving.config import EngineConfig
from plansmith.serving.grammar_masks import GrammarMasks
from plansmith.serving.local_engine import LocalEngine

Preferring = Callable[[dict[str | int, float]], Path]
LIKES: dict[str | int, float] = {'"': 60.0, "}": 55.0, "]": 50.0, "1": 30.0, "3": 20.0}
"""A model that ends its strings and its plan soon."""


def closed(name: str, **properties: Any) -> Worker:
    args = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return Worker(name=name, args=args)


def catalog_of(count: int) -> Catalog:
    extra = [closed(f"other_worker_{n}", text={"type": "string"}) for n in range(count - 1)]
    return Catalog("many", [closed("weather_get", days={"type": "integer"}), *extra])


def step_by_step(base: Path, query: str, catalog: Catalog, config: EngineConfig) -> str:
    """Plain constrained greedy decoding: transformers' own loop, a mask before every token, one token a pass."""
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(base)
    masks = GrammarMasks(tokenizer, vocab_rows=model.config.vocab_size, stop_ids=frozenset({tokenizer.eos_token_id}))
    matcher = masks.compile(plan_schema(catalog, max_steps=config.max_steps)).start()
    ids = encode_prompt(query, catalog, tokenizer)
    prompt = torch.tensor([ids.prefix + ids.suffix])
    seen = prompt.shape[1]

    def held(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        new = input_ids[0, seen:].tolist()
        seen = input_ids.shape[1]
        if new:
            matcher.consume(new)
        return scores.masked_fill(~masks.allowed([matcher]), -torch.inf)

    out = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=config.max_new_tokens,
        do_sample=False,
        logits_processor=[held],
    )[0, prompt.shape[1] :].tolist()
    stop = tokenizer.eos_token_id
    return tokenizer.decode([token for token in out if token != stop], clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_plans_equal_those_of_plain_constrained_decoding(
    name: str, request: pytest.FixtureRequest, catalog: Catalog, queries: list[str]
):
    base: Path = request.getfixturevalue(name)
    config = EngineConfig(max_new_tokens=120, max_steps=2, device="cpu", batch_size=4)
    with LocalEngine(base, config=config) as engine:
        drafts = engine.plan_batch(queries[:6], catalog)
    assert len({draft.text for draft in drafts}) > 1
    for query, draft in zip(queries[:6], drafts, strict=True):
        plain = step_by_step(base, query, catalog, config)
        ended = draft.finish_reason is FinishReason.STOP
        assert draft.text == plain if ended else same_beginning(draft.text, plain)


def same_beginning(left: str, right: str) -> bool:
    """Where the limit of tokens cuts a text, other tokens for the same characters cut it elsewhere."""
    size = min(len(left), len(right))
    return left[:size] == right[:size]


def test_forced_tokens_cost_no_pass_of_their_own(make_preferring: Preferring):
    config = EngineConfig(max_new_tokens=200, max_steps=2, device="cpu")
    with LocalEngine(make_preferring(LIKES), config=config) as engine:
        drafts = engine.plan_batch(["weather", "and more"], catalog_of(1))
        counts = engine.computed
    assert counts.tokens == sum(draft.completion_tokens for draft in drafts)
    assert 0 < counts.forced < counts.tokens
    assert counts.row_passes == counts.tokens - counts.forced + sum(draft.text == "" for draft in drafts)
    assert counts.row_passes / counts.tokens <= 0.6


def test_time_for_grammars_is_told_apart_and_free_decoding_has_none(qwen: Path, catalog: Catalog):
    with LocalEngine(qwen, config=EngineConfig(max_new_tokens=8, device="cpu")) as engine:
        engine.plan_batch(["weather"], catalog, constrained=False)
        free = engine.computed
        engine.plan_batch(["weather"], catalog)
        both = engine.computed
    assert free.grammar_seconds == 0 < free.seconds < both.seconds
    assert 0 < both.grammar_seconds < both.seconds - free.seconds


def test_after_the_first_plan_the_size_of_the_catalog_costs_nothing(qwen: Path):
    config = EngineConfig(max_new_tokens=8, device="cpu")
    found: list[tuple[int, int]] = []
    for size in (5, 40):
        catalog = catalog_of(size)
        with LocalEngine(qwen, config=config) as engine:
            engine.plan_batch(["first"], catalog)
            first = engine.computed
            engine.plan_batch(["another query"], catalog)
            second = engine.computed
        assert first.prefix_tokens > 0
        assert second.prefix_tokens == first.prefix_tokens
        found.append((first.prefix_tokens, second.prompt_tokens - first.prompt_tokens))
    assert found[1][0] > 3 * found[0][0]
    assert found[0][1] == found[1][1] > 0


def test_a_stream_gives_the_text_in_pieces_and_then_the_draft(make_preferring: Preferring, catalog: Catalog):
    config = EngineConfig(max_new_tokens=120, max_steps=2, device="cpu")

    async def work(engine: LocalEngine) -> tuple[list[Any], Draft]:
        streamed = [piece async for piece in engine.stream("weather", catalog)]
        return streamed, await engine.plan("weather", catalog)

    with LocalEngine(make_preferring(LIKES), config=config) as engine:
        (*pieces, draft), alone = asyncio.run(work(engine))
    assert len(pieces) > 1
    assert "".join(pieces) == draft.text == alone.text
    assert draft.check.parsed
    json.loads(draft.text)


def test_half_a_character_waits_for_its_other_half(qwen: Path, catalog: Catalog):
    """The random model writes bytes in any order: no piece ends in a character that a later one changes."""
    config = EngineConfig(max_new_tokens=60, device="cpu")

    async def work(engine: LocalEngine) -> list[Any]:
        return [piece async for piece in engine.stream("weather", catalog, constrained=False)]

    with LocalEngine(qwen, config=config) as engine:
        *pieces, draft = asyncio.run(work(engine))
    assert "".join(pieces) == draft.text


def test_a_stream_that_is_closed_leaves_the_batch_and_others_go_on(make_preferring: Preferring, catalog: Catalog):
    config = EngineConfig(max_new_tokens=1500, device="cpu")

    async def work(engine: LocalEngine) -> None:
        stream = engine.stream("for ever", catalog, constrained=False)
        first = await anext(stream)
        assert isinstance(first, str)
        await stream.aclose()
        draft = await engine.plan("weather", catalog)
        assert draft.text.startswith("[")
        assert engine.waiting == 0
        before = engine.computed.passes
        await asyncio.sleep(0.2)
        assert engine.computed.passes == before, "the row that nobody wants was ended, so nothing is computed any more"

    with LocalEngine(make_preferring({"1": 90.0, **LIKES}), config=config) as engine:
        asyncio.run(work(engine))
