"""Plan grammar for decoding: one compiled grammar a catalog, one matcher a row, and masks over the output layer.

Takes the JSON Schema of `plansmith.contract.grammar` and a fast tokenizer; compact JSON only, since a model that may
write whitespace can do so to its token limit. A special token is never allowed, except the stop token where the plan
is complete. The parser is llguidance. Lengths of strings are not in the grammar: the checker looks at them afterwards.

Shapes: B rows, V rows of the output layer (padded vocabularies have more than the tokenizer has tokens).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plansmith.contract.errors import InputError, MissingExtraError

_COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


class GrammarError(InputError):
    """A plan schema cannot be compiled, or decoding under it failed."""


class PlanGrammar:
    """A compiled grammar; `start` gives a matcher for one row."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def start(self) -> RowMatcher:
        return RowMatcher(self._matcher.deep_copy())


class RowMatcher:
    """Where one row stands in the grammar. Once failed (`error`), it allows nothing more."""

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

    def mask_into(self, words: NDArray[np.int32]) -> None:
        """Write one bit a token of the output layer: 1 where the token may come next."""
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)


class GrammarMasks:
    """Compiles plan schemas for one tokenizer. Making one takes seconds for a large vocabulary: keep it."""

    def __init__(self, tokenizer: Any, *, vocab_rows: int, stop_ids: frozenset[int]) -> None:
        try:
            import llguidance
            import llguidance.hf
        except ImportError as error:
            raise MissingExtraError("llguidance", "local") from error
        self._matcher_type: Any = llguidance.LLMatcher
        self._tokenizer: Any = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocab_rows, eos_token=sorted(stop_ids))
        self._num_words = (vocab_rows + 31) // 32
        self._vocab_rows = vocab_rows
        self._never_V = never_allowed(tokenizer, vocab_rows, stop_ids)

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

    def allowed(self, matchers: Sequence[RowMatcher | None]) -> Tensor:
        """Which tokens may come next, bool [B,V] on the CPU; all of them where a row has no matcher."""
        words = np.full((len(matchers), self._num_words), -1, dtype=np.int32)
        for row, matcher in enumerate(matchers):
            if matcher is not None:
                matcher.mask_into(words[row])
        bits = np.unpackbits(words.view(np.uint8), axis=1, count=self._vocab_rows, bitorder="little")
        allowed_BV = torch.as_tensor(bits).bool()
        held = torch.tensor([matcher is not None for matcher in matchers])
        allowed_BV &= ~(held[:, None] & self._never_V)
        return allowed_BV


def never_allowed(tokenizer: Any, vocab_rows: int, stop_ids: frozenset[int]) -> Tensor:
    """Tokens that no plan may hold, bool [V]: special tokens other than the stop tokens, and padding rows."""
    added = cast("dict[int, Any]", tokenizer.added_tokens_decoder)
    special = set(cast("list[int]", tokenizer.all_special_ids)) | {i for i, token in added.items() if token.special}
    never_V = torch.zeros(vocab_rows, dtype=torch.bool)
    never_V[len(tokenizer) :] = True
    for token in special - stop_ids:
        never_V[token] = True
    return never_V
