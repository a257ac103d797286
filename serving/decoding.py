"""Decoding of many rows that share a prompt prefix, each greedy or sampled, with or without a grammar.

Rows that end make room for waiting ones at once, so the batch stays full. Tokens that the grammar forces are appended
without asking the model and run through it together with the token before them. Every row gets the tokens that it
would get alone: the attention has no padding (`ragged_attention`), so only rounding depends on the batch. Sampled rows
have random numbers of their own, one for each token that is chosen; forced tokens take none.

Shapes: N tokens of a pass, B rows, S sampled rows, D hidden width, V rows of the output layer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from plansmith.contract.records import FinishReason
from plansmith.serving.grammar_masks import RowMatcher
from plansmith.serving.model_loading import PlannerModel
from plansmith.serving.ragged_attention import Pass, RowCache, SharedPrefix
from plansmith.serving.request_queue import Request

_COLDEST = 1e-6
"""A temperature below this is taken for it; the likeliest token is certain long before."""

Allowed = Callable[[Sequence[RowMatcher | None]], Tensor]
"""From the matchers of the rows to the tokens that may come next, bool [B,V]."""


@dataclass(slots=True)
class Counts:
    """What a decoder has done since it was made."""

    prefix_tokens: int = 0
    """Tokens of catalogs' prompts that went through the model; a prefix that was kept costs none."""
    prompt_tokens: int = 0
    """Tokens of the prompts' other part (the query) that went through the model."""
    passes: int = 0
    """Forward passes of batches."""
    row_passes: int = 0
    """The same, a row of a batch counted by itself: what a query alone would have cost."""
    tokens: int = 0
    """Tokens written, stop tokens not counted."""
    forced: int = 0
    """Those of them that the grammar left no choice about; they cost no pass of their own."""
    seconds: float = 0.0
    """Computing prefixes and batches, the grammar's part included."""
    grammar_seconds: float = 0.0
    """Those of them for grammars: compiling one, masks, following what was written, and what is forced next."""

    @contextmanager
    def timed_grammar(self) -> Generator[None]:
        """Add what is done within to `grammar_seconds`."""
        begun = perf_counter()
        try:
            yield
        finally:
            self.grammar_seconds += perf_counter() - begun


@dataclass(frozen=True, slots=True)
class Sampler:
    """How a row's tokens are drawn."""

    temperature: float
    """Above 0; scores are divided by it."""
    generator: torch.Generator
    """On the CPU, whatever the model runs on."""

    def draw(self) -> float:
        """A number from 0 up to 1."""
        return float(torch.rand((), dtype=torch.float64, generator=self.generator))


@dataclass(eq=False, slots=True)
class Row:
    """One query that is being decoded."""

    request: Request
    prompt_tokens: int
    """Tokens of the whole prompt, the shared prefix included."""
    pending: list[int]
    """Tokens that the model has not seen yet: at first the prompt after the prefix."""
    limit: int
    """Most tokens to write."""
    matcher: RowMatcher | None
    stop_ids: frozenset[int]
    sampler: Sampler | None = None
    """None takes the likeliest token."""
    output: list[int] = field(default_factory=list[int])
    """Tokens written so far, without the stop token."""
    used: int = 0
    """Cache slots filled."""
    finish: FinishReason | None = None
    error: str | None = None
    forced: int = 0
    """Tokens of `output` that the grammar forced."""

    def begin(self) -> None:
        """Write what the grammar forces at the very start."""
        if self.matcher is not None:
            self._force(self.matcher.forced())

    def accept(self, token: int) -> None:
        """Take the chosen token, then what the grammar forces after it."""
        if token in self.stop_ids:
            self.finish = FinishReason.STOP
            return
        self._write([token])
        if self.finish is None and self.matcher is not None:
            self._force(self.matcher.forced())

    def _force(self, tokens: list[int]) -> None:
        before = len(self.output)
        self._write(tokens)
        self.forced += len(self.output) - before

    def fail(self, error: str) -> None:
        self.finish, self.error = FinishReason.ERROR, error

    def _write(self, tokens: list[int]) -> None:
        room = self.limit - len(self.output)
        self.output += tokens[:room]
        self.pending += tokens[:room]
        if self.matcher is not None and tokens:
            self.matcher.consume(tokens)
            if self.matcher.error:
                return self.fail(f"grammar: {self.matcher.error}")
            if self.matcher.complete and len(tokens) <= room:
                self.finish = FinishReason.STOP
                return None
        if len(tokens) >= room:
            self.finish = FinishReason.LENGTH
        return None


