"""Losses on the student's own plans, as pure functions over hidden states.

`token_logprobs` gives what GRPO compares; `reverse_kl` is on-policy distillation: at every token that the student drew,
KL(student || teacher) over the whole vocabulary (MiniLLM, Gu et al. 2023; GKD, Agarwal et al. 2023; here the draws
themselves carry no gradient). Logits are made chunk by chunk and again in the backward pass, so memory does not grow
with tokens x vocabulary.

Shapes: N tokens, V tokens of the vocabulary, D hidden width (student and teacher may differ in it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from plansmith.training.loss import Head
from plansmith.training.prefix import Encoded, hidden_at_targets, pack

CHUNK = 512
"""Tokens whose logits are held at once."""


class PlanRow(NamedTuple):
    """One drawn plan after its query, the shared prefix left out."""

    query: list[int]
    plan: list[int]


def plan_hidden(
    model: PreTrainedModel, prefix: Sequence[int], rows: Sequence[PlanRow], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Hidden states (N, D) that predict the tokens of the plans, and these tokens (N), in the order of the rows."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].query) + len(rows[index].plan))
    examples = [
        Encoded([*rows[index].query, *rows[index].plan], len(rows[index].query), [1.0] * len(rows[index].plan))
        for index in order
    ]
    packed = pack(prefix, examples, device)
    starts: dict[int, int] = {}
    place = 0
    for index in order:
        starts[index] = place
        place += len(rows[index].plan)
    back_N = torch.tensor(
        [starts[index] + step for index, row in enumerate(rows) for step in range(len(row.plan))], device=device
    )
    return hidden_at_targets(model, packed)[back_N], packed.target_N[back_N]


def token_logprobs(
    hidden_ND: Tensor, head: Head, target_N: Tensor, *, temperature: float, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Log-probability of each token, and entropy of its place without gradient, both in nats [N].

    Args:
        hidden_ND: states that predict the tokens.
        head: states to logits.
        target_N: the tokens.
        temperature: logits are divided by it, as in drawing.
        num_tokens: tokens that the tokenizer has; further rows of the output layer are never drawn.

    """

    def chunk(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logp_NV = (head(hidden)[:, :num_tokens].float() / temperature).log_softmax(-1)
        entropy_N = -(logp_NV.detach().exp() * logp_NV.detach()).sum(-1)
        return logp_NV.gather(1, target[:, None])[:, 0], entropy_N

    parts = [
        checkpoint(chunk, hidden_ND[start : start + CHUNK], target_N[start : start + CHUNK], use_reentrant=False)
        for start in range(0, len(hidden_ND), CHUNK)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


class ReverseKL(NamedTuple):
    """Sums over the tokens."""

    kl: Tensor
    """KL(student || teacher) in nats; has the gradient of the student's states."""
    entropy: Tensor
    """Of the student in nats, without gradient."""


def reverse_kl(
    student_ND: Tensor, student_head: Head, teacher_ND: Tensor, teacher_head: Head, *, num_tokens: int
) -> ReverseKL:
    """KL(student || teacher) over the first `num_tokens` tokens of the vocabulary, summed over the places."""

    def chunk(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        ours_NV = student_head(student)[:, :num_tokens].float().log_softmax(-1)
        with torch.no_grad():
            theirs_NV = teacher_head(teacher)[:, :num_tokens].float().log_softmax(-1)
        share_NV = ours_NV.exp()
        return (share_NV * (ours_NV - theirs_NV)).sum(), -(share_NV.detach() * ours_NV.detach()).sum()

    parts = [
        checkpoint(chunk, student_ND[start : start + CHUNK], teacher_ND[start : start + CHUNK], use_reentrant=False)
        for start in range(0, len(student_ND), CHUNK)
    ]
    return ReverseKL(torch.stack([part[0] for part in parts]).sum(), torch.stack([part[1] for part in parts]).sum())
