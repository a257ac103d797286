"""Masks of the plan grammar as tensors, for decoding: which tokens may come next in each row of a batch.

The grammar itself, its matchers and the packed bits are in `plansmith.contract.token_grammar`; here bits become
booleans over the output layer. A special token is never allowed, except the stop token where the plan is complete.

Shapes: B rows, V rows of the output layer (padded vocabularies have more than the tokenizer has tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plansmith.contract.token_grammar import GrammarError, PlanGrammar, RowMatcher, TokenGrammars

__all__ = ["GrammarError", "GrammarMasks", "PlanGrammar", "RowMatcher"]


class GrammarMasks(TokenGrammars):
    """Compiles plan schemas for one tokenizer. Making one takes seconds for a large vocabulary: keep it."""

    def __init__(self, tokenizer: Any, *, vocab_rows: int, stop_ids: frozenset[int]) -> None:
        super().__init__(tokenizer, vocab_rows=vocab_rows, stop_ids=stop_ids)
        self._never_V = torch.zeros(vocab_rows, dtype=torch.bool)
        self._never_V[self.never] = True

    def allowed(self, matchers: Sequence[RowMatcher | None]) -> Tensor:
        """Which tokens may come next, bool [B,V] on the CPU; all of them where a row has no matcher."""
        words = np.full((len(matchers), self.num_words), -1, dtype=np.int32)
        for row, matcher in enumerate(matchers):
            if matcher is not None:
                matcher.mask_into(words[row])
        bits = np.unpackbits(words.view(np.uint8), axis=1, count=self.vocab_rows, bitorder="little")
        allowed_BV = torch.as_tensor(bits).bool()
        held = torch.tensor([matcher is not None for matcher in matchers])
        allowed_BV &= ~(held[:, None] & self._never_V)
        return allowed_BV
