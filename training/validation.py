"""Held-out rows, planned by the model in training: what a user would get from it now.

Takes val rows, a sampler over the model in memory and a scorer (both handed in, since training knows neither engine nor
evaluation); appends a row to `validation.jsonl` each time. `Watch` follows a supervised run: which validation is the
best so far, whether training should end, and the weights of the best in `best-N/`, written like a checkpoint. A killed
run repeats the validations of the steps that it repeats, so it comes to the same choice.
"""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from plansmith.contract.endpoint import TokenSample, TokenSampler
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Progress
from plansmith.contract.records import Example, Record
from plansmith.contract.store import append_row, read_rows, write_rows
from plansmith.data.build import DataSet
from plansmith.training.checkpoint import Inputs, State, load_weights, save_weights
from plansmith.training.config import Metric, TrainingConfig
from plansmith.training.encode import Corpus, encode_examples
from plansmith.training.loss import chunked_plan_loss
from plansmith.training.reward import Outcome, Reward, Scorer, Tally, reward_of, tally
from plansmith.training.trainee import Trainee

VALIDATION = "validation.jsonl"
OpenSampler = Callable[[PreTrainedModel, Any, Path], TokenSampler]
"""Makes the sampler of a model in training, from the model, its tokenizer and its base's directory."""
_BEST = re.compile(r"best-(\d+)")


class Judge(NamedTuple):
    """What validations need of serving and evaluation."""

    open_sampler: OpenSampler
    scorer: Scorer


class Answer(Record):
    """One held-out row, decoded."""

    id: str
    """Of the row."""
    text: str
    outcome: Outcome
    reward: float
    equivalent: bool
    cut: bool
    """Whether the token limit cut it."""


class Validation(Record):
    """One row of `validation.jsonl`: held-out rows, decoded greedily without a grammar."""

    step: int
    """Steps done; 0 is the adapter that training began with."""
    rewards: Tally
    cut: float
    """Share of plans that the token limit cut."""
    answers: tuple[Answer, ...]
    """Row by row, so that before and after can be compared in pairs."""
    seconds: float
    loss: float | None = None
    """Cross-entropy of the rows' own plans in nats a target token; None where it was not computed."""

    def value(self, metric: Metric) -> float:
        """By which it is ranked; more is better."""
        if metric is Metric.LOSS:
            return -math.inf if self.loss is None else -self.loss
        return float(getattr(self.rewards, metric.value))


def decode_rows(
    rows: Sequence[Example],
    data: DataSet,
    sampler: TokenSampler,
    scorer: Scorer,
    *,
    max_new_tokens: int,
) -> tuple[Tally, tuple[Answer, ...]]:
    """Plan rows greedily without a grammar, each for its own catalog, and score the plans."""
    samples: dict[str, TokenSample] = {}
    for catalog in dict.fromkeys(data.catalog_of(row).hash for row in rows):
        own = [row for row in rows if data.catalog_of(row).hash == catalog]
        drawn = sampler.sample(
            [row.query for row in own],
            data.catalog_of(own[0]),
            temperature=0.0,
            seeds=[0] * len(own),
            max_new_tokens=max_new_tokens,
        )
        samples |= {row.id: sample for row, sample in zip(own, drawn, strict=True)}
    rewards = [reward_of(samples[row.id].text, row.plan, data.catalog_of(row), scorer) for row in rows]
    answers = tuple(_answer(row, samples[row.id], reward) for row, reward in zip(rows, rewards, strict=True))
    return tally(rewards), answers


def _answer(row: Example, sample: TokenSample, reward: Reward) -> Answer:
    agreement = reward.agreement
    return Answer(
        id=row.id,
        text=sample.text,
        outcome=reward.outcome,
        reward=reward.value,
        equivalent=agreement is not None and agreement.equivalent,
        cut=not sample.stopped,
    )


def described(found: Validation) -> str:
    """A validation in words."""
    shares = found.rewards
    loss = "" if found.loss is None else f", loss {found.loss:.4f}"
    return (
        f"after {found.step} steps, {shares.answers} held-out rows without grammar: {shares.valid:.3f} valid, "
        f"{shares.unparseable:.3f} unparseable, {shares.unregistered:.3f} with unknown workers, "
        f"{shares.equivalent:.3f} equivalent, worker F1 {shares.worker_f1:.3f}{loss}"
    )


