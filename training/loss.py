"""The training loss as pure functions: sum first, divide once by the weight of the whole optimizer step.

Takes logits or hidden states at target positions; gives a loss whose gradients add up over micro-batches to those of
the whole step, however the step was cut:

    CE = -log p(target)                                        what the plan says
    V  = -log(mass of the tokens that the plan grammar allows) what is no plan: broken JSON, unregistered names
    KD = KL(teacher || student) over the teacher's likeliest tokens and the rest of the vocabulary as one outcome

V is 0 where only allowed tokens have mass, and never above CE, since the target is allowed. It is semantic loss (Xu et
al. 2018) on the next-token distribution, as in pseudo-semantic loss (Ahmed et al. 2023).

All terms share one softmax, and their gradient with respect to the logits is written at once. `chunked_plan_loss`
never holds more than one chunk of logits: it makes each chunk's gradient in the forward pass and keeps only that of
the hidden states (the idea of Liger's fused linear cross-entropy), which needs an output layer that is frozen.

Not covered: gradients of gradients; where masks and teacher come from (`validity.py`, `distillation.py`).

Shapes: N target positions, V rows of the output layer, D hidden width, M distinct masks, W = V / 32 rounded up, K
tokens kept of the teacher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Head = Callable[[Tensor], Tensor]
"""Hidden states (N, D) to logits (N, V)."""


class Validity(NamedTuple):
    """The validity term's part of a micro-batch."""

    words_MW: Tensor
    """Masks, int32: bit b of word w is 1 where token 32 w + b is allowed."""
    index_N: Tensor
    """Which mask holds at each position."""
    name_N: Tensor
    """Whether the target continues a worker's name there."""
    weight_N: Tensor
    """Weight of the position in V."""
    scale: float = 1.0
    """V's factor in the loss (lambda); 0 measures only."""


class Teacher(NamedTuple):
    """The teacher's part of a micro-batch."""

    token_NK: Tensor
    """Its likeliest tokens; places that are left over repeat one of them."""
    logprob_NK: Tensor
    """Their log-probabilities; -inf in places that are left over."""
    weight_N: Tensor
    """Weight of the position in KD, 0 where the teacher said nothing."""
    scale: float = 1.0
    """KD's factor in the loss (lambda)."""


class Terms(NamedTuple):
    """The further terms of a micro-batch; None where one is off."""

    validity: Validity | None = None
    teacher: Teacher | None = None


class LossOutput(NamedTuple):
    """The loss of one micro-batch as its share of the step's; all but `loss` are values without gradient."""

    loss: Tensor
    """What is differentiated: CE + lambda V + lambda KD."""
    cross_entropy: Tensor
    """Sum of the weighted cross-entropy in nats / `weight_total`."""
    validity: Tensor
    """Sum of the weighted V / `weight_total`, without its factor."""
    teacher: Tensor
    """Sum of the weighted KD / `weight_total`, without its factor."""
    outside_json: Tensor
    """Sum, over the positions of V that continue no worker's name, of the probability outside the grammar."""
    outside_names: Tensor
    """The same where the target continues a worker's name."""


def plan_loss(
    logits_NV: Tensor,
    target_N: Tensor,
    weight_N: Tensor,
    *,
    weight_total: float,
    validity: Validity | None = None,
    teacher: Teacher | None = None,
) -> LossOutput:
    """All terms of the targets, divided by the weight of the whole optimizer step."""
    loss, *values = _TokenLoss.apply(logits_NV, target_N, weight_N, weight_total, validity, teacher)  # type: ignore[misc]
    return LossOutput(loss, *values)


