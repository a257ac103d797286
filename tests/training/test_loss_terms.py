"""The validity term and the teacher term: by hand, against plain autograd, by finite differences, however cut."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Linear

from plansmith.training.loss import LossOutput, Teacher, Validity, chunked_plan_loss, plan_loss, unpack_masks

V, D = 37, 6


def pack(allowed: Tensor) -> Tensor:
    bits = np.zeros((len(allowed), (allowed.shape[1] + 31) // 32 * 32), dtype=np.uint8)
    bits[:, : allowed.shape[1]] = allowed.numpy()
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32).copy())


class Case:
    """Random positions with masks that allow the targets, and a teacher for two positions of three."""

    def __init__(self, n: int = 11, *, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> None:
        random = torch.Generator().manual_seed(seed)
        self.head = Linear(D, V, bias=False, dtype=dtype).requires_grad_(False)
        self.head.weight.copy_(torch.randn(V, D, generator=random))
        self.hidden = torch.randn(n, D, generator=random, dtype=torch.float64).to(dtype) * scale
        self.target = torch.randint(0, V, (n,), generator=random)
        self.weight = torch.rand(n, generator=random)
        allowed = torch.rand(4, V, generator=random) < 0.4
        self.index = torch.randint(0, 4, (n,), generator=random)
        allowed[self.index, self.target] = True
        self.allowed = allowed[self.index]
        self.name = torch.rand(n, generator=random) < 0.5
        weight = self.weight * torch.where(self.name, 4.0, 1.0)
        self.validity = Validity(pack(allowed), self.index, self.name, weight, 0.7)
        token = torch.stack([torch.randperm(V, generator=random)[:3] for _ in range(n)])
        logprob = torch.randn(n, 3, generator=random).log_softmax(-1) - 0.4
        token[0, 1:], logprob[0, 1:] = token[0, 0], -torch.inf
        self.teacher = Teacher(token, logprob, self.weight * (torch.arange(n) % 3 > 0), 0.3)

    def loss(self, hidden: Tensor, **change: Any) -> LossOutput:
        terms: dict[str, Any] = {"validity": self.validity, "teacher": self.teacher} | change
        return plan_loss(self.head(hidden), self.target, self.weight, weight_total=3.0, **terms)

    def reference(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """CE, V and KD of each position by their definitions, for plain autograd."""
        p = self.head(hidden).softmax(-1)
        entropy = -p.gather(1, self.target[:, None])[:, 0].log()
        valid = -(p * self.allowed).sum(-1).log()
        taught = []
        for row, token, logprob in zip(p, self.teacher.token_NK, self.teacher.logprob_NK.double().exp(), strict=True):
            kept = {int(t): float(q) for t, q in zip(token, logprob, strict=True) if q > 0}
            rest = 1 - sum(kept.values())
            rest_p = 1 - row[list(kept)].sum()
            known = [q * (math.log(q) - row[t].log()) for t, q in kept.items()]
            taught.append(sum(known, rest * (math.log(rest) - rest_p.log())))
        return entropy, valid, torch.stack(taught)


def test_a_case_of_three_tokens_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(2.0), math.log(5.0)], [0.0, 0.0, math.log(2.0)]], dtype=torch.float64)
    words = torch.tensor([[0b011], [0b110]], dtype=torch.int32)
    validity = Validity(words, torch.tensor([0, 1]), torch.tensor([False, True]), torch.tensor([1.0, 4.0]), 0.5)
    taught = Teacher(torch.tensor([[1], [0]]), torch.log(torch.tensor([[0.5], [1.0]])), torch.tensor([1.0, 0.0]), 2.0)
    out = plan_loss(logits, torch.tensor([1, 2]), torch.ones(2), weight_total=2.0, validity=validity, teacher=taught)
    entropy = (math.log(8 / 2) + math.log(4 / 2)) / 2
    valid = (math.log(8 / 3) + 4 * math.log(4 / 3)) / 2
    divergence = (0.5 * math.log(0.5 / (2 / 8)) + 0.5 * math.log(0.5 / (6 / 8))) / 2
    assert float(out.cross_entropy) == pytest.approx(entropy)
    assert float(out.validity) == pytest.approx(valid)
    assert float(out.teacher) == pytest.approx(divergence, rel=1e-6)
    assert float(out.loss) == pytest.approx(entropy + 0.5 * valid + 2.0 * divergence, rel=1e-6)
    assert float(out.outside_json) == pytest.approx(5 / 8)
    assert float(out.outside_names) == pytest.approx(1 / 4)


def test_values_and_gradients_equal_plain_autograd_on_the_definitions() -> None:
    case = Case()
    mine, plain = case.hidden.clone().requires_grad_(), case.hidden.clone().requires_grad_()
    out = case.loss(mine)
    entropy, valid, taught = case.reference(plain)
    v, t = case.validity, case.teacher
    sums = [(a * w).sum() / 3.0 for a, w in ((entropy, case.weight), (valid, v.weight_N), (taught, t.weight_N))]
    expected = sums[0] + v.scale * sums[1] + t.scale * sums[2]
    expected_values = torch.stack([expected, *sums]).detach()
    torch.testing.assert_close(torch.stack(list(out[:4])).detach(), expected_values, rtol=1e-6, atol=1e-9)
    out.loss.backward()
    expected.backward()
    torch.testing.assert_close(mine.grad, plain.grad, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("off", [(), ("teacher",), ("validity",), ("validity", "teacher")])
def test_gradients_equal_finite_differences(off: tuple[str, ...]) -> None:
    case = Case(5)
    change = dict.fromkeys(off)
    hidden = case.hidden.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda h: case.loss(h, **change).loss, (hidden,), eps=1e-6, atol=1e-7)
    chunked = torch.autograd.gradcheck(lambda h: cut(case, h, 2, **change).loss, (hidden,), eps=1e-6, atol=1e-7)
    assert chunked


def cut(case: Case, hidden: Tensor, chunk: int, **change: Any) -> LossOutput:
    terms: dict[str, Any] = {"validity": case.validity, "teacher": case.teacher} | change
    return chunked_plan_loss(hidden, case.head, case.target, case.weight, weight_total=3.0, chunk=chunk, **terms)


@pytest.mark.parametrize("chunk", [1, 4, 11, 512])
def test_chunks_give_the_same_terms_and_gradients(chunk: int) -> None:
    case = Case()
    whole, parts = case.hidden.clone().requires_grad_(), case.hidden.clone().requires_grad_()
    expected, found = case.loss(whole), cut(case, parts, chunk)
    torch.testing.assert_close(torch.stack(list(found)), torch.stack(list(expected)), rtol=1e-12, atol=1e-12)
    (2 * expected.loss).backward()
    (2 * found.loss).backward()
    torch.testing.assert_close(parts.grad, whole.grad, rtol=1e-12, atol=1e-12)
    assert [value.requires_grad for value in found] == [True, False, False, False, False, False]


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(1, 10)))
def test_any_cut_into_micro_batches_gives_the_same_sums_and_gradients(cuts: set[int]) -> None:
    case = Case()
    whole = case.hidden.clone().requires_grad_()
    expected = case.loss(whole)
    expected.loss.backward()
    hidden = case.hidden.clone().requires_grad_()
    sums = torch.zeros(6, dtype=torch.float64)
    edges = [0, *sorted(cuts), 11]
    for a, b in pairwise(edges):
        v, t = case.validity, case.teacher
        out = plan_loss(
            case.head(hidden[a:b]),
            case.target[a:b],
            case.weight[a:b],
            weight_total=3.0,
            validity=Validity(v.words_MW, v.index_N[a:b], v.name_N[a:b], v.weight_N[a:b], v.scale),
            teacher=Teacher(t.token_NK[a:b], t.logprob_NK[a:b], t.weight_N[a:b], t.scale),
        )
        out.loss.backward()
        sums += torch.stack(list(out)).detach()
    torch.testing.assert_close(sums, torch.stack(list(expected)).detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(hidden.grad, whole.grad, rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from([0.1, 1.0, 10.0, 100.0]), st.sampled_from([torch.float32, torch.bfloat16])
)
def test_validity_is_never_below_zero_nor_above_the_cross_entropy(seed: int, scale: float, dtype: torch.dtype) -> None:
    case = Case(1, seed=seed, scale=scale, dtype=dtype)
    one = torch.ones(1)
    out = plan_loss(
        case.head(case.hidden),
        case.target,
        one,
        weight_total=1.0,
        validity=case.validity._replace(weight_N=one),
    )
    assert all(bool(value.isfinite()) for value in out)
    assert 0 <= float(out.validity) <= float(out.cross_entropy) * (1 + 1e-6) + 1e-6
    outside = float(out.outside_json + out.outside_names)
    assert 0 <= outside <= 1
    assert outside == pytest.approx(-math.expm1(-float(out.validity)), abs=1e-6)


def test_validity_is_exactly_zero_where_every_token_is_allowed() -> None:
    case = Case(scale=10.0, dtype=torch.float32)
    everything = case.validity._replace(words_MW=torch.full_like(case.validity.words_MW, -1))
    hidden, plain = case.hidden.clone().requires_grad_(), case.hidden.clone().requires_grad_()
    out = case.loss(hidden, validity=everything, teacher=None)
    assert (float(out.validity), float(out.outside_json), float(out.outside_names)) == (0, 0, 0)
    out.loss.backward()
    case.loss(plain, validity=None, teacher=None).loss.backward()
    torch.testing.assert_close(hidden.grad, plain.grad, rtol=1e-5, atol=1e-6)


def test_validity_is_the_cross_entropy_where_the_target_alone_is_allowed() -> None:
    case = Case()
    alone = pack(torch.nn.functional.one_hot(case.target, V).bool())
    only = Validity(alone, torch.arange(11), case.name, case.weight)
    out = case.loss(case.hidden, validity=only, teacher=None)
    assert float(out.validity) == pytest.approx(float(out.cross_entropy), rel=1e-12)


def test_a_factor_of_zero_measures_without_moving_the_gradient() -> None:
    case = Case()
    hidden, plain = case.hidden.clone().requires_grad_(), case.hidden.clone().requires_grad_()
    out = case.loss(hidden, validity=case.validity._replace(scale=0.0), teacher=None)
    assert float(out.validity.detach()) > 0.1
    assert float(out.loss.detach()) == float(out.cross_entropy)
    out.loss.backward()
    case.loss(plain, validity=None, teacher=None).loss.backward()
    assert torch.equal(hidden.grad, plain.grad)  # type: ignore[arg-type]


def test_a_student_that_equals_the_teacher_has_no_teacher_term() -> None:
    case = Case()
    logits = case.head(case.hidden)
    top = logits.log_softmax(-1).topk(5)
    hidden = case.hidden.clone().requires_grad_()
    same = Teacher(top.indices, top.values, torch.ones(11))
    out = plan_loss(case.head(hidden), case.target, torch.zeros(11), weight_total=1.0, teacher=same)
    assert float(out.teacher) == pytest.approx(0, abs=1e-6)
    out.loss.backward()
    assert float(hidden.grad.abs().max()) < 1e-6  # type: ignore[union-attr]


def test_a_teacher_that_names_the_whole_vocabulary_is_plain_divergence() -> None:
    case = Case()
    logprob = torch.randn(11, V, generator=torch.Generator().manual_seed(1), dtype=torch.float64).log_softmax(-1)
    everything = Teacher(torch.arange(V).expand(11, V), logprob, torch.ones(11))
    out = case.loss(case.hidden, validity=None, teacher=everything)
    mine = case.head(case.hidden).log_softmax(-1)
    expected = (logprob.exp() * (logprob - mine)).sum() / 3.0
    assert float(out.teacher) == pytest.approx(float(expected), rel=1e-9)


def test_bfloat16_is_near_float32() -> None:
    exact, coarse = Case(dtype=torch.float32), Case(dtype=torch.bfloat16)
    hidden, rough = exact.hidden.clone().requires_grad_(), coarse.hidden.clone().requires_grad_()
    a, b = cut(exact, hidden, 4), cut(coarse, rough, 4)
    a.loss.backward()
    b.loss.backward()
    assert b.loss.dtype == torch.float32
    torch.testing.assert_close(torch.stack(list(b)), torch.stack(list(a)), rtol=3e-2, atol=3e-2)
    assert rough.grad is not None
    assert hidden.grad is not None
    cosine = torch.cosine_similarity(rough.grad.float().flatten(), hidden.grad.flatten(), dim=0)
    assert float(cosine) > 0.995


def test_masks_of_another_width_are_refused() -> None:
    case = Case()
    with pytest.raises(ValueError, match="masks of 1 words do not belong to an output layer of 37 rows"):
        case.loss(case.hidden, validity=case.validity._replace(words_MW=case.validity.words_MW[:, :1]))


def test_unpacked_masks_are_the_bits_lowest_first() -> None:
    allowed = torch.rand(5, 70) < 0.5
    index = torch.tensor([4, 0, 0, 3])
    assert torch.equal(unpack_masks(pack(allowed), index, 70), allowed[index])


def test_no_more_than_a_chunk_of_logits_is_ever_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor that is made while the loss runs forward and backward has at most a chunk of positions."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, Tensor):
                    largest = max(largest, tensor.numel())
            return out

    case = Case(64)
    hidden = case.hidden.clone().requires_grad_()
    with Watch():
        cut(case, hidden, 4).loss.backward()
    assert largest <= max(4 * 64, 64 * D)
    with Watch():
        cut(case, hidden, 64).loss.backward()
    assert largest >= 64 * V
