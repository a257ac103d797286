"""One row of a reference file and one of a candidate file: what they must hold, and their score.

A reference row is `{"id", "plan" | "plans" | "text"}`; `plans` holds several right plans, and null or `[]` means that
the item has none. It may also hold `query` (a string; needed for `grounded`), `results` (recorded result of each step
of the first plan; needed for `executed` and `answer_match`), `allowed` (BFCL's possible answer; needed for `bfcl_ast`)
and `part` (a string). A candidate row is `{"id", "plan" | "text"}`; where it also holds `finish_reason`,
`prompt_tokens`, `completion_tokens`, `seconds` in the form of our own run rows they are kept. Further keys are left
aside. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import CheckResult, check_plan
from plansmith.contract.findings import Severity
from plansmith.contract.parse import parse_plan_text, parse_plan_value
from plansmith.contract.plan import Json, Plan, dumps
from plansmith.contract.records import AllowedCalls, FinishReason
from plansmith.eval.columns import NO_PART, UNMARKED, Answered, ItemValues, mark_of
from plansmith.eval.items import ScoredItem
from plansmith.eval.metrics import F1S, MEANS, METRICS, RATES, ItemScore, is_well_shaped, score_item
from plansmith.eval.rows import Row

_UNWRITABLE = "(a value that cannot be written as JSON: too deep, or a number too large)"


@dataclass(frozen=True, slots=True)
class Reference:
    """What a reference row says about its item."""

    plans: tuple[Json, ...]
    """Right plans, each of the shape of a plan; none where the item has none."""
    typed: tuple[Plan, ...]
    """The same as plans."""
    query: str | None
    results: list[Json] | None
    allowed: AllowedCalls | None
    part: str
    invalid: str | None
    """First error of the right plans against the catalog; None where all are valid."""
    steps: int
    """Steps of all right plans."""
    known_steps: int
    """Those whose worker is in the catalog."""

    def canonical(self, catalog: Catalog) -> tuple[str, ...]:
        """The right plans as canonical text."""
        return tuple(plan.canonical(catalog) for plan in self.typed)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a candidate row says."""

    given: Json
    """The text, or the plan in a form that the checker never takes for text."""
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seconds: float

    @property
    def scored(self) -> Json | None:
        """What is scored: None where the request failed."""
        return None if self.finish_reason is FinishReason.ERROR else self.given


def reference_of(row: Row, catalog: Catalog) -> Reference:
    """Read a reference row.

    Raises:
        InputError: a right plan has not the shape of a plan, or a key holds a value of another type.

    """
    read = [_right_plan(row, plan, catalog) for plan in _given_plans(row)]
    typed = tuple(plan.typed for plan in read)
    workers = [step.type for plan in typed for step in plan.steps]
    return Reference(
        plans=tuple(plan.value for plan in read),
        typed=typed,
        query=_text_or_none(row, "query"),
        results=_results(row, typed),
        allowed=_allowed(row),
        part=_text_or_none(row, "part") or NO_PART,
        invalid=next((plan.invalid for plan in read if plan.invalid is not None), None),
        steps=len(workers),
        known_steps=sum(catalog.get(worker) is not None for worker in workers),
    )


def answer_of(row: Row) -> Answer:
    """Read a candidate row.

    Raises:
        InputError: it has not exactly one of `plan` and `text`, or `text` is no string.

    """
    values = row.values
    reason = values.get("finish_reason")
    seconds = cast("Json", values.get("seconds"))
    return Answer(
        given=_one_answer(row, ("plan", "text")),
        finish_reason=FinishReason(reason)
        if isinstance(reason, str) and reason in set(FinishReason)
        else FinishReason.STOP,
        prompt_tokens=_count(values.get("prompt_tokens")),
        completion_tokens=_count(values.get("completion_tokens")),
        seconds=float(seconds) if _is_number(seconds) and 0 <= seconds < 1e9 else 0.0,
    )


def score_answer(answer: Answer | None, reference: Reference, catalog: Catalog) -> ItemScore:
    """Score one answer; None (no row) is a miss in every metric that the item is scored in."""
    return score_item(
        answer.scored if answer is not None else None,
        reference.plans,
        catalog,
        query=reference.query,
        results=reference.results,
        allowed=reference.allowed,
    )


def item_values(
    item: str, answer: Answer | None, reference: Reference, score: ItemScore, catalog: Catalog, *, marked: bool
) -> ItemValues:
    """The item as columns hold it; what it is known by takes time and is left empty where nobody asks for it."""
    failed = answer is not None and answer.finish_reason is FinishReason.ERROR
    answered = Answered.MISSING if answer is None else Answered.FAILED if failed else Answered.YES
    mark = mark_of(reference.query or "", reference.canonical(catalog)) if marked else UNMARKED
    return ItemValues(item, reference.part, mark, answered, tuple(getattr(score, name) for name in METRICS))


def scored_item(
    system: str, item: str, answer: Answer | None, reference: Reference, score: ItemScore, catalog: Catalog
) -> ScoredItem:
    """The item as a row of an items file."""
    scored = answer.scored if answer is not None else None
    check = check_plan(scored, catalog) if scored is not None else None
    return ScoredItem(
        system=system,
        id=item,
        part=reference.part,
        query=storable(reference.query or ""),
        references=reference.canonical(catalog),
        candidate=storable(scored if isinstance(scored, str) else _as_text(scored)) if scored is not None else None,
        plan=_canonical(scored, catalog) if check is not None and check.parsed else None,
        fault=score.fault,
        finding=_finding(answer, check),
        finish_reason=answer.finish_reason if answer is not None else None,
        prompt_tokens=answer.prompt_tokens if answer is not None else 0,
        completion_tokens=answer.completion_tokens if answer is not None else 0,
        seconds=answer.seconds if answer is not None else 0.0,
        outcomes={name: getattr(score, name) for name in (*RATES, *MEANS)},
        counts={name: getattr(score, name) for name in F1S},
        invented=tuple(map(storable, score.invented)),
    )


