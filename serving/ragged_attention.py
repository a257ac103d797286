"""Attention over one shared prefix and many rows of different length, in one forward pass without padding.

A pass takes the new tokens of all rows packed into one sequence of N tokens, so every matrix product of the model
does useful work only, be it a row's prompt, its next token, or a run of tokens that the grammar forces. Only the
attention knows rows: each token sees the shared prefix (one matrix product for all rows, nothing repeated) and the
slots of its own row up to itself; both parts are joined by their sums of weights. Keys and values live in buffers that
are written in place.

Plugs into transformers' attention interface; masks come from positions, so sliding windows are exact for rows of any
length. Idea: cascade inference (FlashInfer) and continuous batching (Orca), in plain torch. Does not cover attention
sinks, chunked or linear attention, and layers that share keys: `model_loading` refuses such models.

Shapes: N tokens of the pass, B rows of the cache, S slots a row, g rows of a group, L tokens a row of that group,
T slots that the group reads, P prefix tokens, H query heads, K key heads, G = H / K, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

ATTENTION_NAME = "plansmith_ragged"
_HIDDEN = -1.0e30
"""Score of what a token may not see: finite, so that a prefix wholly outside a window gives weight 0 and no NaN."""
_GROUP_LIMITS = (1, 8, 64)
"""Rows whose number of new tokens is under the same limit are padded together inside the attention."""


class Attended(NamedTuple):
    """Attention over some of the places that a token sees, not yet normalised, so that parts can be joined."""

    sum_KGND: Tensor
    """Values weighted by exp(score - top)."""
    top_KGN1: Tensor
    """Largest score."""
    total_KGN1: Tensor
    """Sum of the weights."""


class SharedPrefix(NamedTuple):
    """Keys and values of a prompt prefix, one pair a layer, each [K,P,D]."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    length: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one pass that are attended together."""

    rows: Tensor | slice
    """Cache rows [g]; a slice where they are the first g rows in order, which saves a copy."""
    token_gL: Tensor
    """Index of each token in the pass; 0 for padding."""
    slot_gL: Tensor
    """Slot of each token in its row; 0 for padding."""
    real_M: Tensor | None
    """Flat indices into g*L of the real tokens; None where there is no padding."""
    num_slots: int
    """T: slots that any token of the group may see."""
    unseen: dict[int | None, Tensor] = field(default_factory=dict[int | None, Tensor])
    """By window: which slots a token may not see [g,L,T]; filled by the first layer that needs it."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Where the tokens of one forward pass go."""

    row_N: Tensor
    slot_N: Tensor
    position_N: Tensor
    last_B: Tensor
    """Index of the last new token of each row, in the order given."""
    groups: tuple[RowGroup, ...]
    first_position: int
    """Smallest position of the pass."""
    prefix_unseen: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """By window: which places of the prefix, from the first that any token sees, a token may not see [N,P']."""


