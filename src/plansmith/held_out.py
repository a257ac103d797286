"""What training needs of serving and evaluation: plans of the model in training, and how far they are right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.contract.catalog import Catalog
from plansmith.contract.records import PlanJson

if TYPE_CHECKING:
    from plansmith.contract.endpoint import TokenSampler
    from plansmith.training.reward import Agreement
    from plansmith.training.validation import Judge


def agreement(text: str, reference: PlanJson, catalog: Catalog) -> Agreement:
    """How far a valid plan is the reference, by the metrics of evaluation."""
    from plansmith.eval.metrics import score_item
    from plansmith.training.reward import Agreement

    score = score_item(text, [reference], catalog)
    assert score.worker_f1 is not None
    assert score.argument_f1 is not None
    return Agreement(score.worker_f1.f1, score.argument_f1.f1, bool(score.equivalent))


def live_sampler(batch_size: int) -> Any:
    """What opens the local engine's sampler over a model in training."""

    def open_sampler(model: Any, tokenizer: Any, base: Path) -> TokenSampler:
        from plansmith.serving.live_sampling import LiveSampler

        return LiveSampler(model, tokenizer, base, batch_size=batch_size)

    return open_sampler


def judge_of(batch_size: int) -> Judge:
    """Plans held-out rows with the local engine, and scores them by the metrics of evaluation."""
    from plansmith.training.validation import Judge

    return Judge(live_sampler(batch_size), agreement)