def chunked_plan_loss(
    hidden_ND: Tensor,
    head: Head,
    target_N: Tensor,
    weight_N: Tensor,
    *,
    weight_total: float,
    validity: Validity | None = None,
    teacher: Teacher | None = None,
    chunk: int = 512,
) -> LossOutput:
    """`plan_loss` of `head(hidden_ND)` without holding all logits; the head's own weights get no gradient."""

    def of_chunk(part: slice, hidden: Tensor) -> LossOutput:
        return plan_loss(
            head(hidden),
            target_N[part],
            weight_N[part],
            weight_total=weight_total,
            validity=None if validity is None else _cut_validity(validity, part),
            teacher=None if teacher is None else _cut_teacher(teacher, part),
        )

    loss, *values = _ChunkedLoss.apply(hidden_ND, of_chunk, chunk)  # type: ignore[misc]
    return LossOutput(loss, *values)


def unpack_masks(words_MW: Tensor, index_N: Tensor, vocab_rows: int) -> Tensor:
    """Masks of some positions as booleans (N, V); each distinct mask is unpacked once."""
    if words_MW.shape[1] != (vocab_rows + 31) // 32:
        raise ValueError(f"masks of {words_MW.shape[1]} words do not belong to an output layer of {vocab_rows} rows")
    used, place_N = index_N.unique(return_inverse=True)
    bit = torch.arange(32, dtype=torch.int32, device=words_MW.device)
    bits_UWb = (words_MW[used].unsqueeze(-1) >> bit).bitwise_and_(1).bool()
    return bits_UWb.flatten(1)[:, :vocab_rows][place_N]


def _cut_validity(validity: Validity, part: slice) -> Validity:
    return validity._replace(
        index_N=validity.index_N[part], name_N=validity.name_N[part], weight_N=validity.weight_N[part]
    )


def _cut_teacher(teacher: Teacher, part: slice) -> Teacher:
    return teacher._replace(
        token_NK=teacher.token_NK[part], logprob_NK=teacher.logprob_NK[part], weight_N=teacher.weight_N[part]
    )


class _Softmax(NamedTuple):
    """What the terms share."""

    logit_NV: Tensor
    lse_N: Tensor
    grad_NV: Tensor | None
    """The loss's gradient with respect to the logits, to which each term adds its part; None where none is asked."""

    def add_target(self, coefficient_N: Tensor, token_NK: Tensor, share_NK: Tensor) -> None:
        """Gradient of `coefficient * -log p`, the share of the chosen tokens; that of p itself comes last."""
        if self.grad_NV is not None:
            self.grad_NV.scatter_add_(1, token_NK, -coefficient_N[:, None] * share_NK)

    def add_part(self, coefficient_N: Tensor, part_NV: Tensor, part_lse_N: Tensor) -> None:
        """The same for a set of tokens whose other logits are -inf; overwrites `part_NV`."""
        if self.grad_NV is not None:
            share_NV = part_NV.sub_(part_lse_N[:, None]).exp_()
            self.grad_NV.addcmul_(share_NV, coefficient_N[:, None], value=-1)


