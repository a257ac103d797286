"""Sampling in the local engine: the distribution is the model's, the grammar holds, a seed fixes the text."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.grammar import STRUCTURAL
from plansmith.contract.records import FinishReason
from plansmith.serving.config import EngineConfig
from plansmith.serving.decoding import Sampler, draw_tokens
from plansmith.serving.local_engine import LocalEngine

Preferring = Callable[[dict[str | int, float]], Path]
CLOSERS: dict[str | int, float] = {'"': 2.0, "{": 2.0, "}": 2.0, "]": 1.0, "1": 1.0, "3": 1.0}


def sampler(seed: int, temperature: float = 1.0) -> Sampler:
    return Sampler(temperature, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_their_share_and_forbidden_ones_never(temperature: float):
    scores_V = torch.tensor([-torch.inf, 2.0, 0.0, -torch.inf, 1.0, -3.0, -torch.inf])
    one = sampler(0, temperature)
    count = 20_000
    drawn = Counter(draw_tokens(scores_V.expand(count, -1), [one] * count))
    share_V = (scores_V / temperature).softmax(-1)
    for token, share in enumerate(share_V.tolist()):
        assert abs(drawn[token] / count - share) < 0.015, token
    assert not {0, 3, 6} & drawn.keys()


def test_the_ends_of_the_distribution_are_reached_and_not_passed(monkeypatch: pytest.MonkeyPatch):
    scores_SV = torch.tensor([[-torch.inf, 1.0, 1.0, -torch.inf]] * 2)
    draws = iter([0.0, 1 - 2**-53])
    monkeypatch.setattr(Sampler, "draw", lambda _: next(draws))
    assert draw_tokens(scores_SV, [sampler(0), sampler(0)]) == [1, 2]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30])
def test_a_very_low_temperature_is_greedy(temperature: float):
    scores_SV = torch.randn(50, 100, generator=torch.Generator().manual_seed(1)) * 30
    assert draw_tokens(scores_SV, [sampler(i, temperature) for i in range(50)]) == scores_SV.argmax(-1).tolist()


def test_a_seed_fixes_the_text_whatever_else_is_in_the_batch(
    qwen: Path, catalog: Catalog, queries: list[str], config: EngineConfig
):
    with LocalEngine(qwen, config=config) as engine:
        for constrained in (True, False):
            options = {"constrained": constrained, "temperature": 1.0}
            seeds = list(range(10, 10 + len(queries)))
            together = [d.text for d in engine.plan_batch(queries, catalog, seeds=seeds, **options)]
            alone = [
                engine.plan_batch([query], catalog, seeds=[seed], **options)[0].text
                for query, seed in zip(queries, seeds, strict=True)
            ]
            mixed = [d.text for d in engine.plan_batch(queries[::-1], catalog, seeds=seeds[::-1], **options)][::-1]
            assert together == alone == mixed
            greedy = [d.text for d in engine.plan_batch(queries, catalog, constrained=constrained)]
            assert together != greedy
            other = [d.text for d in engine.plan_batch(queries, catalog, seeds=[s + 100 for s in seeds], **options)]
            assert sum(a != b for a, b in zip(together, other, strict=True)) > 3, "the seed makes no difference"


def test_greedy_rows_stay_greedy_beside_sampled_ones(
    qwen: Path, catalog: Catalog, queries: list[str], config: EngineConfig
):
    async def ask(engine: LocalEngine) -> list[str]:
        calls = [
            engine.plan(query, catalog, temperature=float(number % 2), seed=number)
            for number, query in enumerate(queries)
        ]
        return [draft.text for draft in await asyncio.gather(*calls)]

    with LocalEngine(qwen, config=config) as engine:
        greedy = engine.plan_batch(queries, catalog)
        sampled = engine.plan_batch(queries, catalog, temperature=1.0)
        mixed = asyncio.run(ask(engine))
    assert mixed == [(sampled if number % 2 else greedy)[number].text for number in range(len(queries))]


def test_sampled_plans_keep_to_the_grammar(make_preferring: Preferring, catalog: Catalog):
    limits = EngineConfig(batch_size=8, max_new_tokens=150, max_steps=2, device="cpu")
    with LocalEngine(make_preferring(CLOSERS), config=limits) as engine:
        drafts = engine.plan_batch(["weather in Oslo"] * 24, catalog, temperature=1.0)
    ended = [draft for draft in drafts if draft.finish_reason is FinishReason.STOP]
    assert len(ended) > 8
    assert len({draft.text for draft in ended}) > 4
    assert not [d for d in ended if {finding.fault for finding in d.check.findings} & STRUCTURAL or not d.check.parsed]
    assert not [draft for draft in drafts if draft.finish_reason is FinishReason.ERROR]


def test_temperatures_and_seeds_that_cannot_be_are_refused(qwen: Path, catalog: Catalog):
    with LocalEngine(qwen) as engine:
        with pytest.raises(InputError, match="2 seeds were given for 1 queries"):
            engine.plan_batch(["a"], catalog, temperature=1.0, seeds=[1, 2])
        for temperature in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InputError, match="temperature"):
                engine.plan_batch(["a"], catalog, temperature=temperature)
            with pytest.raises(InputError, match="temperature"):
                asyncio.run(engine.plan("a", catalog, temperature=temperature))
