"""Trimmed vocabulary: a copy of a base model that keeps only the tokens a corpus can need.

Reads a model directory (config, safetensors, `tokenizer.json` with a BPE model) and texts; writes the same kind of
directory with fewer embedding rows and a smaller tokenizer. Gemma 3 270M spends 168 of its 268 million parameters on
262,144 embeddings; most of them never occur in a planner's prompts.

Why the copy means the same: BPE applies the merge of lowest rank first. Inside the span of a final token no merge
crosses the span's ends, so the token comes about as it would alone. For every kept token the merges that build it alone
are kept, so on a text whose tokens are kept the smaller merge list takes the same merges in the same order. Any other
text still round-trips, through smaller pieces, single characters and byte tokens. Kept rows of the embedding are copied
unchanged, so hidden states and the logits of kept tokens are the full model's.

A copy is checked by `trim_check.py`. Two families of tokenizers are known: SentencePiece-like ones with byte tokens
(Gemma) and byte-level ones (Qwen, GPT-2), whose alphabet writes each byte as one character.

Not covered, and refused: Unigram and WordPiece tokenizers, BPE with affixes or dropout, quantised weights, and models
with further tensors of the vocabulary's size (vision, speech, embeddings a layer).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from plansmith.contract.errors import InputError
from plansmith.training.files import CARD_NAME, TERMS_FILES, copy_files

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_BYTE_ASCII = frozenset(map(chr, (*range(33, 127), *range(256, 290))))
"""How a byte-level alphabet writes the bytes of ASCII: printable ones as themselves, the others from U+0100 on."""
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix", "dropout")
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
_ID_LISTS = ("suppress_tokens", "begin_suppress_tokens")
_OTHER_IDS = ("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "sequence_bias", "decoder_start_token_id")
_NOT_LOST = ("model.safetensors.index.json", CARD_NAME)
_TOKENIZER_FILES = ("special_tokens_map.json", "chat_template.jinja", "tokenizer_config.json")
_UNUSED = re.compile(r"<?\[?unused_?\d+\]?>?|<\|?reserved_special_token_\d+\|?>", re.IGNORECASE)


class Kept(NamedTuple):
    """What a trimmed vocabulary holds."""

    tokens: dict[str, int]
    """Kept token to its new id; the order of the old ids is kept."""
    old_ids: list[int]
    """Old id of each new id."""
    merges: list[list[str]]
    """Kept merges, in the order of the old ones."""


def read_tokenizer(directory: Path) -> dict[str, Any]:
    """The `tokenizer.json` of a model directory, refused unless its model is plain BPE."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{str(directory)!r} has no tokenizer.json; set model.trim_vocabulary to false.")
    spec = json.loads(path.read_text(encoding="utf-8"))
    model = spec["model"]
    kind = repr(model.get("type"))
    strange = [
        name
        for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout")
        if model.get(name) not in ("", None)
    ]
    if kind != "'BPE'" or strange:
        found = kind + (f" with {', '.join(strange)}" if strange else "")
        raise InputError(
            f"the tokenizer of {str(directory)!r} is {found}; only plain BPE vocabularies can be trimmed. "
            "Set model.trim_vocabulary to false."
        )
    return spec


def named_tokens(directory: Path) -> set[str]:
    """The tokens that a model directory's configurations name by text or by id: stop, padding and the like."""
    names: set[str] = set()
    settings = _json_or_empty(directory / "tokenizer_config.json")
    for key, value in settings.items():
        if key.endswith("_token") and value is not None and not isinstance(value, bool):
            names.add(str(value["content"] if isinstance(value, dict) else value))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    config, generation = (_json_or_empty(directory / name) for name in ("config.json", "generation_config.json"))
    for source in (config, config.get("text_config") or {}, generation):
        for name in _IDS:
            value = source.get(name)
            ids = value if isinstance(value, list) else [value] if isinstance(value, int) else []
            names.update(token for index in ids if (token := tokenizer.id_to_token(index)) is not None)
    return names


