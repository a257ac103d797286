"""The local engine decodes what the model alone would, keeps to the grammar, and never blocks the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft, Planner
from plansmith.contract.errors import CatalogMismatchError, InputError
from plansmith.contract.grammar import STRUCTURAL
from plansmith.contract.prompt import encode_prompt, prompt_hash
from plansmith.contract.records import FinishReason
from plansmith.serving.config import EngineConfig
from plansmith.serving.local_engine import LocalEngine
from plansmith.serving.request_queue import EngineClosedError

Preferring = Callable[[dict[str | int, float]], Path]
CLOSERS: dict[str | int, float] = {'"': 2.0, "{": 2.0, "}": 2.0, "]": 1.0, "1": 1.0, "3": 1.0}


def texts(drafts: Sequence[Draft]) -> list[str]:
    return [draft.text for draft in drafts]


def load_reference(base: Path) -> tuple[Any, Any]:
    model: Any = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(base)


def generate_alone(model: Any, tokenizer: Any, query: str, catalog: Catalog, limit: int) -> str:
    """What transformers itself generates greedily for one prompt."""
    ids = encode_prompt(query, catalog, tokenizer)
    prompt = torch.tensor([ids.prefix + ids.suffix])
    out = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=limit,
        do_sample=False,
        suppress_tokens=list(range(len(tokenizer), model.config.vocab_size)),
    )[0, prompt.shape[1] :].tolist()
    if out[-1] == tokenizer.eos_token_id:
        out.pop()
    return tokenizer.decode(out, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("name", ["gemma", "qwen"])
def test_free_decoding_in_batches_equals_transformers_one_by_one(
    name: str, request: pytest.FixtureRequest, catalog: Catalog, queries: list[str], config: EngineConfig
) -> None:
    base: Path = request.getfixturevalue(name)
    model, tokenizer = load_reference(base)
    expected = [generate_alone(model, tokenizer, query, catalog, config.max_new_tokens) for query in queries]
    with LocalEngine(base, config=config) as engine:
        drafts = engine.plan_batch(queries, catalog, constrained=False)
    assert texts(drafts) == expected
    assert len(set(expected)) > 3, "the model answers alike whatever is asked; the test would show nothing"
    assert [draft.query for draft in drafts] == queries


@pytest.mark.parametrize("name", ["gemma", "qwen"])
def test_batched_equals_unbatched_under_the_grammar(
    name: str, request: pytest.FixtureRequest, catalog: Catalog, queries: list[str], config: EngineConfig
) -> None:
    base: Path = request.getfixturevalue(name)
    with LocalEngine(base, config=config) as engine:
        alone = [engine.plan_batch([query], catalog)[0] for query in queries]
        together = engine.plan_batch(queries, catalog)
    assert texts(alone) == texts(together)
    assert [d.finish_reason for d in alone] == [d.finish_reason for d in together]
    assert [d.completion_tokens for d in alone] == [d.completion_tokens for d in together]


def test_small_pieces_of_prefix_and_prompt_change_nothing(
    gemma: Path, catalog: Catalog, queries: list[str], config: EngineConfig
) -> None:
    with LocalEngine(gemma, config=config) as whole:
        expected = texts(whole.plan_batch(queries, catalog, constrained=False))
    with LocalEngine(gemma, config=config.model_copy(update={"prefill_tokens": 16})) as pieces:
        assert texts(pieces.plan_batch(queries, catalog, constrained=False)) == expected


def test_a_random_model_under_the_grammar_writes_strict_json_with_registered_workers(
    make_preferring: Preferring, catalog: Catalog, queries: list[str]
) -> None:
    limits = EngineConfig(batch_size=4, max_new_tokens=150, max_steps=2, device="cpu")
    with LocalEngine(make_preferring(CLOSERS), config=limits) as engine:
        drafts = engine.plan_batch(queries, catalog)
    ended = [draft for draft in drafts if draft.finish_reason is FinishReason.STOP]
    assert len(ended) > 2, texts(drafts)
    for draft in ended:
        assert not {finding.fault for finding in draft.check.findings} & STRUCTURAL, draft
        assert draft.text == json.dumps(json.loads(draft.text), separators=(",", ":"), ensure_ascii=False)
        assert draft.check.parsed


def test_a_model_that_prefers_white_space_still_ends_under_the_grammar(
    make_preferring: Preferring, catalog: Catalog
) -> None:
    base = make_preferring({"Ċ": 90.0, "ĉ": 80.0, '"': 70.0, "{": 60.0, "}": 50.0, "]": 40.0, "1": 30.0})
    with LocalEngine(base, config=EngineConfig(max_new_tokens=150, device="cpu", max_steps=2)) as engine:
        [free] = engine.plan_batch(["weather"], catalog, constrained=False)
        [held] = engine.plan_batch(["weather"], catalog)
    assert free.text.strip() == ""
    assert free.finish_reason is FinishReason.LENGTH
    assert held.finish_reason is FinishReason.STOP
    assert held.check.valid
    assert not any(character.isspace() for character in held.text)


def test_a_model_that_always_stops_gives_the_empty_plan_only_under_the_grammar(
    make_preferring: Preferring, catalog: Catalog
) -> None:
    base = make_preferring({"<eos>": 90.0, "[": 70.0, "]": 80.0})
    with LocalEngine(base, config=EngineConfig(device="cpu")) as engine:
        [free] = engine.plan_batch(["weather"], catalog, constrained=False)
        [held] = engine.plan_batch(["weather"], catalog)
    assert (free.text, free.finish_reason, free.check.parsed) == ("", FinishReason.STOP, False)
    assert (held.text, held.finish_reason, held.check.valid) == ("[]", FinishReason.STOP, True)


def test_special_tokens_and_padding_rows_are_never_written_under_the_grammar(
    make_preferring: Preferring, catalog: Catalog
) -> None:
    base = make_preferring({"<turn>": 90.0, "<pad>": 90.0, 415: 99.0, "<eos>": 80.0, "{": 70.0, "a": 60.0})
    limits = EngineConfig(max_new_tokens=60, device="cpu")
    with LocalEngine(base, config=limits) as engine:
        [free] = engine.plan_batch(["mail"], catalog, constrained=False)
        [held] = engine.plan_batch(["mail"], catalog)
    assert free.text.startswith("<turn>") or free.text.startswith("<pad>")
    assert not free.check.parsed
    assert "<" not in held.text
    assert held.finish_reason is FinishReason.LENGTH


def test_a_plan_that_reaches_the_token_limit_ends_with_length_and_exactly_so_many_tokens(
    make_preferring: Preferring, catalog: Catalog
) -> None:
    base = make_preferring({"a": 90.0, "{": 60.0, '"': 50.0})
    with LocalEngine(base, config=EngineConfig(max_new_tokens=23, device="cpu")) as engine:
        drafts = [engine.plan_batch(["mail"], catalog, constrained=held)[0] for held in (False, True)]
    assert [draft.finish_reason for draft in drafts] == [FinishReason.LENGTH] * 2
    assert [draft.completion_tokens for draft in drafts] == [23, 23]
    assert drafts[0].text == "a" * 23
    assert not drafts[1].check.parsed


def test_two_catalogs_in_one_engine_do_not_mix(
    qwen: Path, catalog: Catalog, other_catalog: Catalog, queries: list[str], config: EngineConfig
) -> None:
    small = config.model_copy(update={"prefix_cache_size": 1})
    with LocalEngine(qwen, config=config) as fresh:
        expected = texts(fresh.plan_batch(queries, other_catalog))
    with LocalEngine(qwen, config=config) as kept, LocalEngine(qwen, config=small) as evicting:
        for engine in (kept, evicting):
            first = texts(engine.plan_batch(queries, catalog))
            assert texts(engine.plan_batch(queries, other_catalog)) == expected
            assert texts(engine.plan_batch(queries, catalog)) == first
            assert first != expected


def test_a_query_too_long_for_the_model_is_a_draft_with_an_error_among_good_ones(
    qwen: Path, catalog: Catalog, queries: list[str], config: EngineConfig
) -> None:
    with LocalEngine(qwen, config=config) as engine:
        expected = engine.plan_batch(queries[:2], catalog)
        drafts = engine.plan_batch([queries[0], "long " * 3000, queries[1]], catalog)
    assert texts(drafts) == [expected[0].text, "", expected[1].text]
    assert drafts[1].finish_reason is FinishReason.ERROR
    assert drafts[1].error is not None
    assert "2048 positions" in drafts[1].error
    assert not drafts[1].check.valid


def save_adapter(base: Path, out: Path, card: dict[str, Any]) -> Path:
    model, _ = load_reference(base)
    torch.manual_seed(3)
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False))
    wrapped.save_pretrained(out)
    (out / "plansmith.json").write_text(json.dumps(card))
    return out


def test_an_adapter_is_merged_and_writes_what_the_unmerged_one_writes(
    qwen: Path, catalog: Catalog, tmp_path: Path, queries: list[str], config: EngineConfig
) -> None:
    from peft import PeftModel

    card = {"catalog_hash": catalog.hash, "prompt_hash": prompt_hash(catalog)}
    adapter = save_adapter(qwen, tmp_path / "adapter", card)
    model, tokenizer = load_reference(qwen)
    tuned = PeftModel.from_pretrained(model, str(adapter)).eval()
    with LocalEngine(qwen, adapter, config=config) as engine, LocalEngine(qwen, config=config) as untuned:
        drafts = engine.plan_batch(queries[:3], catalog, constrained=False)
        assert texts(untuned.plan_batch(queries[:3], catalog, constrained=False)) != texts(drafts)
    assert texts(drafts) == [
        generate_alone(tuned, tokenizer, query, catalog, config.max_new_tokens) for query in queries[:3]
    ]


def test_an_adapter_made_for_another_catalog_or_prompt_is_refused_with_both_hashes(
    qwen: Path, catalog: Catalog, other_catalog: Catalog, tmp_path: Path
) -> None:
    card = {"catalog_hash": other_catalog.hash, "prompt_hash": "0" * 64}
    with LocalEngine(qwen, save_adapter(qwen, tmp_path / "adapter", card)) as engine:
        with pytest.raises(CatalogMismatchError) as wrong_catalog:
            engine.plan_batch(["weather"], catalog)
        with pytest.raises(InputError) as wrong_prompt:
            engine.plan_batch(["weather"], other_catalog)
        with pytest.raises(CatalogMismatchError):
            asyncio.run(engine.plan("weather", catalog))
    assert catalog.hash in str(wrong_catalog.value)
    assert other_catalog.hash in str(wrong_catalog.value)
    assert "0" * 64 in str(wrong_prompt.value)
    assert prompt_hash(other_catalog) in str(wrong_prompt.value)


def test_an_adapter_may_be_asked_with_variants_of_its_own_catalog_only(
    qwen: Path, catalog: Catalog, other_catalog: Catalog, tmp_path: Path
) -> None:
    card = {"catalog_hash": catalog.hash, "prompt_hash": prompt_hash(catalog)}
    adapter = save_adapter(qwen, tmp_path / "adapter", card)
    with LocalEngine(qwen, adapter, variants_of=catalog) as engine:
        assert engine.plan_batch(["weather"], other_catalog)[0].error is None
    with pytest.raises(CatalogMismatchError):
        LocalEngine(qwen, adapter, variants_of=other_catalog)


@pytest.mark.parametrize("spoil", ["code", "pickle", "nothing", "adapter"])
def test_an_unusable_directory_is_refused_by_name(qwen: Path, tmp_path: Path, spoil: str) -> None:
    base = tmp_path / "base"
    base.mkdir()
    if spoil != "nothing":
        config = json.loads((qwen / "config.json").read_text())
        config |= {"auto_map": {"AutoModel": "x.Y"}} if spoil == "code" else {}
        (base / "config.json").write_text(json.dumps(config))
        (base / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match=str(tmp_path)):
        LocalEngine(qwen, tmp_path) if spoil == "adapter" else LocalEngine(base)


def test_concurrent_plans_equal_a_batch_and_the_event_loop_goes_on(
    gemma: Path, catalog: Catalog, other_catalog: Catalog, queries: list[str], config: EngineConfig
) -> None:
    async def ask(engine: Planner) -> tuple[list[Draft], int]:
        ticks = 0
        asked = [(query, held) for query in queries[:4] for held in (True, False)]
        calls = [engine.plan(query, c, constrained=held) for c in (catalog, other_catalog) for query, held in asked]
        together = asyncio.gather(*calls)
        while not together.done():
            await asyncio.sleep(0.002)
            ticks += 1
        return await together, ticks

    with LocalEngine(gemma, config=config) as engine:
        expected = [
            draft
            for c in (catalog, other_catalog)
            for pair in zip(
                engine.plan_batch(queries[:4], c), engine.plan_batch(queries[:4], c, constrained=False), strict=True
            )
            for draft in pair
        ]
        drafts, ticks = asyncio.run(ask(engine))
        again, _ = asyncio.run(ask(engine))
    assert texts(drafts) == texts(expected) == texts(again)
    assert ticks > 10, "the event loop stood still while plans were decoded"


def test_a_cancelled_call_leaves_the_batch_and_the_others_end(make_preferring: Preferring, catalog: Catalog) -> None:
    async def cancel_one(engine: LocalEngine) -> Draft:
        endless = asyncio.create_task(engine.plan("go on for ever", catalog, constrained=False))
        waiting = asyncio.create_task(engine.plan("and this", catalog))
        await asyncio.sleep(0.3)
        assert not waiting.done(), "the only place of the batch was taken"
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        return await waiting

    base = make_preferring({"Ċ": 90.0, "[": 70.0, "]": 80.0})
    with LocalEngine(base, config=EngineConfig(batch_size=1, max_new_tokens=1600, device="cpu")) as engine:
        draft = asyncio.run(cancel_one(engine))
        assert (draft.text, draft.finish_reason) == ("[]", FinishReason.STOP)
        assert not engine._queue.take_alike(catalog)


def test_closing_fails_waiting_and_running_plans_and_ends_the_thread(qwen: Path, catalog: Catalog) -> None:
    async def close_amid(engine: LocalEngine) -> list[BaseException | Draft]:
        calls = [asyncio.create_task(engine.plan(f"query {i}", catalog, constrained=False)) for i in range(4)]
        await asyncio.sleep(0.1)
        await engine.aclose()
        return await asyncio.gather(*calls, return_exceptions=True)

    engine = LocalEngine(qwen, config=EngineConfig(batch_size=2, max_new_tokens=1500, device="cpu"))
    outcomes = asyncio.run(close_amid(engine))
    assert [type(outcome) for outcome in outcomes] == [EngineClosedError] * 4
    assert not [thread for thread in threading.enumerate() if thread.name == "plansmith-engine"]
    with pytest.raises(EngineClosedError):
        engine.plan_batch(["weather"], catalog)
    with pytest.raises(EngineClosedError):
        asyncio.run(engine.plan("weather", catalog))


def test_a_failing_model_fails_the_calls_in_work_and_the_engine_stays_usable(
    qwen: Path, catalog: Catalog, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(engine: LocalEngine) -> list[BaseException | Draft]:
        return await asyncio.gather(*(engine.plan(f"q{i}", catalog) for i in range(5)), return_exceptions=True)

    with LocalEngine(qwen, config=config) as engine:
        expected = texts(engine.plan_batch([f"q{i}" for i in range(5)], catalog))
        with monkeypatch.context() as patch:
            patch.setattr(engine._decoder._cache, "begin", lambda *_: 1 // 0)
            failed = asyncio.run(ask(engine))
        drafts = asyncio.run(ask(engine))
    assert {type(outcome) for outcome in failed} == {ZeroDivisionError}
    assert [draft.text for draft in drafts if isinstance(draft, Draft)] == expected