class Decoder:
    """Runs prefixes and batches on one model; not thread-safe, the caller holds a lock."""

    def __init__(self, model: PlannerModel, allowed: Allowed, *, batch_size: int, prefill_tokens: int) -> None:
        self._model = model
        self._allowed = allowed
        self._batch_size = batch_size
        self._prefill_tokens = prefill_tokens
        self._cache = RowCache(batch_size, model.num_layers)
        self.counts = Counts()

    @torch.inference_mode()
    def run_prefix(self, ids: Sequence[int]) -> SharedPrefix:
        """Keys and values of a prompt prefix, computed in pieces of at most `prefill_tokens`."""
        cache = RowCache(1, self._model.num_layers)
        self.counts.prefix_tokens += len(ids)
        for start in range(0, len(ids), self._prefill_tokens):
            self._forward(cache, None, [0], [start], [ids[start : start + self._prefill_tokens]])
        return cache.take_prefix(len(ids))

    @torch.inference_mode()
    def target_nll(self, prefix: SharedPrefix, prompt: Sequence[int], target: Sequence[int]) -> Tensor:
        """Negative log-likelihood of each target token in nats, float32 [len(target)].

        Args:
            prefix: keys and values of the prompt's beginning.
            prompt: the rest of the prompt, one token at least.
            target: what follows it.

        """
        ids = [*prompt, *target]
        found: list[Tensor] = []
        for start in range(0, len(ids), self._prefill_tokens):
            piece = ids[start : start + self._prefill_tokens]
            hidden_ND, _ = self._hidden(self._cache, prefix, [0], [start], [piece])
            first = max(len(prompt) - 1 - start, 0)
            following = ids[start + first + 1 : start + len(piece) + 1]
            if not following:
                continue
            logits_TV = self._model.head(hidden_ND[first : first + len(following)])[:, : self._model.num_tokens].float()
            target_T1 = torch.tensor(following, device=logits_TV.device)[:, None]
            found.append(logits_TV.logsumexp(-1) - logits_TV.gather(1, target_T1)[:, 0])
        return torch.cat(found)

    @torch.inference_mode()
    def decode(
        self,
        prefix: SharedPrefix,
        admit: Callable[[], Row | None],
        wanted: Callable[[Row], bool],
        finished: Callable[[Row], None],
        active: list[Row],
    ) -> None:
        """Decode until `admit` has no more rows and all rows have ended.

        Args:
            prefix: what all rows share.
            admit: gives the next row, or None where none waits now; asked again after every pass.
            wanted: whether a row is still of use; asked after every pass.
            finished: receives each row that leaves: with a finish reason, or without one if no longer wanted.
            active: the rows in work, kept up to date so that the caller can fail them if this raises.

        """
        while True:
            self._fill(active, admit, finished)
            if not active:
                return
            self._advance(prefix, active)
            self._retire(active, wanted, finished)

    def _fill(self, active: list[Row], admit: Callable[[], Row | None], finished: Callable[[Row], None]) -> None:
        """Admit rows while there is a place, and prompt tokens enough for one pass are not yet waiting."""
        waiting = 0
        while len(active) < self._batch_size and waiting < self._prefill_tokens:
            row = admit()
            if row is None:
                return
            if row.finish is not None:
                self._count(row)
                finished(row)
                continue
            waiting += len(row.pending)
            active.append(row)

    def _count(self, row: Row) -> None:
        self.counts.tokens += len(row.output)
        self.counts.forced += row.forced

    def _advance(self, prefix: SharedPrefix, active: list[Row]) -> None:
        """One pass over what is pending, then one token for every row whose prompt is through."""
        pieces = [row.pending[: self._prefill_tokens] for row in active]
        hidden_BD = self._forward(self._cache, prefix, range(len(active)), [row.used for row in active], pieces)
        self.counts.passes += 1
        self.counts.row_passes += len(active)
        for row, piece in zip(active, pieces, strict=True):
            row.used += len(piece)
            del row.pending[: len(piece)]
        ready = [index for index, row in enumerate(active) if not row.pending]
        if not ready:
            return
        rows = [active[index] for index in ready]
        if len(ready) < len(active):
            hidden_BD = hidden_BD[ready]
        for row, token in zip(rows, self._choose(hidden_BD, rows), strict=True):
            if row.matcher is None:
                row.accept(token)
            elif row.matcher.error:
                row.fail(f"grammar: {row.matcher.error}")
            else:
                with self.counts.timed_grammar():
                    row.accept(token)

    def _choose(self, hidden_BD: Tensor, rows: Sequence[Row]) -> list[int]:
        """A token for each row that its grammar allows and the tokenizer has: the likeliest, or drawn."""
        logits_BV: Tensor = self._model.head(hidden_BD)
        logits_BV[:, self._model.num_tokens :] = -torch.inf
        matchers = [row.matcher for row in rows]
        if any(matcher is not None for matcher in matchers):
            with self.counts.timed_grammar():
                allowed_BV = self._allowed(matchers)
            logits_BV = logits_BV.masked_fill(~allowed_BV.to(logits_BV.device), -torch.inf)
        tokens = cast("list[int]", cast("Any", logits_BV.argmax(-1)).tolist())
        drawing = [(index, row.sampler) for index, row in enumerate(rows) if row.sampler is not None]
        if drawing:
            indices = [index for index, _ in drawing]
            drawn = draw_tokens(logits_BV[indices], [sampler for _, sampler in drawing])
            for index, token in zip(indices, drawn, strict=True):
                tokens[index] = token
        return tokens

    def _retire(self, active: list[Row], wanted: Callable[[Row], bool], finished: Callable[[Row], None]) -> None:
        """Take out rows that ended or are no longer wanted; the last row moves into the gap."""
        for index in reversed(range(len(active))):
            row = active[index]
            if row.finish is None and wanted(row):
                continue
            self._count(row)
            last = active.pop()
            if last is not row:
                self._cache.move(len(active), index, last.used)
                active[index] = last
            finished(row)

    def _forward(
        self,
        cache: RowCache,
        prefix: SharedPrefix | None,
        rows: Sequence[int],
        starts: Sequence[int],
        pieces: Sequence[Sequence[int]],
    ) -> Tensor:
        """Hidden state of the last token of each piece [B,D]."""
        hidden_ND, layout = self._hidden(cache, prefix, rows, starts, pieces)
        return hidden_ND[layout.last_B]

    def _hidden(
        self,
        cache: RowCache,
        prefix: SharedPrefix | None,
        rows: Sequence[int],
        starts: Sequence[int],
        pieces: Sequence[Sequence[int]],
    ) -> tuple[Tensor, Pass]:
        """Hidden states of all tokens [N,D], and where they lie; all pieces are packed into one sequence."""
        device = self._model.device
        layout = cache.begin(prefix, rows, starts, [len(piece) for piece in pieces], device)
        ids_1N = torch.tensor([[token for piece in pieces for token in piece]], device=device)
        output = self._model.backbone(
            input_ids=ids_1N, position_ids=layout.position_N[None], use_cache=False, row_cache=cache
        )
        return output.last_hidden_state[0], layout


def draw_tokens(logits_SV: Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """One token a row from softmax(logits / temperature), by inverting the distribution function.

    Args:
        logits_SV: scores [S,V]; -inf where a token is not allowed, which is then never drawn.
        samplers: one a row.

    """
    device = logits_SV.device
    temperature_S1 = torch.tensor([[max(sampler.temperature, _COLDEST)] for sampler in samplers], device=device)
    drawn_S1 = torch.tensor([[sampler.draw()] for sampler in samplers], dtype=torch.float64, device=device)
    below_SV = logits_SV.float() - logits_SV.amax(-1, keepdim=True)
    share_SV = (below_SV / temperature_S1).softmax(-1)
    upto_SV = share_SV.cumsum(-1, dtype=torch.float64)
    token_S1 = torch.searchsorted(upto_SV, drawn_S1 * upto_SV[:, -1:], right=True)
    return cast("list[int]", cast("Any", token_S1[:, 0]).tolist())
