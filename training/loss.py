"""The training loss as pure functions: sum first, divide once by the weight of the whole optimizer step.

Takes logits or hidden states at target positions; gives a loss whose gradients add up over micro-batches to those of
the whole step, however the step was cut. Today one term, cross-entropy; a further term (mass outside the plan
grammar, a teacher's distribution) is one more sum in `plan_loss`, over the same rows.

`chunked_plan_loss` never holds more than one chunk of logits: it makes each chunk's gradient at once and keeps only
that of the hidden states (the idea of Liger's fused linear cross-entropy), which needs an output layer that is frozen.

Shapes: N target positions, V rows of the output layer, D hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Head = Callable[[Tensor], Tensor]
"""Hidden states (N, D) to logits (N, V)."""


class LossOutput(NamedTuple):
    """Value of the loss of one micro-batch as its share of the step's."""

    loss: Tensor
    """What is differentiated: sum of the weighted terms / `weight_total`."""
    cross_entropy: Tensor
    """Sum of the weighted cross-entropy in nats / `weight_total`, without gradient."""


def plan_loss(logits_NV: Tensor, target_N: Tensor, weight_N: Tensor, *, weight_total: float) -> LossOutput:
    """Weighted cross-entropy of the targets, divided by the weight of the whole optimizer step."""
    nll_N = cross_entropy(logits_NV.float(), target_N, reduction="none")
    loss = (nll_N * weight_N).sum() / weight_total
    return LossOutput(loss, loss.detach())


def chunked_plan_loss(
    hidden_ND: Tensor, head: Head, target_N: Tensor, weight_N: Tensor, *, weight_total: float, chunk: int = 512
) -> LossOutput:
    """`plan_loss` of `head(hidden_ND)` without holding all logits; the head's own weights get no gradient."""
    total, entropy = _ChunkedLoss.apply(hidden_ND, head, target_N, weight_N, weight_total, chunk)  # type: ignore[misc]
    return LossOutput(total, entropy)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head: Head,
        target_N: Tensor,
        weight_N: Tensor,
        weight_total: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        grad_ND = torch.empty_like(hidden_ND)
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        entropy = total.clone()
        for start in range(0, len(hidden_ND), chunk):
            part = slice(start, start + chunk)
            with torch.enable_grad():
                hidden = hidden_ND[part].detach().requires_grad_()
                out = plan_loss(head(hidden), target_N[part], weight_N[part], weight_total=weight_total)
                (grad_ND[part],) = torch.autograd.grad(out.loss, hidden)
            total += out.loss.detach()
            entropy += out.cross_entropy
        ctx.save_for_backward(grad_ND)
        ctx.mark_non_differentiable(entropy)
        return total, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (grad_ND,) = ctx.saved_tensors
        return grad_ND * grads[0], None, None, None, None, None
