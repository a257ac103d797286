"""The one prompt renderer, for teacher, trainer, server and evaluator.

The catalog comes first and the query last, so that everything before the query is one prefix shared by all queries of
a catalog (prefix caching when serving, shared-prefix training). Nothing changes from call to call: no date, no id.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.errors import InputError
from plansmith.contract.plan import dumps
from plansmith.contract.schema import Schema, branches

INSTRUCTION = (
    "Write the plan for the query: a JSON array of steps, in order of execution. A step is "
    '{"type":worker,"args":{...}}. {"$from":"/0/field"} stands for a field of the result of step 0. '
    "Write [] if no worker fits."
)
PROMPT_VERSION = 1
"""Raised whenever the rendered text changes: adapters trained on one version do not serve another."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
_TYPE_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}
_MAX_TYPE_DEPTH = 3


class Prompt(NamedTuple):
    """Text of a prompt in three parts; the model sees `prefix + question + closing`."""

    prefix: str
    """Everything up to the query: the same for all queries of a catalog."""
    question: str
    """The query and what starts the answer; special tokens named in it are plain text."""
    closing: str = ""
    """What a chat template puts after the user's words."""

    @property
    def suffix(self) -> str:
        """Everything after the prefix."""
        return self.question + self.closing


class PromptIds(NamedTuple):
    """Token ids of a prompt in two parts; the model sees `prefix + suffix`."""

    prefix: list[int]
    suffix: list[int]


def ids_digest(ids: Iterable[int]) -> str:
    """Sha256 of token ids, as 64 hex digits: says whether two sides see the same tokens."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any
    bos_token_id: int | None
    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = ..., **kwargs: Any) -> list[int]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool = ..., add_generation_prompt: bool = ..., **kw: Any
    ) -> Any: ...


def render(query: str, catalog: Catalog, *, tokenizer: Tokenizer | None = None) -> Prompt:
    """The prompt for one query.

    Args:
        query: the user's words, put in unchanged.
        catalog: the workers that the planner may use.
        tokenizer: with a chat template, the prompt is rendered through it; without one (a base model) or with None,
            it is plain text, and the bos token is added by `encode_prompt`.

    """
    head = render_catalog(catalog)
    tail = f"Query: {query}\nPlan:\n"
    if tokenizer is None or not tokenizer.chat_template:
        return Prompt(head, tail)
    question = tail.rstrip("\n")
    messages = [{"role": "user", "content": head + question}]
    text = cast("str", tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    opening, found, closing = text.partition(head + question)
    if not found:
        raise InputError("the tokenizer's chat template changes the user's text; a planner prompt cannot be cut there.")
    return Prompt(opening + head, question, closing)


def encode_prompt(query: str, catalog: Catalog, tokenizer: Tokenizer) -> PromptIds:
    """Token ids of the prompt; the parts are encoded apart, so the prefix is a token prefix by construction.

    A query that holds the text of a special token (`<eos>`) is encoded as plain characters.
    """
    prompt = render(query, catalog, tokenizer=tokenizer)
    prefix = _encode_prefix(tokenizer, prompt.prefix)
    question = tokenizer.encode(prompt.question, add_special_tokens=False, split_special_tokens=True)
    closing = tokenizer.encode(prompt.closing, add_special_tokens=False) if prompt.closing else []
    return PromptIds(list(prefix), question + closing)


@lru_cache(maxsize=64)
def _encode_prefix(tokenizer: Tokenizer, prefix: str) -> tuple[int, ...]:
    ids = tokenizer.encode(prefix, add_special_tokens=False)
    if not tokenizer.chat_template and tokenizer.bos_token_id is not None:
        ids = [tokenizer.bos_token_id, *ids]
    return tuple(ids)


def encode_target(text: str, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a plan's canonical text, then the stop token.

    Raises:
        InputError: the tokenizer has no stop (eos) token.

    """
    return [*tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True), stop_id(tokenizer)]


def stop_id(tokenizer: Tokenizer) -> int:
    """Id of the token that ends a plan."""
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no eos token, so the model could never learn to stop; set one first.")
    return tokenizer.eos_token_id


@lru_cache(maxsize=64)
def render_catalog(catalog: Catalog) -> str:
    """Instruction and one signature a line: all of the prompt that depends on the catalog."""
    lines = [INSTRUCTION, "Workers:", *(signature(worker) for worker in catalog.workers)]
    return "\n".join(lines) + "\n\n"


def signature(worker: Worker) -> str:
    """`name(arg: type, opt: type = default, other?: type) -> {fields}  # first sentence`; `?` marks no default."""
    parameters: list[str] = []
    for name, schema in worker.properties.items():
        optional = name not in worker.required
        has_default = isinstance(schema, dict) and "default" in cast("dict[str, Any]", schema)
        text = f"{name}{'?' if optional and not has_default else ''}: {type_text(schema, worker.args)}"
        parameters.append(text + f" = {dumps(schema['default'])}" if optional and has_default else text)
    line = f"{worker.name}({', '.join(parameters)})"
    if worker.returns is not None:
        line += f" -> {type_text(worker.returns, worker.returns)}"
    sentence = _SENTENCE_END.split(worker.description.strip(), maxsplit=1)[0].strip()
    return f"{line}  # {sentence}" if sentence else line


def type_text(schema: Schema, root: Schema, depth: int = 0) -> str:
    """A schema as a short type: `str`, `int|null`, `"a"|"b"`, `[str]`, `{field, field: [..]}`."""
    return "|".join(_unique(_branch_text(branch, root, depth) for branch in branches(schema, root)))


def _branch_text(branch: Schema, root: Schema, depth: int) -> str:
    if not isinstance(branch, dict):
        return "any"
    node = cast("dict[str, Any]", branch)
    if "const" in node:
        return dumps(node["const"])
    if isinstance(node.get("enum"), list):
        return "|".join(dumps(item) for item in node["enum"])
    declared = node.get("type")
    names = cast("list[str]", [declared] if isinstance(declared, str) else declared or [])
    return "|".join(_unique(_type_name(name, node, root, depth) for name in names)) or "any"


def _type_name(name: str, node: dict[str, Any], root: Schema, depth: int) -> str:
    if name in _TYPE_NAMES:
        return _TYPE_NAMES[name]
    if depth >= _MAX_TYPE_DEPTH:
        return "[]" if name == "array" else "{}"
    if name == "array":
        items = node.get("items")
        return f"[{type_text(items, root, depth + 1)}]" if items not in (None, True) else "[]"
    fields = [
        field if (text := type_text(schema, root, depth + 1)) in ("str", "any") else f"{field}: {text}"
        for field, schema in cast("dict[str, Schema]", node.get("properties", {})).items()
    ]
    return "{" + ", ".join(fields) + "}"


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def prompt_hash(catalog: Catalog) -> str:
    """Sha256 of the rendered prompt for an empty query: changes with the catalog and with the renderer."""
    import hashlib

    text = json.dumps([PROMPT_VERSION, *render("", catalog)], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
