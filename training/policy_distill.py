"""On-policy distillation: the student draws plans, and at each token its distribution moves to a teacher's.

Reads a teacher's model (and adapter) with the student's own tokenizer; writes what `policy_run` says. Reverse KL over
the whole vocabulary at the places of the student's own plans, its sum divided once by the tokens of the whole step
(`policy_loss.reverse_kl`). No reward is needed for it; rewards are measured all the same, to be seen.

Not covered: teachers behind an endpoint, teachers with another tokenizer (refused).
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from plansmith.contract.errors import InputError
from plansmith.contract.prompt import encode_prompt, stop_id
from plansmith.training import prefix
from plansmith.training.checkpoint import load_checkpoint
from plansmith.training.loss import Head
from plansmith.training.model import load_model, load_tokenizer
from plansmith.training.policy_loss import PlanRow, plan_hidden, reverse_kl
from plansmith.training.policy_run import PolicyMetrics, PolicyRun
from plansmith.training.reward import Reward, tally
from plansmith.training.trainee import model_dtype, output_head


class Teacher(NamedTuple):
    """A frozen model that says what should have come."""

    model: PreTrainedModel
    head: Head


def run_distill(run: PolicyRun) -> None:
    """All steps that are left.

    Raises:
        InputError: the teacher cannot be used; the last checkpoint was made from other inputs.
        TrainingError: loss or gradient is no number.

    """
    teacher = open_teacher(run)
    done = load_checkpoint(run.out, run.inputs, run.student.parameters, run.student.optimizer)
    run.begin(done)
    for step in range(done, run.config.steps):
        run.record(distill_step(run, teacher, step))


def open_teacher(run: PolicyRun) -> Teacher:
    """Load the teacher.

    Raises:
        InputError: there is none, its tokenizer is another, or a shared prefix does not cover its architecture.

    """
    path = run.config.teacher
    if path is None or not (path / "config.json").is_file():
        raise InputError(f"policy.teacher {str(path)!r} holds no model (no config.json).")
    require_same_tokenizer(run.student.tokenizer, load_tokenizer(path), path)
    model = load_model(path, model_dtype(run.config.precision, run.student.device))
    prefix.prepare(model)
    if run.config.teacher_adapter is not None:
        PeftModel.from_pretrained(model, str(run.config.teacher_adapter))  # its layers go into `model`
    model.to(run.student.device).eval().requires_grad_(False)  # type: ignore[arg-type]
    return Teacher(model, output_head(model))


def require_same_tokenizer(student: Any, teacher: Any, path: Path) -> None:
    """Refuse a teacher whose token ids mean something else.

    Raises:
        InputError: says how the tokenizers differ.

    """
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    differing = [token for token in sorted(ours.keys() | theirs.keys()) if ours.get(token) != theirs.get(token)]
    problem = None
    if differing:
        token = differing[0]
        problem = (
            f"{len(differing)} tokens differ, first {token!r}: id {ours.get(token)} here, {theirs.get(token)} there "
            f"({len(ours)} tokens here, {len(theirs)} there)"
        )
    elif stop_id(student) != stop_id(teacher):
        problem = f"the stop token is {stop_id(student)} here, {stop_id(teacher)} there"
    elif student.backend_tokenizer.to_str() != teacher.backend_tokenizer.to_str():
        problem = "the tokens are the same, but texts are cut into them by other rules"
    if problem is not None:
        raise InputError(
            f"teacher {str(path)!r} has another tokenizer than the student: {problem}. Distributions over tokens can "
            "only be compared with the same one; train the teacher's adapter on the student's own (trimmed) base "
            "vocabulary, or learn from the teacher's plans in the supervised stage."
        )


def distill_step(run: PolicyRun, teacher: Teacher, step: int) -> PolicyMetrics:
    """One optimizer step; `step` counts from 0.

    Raises:
        TrainingError: loss or gradient is no number; the weights are still those of the step before.

    """
    begun = time.monotonic()
    torch.manual_seed(run.seed * 1_000_003 + step)
    config, student = run.config, run.student
    asked = [row for row in run.rows_of(step) for _ in range(config.group_size)]
    samples = run.draw(step, [row.query for row in asked])
    plans = [
        PlanRow(encode_prompt(row.query, run.catalog, student.tokenizer).suffix, list(sample.ids))
        for row, sample in zip(asked, samples, strict=True)
    ]
    total = sum(len(plan.plan) for plan in plans)
    loss, entropy = _backward(run, teacher, plans, total)
    norm = float(torch.nn.utils.clip_grad_norm_(student.parameters.values(), config.max_grad_norm))
    run.require_finite(step, loss, norm)
    for group in student.optimizer.param_groups:
        group["lr"] = run.learning_rate(step)
    student.optimizer.step()
    student.optimizer.zero_grad(set_to_none=True)
    rewards = [run.reward(sample.text, row) for sample, row in zip(samples, asked, strict=True)]
    return PolicyMetrics(
        step=step + 1,
        loss=loss,
        rewards=tally(rewards),
        zero_variance=flat_share(rewards, config.group_size),
        cut=sum(not sample.stopped for sample in samples) / len(samples),
        tokens=total / len(samples),
        entropy=entropy,
        kl=None,
        learning_rate=run.learning_rate(step),
        grad_norm=norm,
        seconds=round(time.monotonic() - begun, 3),
    )


def _backward(run: PolicyRun, teacher: Teacher, plans: list[PlanRow], total: int) -> tuple[float, float]:
    """Gradients of the step; loss and entropy in nats a token."""
    student, loss, entropy = run.student, 0.0, 0.0
    for start in range(0, len(plans), run.config.micro_batch_size):
        rows = plans[start : start + run.config.micro_batch_size]
        ours_ND, _ = plan_hidden(student.model, student.prefix, rows, student.device)
        with torch.no_grad():
            theirs_ND, _ = plan_hidden(teacher.model, student.prefix, rows, student.device)
        found = reverse_kl(ours_ND, student.head, theirs_ND, teacher.head, num_tokens=len(student.tokenizer))
        (found.kl / total).backward()
        loss += float(found.kl.detach()) / total
        entropy += float(found.entropy) / total
    return loss, entropy


def flat_share(rewards: list[Reward], group_size: int) -> float:
    """Share of groups whose rewards are all the same."""
    groups = [rewards[start : start + group_size] for start in range(0, len(rewards), group_size)]
    flat = [all(math.isclose(reward.value, group[0].value, abs_tol=1e-9) for reward in group) for group in groups]
    return sum(flat) / len(flat)
