"""Shared-prefix forward: the catalog runs once a micro-batch, and every example attends to its keys and values.

Takes a causal language model of transformers and token ids; gives the hidden states that predict the targets, with
gradients through the prefix. Equal to running prefix and example together for each example (tested on Qwen2 and on
Gemma 3 with sliding windows, loss and LoRA gradients).

How: prefix and examples lie one after another in one row without padding, so every linear layer runs once over
exactly the tokens there are; positions restart after the prefix. An attention function, registered through
transformers' public interface, cuts the row apart again: the prefix attends to itself, the examples (in groups of like
length, padded inside attention only) attend to the prefix and to themselves. Against the other known way, a repeated
key and value cache, nothing is padded outside attention, one forward call serves wrappers and gradient checkpointing,
and a sliding layer reads only the end of the prefix that its window reaches. On CUDA the row may instead go through
FlexAttention whole (`flex`), whose kernel skips the blocks that nobody sees; which is faster depends on the machine.

Not covered: attention with logit soft-capping or with sinks, layers that are no attention (refused by `prepare`); there
`separate_hidden_at_targets` runs the prefix in every example.

Shapes: P prefix tokens, B examples of a group, L tokens of its longest, S tokens of a group, T tokens of the row, N
target positions, H heads, K key-value heads, G = H / K, M keys of an example, D width of a head or of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from plansmith.contract.errors import InputError

ATTENTION = "plansmith_shared_prefix"
"""Name under which the attention function is registered with transformers."""
_GROUP_SPREAD = 1.25


class Encoded(NamedTuple):
    """One example after the shared prefix."""

    ids: list[int]
    """Query and plan, the stop token last."""
    num_query: int
    """How many of `ids` come before the plan."""
    weights: list[float]
    """Weight in the loss of each token of the plan, the stop token last."""


@dataclass(frozen=True)
class Group:
    """Examples of like length that lie side by side in the row."""

    start: int
    """Place of the first token among all example tokens."""
    lengths: tuple[int, ...]
    device: torch.device

    @property
    def end(self) -> int:
        return self.start + sum(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @cached_property
    def gather_BL(self) -> Tensor:
        """Place among the group's tokens of each place in the padded batch; padding repeats the last token."""
        length_B = torch.tensor(self.lengths, device=self.device)
        start_B = length_B.cumsum(0) - length_B
        step_L = torch.arange(self.longest, device=self.device)
        return start_B[:, None] + torch.minimum(step_L[None], length_B[:, None] - 1)

    @cached_property
    def scatter_S(self) -> Tensor:
        """Place in the flattened padded batch of each of the group's tokens."""
        rows = [torch.arange(n, device=self.device) + row * self.longest for row, n in enumerate(self.lengths)]
        return torch.cat(rows)

    def cut(self, examples_1HTD: Tensor) -> Tensor:
        """The group's part of the example tokens as a padded batch (B, H, L, D)."""
        own_SHD = examples_1HTD[0, :, self.start : self.end].transpose(0, 1)
        return own_SHD[self.gather_BL].transpose(1, 2)


