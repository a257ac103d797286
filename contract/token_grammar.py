"""Plan grammar over token ids: one compiled grammar a catalog, one matcher a text, masks as packed bits.

Takes the JSON Schema of `plansmith.contract.grammar` and a fast tokenizer; compact JSON only, since a model that may
write whitespace can do so to its token limit. Decoding (serving) and the validity term of the loss (training) ask the
same grammar here. The parser is llguidance, loaded when the first object is made. Lengths of strings are not in the
grammar: the checker looks at them afterwards.

A mask is one bit a row of the output layer in 32-bit words, lowest bit first; padded vocabularies have more rows than
the tokenizer has tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from plansmith.contract.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int32]
    """Packed masks."""

_COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
_SLICES = [r'[^"\\\x00-\x1F\x7F{}/~\-]+', r'[^"\\\x00-\x1F\x7F]+']
"""Parts of the vocabulary that llguidance allows or forbids as a whole: text that may stand in strings, in templates
and in pointers alike, then text that may stand in strings. Masks are the same with any slices; on Gemma's 262,144
tokens these took half the time of the library's own."""


class GrammarError(InputError):
    """A plan schema cannot be compiled, or decoding under it failed."""


class PlanGrammar:
    """A compiled grammar; `start` gives a matcher for one text."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def start(self) -> RowMatcher:
        return RowMatcher(self._matcher.deep_copy())

    def task(self, row: int, tokens: Sequence[int]) -> tuple[Any, int, list[int]]:
        """What llguidance's executor takes: a fresh matcher, the row of its first mask, the tokens between masks."""
        return self._matcher.deep_copy(), row, list(tokens[:-1])

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """How many of a text's tokens the grammar allows, counted to the first that it does not."""
        return int(self._matcher.deep_copy().validate_tokens(list(tokens)))


class RowMatcher:
    """Where one text stands in the grammar. Once failed (`error`), it allows nothing more."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def error(self) -> str | None:
        """Why the parser failed, or None."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else None

    @property
    def complete(self) -> bool:
        """Whether the plan is complete and nothing can follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def consume(self, tokens: Sequence[int]) -> None:
        """Advance over tokens that the grammar allows."""
        self._matcher.consume_tokens(list(tokens))

    def forced(self) -> list[int]:
        """Tokens that must come next, as the tokenizer writes them; empty where there is a choice."""
        return cast("list[int]", self._matcher.compute_ff_tokens())

    def mask_into(self, words: Words) -> None:
        """Write which tokens may come next; special tokens that `TokenGrammars.never` names may be among them."""
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)


class TokenGrammars:
    """Compiles plan schemas for one tokenizer. Making one takes seconds for a large vocabulary: keep it."""

    def __init__(self, tokenizer: Any, *, vocab_rows: int, stop_ids: frozenset[int]) -> None:
        try:
            import llguidance
            import llguidance.hf
        except ImportError as error:
            raise MissingExtraError("llguidance", "local") from error
        self._matcher_type: Any = llguidance.LLMatcher
        self._executor_type: Any = llguidance.LLExecutor
        self._executor: Any = None
        self._tokenizer: Any = llguidance.hf.from_tokenizer(
            tokenizer, n_vocab=vocab_rows, eos_token=sorted(stop_ids), slices=_SLICES
        )
        self.vocab_rows = vocab_rows
        self.num_words = (vocab_rows + 31) // 32
        self.never = never_allowed(tokenizer, vocab_rows, stop_ids)
        """Tokens that no plan may hold, whatever the masks say."""

    def compile(self, schema: dict[str, Any]) -> PlanGrammar:
        """Compile a plan schema.

        Raises:
            GrammarError: llguidance refuses the schema or does not carry out all of it; the message quotes it.

        """
        grammar = self._matcher_type.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT)
        failed, messages = self._matcher_type.validate_grammar_with_warnings(grammar, self._tokenizer)
        if failed or messages:
            raise GrammarError(f"the plan schema cannot become a grammar: {'; '.join(messages)}.")
        matcher = self._matcher_type(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise GrammarError(f"the plan schema cannot become a grammar: {matcher.get_error()}.")
        return PlanGrammar(matcher)

    def masks_along(self, texts: Sequence[tuple[PlanGrammar, Sequence[int]]], words: Words) -> None:
        """Write the mask before each token of each text, on several cores, one row of `words` a token.

        Every token is to be one that its grammar allows. Tokens of `never` are not taken out.
        """
        place, asked = 0, list[Any]()
        for grammar, tokens in texts:
            asked.append(grammar.task(place, tokens))
            place += len(tokens)
        if asked:
            self._executor = self._executor or self._executor_type()
            self._executor.unsafe_compute_mask_ptr_with_draft_token(asked, words.ctypes.data, 4 * self.num_words, place)

    def token_bytes(self, token: int) -> bytes:
        """What a token writes: UTF-8, or a part of a character's."""
        return bytes(self._tokenizer.decode_bytes([token]))


def never_allowed(tokenizer: Any, vocab_rows: int, stop_ids: frozenset[int]) -> list[int]:
    """Tokens that no plan may hold: special tokens other than the stop tokens, and padding rows."""
    added = cast("dict[int, Any]", tokenizer.added_tokens_decoder)
    special = set(cast("list[int]", tokenizer.all_special_ids)) | {i for i, token in added.items() if token.special}
    return sorted((special | set(range(len(tokenizer), vocab_rows))) - stop_ids)