class Watch:
    """The validations of a supervised run."""

    def __init__(
        self,
        config: TrainingConfig,
        data: DataSet,
        base: Path,
        out: Path,
        trainee: Trainee,
        tokenizer: Any,
        judge: Judge,
        progress: Progress,
    ) -> None:
        """Prepare rows and sampler, before the first step.

        Raises:
            InputError: there are no val rows, none fits, or the local engine cannot run the model.

        """
        if not data.val:
            raise InputError("training.validate_every is set, but the data has no val rows; set data.split.val.")
        self._config, self._data, self._out, self._progress = config, data, out, progress
        self._trainee, self._scorer = trainee, judge.scorer
        rows = data.val[: config.validate_rows]
        self._corpus = encode_examples(rows, data.catalog, tokenizer, config, progress, catalogs=data.catalogs)
        self._rows = self._corpus.rows
        self._sampler = judge.open_sampler(trainee.model, tokenizer, base)
        self.found: list[Validation] = []

    def resume(self, done: int) -> None:
        """Forget validations of steps that will run again."""
        path = self._out / VALIDATION
        rows = read_rows(path, Validation) if path.is_file() else []
        self.found = [row for row in rows if row.step <= done]
        write_rows(path, self.found)

    def due(self, step: int) -> bool:
        """Whether a validation comes after so many steps."""
        every = self._config.validate_every
        return every is not None and (step % every == 0 or step == self._config.steps)

    def validate(self, step: int, inputs: Inputs) -> Validation:
        """Plan the held-out rows, and keep the weights where they are the best so far."""
        begun = time.monotonic()
        rewards, answers = decode_rows(
            self._rows, self._data, self._sampler, self._scorer, max_new_tokens=self._config.validate_tokens
        )
        found = Validation(
            step=step,
            rewards=rewards,
            cut=sum(answer.cut for answer in answers) / len(answers),
            answers=answers,
            loss=validation_loss(self._trainee, self._corpus, self._config),
            seconds=round(time.monotonic() - begun, 3),
        )
        self.found.append(found)
        if self.best is found:
            save_weights(self._out / f"best-{step}", State(step=step, inputs=inputs), self._trainee.parameters)
        append_row(self._out / VALIDATION, found)
        best = self.best
        told = "the best so far" if best is found else f"best: after {best.step}" if best is not None else ""
        self._progress.note(f"training: {described(found)} ({told})")
        return found

    @property
    def best(self) -> Validation | None:
        """The best validation; of equals the earliest."""
        metric = self._config.metric
        return max(self.found, key=lambda row: (*_rank(row, metric), -row.step), default=None)

    @property
    def exhausted(self) -> bool:
        """Whether the last validations, as many as `patience`, were not better than one before them."""
        best, patience = self.best, self._config.patience
        return patience is not None and best is not None and sum(row.step > best.step for row in self.found) >= patience

    def tidy(self) -> None:
        """Remove the weights of validations that are no longer the best."""
        for path in self._out.glob("best-*"):
            match = _BEST.fullmatch(path.name)
            if match and (self.best is None or int(match[1]) != self.best.step):
                shutil.rmtree(path, ignore_errors=True)

    def take_best(self, inputs: Inputs) -> Validation:
        """Put the weights of the best validation into the model."""
        best = self.best
        assert best is not None, "the last step is always validated"
        load_weights(self._out / f"best-{best.step}", inputs, self._trainee.parameters)
        return best


def _rank(row: Validation, metric: Metric) -> tuple[float, float]:
    return row.value(metric), -math.inf if row.loss is None else -row.loss


@torch.no_grad()
def validation_loss(trainee: Trainee, corpus: Corpus, config: TrainingConfig) -> float:
    """Cross-entropy of the rows' plans in nats a target token, without dropout."""
    total = math.fsum(weight for example in corpus.examples for weight in example.weights)
    value, training = 0.0, trainee.model.training
    trainee.model.eval()
    try:
        for group in range(len(corpus.prefixes)):
            rows = sorted((i for i, g in enumerate(corpus.groups) if g == group), key=lambda i: corpus.lengths[i])
            for start in range(0, len(rows), config.micro_batch_size):
                chosen = [corpus.examples[i] for i in rows[start : start + config.micro_batch_size]]
                packed = trainee.pack(corpus.prefixes[group], chosen)
                hidden_ND = trainee.hidden_at_targets(packed)
                out = chunked_plan_loss(hidden_ND, trainee.head, packed.target_N, packed.weight_N, weight_total=total)
                value += float(out.cross_entropy)
    finally:
        trainee.model.train(training)
    return value