class _TokenLoss(torch.autograd.Function):
    """All terms at once, with their gradient made in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_NV: Tensor,
        target_N: Tensor,
        weight_N: Tensor,
        weight_total: float,
        validity: Validity | None,
        teacher: Teacher | None,
    ) -> tuple[Tensor, ...]:
        logit_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        grad_NV = torch.zeros_like(logit_NV) if ctx.needs_input_grad[0] else None
        soft = _Softmax(logit_NV, logit_NV.logsumexp(-1), grad_NV)
        weight_N = weight_N.to(logit_NV.dtype) / weight_total
        zero = logit_NV.new_zeros(())
        nll_N = soft.lse_N - logit_NV.gather(1, target_N[:, None])[:, 0]
        soft.add_target(weight_N, target_N[:, None], torch.ones_like(nll_N)[:, None])
        entropy = (nll_N * weight_N).sum()
        loss, mass_N = entropy, weight_N
        valid, outside_json, outside_names, taught = zero, zero, zero, zero
        if validity is not None:
            valid, outside_json, outside_names = _validity_term(soft, validity, weight_total)
            loss = loss + validity.scale * valid
            mass_N = mass_N + validity.scale / weight_total * validity.weight_N
        if teacher is not None:
            taught = _teacher_term(soft, teacher, weight_total)
            loss = loss + teacher.scale * taught
            mass_N = mass_N + teacher.scale / weight_total * teacher.weight_N
        if grad_NV is not None:
            grad_NV.addcmul_((logit_NV - soft.lse_N[:, None]).exp_(), mass_N[:, None].to(grad_NV.dtype))
            ctx.save_for_backward(grad_NV.to(logits_NV.dtype))
        values = tuple(value.clone() for value in (entropy, valid, taught, outside_json, outside_names))
        ctx.mark_non_differentiable(*values)
        return loss.clone(), *values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (grad_NV,) = ctx.saved_tensors
        return grad_NV * grads[0], None, None, None, None, None


def _validity_term(soft: _Softmax, validity: Validity, weight_total: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of V, and of the mass outside the grammar at JSON and at name positions."""
    allowed_NV = unpack_masks(validity.words_MW, validity.index_N, soft.logit_NV.shape[1])
    part_NV = soft.logit_NV.masked_fill(~allowed_NV, -torch.inf)
    del allowed_NV
    part_lse_N = part_NV.logsumexp(-1)
    weight_N = validity.weight_N.to(part_lse_N.dtype) / weight_total
    log_mass_N = (part_lse_N - soft.lse_N).clamp_max(0)
    if validity.scale:
        soft.add_part(validity.scale * weight_N, part_NV, part_lse_N)
    outside_N = -log_mass_N.expm1() * (validity.weight_N > 0)
    names = (outside_N * validity.name_N).sum()
    return -(log_mass_N * weight_N).sum(), outside_N.sum() - names, names


def _teacher_term(soft: _Softmax, teacher: Teacher, weight_total: float) -> Tensor:
    """Sum of KD."""
    kind = soft.lse_N.dtype
    share_NK = teacher.logprob_NK.to(kind).exp()
    share_NK = share_NK / share_NK.sum(-1, keepdim=True).clamp_min(1)
    rest_NV = soft.logit_NV.scatter(1, teacher.token_NK, -torch.inf)
    rest_lse_N = rest_NV.logsumexp(-1)
    rest_N = (1 - share_NK.sum(-1)).clamp_min(0).where(rest_lse_N > -torch.inf, 0)
    rest_lse_N = rest_lse_N.where(rest_lse_N > -torch.inf, 0)
    log_NK = soft.logit_NV.gather(1, teacher.token_NK) - soft.lse_N[:, None]
    known_N = (torch.special.xlogy(share_NK, share_NK) - share_NK * log_NK).sum(-1)
    unknown_N = torch.special.xlogy(rest_N, rest_N) - rest_N * (rest_lse_N - soft.lse_N)
    weight_N = teacher.weight_N.to(kind) / weight_total
    soft.add_target(teacher.scale * weight_N, teacher.token_NK, share_NK)
    soft.add_part(teacher.scale * weight_N * rest_N, rest_NV, rest_lse_N)
    return ((known_N + unknown_N) * weight_N).sum()


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, of_chunk: Callable[[slice, Tensor], LossOutput], chunk: int
    ) -> tuple[Tensor, ...]:
        wanted = ctx.needs_input_grad[0]
        grad_ND = torch.empty_like(hidden_ND) if wanted else None
        kind = torch.promote_types(hidden_ND.dtype, torch.float32)
        total = torch.zeros(len(LossOutput._fields), dtype=kind, device=hidden_ND.device)
        for start in range(0, len(hidden_ND), chunk):
            part = slice(start, start + chunk)
            with torch.set_grad_enabled(wanted):
                hidden = hidden_ND[part].detach().requires_grad_(wanted)
                out = of_chunk(part, hidden)
                if grad_ND is not None:
                    (grad_ND[part],) = torch.autograd.grad(out.loss, hidden)
            total += torch.stack([value.detach().to(kind) for value in out])
        if grad_ND is not None:
            ctx.save_for_backward(grad_ND)
        loss, *values = total.unbind()
        ctx.mark_non_differentiable(*values)
        return loss, *values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (grad_ND,) = ctx.saved_tensors
        return grad_ND * grads[0], None, None