def _json_or_empty(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def plan_trim(directory: Path, texts: Iterable[str], *, keep_merges: int) -> tuple[dict[str, Any], Kept]:
    """The tokenizer of a model directory, and what a copy for these texts keeps of it.

    Raises:
        InputError: the vocabulary cannot be trimmed.

    """
    spec = read_tokenizer(directory)
    needed = tokens_of(texts, Tokenizer.from_file(str(directory / "tokenizer.json")))
    return spec, choose(spec, needed | named_tokens(directory), keep_merges=keep_merges)


def tokens_of(texts: Iterable[str], tokenizer: Tokenizer, *, batch: int = 256) -> set[str]:
    """Every token that encoding the texts gives, special tokens aside."""
    found: set[int] = set()
    unique = list(dict.fromkeys(texts))
    for start in range(0, len(unique), batch):
        for encoding in tokenizer.encode_batch(unique[start : start + batch], add_special_tokens=False):
            found.update(encoding.ids)
    return {str(tokenizer.id_to_token(index)) for index in found}


def choose(spec: dict[str, Any], needed: set[str], *, keep_merges: int) -> Kept:
    """Decide which tokens stay.

    These do: needed ones, added ones (except reserved, unused ones), bytes, single characters, plain English pieces
    among the results of the first `keep_merges` merges, and whatever builds one of these.
    """
    vocab: dict[str, int] = spec["model"]["vocab"]
    merges = [_pair(merge) for merge in spec["model"]["merges"]]
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    ids = {**vocab, **added}
    kept = {token for token in needed if token in ids}
    kept |= {token for token in added if not _UNUSED.fullmatch(token)}
    kept |= {token for token in vocab if len(token) == 1 or _BYTE.fullmatch(token)}
    plain = _plain_bytes if is_byte_level(spec) else _plain
    kept |= {left + right for left, right in merges[:keep_merges] if plain(left + right)}
    unknown = spec["model"].get("unk_token")
    kept |= {unknown} if unknown in ids else set()
    rank = {pair: index for index, pair in reversed(list(enumerate(merges)))}
    kept |= {piece for token in kept for piece in pieces_of(token, rank)}
    order = sorted(kept, key=lambda token: ids[token])
    return Kept(
        tokens={token: new for new, token in enumerate(order)},
        old_ids=[ids[token] for token in order],
        merges=[[a, b] for a, b in merges if a in kept and b in kept and a + b in kept],
    )


def pieces_of(token: str, rank: dict[tuple[str, str], int]) -> list[str]:
    """What BPE builds on its way from single characters to the token, the lowest rank first, from the left."""
    parts = list(token)
    built = [part for part in parts if len(token) > 1]
    while True:
        ranks = [rank.get(pair, len(rank)) for pair in itertools.pairwise(parts)]
        if not ranks or (best := min(ranks)) == len(rank):
            return built if len(parts) == 1 else []
        at = ranks.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        built.append(parts[at])


def is_byte_level(spec: dict[str, Any]) -> bool:
    """Whether a tokenizer's characters stand for bytes."""
    decoder = spec.get("decoder") or {}
    return "ByteLevel" in {part.get("type") for part in (decoder, *decoder.get("decoders", []))}


def _plain(token: str) -> bool:
    """Whether a token is ASCII, the word mark of SentencePiece aside."""
    return token.replace("▁", "").isascii()


def _plain_bytes(token: str) -> bool:
    """Whether a byte-level token stands for ASCII: words, and also line breaks and tabs."""
    return _BYTE_ASCII.issuperset(token)


def _pair(merge: str | list[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def trimmed_spec(spec: dict[str, Any], kept: Kept) -> dict[str, Any]:
    """The `tokenizer.json` of the kept tokens, with their new ids wherever ids stand."""
    vocab = spec["model"]["vocab"]
    model = spec["model"] | {
        "vocab": {token: new for token, new in kept.tokens.items() if token in vocab},
        "merges": kept.merges,
    }
    added = [
        token | {"id": kept.tokens[token["content"]]}
        for token in spec["added_tokens"]
        if token["content"] in kept.tokens
    ]
    return spec | {
        "model": model,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "post_processor": _renumber(spec.get("post_processor"), kept.tokens),
    }


def _renumber(node: Any, tokens: dict[str, int]) -> Any:
    """A post-processor with new ids.

    Templates say `{"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}`, others `["<bos>", 2]`.
    """
    if isinstance(node, dict):
        if isinstance(node.get("ids"), list) and isinstance(node.get("tokens"), list):
            return node | {"ids": [tokens[token] for token in node["tokens"]]}
        return {key: _renumber(value, tokens) for key, value in node.items()}
    if isinstance(node, list):
        if len(node) == 2 and isinstance(node[0], str) and isinstance(node[1], int) and node[0] in tokens:
            return [node[0], tokens[node[0]]]
        return [_renumber(value, tokens) for value in node]
    return node


def kept_hash(base_hash: str, kept: Kept) -> str:
    """Names a trimmed copy: the base and the kept ids."""
    text = base_hash + ":" + ",".join(map(str, kept.old_ids))
    return hashlib.sha256(text.encode()).hexdigest()


def write_trimmed(base: Path, out: Path, spec: dict[str, Any], kept: Kept) -> list[str]:
    """Write the trimmed copy of `base` into the existing directory `out`; returns the files that have no copy there.

    Raises:
        InputError: the model cannot be trimmed; the message says why.

    """
    from plansmith.training.model import load_stored

    model = load_stored(base)
    require_trimmable(model, base)
    return write_shrunk(model, base, out, spec, kept)


def write_shrunk(model: PreTrainedModel, base: Path, out: Path, spec: dict[str, Any], kept: Kept) -> list[str]:
    """As `write_trimmed`, of the loaded model, which is changed."""
    shrink(model, kept.old_ids)
    model.save_pretrained(out)
    text = json.dumps(trimmed_spec(spec, kept), ensure_ascii=False)
    (out / "tokenizer.json").write_text(text, encoding="utf-8")
    for name in _TOKENIZER_FILES:
        if (base / name).is_file():
            settings = (base / name).read_text(encoding="utf-8")
            (out / name).write_text(_trim_settings(name, settings, kept), encoding="utf-8")
    copy_files(base, out, TERMS_FILES)
    return sorted(
        path.name
        for path in base.iterdir()
        if path.suffix not in (".safetensors", ".md") and path.name not in _NOT_LOST and not (out / path.name).exists()
    )


def require_trimmable(model: PreTrainedModel, base: Path) -> None:
    """Refuse a model that would not mean the same with fewer rows."""
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    rows = embedding.weight.shape[0]
    own = {id(embedding.weight), id(head.weight), id(getattr(head, "bias", None))}
    others = [name for name, value in model.named_parameters() if value.shape[0] == rows and id(value) not in own]
    config = model.config.get_text_config()
    ids = [
        name
        for name in _OTHER_IDS
        for source in (config, model.generation_config)
        if getattr(source, name, None) is not None
    ]
    problems = [
        "its weights are quantised" if getattr(model.config, "quantization_config", None) else None,
        f"other tensors have the vocabulary's size ({', '.join(others[:3])})" if others else None,
        f"its configuration names tokens under {', '.join(sorted(set(ids)))}" if ids else None,
    ]
    found = [problem for problem in problems if problem]
    if found:
        raise InputError(
            f"the vocabulary of {str(base)!r} cannot be trimmed: {'; '.join(found)}. "
            "Set model.trim_vocabulary to false."
        )


def _trim_settings(name: str, text: str, kept: Kept) -> str:
    """`tokenizer_config.json` may list added tokens by id; the other files hold no ids."""
    if name != "tokenizer_config.json":
        return text
    settings = json.loads(text)
    listed = settings.pop("added_tokens_decoder", None)
    if listed:
        new = {kept.tokens[t["content"]]: t for t in listed.values() if t["content"] in kept.tokens}
        settings["added_tokens_decoder"] = {str(index): new[index] for index in sorted(new)}
    return json.dumps(settings, ensure_ascii=False, indent=1)


def shrink(model: PreTrainedModel, old_ids: list[int]) -> None:
    """Keep the given embedding rows, in that order, and renumber the ids in the model's configuration."""
    new_id = {old: new for new, old in enumerate(old_ids)}
    rows = torch.tensor(old_ids)
    tied = model.config.get_text_config().tie_word_embeddings
    embedding: Any = model.get_input_embeddings()
    embedding.weight = torch.nn.Parameter(embedding.weight.detach()[rows].clone())
    embedding.num_embeddings = len(old_ids)
    head: Any = model.get_output_embeddings()
    head.weight = embedding.weight if tied else torch.nn.Parameter(head.weight.detach()[rows].clone())
    head.out_features = len(old_ids)
    if embedding.padding_idx is not None:
        embedding.padding_idx = new_id.get(embedding.padding_idx)
    if getattr(head, "bias", None) is not None:
        head.bias = torch.nn.Parameter(head.bias.detach()[rows].clone())
    model.config.get_text_config().vocab_size = len(old_ids)
    for config in {id(c): c for c in (model.config, model.config.get_text_config(), model.generation_config)}.values():
        _renumber_ids(config, new_id)


def _renumber_ids(config: Any, new_id: dict[int, int]) -> None:
    """New ids in a configuration; an id that is no token (a row of padding) becomes None, but a stop id must stay."""
    for name in (*_IDS, *_ID_LISTS):
        value = getattr(config, name, None)
        if isinstance(value, int):
            new: Any = new_id.get(value)
        elif isinstance(value, list):
            new = [new_id[old] for old in value if old in new_id]
        else:
            continue
        if name == "eos_token_id" and new in (None, []):
            raise InputError(f"the stop id {value!r} of the model's configuration is no token of its tokenizer.")
        setattr(config, name, new)