@dataclass(frozen=True)
class Layout:
    """Where prefix and examples lie in the row."""

    prefix_length: int
    lengths: tuple[int, ...]
    """Tokens of each example, in the order of the row: ascending."""
    device: torch.device
    flex: bool = False
    """Whether attention runs over the whole row at once, in a kernel that skips what nobody sees (FlexAttention)."""

    @cached_property
    def groups(self) -> list[Group]:
        """Neighbours whose lengths differ by a fourth at most, so that little is padded."""
        cuts = [0]
        for index, length in enumerate(self.lengths):
            if length > _GROUP_SPREAD * self.lengths[cuts[-1]]:
                cuts.append(index)
        parts = [self.lengths[a:b] for a, b in zip(cuts, [*cuts[1:], len(self.lengths)], strict=True)]
        starts = [sum(sum(part) for part in parts[:i]) for i in range(len(parts))]
        return [Group(start, part, self.device) for start, part in zip(starts, parts, strict=True)]

    @cached_property
    def position_T(self) -> Tensor:
        """Position ids: the prefix from 0, every example from P."""
        parts = [torch.arange(self.prefix_length, device=self.device)]
        parts += [torch.arange(n, device=self.device) + self.prefix_length for n in self.lengths]
        return torch.cat(parts)

    def first_visible(self, window: int | None) -> int:
        """First prefix token that any example token can see."""
        return 0 if window is None else max(0, self.prefix_length - window + 1)

    def mask(self, group: Group, window: int | None, repeats: int) -> Tensor:
        """Which keys an example's queries see (true: seen), once for each head of a key-value head: (G*L, M)."""
        key = (group.start, window, repeats)
        if key not in self._masks:
            end = self.prefix_length + group.longest
            query_L = torch.arange(self.prefix_length, end, device=self.device)
            key_M = torch.arange(self.first_visible(window), end, device=self.device)
            self._masks[key] = _visible(query_L, key_M, window).repeat(repeats, 1)
        return self._masks[key]

    @cached_property
    def _masks(self) -> dict[tuple[int, int | None, int], Tensor]:
        return {}

    def block_mask(self, window: int | None) -> Any:
        """Which places of the row each place sees, for FlexAttention."""
        if window not in self._block_masks:
            length = self.prefix_length + sum(self.lengths)
            counts = torch.tensor([self.prefix_length, *self.lengths], device=self.device)
            owner_T = torch.repeat_interleave(torch.arange(len(counts), device=self.device), counts)
            place_T = self.position_T

            def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                del batch, head
                distance = place_T[query] - place_T[key]
                seen = ((owner_T[key] == owner_T[query]) | (owner_T[key] == 0)) & (distance >= 0)
                return seen if window is None else seen & (distance < window)

            self._block_masks[window] = create_block_mask(sees, None, None, length, length, device=self.device)
        return self._block_masks[window]

    @cached_property
    def _block_masks(self) -> dict[int | None, Any]:
        return {}

    def prefix_mask(self, window: int | None) -> Tensor | None:
        """Mask of the prefix on itself, or None where it is plainly causal."""
        if window is None or window >= self.prefix_length:
            return None
        place_P = torch.arange(self.prefix_length, device=self.device)
        return _visible(place_P, place_P, window)


def _visible(query: Tensor, key: Tensor, window: int | None) -> Tensor:
    distance = query[:, None] - key[None, :]
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


class Packed(NamedTuple):
    """One micro-batch as one row."""

    ids_T: Tensor
    layout: Layout
    predict_N: Tensor
    """Places in the row whose hidden states predict the targets."""
    target_N: Tensor
    weight_N: Tensor


def pack(
    prefix: Sequence[int], examples: Sequence[Encoded], device: torch.device | str = "cpu", *, flex: bool = False
) -> Packed:
    """Lay prefix and examples out in one row, the examples by length."""
    device = torch.device(device)
    examples = sorted(examples, key=lambda example: len(example.ids))
    layout = Layout(len(prefix), tuple(len(example.ids) for example in examples), device, flex)
    ids: list[int] = list(prefix)
    predict: list[int] = []
    target: list[int] = []
    weight: list[float] = []
    for example in examples:
        start = len(ids)
        ids += example.ids
        predict += range(start + example.num_query - 1, len(ids) - 1)
        target += example.ids[example.num_query :]
        weight += example.weights
    return Packed(
        torch.tensor(ids, device=device),
        layout,
        torch.tensor(predict, device=device),
        torch.tensor(target, device=device),
        torch.tensor(weight, device=device),
    )


def obstacle(model: PreTrainedModel) -> str | None:
    """What about the model a shared prefix does not cover; None where it covers all."""
    config = model.config.get_text_config()
    unknown = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention", "sliding_attention"}
    if unknown:
        return f"layers of the kind {', '.join(sorted(unknown))}"
    if getattr(config, "attn_logit_softcapping", None):
        return "attention with logit soft-capping"
    if any(name.endswith(".sinks") for name, _ in model.named_parameters()):
        return "attention with sinks"
    return None if getattr(model, "_supports_attention_backend", False) else "attention of its own"


