"""The loss as a pure function."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Linear

from plansmith.training.loss import chunked_plan_loss, plan_loss


def some_batch() -> tuple[torch.Tensor, Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = Linear(8, 31, bias=False).requires_grad_(False)
    return torch.randn(20, 8), head, torch.randint(0, 31, (20,)), torch.rand(20)


def test_cutting_a_batch_in_two_leaves_the_loss_unchanged() -> None:
    hidden, head, target, weight = some_batch()
    total = float(weight.sum())
    whole = plan_loss(head(hidden), target, weight, weight_total=total).loss
    parts = [
        plan_loss(head(hidden[a:b]), target[a:b], weight[a:b], weight_total=total).loss for a, b in ((0, 3), (3, 20))
    ]
    assert float(sum(parts)) == pytest.approx(float(whole), abs=1e-6)


def test_the_loss_is_the_weighted_mean_of_the_negative_log_probabilities() -> None:
    hidden, head, target, weight = some_batch()
    nll = -head(hidden).log_softmax(-1)[torch.arange(20), target]
    found = plan_loss(head(hidden), target, weight, weight_total=float(weight.sum()))
    assert float(found.loss) == pytest.approx(float((nll * weight).sum() / weight.sum()), abs=1e-6)
    assert float(found.cross_entropy) == float(found.loss)


@pytest.mark.parametrize("chunk", [1, 7, 20, 512])
def test_chunks_give_the_same_loss_and_gradient(chunk: int) -> None:
    hidden, head, target, weight = some_batch()
    whole, cut = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    expected = plan_loss(head(whole), target, weight, weight_total=9.0).loss
    (2 * expected).backward()
    found = chunked_plan_loss(cut, head, target, weight, weight_total=9.0, chunk=chunk)
    (2 * found.loss).backward()
    assert float(found.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    assert found.cross_entropy.requires_grad is False
    torch.testing.assert_close(cut.grad, whole.grad)


def test_a_token_of_weight_zero_has_no_influence() -> None:
    hidden, head, target, weight = some_batch()
    weight[4] = 0
    other = hidden.clone()
    other[4] += 1
    first = plan_loss(head(hidden), target, weight, weight_total=1.0).loss
    assert float(first) == float(plan_loss(head(other), target, weight, weight_total=1.0).loss)
