"""Losses on drawn plans, against the formulas written out; and which settings go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from plansmith.training import policy_loss
from plansmith.training.model import load_model
from plansmith.training.policy_config import PolicyConfig
from plansmith.training.policy_loss import PlanRow, plan_hidden, reverse_kl, token_logprobs
from plansmith.training.prefix import prepare


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policy_loss, "CHUNK", 3)


def heads() -> tuple[torch.nn.Linear, torch.nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 9), torch.nn.Linear(6, 9), torch.randn(7, 4, requires_grad=True), torch.randn(7, 6)


def test_log_probabilities_and_entropy_are_those_of_the_scaled_distribution():
    head, _, hidden, _ = heads()
    target = torch.tensor([0, 1, 2, 3, 4, 5, 7])
    logp, entropy = token_logprobs(hidden, head, target, temperature=0.5, num_tokens=8)
    whole = (head(hidden)[:, :8] / 0.5).log_softmax(-1)
    torch.testing.assert_close(logp, whole[torch.arange(7), target])
    torch.testing.assert_close(entropy, -(whole.exp() * whole).sum(-1))
    assert not entropy.requires_grad
    (ours,) = torch.autograd.grad(logp.sum(), hidden)
    (plain,) = torch.autograd.grad(whole[torch.arange(7), target].sum(), hidden)
    torch.testing.assert_close(ours, plain)


def test_reverse_kl_and_its_gradient_are_those_of_the_formula():
    head, other, hidden, theirs = heads()
    found = reverse_kl(hidden, head, theirs, other, num_tokens=8)
    p, q = head(hidden)[:, :8].log_softmax(-1), other(theirs)[:, :8].log_softmax(-1)
    plain = (p.exp() * (p - q)).sum()
    torch.testing.assert_close(found.kl, plain)
    torch.testing.assert_close(found.entropy, -(p.exp() * p).sum().detach())
    (ours,) = torch.autograd.grad(found.kl, hidden)
    (expected,) = torch.autograd.grad(plain, hidden)
    torch.testing.assert_close(ours, expected)


def test_reverse_kl_is_nothing_where_student_and_teacher_agree():
    head, _, hidden, _ = heads()
    found = reverse_kl(hidden, head, hidden.detach(), head, num_tokens=9)
    assert float(found.kl.detach()) == pytest.approx(0, abs=1e-6)
    (gradient,) = torch.autograd.grad(found.kl, hidden)
    assert float(gradient.abs().max()) < 1e-6


def test_hidden_states_come_in_the_order_of_the_rows_whatever_their_length(base: Path):
    model = load_model(base, torch.float32)
    prepare(model)
    prefix = list(range(3, 90))
    rows = [PlanRow([5, 6, 7], [9, 8, 1]), PlanRow([5], [4, 1]), PlanRow([6, 6], [7, 7, 7, 7, 1])]
    hidden, target = plan_hidden(model, prefix, rows, torch.device("cpu"))
    assert target.tolist() == [9, 8, 1, 4, 1, 7, 7, 7, 7, 1]
    place = 0
    for row in rows:
        alone = model.model(input_ids=torch.tensor([[*prefix, *row.query, *row.plan]])).last_hidden_state[0]
        expected = alone[len(prefix) + len(row.query) - 1 : -1]
        torch.testing.assert_close(hidden[place : place + len(row.plan)], expected, rtol=1e-4, atol=1e-5)
        place += len(row.plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_size": 1}, "group_size must be 2"),
        ({"micro_batch_size": 7}, "no multiple of micro_batch_size 7"),
        ({"teacher": "somewhere"}, "used by no other"),
        ({"method": "distill"}, "'teacher' is needed"),
        ({"teacher_adapter": "somewhere"}, "without a 'teacher'"),
        ({"method": "distill", "teacher": "x", "sampled_by": "vllm"}, "vLLM is for 'grpo'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        PolicyConfig.model_validate(change)
