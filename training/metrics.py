"""What the log says of a training step: the row of `metrics.jsonl`, and the sums that it is made from."""

from __future__ import annotations

from typing import TypedDict

import torch

from plansmith.contract.records import Record
from plansmith.training.config import TrainingConfig
from plansmith.training.loss import LossOutput, Terms
from plansmith.training.parallel import World


class StepMetrics(Record):
    """One row of `metrics.jsonl`."""

    step: int
    """From 1."""
    loss: float
    """What was minimised: all terms with their factors, over the whole step."""
    cross_entropy: float
    """In nats a target token."""
    validity: float | None
    """Validity term a target token, names weighted, before its factor; None where it is off."""
    teacher: float | None
    """Divergence from the teacher a target token, before its factor; None where there is no teacher."""
    mass_outside_json: float | None
    """Mean probability outside the plan grammar where the target continues no worker's name."""
    mass_outside_names: float | None
    """The same where it does; None where the step has no such target."""
    learning_rate: float
    grad_norm: float
    """Before clipping."""
    examples: int
    tokens: int
    """Tokens that went through the model, prefixes included."""
    seconds: float
    mask_seconds: float
    """Time that masks took since the step before, in the background for the most part."""


class Shown(TypedDict):
    """The fields of `StepMetrics` that come from sums over the step."""

    cross_entropy: float
    validity: float | None
    teacher: float | None
    mass_outside_json: float | None
    mass_outside_names: float | None


class StepTotals:
    """Sums the loss of a step's micro-batches, and gives what the log says of it."""

    def __init__(self) -> None:
        self._sum = torch.zeros(len(LossOutput._fields), dtype=torch.float64)
        self._seen, self._named = 0, 0

    def add(self, out: LossOutput, terms: Terms) -> None:
        values = torch.stack([value.detach().float() for value in out])
        self._sum += values.cpu().double()
        if terms.validity is not None:
            seen_N = terms.validity.weight_N > 0
            self._seen += int(seen_N.sum())
            self._named += int((seen_N & terms.validity.name_N).sum())

    def sum_over(self, world: World) -> None:
        """Make these the sums over all processes."""
        values = world.sum_values([*self._sum.tolist(), self._seen, self._named])
        self._sum = torch.tensor(values[:-2], dtype=torch.float64)
        self._seen, self._named = round(values[-2]), round(values[-1])

    @property
    def loss(self) -> float:
        return float(self._sum[0])

    def shown(self, config: TrainingConfig) -> Shown:
        """Each term's value, and the mean mass outside the grammar; None where a term is off or no position counts."""
        values = LossOutput(*self._sum.tolist())
        json = self._seen - self._named
        return {
            "cross_entropy": float(values.cross_entropy),
            "validity": float(values.validity) if config.validity else None,
            "teacher": float(values.teacher) if config.teacher is not None else None,
            "mass_outside_json": float(values.outside_json) / json if json else None,
            "mass_outside_names": float(values.outside_names) / self._named if self._named else None,
        }