class RowCache:
    """Key and value buffers of all rows, and the layout of the pass that is running."""

    def __init__(self, num_rows: int, num_layers: int) -> None:
        self.num_rows = num_rows
        self.capacity = 0
        self._buffers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers
        self._prefix: SharedPrefix | None = None
        self._pass: Pass | None = None

    def begin(
        self,
        prefix: SharedPrefix | None,
        rows: Sequence[int],
        starts: Sequence[int],
        lengths: Sequence[int],
        device: torch.device,
    ) -> Pass:
        """Lay out a pass: row `rows[i]` gets `lengths[i]` new tokens from slot `starts[i]` on."""
        offset = 0 if prefix is None else prefix.length
        layout = lay_out(rows, starts, lengths, offset, device)
        self._reserve(max(start + length for start, length in zip(starts, lengths, strict=True)))
        self._prefix, self._pass = prefix, layout
        return layout

    def attend(
        self,
        layer: int,
        query_HND: Tensor,
        key_KND: Tensor,
        value_KND: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Store the new keys and values, and return the attention output [N,H,D]."""
        layout = self._pass
        if layout is None:
            raise RuntimeError("attention was called outside a pass; call `begin` first")
        keys_BKSD, values_BKSD = self._layer_buffers(layer, key_KND)
        keys_BKSD[layout.row_N, :, layout.slot_N] = key_KND.transpose(0, 1)
        values_BKSD[layout.row_N, :, layout.slot_N] = value_KND.transpose(0, 1)
        num_keys, num_tokens, width = key_KND.shape
        query_KGND = (query_HND * scaling).view(num_keys, -1, num_tokens, width)
        own = _own_rows(query_KGND, keys_BKSD, values_BKSD, layout.groups, window, softcap)
        if self._prefix is None:
            out_KGND = own.sum_KGND / own.total_KGN1
        else:
            out_KGND = _joined(own, _shared(query_KGND, *self._prefix.layers[layer], layout, window, softcap))
        return out_KGND.to(query_HND.dtype).reshape(-1, num_tokens, width).transpose(0, 1)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` slots of one row over another row."""
        for pair in self._buffers:
            for buffer_BKSD in pair or ():
                buffer_BKSD[target, :, :length] = buffer_BKSD[source, :, :length]

    def take_prefix(self, length: int) -> SharedPrefix:
        """A copy of row 0's first `length` slots, to be shared by later rows."""
        pairs = [pair for pair in self._buffers if pair is not None]
        layers = tuple((keys[0, :, :length].clone(), values[0, :, :length].clone()) for keys, values in pairs)
        return SharedPrefix(layers, length)

    def _reserve(self, needed: int) -> None:
        """Grow all buffers to `needed` slots a row, by half at least; what is stored is kept."""
        if needed <= self.capacity:
            return
        self.capacity = max(needed, self.capacity + self.capacity // 2, 128)
        for layer, pair in enumerate(self._buffers):
            if pair is not None:
                self._buffers[layer] = (self._grown(pair[0]), self._grown(pair[1]))

    def _grown(self, old_BKSD: Tensor) -> Tensor:
        rows, heads, slots, width = old_BKSD.shape
        new_BKSD = old_BKSD.new_zeros(rows, heads, self.capacity, width)
        new_BKSD[:, :, :slots] = old_BKSD
        return new_BKSD

    def _layer_buffers(self, layer: int, like_KND: Tensor) -> tuple[Tensor, Tensor]:
        pair = self._buffers[layer]
        if pair is None:
            shape = (self.num_rows, like_KND.shape[0], self.capacity, like_KND.shape[2])
            pair = (like_KND.new_zeros(shape), like_KND.new_zeros(shape))
            self._buffers[layer] = pair
        return pair


def lay_out(
    rows: Sequence[int], starts: Sequence[int], lengths: Sequence[int], offset: int, device: torch.device
) -> Pass:
    """Pack rows one after the other; slot s of a row is position `offset + s`."""
    first: list[int] = []
    total = 0
    for length in lengths:
        first.append(total)
        total += length
    row_N = [row for row, length in zip(rows, lengths, strict=True) for _ in range(length)]
    slot_N = [start + i for start, length in zip(starts, lengths, strict=True) for i in range(length)]
    members: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        members.setdefault(sum(length > limit for limit in _GROUP_LIMITS), []).append(index)
    groups = tuple(_group(m, rows, starts, lengths, first, device) for m in members.values())
    slots = torch.tensor(slot_N, device=device)
    last = torch.tensor([f + n - 1 for f, n in zip(first, lengths, strict=True)], device=device)
    return Pass(torch.tensor(row_N, device=device), slots, slots + offset, last, groups, offset + min(starts))


def _group(
    members: Sequence[int],
    rows: Sequence[int],
    starts: Sequence[int],
    lengths: Sequence[int],
    first: Sequence[int],
    device: torch.device,
) -> RowGroup:
    longest = max(lengths[m] for m in members)
    token_gL = [[first[m] + i if i < lengths[m] else 0 for i in range(longest)] for m in members]
    slot_gL = [[starts[m] + i if i < lengths[m] else 0 for i in range(longest)] for m in members]
    real = [g * longest + i for g, m in enumerate(members) for i in range(lengths[m])]
    group_rows = [rows[m] for m in members]
    in_order = group_rows == list(range(len(group_rows)))
    return RowGroup(
        rows=slice(0, len(group_rows)) if in_order else torch.tensor(group_rows, device=device),
        token_gL=torch.tensor(token_gL, device=device),
        slot_gL=torch.tensor(slot_gL, device=device),
        real_M=None if len(real) == len(members) * longest else torch.tensor(real, device=device),
        num_slots=max(starts[m] + lengths[m] for m in members),
    )


def _own_rows(
    query_KGND: Tensor,
    keys_BKSD: Tensor,
    values_BKSD: Tensor,
    groups: Sequence[RowGroup],
    window: int | None,
    softcap: float | None,
) -> Attended:
    """Attention of each token over the slots of its own row, itself included."""
    heads, per_key, num_tokens, width = query_KGND.shape
    sum_KGND = torch.empty_like(query_KGND)
    top_KGN1 = query_KGND.new_empty(heads, per_key, num_tokens, 1, dtype=torch.float32)
    total_KGN1 = torch.empty_like(top_KGN1)
    for group in groups:
        g, length = group.token_gL.shape
        picked = query_KGND[:, :, group.token_gL].permute(2, 0, 1, 3, 4).reshape(g, heads, per_key * length, width)
        keys, values = (buffer[group.rows, :, : group.num_slots] for buffer in (keys_BKSD, values_BKSD))
        scores = _capped(picked @ keys.transpose(2, 3), softcap).view(g, heads, per_key, length, group.num_slots)
        scores = scores.masked_fill(_unseen(group, window)[:, None, None], _HIDDEN)
        top = scores.amax(-1, keepdim=True)
        weights = (scores - top).exp_()
        out = weights.to(values.dtype).view(g, heads, per_key * length, group.num_slots) @ values
        _scatter(sum_KGND, out.view(g, heads, per_key, length, width), group)
        _scatter(top_KGN1, top, group)
        _scatter(total_KGN1, weights.sum(-1, keepdim=True), group)
    return Attended(sum_KGND, top_KGN1, total_KGN1)


def _unseen(group: RowGroup, window: int | None) -> Tensor:
    """Which slots a token may not see [g,L,T]: those after it, and those at `window` or more before it."""
    if window not in group.unseen:
        distance = group.slot_gL[:, :, None] - torch.arange(group.num_slots, device=group.slot_gL.device)
        group.unseen[window] = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return group.unseen[window]


def _scatter(target_KGNX: Tensor, source_gKGLX: Tensor, group: RowGroup) -> None:
    """Put the real tokens of a group back at their places in the pass."""
    flat = source_gKGLX.permute(1, 2, 0, 3, 4).flatten(2, 3)
    tokens = group.token_gL.flatten()
    if group.real_M is not None:
        flat, tokens = flat[:, :, group.real_M], tokens[group.real_M]
    target_KGNX[:, :, tokens] = flat


def _shared(
    query_KGND: Tensor,
    keys_KPD: Tensor,
    values_KPD: Tensor,
    layout: Pass,
    window: int | None,
    softcap: float | None,
) -> Attended:
    """Attention of all tokens over the shared prefix; one that sees nothing of it gets a top of `_HIDDEN`."""
    heads, per_key, num_tokens, width = query_KGND.shape
    length = keys_KPD.shape[1]
    first = 0 if window is None else min(max(layout.first_position - window + 1, 0), length - 1)
    keys_KPD, values_KPD = keys_KPD[:, first:], values_KPD[:, first:]
    flat = query_KGND.reshape(heads, per_key * num_tokens, width)
    scores = _capped(flat @ keys_KPD.transpose(1, 2), softcap).view(heads, per_key, num_tokens, -1)
    if window is not None:
        if window not in layout.prefix_unseen:
            distance_NP = layout.position_N[:, None] - torch.arange(first, length, device=flat.device)
            layout.prefix_unseen[window] = distance_NP >= window
        scores = scores.masked_fill(layout.prefix_unseen[window], _HIDDEN)
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp_()
    out = weights.to(values_KPD.dtype).view(heads, per_key * num_tokens, -1) @ values_KPD
    return Attended(out.view_as(query_KGND), top, weights.sum(-1, keepdim=True))


def _joined(one: Attended, other: Attended) -> Tensor:
    """The normalised attention [K,G,N,D] over the places of both parts."""
    top = torch.maximum(one.top_KGN1, other.top_KGN1)
    share, other_share = (one.top_KGN1 - top).exp_(), (other.top_KGN1 - top).exp_()
    total = one.total_KGN1 * share + other.total_KGN1 * other_share
    return one.sum_KGND * (share / total) + other.sum_KGND * (other_share / total)


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    scores = scores.float()
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def ragged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    row_cache: RowCache | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function of transformers' interface; query, key and value are [1,heads,N,D], the output [1,N,H,D].

    Raises:
        RuntimeError: called without `row_cache`, or with a mask or attention sinks, which it would have to ignore.

    """
    if row_cache is None or attention_mask is not None or s_aux is not None:
        raise RuntimeError("ragged attention takes a row cache, no mask and no attention sinks")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out_NHD = row_cache.attend(
        module.layer_idx, query[0], key[0], value[0], scaling=scale, window=sliding_window, softcap=softcap
    )
    return out_NHD[None], None


def register() -> None:
    """Make `ATTENTION_NAME` known to transformers; no mask function goes with it, so transformers builds no mask."""
    import transformers

    cast("Any", transformers).AttentionInterface.register(ATTENTION_NAME, ragged_attention)
