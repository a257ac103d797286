"""What the loss is told beyond the targets of the training rows: masks of the plan grammar, and a teacher's view.

Takes the encoded rows, their catalog and the tokenizer; gives the `Validity` and `Teacher` terms of a micro-batch as
tensors. Everything that could not be learnt is refused when it is built, before the first step: plans that their own
grammar cannot write, and teachers with another tokenizer.

Shapes: N target positions of a micro-batch, K tokens kept of the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plansmith.contract.errors import InputError
from plansmith.contract.grammar import DEFAULT_MAX_STEPS
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Progress
from plansmith.contract.prompt import stop_id
from plansmith.contract.token_grammar import TokenGrammars
from plansmith.data.drafts import DRAFTS, iter_drafts
from plansmith.training.config import TrainingConfig
from plansmith.training.distillation import Taught, teacher_targets
from plansmith.training.encode import Corpus
from plansmith.training.loss import Teacher, Terms, Validity
from plansmith.training.validity import PlanMasks, Target, name_positions, require_allowed


@dataclass(frozen=True)
class Supervision:
    """The further terms of a corpus; without masks and teacher it gives none."""

    config: TrainingConfig
    weights: list[NDArray[np.float32]]
    """Of each row's target tokens."""
    targets: list[Target]
    names: list[NDArray[np.bool_]]
    """Which of each row's target tokens continue a worker's name; empty without the validity term."""
    masks: PlanMasks | None
    taught: list[Taught | None] | None

    def prefetch(self, rows: Sequence[int]) -> None:
        """Begin to make the masks of some rows in the background."""
        if self.masks is not None:
            self.masks.prefetch([self.targets[row] for row in rows])

    def terms(self, rows: Sequence[int], device: torch.device) -> Terms:
        """The terms of some rows, one after another in the order given."""
        return Terms(self._validity(rows, device), self._teacher(rows, device))

    def shown(self, row: int) -> list[tuple[float, int]] | None:
        """Of each target token of a row: its weight in the validity term, and how many tokens are allowed there."""
        terms = self._validity([row], torch.device("cpu"))
        if terms is None:
            return None
        bits_MB = np.unpackbits(np.ascontiguousarray(terms.words_MW.numpy()).view(np.uint8), axis=1)
        allowed = bits_MB.sum(axis=1)[terms.index_N.numpy()]
        return [(float(weight), int(count)) for weight, count in zip(terms.weight_N.tolist(), allowed, strict=True)]

    def mask_seconds(self) -> float:
        """Time spent on masks so far, most of it beside other work."""
        return 0.0 if self.masks is None else self.masks.seconds

    def close(self, progress: Progress) -> None:
        """End background work, and say what the masks came to."""
        if self.masks is None:
            return
        self.masks.close()
        made, added = self.masks.tokens, self.masks.added
        progress.note(
            f"training: {len(self.masks.table)} masks for {made} target tokens in {self.masks.seconds:.1f} s"
            + (f"; {added} targets added that the grammar accepts but spells with other tokens" if added else "")
        )

    def _validity(self, rows: Sequence[int], device: torch.device) -> Validity | None:
        if self.masks is None:
            return None
        index_N = np.concatenate(self.masks.places([self.targets[row] for row in rows]))
        name_N = np.concatenate([self.names[row] for row in rows])
        weight_N = np.concatenate([self.weights[row] for row in rows])
        weight_N = np.where(name_N, self.config.name_weight, 1.0).astype(np.float32) * weight_N
        return Validity(
            self.masks.table.words(device),
            torch.from_numpy(index_N).to(device),
            torch.from_numpy(name_N).to(device),
            torch.from_numpy(weight_N).to(device),
            self.config.lambda_validity,
        )

    def _teacher(self, rows: Sequence[int], device: torch.device) -> Teacher | None:
        if self.taught is None:
            return None
        width = max((found.token_AK.shape[1] for row in rows if (found := self.taught[row]) is not None), default=1)
        length = sum(len(self.targets[row].ids) for row in rows)
        token_NK = np.zeros((length, width), dtype=np.int64)
        logprob_NK = np.full((length, width), -np.inf, dtype=np.float32)
        weight_N = np.zeros(length, dtype=np.float32)
        start = 0
        for row in rows:
            found = self.taught[row]
            if found is not None:
                at_A, kept = start + found.place_A, found.token_AK.shape[1]
                token_NK[at_A] = found.token_AK[:, :1]
                token_NK[at_A, :kept] = found.token_AK
                logprob_NK[at_A, :kept] = found.logprob_AK
                weight_N[at_A] = self.weights[row][found.place_A]
            start += len(self.targets[row].ids)
        return Teacher(
            torch.from_numpy(token_NK).to(device),
            torch.from_numpy(logprob_NK).to(device),
            torch.from_numpy(weight_N).to(device),
            self.config.lambda_teacher,
        )


