"""Trimmed vocabulary: a copy of a base model that keeps only the tokens a corpus can need.

Reads a model directory (config, safetensors, `tokenizer.json` with a BPE model) and texts; writes the same kind of
directory with fewer embedding rows and a smaller tokenizer. Gemma 3 270M spends 168 of its 268 million parameters on
262,144 embeddings; most of them never occur in a planner's prompts.

Why the copy means the same: BPE applies the merge of lowest rank first. Inside the span of a final token no merge
crosses the span's ends, so the token comes about as it would alone. For every kept token the merges that build it alone
are kept, so on a text whose tokens are kept the smaller merge list takes the same merges in the same order. Any other
text still round-trips, through smaller pieces, single characters and byte tokens. Kept rows of the embedding are copied
unchanged, so hidden states and the logits of kept tokens are the full model's.

Not covered: Unigram and WordPiece tokenizers (refused), models with untied extra vocabularies (vision, speech).
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
from transformers import AutoModelForCausalLM, PreTrainedModel

from plansmith.contract.errors import InputError

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
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
    """The `tokenizer.json` of a model directory, refused unless its model is BPE."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{str(directory)!r} has no tokenizer.json; set model.trim_vocabulary to false.")
    spec = json.loads(path.read_text(encoding="utf-8"))
    kind = spec["model"].get("type")
    if kind != "BPE":
        raise InputError(
            f"the tokenizer of {str(directory)!r} is {kind!r}; only BPE vocabularies can be trimmed. "
            "Set model.trim_vocabulary to false."
        )
    return spec


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
    kept |= {left + right for left, right in merges[:keep_merges] if _plain(left + right)}
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


def _plain(token: str) -> bool:
    """Whether a token is ASCII, word marks of SentencePiece and of byte-level vocabularies aside."""
    return token.replace("▁", "").replace("Ġ", "").isascii()


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


def write_trimmed(base: Path, out: Path, spec: dict[str, Any], kept: Kept) -> None:
    """Write the trimmed copy of `base` into the existing directory `out`."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", local_files_only=True)
    shrink(model, kept.old_ids)
    model.save_pretrained(out)
    text = json.dumps(trimmed_spec(spec, kept), ensure_ascii=False)
    (out / "tokenizer.json").write_text(text, encoding="utf-8")
    for name in ("special_tokens_map.json", "chat_template.jinja", "tokenizer_config.json"):
        if (base / name).is_file():
            settings = (base / name).read_text(encoding="utf-8")
            (out / name).write_text(_trim_settings(name, settings, kept), encoding="utf-8")


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
    for config in (model.config, model.generation_config):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
            value = getattr(config, name, None)
            if isinstance(value, int):
                setattr(config, name, new_id.get(value))
            elif isinstance(value, list):
                setattr(config, name, [new_id[old] for old in value if old in new_id])
