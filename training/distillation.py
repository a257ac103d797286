"""What a teacher thought of each target token: its likeliest tokens with their log-probabilities, as it answered.

Reads teachers' answers (`TeacherDraft.logprobs`) and the training rows; gives, for each row whose plan the teacher
wrote in canonical text, the targets that the teacher's tokens fall on exactly. A note or an object around the plan
does not matter; tokens that begin or end outside the plan are left out. Everything left out is counted by reason.

Tokens are compared by what they write, since answers name them so. That needs one tokenizer on both sides: where the
teacher cuts more than a few plans otherwise, the terms would compare different things, and training is refused. A
trimmed vocabulary is the same tokenizer; what the student lost counts as the rest of the distribution.

Not covered: answers written with spaces or keys in another order, plans with characters that a token holds only a
part of (services do not name those bytes), and the stop token (services do not report it).

Shapes: A places that the teacher speaks on, K tokens kept of each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plansmith.contract.errors import InputError
from plansmith.contract.records import TeacherDraft

_OTHERWISE_CUT = 0.05
"""Largest share of plans that the teacher may cut otherwise than the student's tokenizer. With one tokenizer a model
now and then spells a word in another way than the tokenizer would; with two, digits and rare words differ in most."""


class NoTeacher(StrEnum):
    """Why a row has no teacher term."""

    NO_ANSWER = "no_answer"
    """the teacher was not asked the query, or gave no answer"""
    NO_LOGPROBS = "no_logprobs"
    """its answer came without log-probabilities"""
    OTHER_PLAN = "other_plan"
    """its answer does not hold the row's plan in canonical text"""
    CUT_OTHERWISE = "cut_otherwise"
    """it wrote the plan with other tokens than the student's tokenizer"""


class Taught(NamedTuple):
    """What the teacher thought of one row's target tokens."""

    place_A: NDArray[np.int64]
    """Places among the target tokens."""
    token_AK: NDArray[np.int64]
    logprob_AK: NDArray[np.float32]
    """-inf in places that are left over; their token repeats the first."""


class TeacherTargets(NamedTuple):
    """What a teacher thought of a data set."""

    rows: list[Taught | None]
    """One for each row."""
    without: dict[NoTeacher, int]
    """Rows that have none, by reason."""


def teacher_targets(
    drafts: Iterable[TeacherDraft],
    queries: Sequence[str],
    plans: Sequence[str],
    targets: Sequence[Sequence[int]],
    pieces: Sequence[bytes],
) -> TeacherTargets:
    """Find the teacher's log-probabilities for the targets of each row.

    Args:
        drafts: the teacher's answers, several a query where it was asked so; the first that holds the plan counts.
        queries: of each row.
        plans: canonical text of each row.
        targets: token ids of each row, the stop token last.
        pieces: what each token of the student writes; empty for tokens that write nothing, such as special tokens.

    Raises:
        InputError: teacher and student have other tokenizers, or no row has a teacher term.

    """
    answers: dict[str, list[TeacherDraft]] = {}
    wanted = set(queries)
    for draft in drafts:
        if draft.query in wanted:
            answers.setdefault(draft.query, []).append(draft)
    ids = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
    rows: list[Taught | None] = []
    without: Counter[NoTeacher] = Counter()
    first: str | None = None
    for query, plan, target in zip(queries, plans, targets, strict=True):
        found = _of_row(answers.get(query, []), plan, target, pieces, ids)
        if isinstance(found, _Otherwise):
            first = first or f"in the answer to {query!r:.80} the teacher writes {found.teacher} where {found.student}"
            without[NoTeacher.CUT_OTHERWISE] += 1
        elif isinstance(found, NoTeacher):
            without[found] += 1
        rows.append(found if isinstance(found, Taught) else None)
    _require_one_tokenizer(rows, without, first)
    return TeacherTargets(rows, dict(without))


class _Otherwise(NamedTuple):
    """The first difference between two ways to cut a plan."""

    teacher: str
    student: str


class _Spoken(NamedTuple):
    """One token of the teacher's, by its place in the plan's bytes."""

    piece: bytes
    top: tuple[tuple[str, float], ...]