def storable(text: str) -> str:
    """The text with lone surrogates, which no UTF-8 holds, written as their escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def first_error(check: CheckResult) -> str | None:
    """The first error of a check as `fault: message`."""
    found = next((finding for finding in check.findings if finding.severity is Severity.ERROR), None)
    return f"{found.fault.value}: {found.message}" if found is not None else None


def _one_answer(row: Row, keys: Sequence[str]) -> Json:
    """The answer of a row: text as it is, or a plan value in a form that the checker never takes for text."""
    given = [key for key in keys if key in row.values]
    if len(given) != 1:
        found = " and ".join(map(repr, given)) or f"none of them (keys: {', '.join(map(repr, row.values)):.200})"
        swapped = "plans" in row.values and "plans" not in keys
        hint = " Rows with 'plans' are reference rows: are --reference and --candidate swapped?" if swapped else ""
        raise row.refuse(f"expected exactly one of {', '.join(map(repr, keys))}, found {found}.{hint}")
    value = row.values[given[0]]
    if given[0] == "text":
        if not isinstance(value, str):
            raise row.refuse(f"'text' must be a string, found {_as_text(value):.40}.")
        return value
    return cast("Json", value) if isinstance(value, list) else _as_text(value)


def _given_plans(row: Row) -> list[Json]:
    """The right plans of a reference row as they are given."""
    keys = ("plan", "plans", "text")
    given = [key for key in keys if key in row.values]
    if given in (["plan"], ["plans"]) and row.values[given[0]] is None:
        return []
    if given != ["plans"]:
        return [_one_answer(row, keys)]
    plans = row.values["plans"]
    if not isinstance(plans, list) or not all(isinstance(plan, list) for plan in cast("list[Json]", plans)):
        raise row.refuse("'plans' must be a list of plans, each an array of steps.")
    return cast("list[Json]", plans)


class _RightPlan(NamedTuple):
    """One right plan."""

    value: Json
    typed: Plan
    invalid: str | None
    """Its first error against the catalog."""


def _right_plan(row: Row, value: Json, catalog: Catalog) -> _RightPlan:
    check = check_plan(value, catalog)
    if check.valid and check.plan is not None:
        return _RightPlan(check.plan.to_json(), check.plan, None)
    if not is_well_shaped(value, catalog):
        raise row.refuse(
            "the reference has not the shape of a plan; `plansmith check` names what is wrong. "
            "If these are a model's answers, --reference and --candidate are swapped."
        )
    parsed = _parsed(value)
    return _RightPlan(parsed, Plan.from_json(parsed), first_error(check))


def _parsed(value: Json) -> Json:
    return parse_plan_text(value).value if isinstance(value, str) else parse_plan_value(value).value


def _results(row: Row, plans: Sequence[Plan]) -> list[Json] | None:
    results = row.values.get("results")
    if results is None:
        return None
    if not isinstance(results, list):
        raise row.refuse("'results' must be a list with the recorded result of each step, or null.")
    steps = len(plans[0].steps) if plans else 0
    found = cast("list[Json]", results)
    if len(found) != steps:
        raise row.refuse(
            f"'results' has {len(found)} entries, but the (first) plan has {steps} steps; expected one each."
        )
    return found


def _allowed(row: Row) -> AllowedCalls | None:
    allowed = row.values.get("allowed")
    if allowed is None:
        return None
    if not isinstance(allowed, list) or not all(map(_is_allowed_call, cast("list[Json]", allowed))):
        raise row.refuse("'allowed' must be a list of {worker: {parameter: [allowed values]}}, or null.")
    return cast("AllowedCalls", allowed)


def _is_allowed_call(call: Json) -> bool:
    if not isinstance(call, dict):
        return False
    calls = cast("dict[str, Json]", call)
    return all(
        isinstance(parameters, dict) and all(isinstance(v, list) for v in cast("dict[str, Json]", parameters).values())
        for parameters in calls.values()
    )


def _text_or_none(row: Row, key: str) -> str | None:
    value = row.values.get(key)
    if value is not None and not isinstance(value, str):
        raise row.refuse(f"{key!r} must be a string or null, found {_as_text(value):.40}.")
    return value


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def _as_text(value: Json) -> str:
    """A value as JSON text, for the checker or for people."""
    if isinstance(value, str):
        return json.dumps(value)
    try:
        return dumps(value)
    except (ValueError, RecursionError):
        return _UNWRITABLE


def _canonical(value: Json, catalog: Catalog) -> str | None:
    """Canonical text of an answer of the shape of a plan; None for other ones, and where a number is too large."""
    if not is_well_shaped(value, catalog):
        return None
    try:
        return Plan.from_json(_parsed(value)).canonical(catalog)
    except ValueError:
        return None


def _finding(answer: Answer | None, check: CheckResult | None) -> str | None:
    if answer is None:
        return "there is no row for this item"
    if check is None:
        return "the request failed"
    error = first_error(check)
    cut = "; the token limit cut the text" if answer.finish_reason is FinishReason.LENGTH else ""
    return storable(f"{error}{cut}" if error else cut.lstrip("; ")) or None