def build_supervision(
    corpus: Corpus, tokenizer: Any, config: TrainingConfig, vocab_rows: int, progress: Progress
) -> Supervision:
    """Prepare the further terms of a corpus.

    Args:
        corpus: the encoded rows.
        tokenizer: that they were encoded with.
        config: which terms, with their weights.
        vocab_rows: rows of the model's output layer.
        progress: told how much of the corpus each term covers.

    Raises:
        InputError: a plan is not in its grammar, or the teacher's answers cannot be used.
        GrammarError: the catalog's plan schema cannot be compiled.
        MissingExtraError: llguidance is not installed.

    """
    catalogs = [corpus.catalog_of(index) for index in range(len(corpus.examples))]
    targets = [
        Target(catalog, tuple(example.ids[example.num_query :]))
        for catalog, example in zip(catalogs, corpus.examples, strict=True)
    ]
    weights = [np.array(example.weights, dtype=np.float32) for example in corpus.examples]
    if not config.validity and config.teacher is None:
        return Supervision(config, weights, targets, [], None, None)
    grammars = TokenGrammars(tokenizer, vocab_rows=vocab_rows, stop_ids=frozenset([stop_id(tokenizer)]))
    texts = [Plan.from_json(row.plan).canonical(catalog) for catalog, row in zip(catalogs, corpus.rows, strict=True)]
    pieces = _Pieces(grammars)
    masks, names = None, []
    if config.validity:
        steps = max(DEFAULT_MAX_STEPS, *(len(row.plan) for row in corpus.rows), 0)
        masks = PlanMasks(grammars, max_steps=steps)
        require_allowed(masks, targets, corpus.names, tokenizer.decode)
        for text, target in zip(texts, targets, strict=True):
            names.append(name_positions([pieces[token] for token in target.ids], text))
        total = sum(map(len, names))
        progress.note(
            f"training: validity term over {total} target tokens, {sum(int(name.sum()) for name in names)} of them in "
            f"worker names; {len(corpus.catalogs)} catalogs, the data set's own with {len(corpus.catalogs[0].workers)} "
            f"workers, and up to {steps} steps"
        )
    taught = None if config.teacher is None else _taught(config.teacher, corpus, texts, targets, pieces, progress)
    return Supervision(config, weights, targets, names, masks, taught)


class _Pieces(dict[int, bytes]):
    """What each token writes, looked up once."""

    def __init__(self, grammars: TokenGrammars) -> None:
        super().__init__()
        self._grammars = grammars
        self._never = frozenset(grammars.never)

    def __missing__(self, token: int) -> bytes:
        self[token] = b"" if token in self._never else self._grammars.token_bytes(token)
        return self[token]

    def all(self) -> list[bytes]:
        return [self[token] for token in range(self._grammars.vocab_rows)]


def _taught(
    folder: str,
    corpus: Corpus,
    texts: Sequence[str],
    targets: Sequence[Target],
    pieces: _Pieces,
    progress: Progress,
) -> list[Taught | None]:
    path = Path(folder).expanduser()
    if not (path / DRAFTS).is_file():
        raise InputError(
            f"training.teacher is {folder!r}, but {str(path / DRAFTS)!r} does not exist. Make the answers with "
            "plansmith data teach, with the endpoint's top_logprobs set, or set it to null."
        )
    queries = [row.query for row in corpus.rows]
    found = teacher_targets(iter_drafts(path), queries, texts, [target.ids for target in targets], pieces.all())
    without = "".join(f", {reason} {count}" for reason, count in sorted(found.without.items()))
    speaks = sum(row is not None for row in found.rows)
    progress.note(f"training: teacher term for {speaks} of {len(found.rows)} rows{without}")
    return found.rows
