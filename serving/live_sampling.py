"""Draws plans from a model that is being trained, with the local engine's decoder, without a grammar.

Takes a transformers model in memory, adapter layers inside, and works on these very weights: nothing is copied or
merged. The prompt prefix of the catalog runs once a call, since the weights change between calls. Gives the tokens as
they were drawn, because encoding the text again may give others.

A plan ends with the contract's stop token only, the one that training teaches; another special token stays in the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import TokenSample
from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.prompt import encode_prompt, stop_id
from plansmith.contract.records import FinishReason
from plansmith.serving.decoding import Decoder, Row, Sampler
from plansmith.serving.grammar_masks import RowMatcher
from plansmith.serving.model_loading import planner_over
from plansmith.serving.ragged_attention import ATTENTION_NAME, SharedPrefix
from plansmith.serving.request_queue import Request


class LiveSampler:
    """A `TokenSampler` over a model in memory; not for use while the model computes something else."""

    def __init__(
        self, model: Any, tokenizer: Any, base: Path, *, batch_size: int = 64, prefill_tokens: int = 1024
    ) -> None:
        """Look at the model without changing it.

        Args:
            model: causal language model of transformers; what `peft` put into it counts.
            tokenizer: the model's.
            base: where the model came from, for messages.
            batch_size: most plans decoded at once.
            prefill_tokens: most prompt tokens in one forward pass.

        Raises:
            InputError: the local engine cannot run this architecture.

        """
        self._live = model
        planner = planner_over(model, tokenizer, base)
        self._model = replace(planner, head=_Finite(planner.head))
        self._stop = stop_id(tokenizer)
        self._batch_size = batch_size
        self._prefill_tokens = prefill_tokens

    def sample(
        self,
        queries: Sequence[str],
        catalog: Catalog,
        *,
        temperature: float,
        seeds: Sequence[int],
        max_new_tokens: int,
    ) -> list[TokenSample]:
        """One sample a query, in their order; see `TokenSampler`.

        Raises:
            InputError: a prompt leaves no room for a plan.
            PlansmithError: the model's scores are no numbers any more.

        """
        with self._decoding():
            decoder = Decoder(
                self._model, _no_grammar, batch_size=self._batch_size, prefill_tokens=self._prefill_tokens
            )
            prefix = decoder.run_prefix(encode_prompt("", catalog, self._model.tokenizer).prefix)
            rows = [
                self._row(query, catalog, prefix, temperature, seed, max_new_tokens)
                for query, seed in zip(queries, seeds, strict=True)
            ]
            waiting = deque(sorted(rows, key=lambda row: len(row.pending), reverse=True))
            decoder.decode(prefix, lambda: waiting.popleft() if waiting else None, _always, _nothing, [])
        return [self._sample(row) for row in rows]

    def _row(
        self, query: str, catalog: Catalog, prefix: SharedPrefix, temperature: float, seed: int, limit: int
    ) -> Row:
        suffix = encode_prompt(query, catalog, self._model.tokenizer).suffix
        prompt = prefix.length + len(suffix)
        if prompt + limit > self._model.max_positions:
            raise InputError(
                f"a prompt has {prompt} tokens and its plan may have {limit}, but the model has "
                f"{self._model.max_positions} positions. Lower the token limit, or leave the row out: {query[:80]!r}."
            )
        sampler = Sampler(temperature, torch.Generator().manual_seed(seed)) if temperature > 0 else None
        request = Request(query, catalog, constrained=False, temperature=temperature, seed=seed)
        return Row(request, prompt, list(suffix), limit, None, frozenset([self._stop]), sampler=sampler)

    def _sample(self, row: Row) -> TokenSample:
        text = self._model.tokenizer.decode(row.output, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        stopped = row.finish is FinishReason.STOP
        return TokenSample((*row.output, self._stop) if stopped else tuple(row.output), str(text), stopped)

    @contextmanager
    def _decoding(self) -> Generator[None]:
        """The model without dropout and with the engine's attention; both are put back."""
        attention, training = self._live.config._attn_implementation, self._live.training
        self._live.set_attn_implementation(ATTENTION_NAME)
        self._live.eval()
        try:
            yield
        finally:
            self._live.set_attn_implementation(attention)
            self._live.train(training)


class _Finite:
    """An output layer that refuses scores that are no numbers: nothing could be drawn from them."""

    def __init__(self, head: Any) -> None:
        self._head = head

    def __call__(self, hidden_BD: torch.Tensor) -> torch.Tensor:
        logits_BV: torch.Tensor = self._head(hidden_BD)
        if not bool(logits_BV.isfinite().all()):
            raise PlansmithError(
                "the model's scores are no numbers any more, so it cannot write plans: the last steps went too far. "
                "Lower the learning rate and begin anew."
            )
        return logits_BV


def _no_grammar(matchers: Sequence[RowMatcher | None]) -> torch.Tensor:
    raise AssertionError(f"{len(matchers)} rows asked for a grammar, but plans are drawn without one")


def _always(row: Row) -> bool:
    return True


def _nothing(row: Row) -> None:
    return None