def _require_one_tokenizer(rows: Sequence[Taught | None], without: Mapping[NoTeacher, int], first: str | None) -> None:
    otherwise = without.get(NoTeacher.CUT_OTHERWISE, 0)
    taught = sum(row is not None for row in rows)
    if otherwise > _OTHERWISE_CUT * (otherwise + taught):
        raise InputError(
            f"teacher and student have other tokenizers: {otherwise} of {otherwise + taught} plans are cut otherwise "
            f"({first}). Their log-probabilities cannot be compared; take a teacher with the student's tokenizer, or "
            "set training.teacher to null (its plans can still be learnt)."
        )
    if not taught:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(without.items()))
        raise InputError(
            f"no row has log-probabilities of the teacher ({reasons}). They are kept where the endpoint's "
            "`top_logprobs` is set and the teacher writes the plan in canonical text; or set training.teacher to null."
        )


def _of_row(
    drafts: Sequence[TeacherDraft],
    plan: str,
    target: Sequence[int],
    pieces: Sequence[bytes],
    ids: Mapping[bytes, int],
) -> Taught | NoTeacher | _Otherwise:
    found: NoTeacher | _Otherwise = NoTeacher.NO_ANSWER
    for draft in drafts:
        one = _of_answer(draft, plan, target, pieces, ids)
        if isinstance(one, Taught):
            return one
        found = one
    return found


def _of_answer(
    draft: TeacherDraft, plan: str, target: Sequence[int], pieces: Sequence[bytes], ids: Mapping[bytes, int]
) -> Taught | NoTeacher | _Otherwise:
    if not draft.logprobs:
        return NoTeacher.NO_LOGPROBS
    spoken = [token.encode("utf-8", "surrogatepass") for token, _, _ in draft.logprobs]
    text, wanted = b"".join(spoken), plan.encode()
    start = text.rfind(wanted)
    if start < 0:
        return NoTeacher.OTHER_PLAN
    teacher: dict[int, _Spoken] = {}
    place = -start
    for piece, (_, _, top) in zip(spoken, draft.logprobs, strict=True):
        if place >= 0 and place + len(piece) <= len(wanted) and piece:
            teacher[place] = _Spoken(piece, top)
        place += len(piece)
    places: list[int] = []
    tops: list[tuple[tuple[str, float], ...]] = []
    edges = min(teacher, default=0), max((at + len(one.piece) for at, one in teacher.items()), default=0)
    place = 0
    for at, token in enumerate(target[:-1]):
        piece = pieces[token]
        said = teacher.get(place)
        if said is not None and said.piece == piece:
            places.append(at)
            tops.append(said.top)
        elif edges[0] <= place and place + len(piece) <= edges[1]:
            other = "nothing that begins there" if said is None else repr(said.piece.decode(errors="replace"))
            mine = repr(piece.decode(errors="replace"))
            return _Otherwise(other, f"the student writes {mine} (byte {place} of the plan)")
        place += len(piece)
    return _arrays(places, tops, ids)


def _arrays(
    places: Sequence[int], tops: Sequence[tuple[tuple[str, float], ...]], ids: Mapping[bytes, int]
) -> Taught | NoTeacher:
    """Top tokens as arrays; tokens that the student does not have are left to the rest."""
    kept: list[tuple[int, dict[int, float]]] = []
    for place, top in zip(places, tops, strict=True):
        known: dict[int, float] = {}
        for piece, logprob in top:
            token = ids.get(piece.encode("utf-8", "surrogatepass"))
            if token is not None and math.isfinite(logprob):
                known.setdefault(token, min(0.0, logprob))
        if known:
            kept.append((place, known))
    if not kept:
        return NoTeacher.NO_LOGPROBS
    width = max(len(known) for _, known in kept)
    token_AK = np.empty((len(kept), width), dtype=np.int64)
    logprob_AK = np.full((len(kept), width), -np.inf, dtype=np.float32)
    for row, (_, known) in enumerate(kept):
        token_AK[row] = next(iter(known))
        token_AK[row, : len(known)] = list(known)
        logprob_AK[row, : len(known)] = list(known.values())
    return Taught(np.array([place for place, _ in kept]), token_AK, logprob_AK)
