"""The one prompt renderer: catalog first, query last, nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract import Catalog, InputError, Worker, encode_prompt, encode_target, render
from plansmith.contract.prompt import prompt_hash, render_catalog, signature, stop_id, type_text
from tests.contract.test_check import DEMO


class ByteTokenizer:
    """A tokenizer of bytes with the special tokens `<bos>` (256) and `<eos>` (257) recognised in text."""

    def __init__(self, template: str | None = None, eos: int | None = 257) -> None:
        self.chat_template = template
        self.bos_token_id: int | None = 256
        self.eos_token_id = eos

    def encode(self, text: str, *, add_special_tokens: bool = True, split_special_tokens: bool = False) -> list[int]:
        assert not add_special_tokens
        ids: list[int] = []
        for index, part in enumerate([text] if split_special_tokens else text.split("<eos>")):
            ids += ([257] if index else []) + list(part.encode())
        return ids

    def apply_chat_template(self, conversation: list[dict[str, str]], **_: Any) -> str:
        return (self.chat_template or "{}").replace("{}", conversation[0]["content"])


def test_a_signature_is_compact_and_says_what_is_optional() -> None:
    worker = DEMO.get("fin_get_quote")
    assert worker is not None
    assert signature(worker) == (
        'fin_get_quote(symbol: str, exchange?: "NYSE"|"NASDAQ") -> '
        "{price: float, pe_ratio: float|null, history: [{day, close: float}]}  # Latest price of a stock."
    )


def test_a_default_is_shown_in_place_of_the_question_mark_and_only_the_first_sentence_is_kept() -> None:
    args = {"type": "object", "properties": {"n": {"type": "integer", "default": 3}, "a": {"type": "array"}}}
    worker = Worker(name="w", description="One. Two.\nThree", args=args)
    assert signature(worker) == "w(n: int = 3, a?: [])  # One."


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (True, "any"),
        ({}, "any"),
        ({"type": ["string", "integer"]}, "str|int"),
        ({"anyOf": [{"type": "null"}, {"const": "x"}]}, 'null|"x"'),
        ({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "number"}}}}, "[{a: float}]"),
    ],
)
def test_types_are_short(schema: Any, text: str) -> None:
    assert type_text(schema, schema) == text


@given(st.text(max_size=30), st.text(max_size=30))
def test_everything_before_the_query_is_the_same_for_all_queries(first: str, second: str) -> None:
    a, b = render(first, DEMO), render(second, DEMO)
    assert a.prefix == b.prefix
    assert (a.question, b.question) == (f"Query: {first}\nPlan:\n", f"Query: {second}\nPlan:\n")


@given(st.text(st.characters(codec="utf-8"), max_size=40))
@settings(max_examples=50)
def test_the_encoded_parts_join_to_the_encoded_text(query: str) -> None:
    for tokenizer in (ByteTokenizer(), ByteTokenizer("<bos>user: {}\nplan: ")):
        prompt, ids = render(query, DEMO, tokenizer=tokenizer), encode_prompt(query, DEMO, tokenizer)
        bos = [] if tokenizer.chat_template else [256]
        assert ids.prefix + ids.suffix == bos + list((prompt.prefix + prompt.suffix).encode())


def test_a_query_with_the_text_of_a_special_token_is_plain_text() -> None:
    for tokenizer in (ByteTokenizer(), ByteTokenizer("user: {}")):
        ids = encode_prompt("ignore <eos> this", DEMO, tokenizer)
        assert 257 not in ids.prefix + ids.suffix, tokenizer.chat_template


def test_a_template_that_changes_the_text_is_refused() -> None:
    class Shouting(ByteTokenizer):
        def apply_chat_template(self, conversation: list[dict[str, str]], **_: Any) -> str:
            return conversation[0]["content"].upper()

    with pytest.raises(InputError, match="chat template"):
        render("q", DEMO, tokenizer=Shouting("x"))


def test_a_target_ends_with_the_stop_token_and_a_tokenizer_without_one_is_refused() -> None:
    assert encode_target("[]", ByteTokenizer()) == [*b"[]", 257]
    assert encode_target("<eos>", ByteTokenizer()) == [*b"<eos>", 257]
    with pytest.raises(InputError, match="eos"):
        stop_id(ByteTokenizer(eos=None))


def test_the_prompt_hash_changes_with_the_catalog_only() -> None:
    other = Catalog("demo", DEMO.workers[:-1])
    assert prompt_hash(DEMO) == prompt_hash(Catalog("demo", DEMO.workers))
    assert prompt_hash(DEMO) != prompt_hash(other)
    assert render_catalog(other) in render_catalog(other) + render("q", other).suffix
