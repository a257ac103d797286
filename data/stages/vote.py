"""Agreement among the answers to one query, and the choice of the one that is kept.

Rows are answers to one query where the query's text is the same, as a teacher's samples are. Answers agree where their
plans are equivalent; what that means the caller hands in (`Equivalent`), since the matching of steps lives in another
stage of the project; without it plans agree where their canonical texts are equal. The largest group wins
(self-consistency, Wang et al. 2022). Rows that the source reserves for testing do not take part. Reads rows from a
`RowStore` and drops the losers there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from math import inf, isnan
from typing import Protocol

from plansmith.contract.catalog import Catalog
from plansmith.contract.plan import Plan, dumps
from plansmith.contract.progress import Progress
from plansmith.data.stages.rows import rejected
from plansmith.data.stages.store import RowStore, Stored
from plansmith.data.stages.tally import Tally
from plansmith.data.verify_config import Tie, VoteConfig

OUTVOTED, NO_AGREEMENT, TIED = "outvoted", "no_agreement", "tied"
SAME_ANSWER, LESS_LIKELY = "same_answer", "less_likely"

Equivalent = Callable[[Plan, Plan], bool]
"""Whether two valid plans do the same."""


class Likelihood(Protocol):
    """A student that says how likely it finds a plan."""

    def mean_nll(self, query: str, plan_text: str, catalog: Catalog) -> float:
        """Mean negative log-likelihood of the plan's tokens after the prompt, in nats; NaN where it cannot be told."""
        ...


def vote(
    store: RowStore,
    asked: Mapping[int, int],
    config: VoteConfig,
    equivalent: Equivalent | None,
    tally: Tally,
    progress: Progress,
) -> None:
    """Keep the answers of the largest group of each query.

    Args:
        store: the rows; answers to a query need not stand together.
        asked: by the hash of a query: all its answers, rejected ones included.
        config: what is enough.
        equivalent: whether two plans agree; None: where they are the same text.
        tally: where the stage counts.
        progress: told of every query.

    """
    groups = _groups(store)
    progress.start("queries to vote on", len(groups))
    for key, numbers in groups.items():
        progress.advance()
        tally.read += len(numbers)
        total = asked.get(key, len(numbers))
        if total == 1:
            tally.counted["single_answers"] += 1
            continue
        camps = _camps([store.get(number) for number in numbers], equivalent)
        most = max(map(len, camps))
        leading = [camp for camp in camps if len(camp) == most]
        if len(leading) > 1:
            tally.counted["ties"] += 1
        else:
            tally.counted["unanimous" if len(camps) == 1 else "majorities"] += 1
        if most / total < config.min_share:  # exact where the share is written as it is: 11 of 20 are 0.55
            detail = f"{most} of {total} answers to the query agree, and a share of {config.min_share:g} is wanted"
            _drop(store, (one for camp in camps for one in camp), NO_AGREEMENT, detail, tally)
        elif len(leading) > 1 and config.tie is Tie.REJECT:
            detail = f"{len(leading)} different plans have {most} of {total} answers to the query each"
            _drop(store, (one for camp in camps for one in camp), TIED, detail, tally)
        else:
            winner = leading[0]
            for one in winner:
                store.say(one.number, f"{most} of {total} answers agree")
            detail = f"{most} of {total} answers to the query agree on another plan, that of row {winner[0].row.id!r}"
            _drop(store, (one for camp in camps if camp is not winner for one in camp), OUTVOTED, detail, tally)
    progress.finish()


def _groups(store: RowStore) -> dict[int, list[int]]:
    """Numbers of the rows that are left by query, in the order in which queries and answers came."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for number in store.numbers(reserved=False):
        groups[store.groups[number]].append(number)
    return groups


def _camps(answers: list[Stored], equivalent: Equivalent | None) -> list[list[Stored]]:
    """Answers that agree, in the order of their first ones; inside too."""
    by_text: dict[str, list[Stored]] = {}
    for answer in answers:
        by_text.setdefault(dumps(answer.row.plan), []).append(answer)
    if equivalent is None or len(by_text) == 1:
        return list(by_text.values())
    camps: list[tuple[Plan, list[Stored]]] = []
    for same in by_text.values():
        plan = Plan.from_json(same[0].row.plan)
        for first, camp in camps:
            if equivalent(first, plan):
                camp += same
                break
        else:
            camps.append((plan, list(same)))
    return [sorted(camp) for _, camp in camps]


def _drop(store: RowStore, answers: Iterator[Stored], reason: str, detail: str, tally: Tally) -> None:
    for answer in answers:
        store.drop(answer.number, rejected(answer.row, reason, detail))
        tally.rejected[reason] += 1


def choose(store: RowStore, catalog: Catalog, likelihood: Likelihood | None, tally: Tally, progress: Progress) -> None:
    """Of the answers that are left of each query keep one: the likeliest for the student, or the first.

    Answers with the same plan text are one answer, of which the first row is kept. Equally likely ones: the first too.
    """
    groups = _groups(store)
    progress.start("answers to choose from", len(groups))
    for numbers in groups.values():
        progress.advance()
        tally.read += len(numbers)
        if len(numbers) == 1:
            continue
        answers = [store.get(number) for number in numbers]
        texts = {answer.number: dumps(answer.row.plan) for answer in answers}
        kept = _likeliest(answers, texts, catalog, likelihood, tally.counted) if likelihood is not None else answers[0]
        plans = len(set(texts.values()))
        if likelihood is not None and plans > 1:
            store.say(kept.number, f"the likeliest of {plans} plans for the student")
        for answer in answers:
            if answer is kept:
                continue
            chosen = likelihood is not None and texts[answer.number] != texts[kept.number]
            reason = LESS_LIKELY if chosen else SAME_ANSWER
            how = "which the student finds likelier, is kept" if chosen else "which came first, is kept"
            detail = f"row {kept.row.id!r} answers the same query, and its plan, {how}"
            store.drop(answer.number, rejected(answer.row, reason, detail))
            tally.rejected[reason] += 1
    progress.finish()


def _likeliest(
    answers: list[Stored], texts: Mapping[int, str], catalog: Catalog, likelihood: Likelihood, counted: Counter[str]
) -> Stored:
    """The first answer with the least mean negative log-likelihood; each different text is asked for once."""
    if len(set(texts.values())) == 1:
        return answers[0]
    found: dict[str, float] = {}
    for answer in answers:
        text = texts[answer.number]
        if text not in found:
            value = likelihood.mean_nll(answer.row.query, text, catalog)
            counted["plans_scored"] += 1
            counted["without_likelihood"] += isnan(value)
            found[text] = inf if isnan(value) else value
    return min(answers, key=lambda answer: (found[texts[answer.number]], answer.number))