def prepare(model: PreTrainedModel) -> None:
    """Make the model's attention able to share a prefix; generation and plain forwards work as before.

    Raises:
        InputError: the model has layers of a kind that a shared prefix does not cover.

    """
    found = obstacle(model)
    if found is not None:
        raise InputError(
            f"the model has {found}; a shared prefix covers full and sliding attention. Use another base model."
        )
    AttentionInterface.register(ATTENTION, shared_prefix_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


def hidden_at_targets(model: PreTrainedModel, packed: Packed) -> Tensor:
    """Hidden states (N, D) that predict the targets; `model` went through `prepare` and carries its adapter inside."""
    decoder: Any = model.get_decoder()
    no_mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=packed.ids_T.device)
    hidden_TD: Tensor = decoder(
        input_ids=packed.ids_T[None],
        attention_mask=no_mask,
        position_ids=packed.layout.position_T[None],
        use_cache=False,
        shared_prefix=packed.layout,
    ).last_hidden_state[0]
    return hidden_TD[packed.predict_N]


@cache
def _flex(device: str) -> Any:
    """FlexAttention, compiled where that is what makes it fast."""
    return torch.compile(flex_attention) if device == "cuda" else flex_attention


def separate_hidden_at_targets(model: PreTrainedModel, packed: Packed) -> Tensor:
    """As `hidden_at_targets` for any causal model: the prefix runs in every example, rows padded at their end."""
    layout, P = packed.layout, packed.layout.prefix_length
    prefix_P, rest = packed.ids_T[:P], packed.ids_T[P:].split(layout.lengths)
    longest = P + max(layout.lengths)
    ids_BT = packed.ids_T.new_zeros(len(rest), longest)
    seen_BT = torch.zeros_like(ids_BT)
    place_T = torch.arange(P, device=packed.ids_T.device)
    places = [place_T]
    for row, own in enumerate(rest):
        end = P + len(own)
        ids_BT[row, :P], ids_BT[row, P:end], seen_BT[row, :end] = prefix_P, own, 1
        places.append(row * longest + torch.arange(P, end, device=packed.ids_T.device))
    decoder: Any = model.get_decoder()
    hidden_BTD: Tensor = decoder(input_ids=ids_BT, attention_mask=seen_BT, use_cache=False).last_hidden_state
    return hidden_BTD.flatten(0, 1)[torch.cat(places)[packed.predict_N]]


def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    shared_prefix: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over one row (1, H, T, D); without a layout, transformers' own sdpa. Returns (1, T, H, D)."""
    if shared_prefix is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    layout, P = shared_prefix, shared_prefix.prefix_length
    if layout.flex:
        mask = layout.block_mask(sliding_window)
        out_1HTD = _flex(query.device.type)(query, key, value, block_mask=mask, enable_gqa=True, scale=scaling)
        return out_1HTD.transpose(1, 2).contiguous(), None
    repeats = query.shape[1] // key.shape[1]
    mask_PP = layout.prefix_mask(sliding_window)
    prefix_1HPD = scaled_dot_product_attention(
        query[:, :, :P],
        key[:, :, :P].repeat_interleave(repeats, 1),
        value[:, :, :P].repeat_interleave(repeats, 1),
        attn_mask=mask_PP,
        is_causal=mask_PP is None,
        dropout_p=dropout,
        scale=scaling,
    )
    parts = [prefix_1HPD[0].transpose(0, 1)]
    for group in layout.groups:
        mask = layout.mask(group, sliding_window, repeats)
        first = layout.first_visible(sliding_window)
        query_BHLD = group.cut(query[:, :, P:])
        batch, heads, longest, width = query_BHLD.shape
        example_BKXD = scaled_dot_product_attention(
            query_BHLD.reshape(batch, heads // repeats, repeats * longest, width),
            torch.cat([key[:, :, first:P].expand(batch, -1, -1, -1), group.cut(key[:, :, P:])], dim=2),
            torch.cat([value[:, :, first:P].expand(batch, -1, -1, -1), group.cut(value[:, :, P:])], dim=2),
            attn_mask=mask,
            dropout_p=dropout,
            scale=scaling,
        )
        example_BLHD = example_BKXD.reshape(batch, heads, longest, width).transpose(1, 2)
        parts.append(example_BLHD.reshape(batch * longest, heads, width)[group.scatter_S])
    return torch.cat(parts)[None], None
