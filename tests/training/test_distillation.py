"""A teacher's log-probabilities on the student's targets: found, left out and counted, or refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plansmith.contract.errors import InputError
from plansmith.contract.plan import Plan
from plansmith.contract.progress import Silent
from plansmith.contract.prompt import encode_target
from plansmith.contract.records import FinishReason, LogprobRow, TeacherDraft
from plansmith.contract.store import read_rows
from plansmith.data.build import DataSet
from plansmith.training.config import ModelConfig, TrainingConfig
from plansmith.training.distillation import NoTeacher, Taught, TeacherTargets, teacher_targets
from plansmith.training.metrics import StepMetrics
from plansmith.training.model import load_tokenizer
from plansmith.training.trainer import train

PIECES = [b"<eos>", b"[", b'{"', b'type":"', b"say", b'"}]', b"sa", b"y", b"go", b"ay"]
PLAN = '[{"type":"say"}]'
TARGET = [1, 2, 3, 4, 5, 0]


def spoken(*tokens: str, top: dict[str, float] | None = None) -> tuple[LogprobRow, ...]:
    return tuple((token, -0.1, tuple((top or {token: -0.1}).items())) for token in tokens)


def draft(logprobs: tuple[LogprobRow, ...] | None, query: str = "q") -> TeacherDraft:
    return TeacherDraft(
        key=query,
        settings="s",
        id=query,
        query=query,
        model="m",
        text="".join(row[0] for row in logprobs or ()),
        finish_reason=FinishReason.STOP,
        prompt_tokens=1,
        completion_tokens=1,
        seconds=0.0,
        logprobs=logprobs,
    )


GOOD = spoken("[", '{"', 'type":"', "say", '"}]')


def found(*drafts: TeacherDraft, queries: tuple[str, ...] = ("q",)) -> TeacherTargets:
    n = len(queries)
    return teacher_targets(drafts, list(queries), [PLAN] * n, [TARGET] * n, PIECES)


def only(targets: TeacherTargets) -> Taught:
    assert targets.rows[0] is not None
    return targets.rows[0]


def test_a_plan_alone_has_the_teacher_on_every_token_but_the_stop_token() -> None:
    taught = only(found(draft(spoken("[", '{"', 'type":"', "say", '"}]', top={"go": -2.0, "say": -0.2}))))
    assert taught.place_A.tolist() == [0, 1, 2, 3, 4]
    assert taught.token_AK.tolist() == [[8, 4]] * 5
    np.testing.assert_allclose(taught.logprob_AK, [[-2.0, -0.2]] * 5, rtol=1e-6)


def test_around_a_plan_tokens_that_cross_its_ends_are_left_out() -> None:
    words = spoken('{"note":"', "say", '","plan":[', '{"', 'type":"', "say", '"}]}')
    assert only(found(draft(words))).place_A.tolist() == [1, 2, 3]


def test_the_first_answer_that_holds_the_plan_counts() -> None:
    other = draft(spoken("[", "]"))
    assert only(found(other, draft(GOOD))).place_A.tolist() == [0, 1, 2, 3, 4]


def test_alternatives_that_the_student_lacks_are_left_to_the_rest() -> None:
    top = {"zzz": -0.5, "go": -1.5, "say": -3.0, "\ufffd": -4.0}
    taught = only(found(draft((*GOOD[:3], ("say", -3.0, tuple(top.items())), GOOD[4]))))
    row = taught.place_A.tolist().index(3)
    assert taught.token_AK[row].tolist() == [8, 4]
    assert taught.logprob_AK[row].tolist() == [-1.5, -3.0]
    assert taught.logprob_AK[0].tolist()[1:] == [-math.inf]
    assert taught.token_AK[0].tolist() == [1, 1]


def test_rows_without_a_teacher_are_counted_by_reason() -> None:
    drafts = [draft(GOOD, "a"), draft(None, "b"), draft(spoken("[", "]"), "c"), draft(GOOD, "unasked")]
    targets = found(*drafts, queries=("a", "b", "c", "d"))
    assert [row is not None for row in targets.rows] == [True, False, False, False]
    assert targets.without == {NoTeacher.NO_LOGPROBS: 1, NoTeacher.OTHER_PLAN: 1, NoTeacher.NO_ANSWER: 1}


def test_now_and_then_a_word_may_be_spelled_otherwise() -> None:
    odd = draft(spoken("[", '{"', 'type":"', "sa", "y", '"}]'), "odd")
    queries = [f"q{i}" for i in range(39)]
    targets = found(*(draft(GOOD, query) for query in queries), odd, queries=(*queries, "odd"))
    assert targets.without == {NoTeacher.CUT_OTHERWISE: 1}


def test_a_teacher_with_another_tokenizer_is_refused_with_the_first_difference() -> None:
    odd = draft(spoken("[", '{"', 'type":"', "sa", "y", '"}]'))
    with pytest.raises(InputError, match=r"other tokenizers: 1 of 1 plans.*answer to 'q'.*'sa'.*student writes 'say'"):
        found(odd)


def test_answers_without_log_probabilities_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"no row has log-probabilities of the teacher \(no_logprobs 1\).*top_logprobs"
    ):
        found(draft(None))


def teach(data: DataSet, base: Path, folder: Path) -> Path:
    """Answers of a teacher that has the student's tokenizer and is nearly sure of every token."""
    tokenizer = load_tokenizer(base)
    folder.mkdir()
    lines: list[str] = []
    for row in data.train[:12]:
        text = Plan.from_json(row.plan).canonical(data.catalog)
        tokens = [tokenizer.decode([token]) for token in encode_target(text, tokenizer)[:-1]]
        logprobs = spoken(*tokens) if "".join(tokens) == text else None
        lines.append(draft(logprobs, row.query).model_dump_json() + "\n")
    (folder / "drafts.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


CONFIG = TrainingConfig(rank=8, alpha=16, steps=8, batch_size=4, micro_batch_size=3, learning_rate=5e-3, warmup_steps=1)


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def run(data: DataSet, base: Path, out: Path, **change: Any) -> tuple[list[StepMetrics], list[str]]:
    notes = Notes()
    config = CONFIG.model_copy(update=change)
    train(ModelConfig(base="tiny-random"), config, data, base, out, seed=3, progress=notes)
    return read_rows(out / "metrics.jsonl", StepMetrics), notes.notes


def test_training_logs_every_term_and_their_weighted_sum(data: DataSet, base: Path, tmp_path: Path) -> None:
    folder = teach(data, base, tmp_path / "teacher")
    rows, notes = run(data, base, tmp_path / "out", teacher=str(folder), lambda_validity=0.5, lambda_teacher=2.0)
    assert any("teacher term for" in note and "no_answer 4" in note for note in notes)
    assert any("masks for" in note for note in notes)
    for row in rows:
        assert row.validity is not None
        assert row.teacher is not None
        assert row.mass_outside_json is not None
        assert row.mass_outside_names is not None
        assert row.loss == pytest.approx(row.cross_entropy + 0.5 * row.validity + 2.0 * row.teacher, rel=1e-6)
        assert 0 < row.mass_outside_json < 1
        assert 0 < row.mass_outside_names < 1
    assert rows[-1].teacher < rows[0].teacher  # type: ignore[operator]
    assert rows[-1].mass_outside_json < rows[0].mass_outside_json  # type: ignore[operator]


def test_terms_that_are_off_are_not_logged(data: DataSet, base: Path, tmp_path: Path) -> None:
    rows, _ = run(data, base, tmp_path / "out", validity=False, steps=2)
    assert all(row.loss == row.cross_entropy for row in rows)
    assert {(row.validity, row.teacher, row.mass_outside_json, row.mass_outside_names) for row in rows} == {(None,) * 4}


def test_a_factor_of_zero_trains_as_without_the_term(data: DataSet, base: Path, tmp_path: Path) -> None:
    plain, _ = run(data, base, tmp_path / "plain", validity=False, steps=3)
    measured, _ = run(data, base, tmp_path / "measured", lambda_validity=0.0, steps=3)
    assert [row.cross_entropy for row in measured] == [row.cross_entropy for row in plain]
    assert all(row.validity is not None and row.validity > 0 for row in measured)


def test_the_validity_term_drives_mass_into_the_grammar(data: DataSet, base: Path, tmp_path: Path) -> None:
    plain, _ = run(data, base, tmp_path / "plain", lambda_validity=0.0)
    more, _ = run(data, base, tmp_path / "more", lambda_validity=4.0)
    last = [row.mass_outside_json for row in (plain[-1], more[-1])]
    assert last[1] < last[0]  # type: ignore[operator]


def test_other_answers_of_a_teacher_make_another_run(data: DataSet, base: Path, tmp_path: Path) -> None:
    folder = teach(data, base, tmp_path / "teacher")
    run(data, base, tmp_path / "out", teacher=str(folder), steps=1)
    path = folder / "drafts.jsonl"
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    with pytest.raises(InputError, match="teacher_hash"):
        run(data, base, tmp_path / "out", teacher=str(folder), steps=1)


def test_a_teacher_without_answers_is_refused(data: DataSet, base: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"drafts.jsonl' does not exist.*top_logprobs"):
        run(data, base, tmp_path / "out", teacher=str(tmp_path))


def test_rows_of_other_widths_share_a_micro_batch(data: DataSet, base: Path) -> None:
    from plansmith.training.encode import encode_examples
    from plansmith.training.model import vocab_rows
    from plansmith.training.supervision import build_supervision

    tokenizer = load_tokenizer(base)
    corpus = encode_examples(data.train, data.catalog, tokenizer, CONFIG, Silent())
    extra = build_supervision(corpus, tokenizer, CONFIG, vocab_rows(base), Silent())
    narrow = Taught(np.array([1]), np.array([[7]]), np.array([[-0.5]], dtype=np.float32))
    wide = Taught(np.array([0, 2]), np.array([[4, 5], [6, 6]]), np.array([[-1, -2], [-3, -np.inf]], dtype=np.float32))
    extra = type(extra)(CONFIG, extra.weights, extra.targets, extra.names, None, [narrow, wide, None])
    teacher = extra.terms([1, 2, 0], torch.device("cpu")).teacher
    assert teacher is not None
    first, second = (len(extra.targets[row].ids) for row in (1, 2))
    at = first + second + 1
    assert teacher.weight_N.nonzero()[:, 0].tolist() == [0, 2, at]
    assert teacher.token_NK[at].tolist() == [7, 7]
    assert teacher.logprob_NK[at].tolist() == [-0.5, -math.inf]
    assert teacher.logprob_NK[0].tolist() == [-1, -2]
    assert teacher.token_NK[2].tolist() == [6, 6]
