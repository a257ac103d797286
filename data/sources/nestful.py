"""ComplexFuncBench of IBM's NESTFUL as candidates: 1,000 travel queries with recorded calls and responses.

Reads the wheel of `nestful-wrapper` 0.1.7 (Apache-2.0), fetched once into the user's cache; runs none of its code.
Gives the catalog, one candidate a row whose plan a planner could have written, and a reject with its reason for every
other row. How arguments become literals and references: `nestful_plans`; how the specs become the catalog:
`nestful_catalog`.
Not covered: the package's executable, glaive and SGD parts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

from plansmith.contract.catalog import Effect
from plansmith.contract.errors import InputError
from plansmith.contract.importers.nestful import from_nestful
from plansmith.contract.progress import Progress
from plansmith.contract.records import Candidate, Reject
from plansmith.data.config import DataDependent, NestfulSource, Returns
from plansmith.data.packages import Package, check_wheel, fetch_wheel, read_member
from plansmith.data.sources.base import Loaded, family_of
from plansmith.data.sources.nestful_catalog import show_referenced, widen_args
from plansmith.data.sources.nestful_plans import Habits, Leaf, RecordedPlan, decide, read_plan

PACKAGE = Package(
    name="nestful-wrapper",
    version="0.1.7",
    wheel="nestful_wrapper-0.1.7-py3-none-any.whl",
    sha256="7e7b34b0491d6fb26e9670d6fca93f39a7cc9475e25962d39633889a04e26fe4",
    licence="Apache-2.0",
    megabytes=14,
)
SOURCE = "nestful/complexfuncbench"
DATA_DEPENDENT_PART = "data_dependent"
_FOLDER = "data_v1/complexfuncbench/complexfuncbench"


def load_nestful(config: NestfulSource, progress: Progress, *, max_steps: int | None = None) -> Loaded:
    """All rows of ComplexFuncBench.

    Args:
        config: what to keep.
        progress: told of every row.
        max_steps: plans up to this length shape the catalog and the notes; longer ones are candidates all the same.

    Raises:
        ServiceError: the package could not be fetched.
        InputError: the wheel given is another file or damaged.

    """
    wheel = wheel_path(config, progress)
    progress.note(f"reading {SOURCE} from {wheel.name}")
    imported = from_nestful(read_member(wheel, f"{_FOLDER}-spec.json"), name="travel", effect=Effect.READ).catalog
    rows = read_member(wheel, f"{_FOLDER}-data.json")
    progress.start("recorded plans to convert", 2 * len(rows))
    plans = [_read(index, row, progress) for index, row in enumerate(cast("list[dict[str, Any]]", rows))]
    habits = Habits([plan for plan in plans if plan.broken is None])
    for plan in plans:
        decide(plan, imported, habits, reworded=config.reworded)
        progress.advance()
    progress.finish()
    kept = [plan for plan in plans if _reject_reason(plan, config) is None]
    kept = [plan for plan in kept if max_steps is None or len(plan.calls) <= max_steps]
    catalog, widened = widen_args(imported, kept)
    if config.returns is Returns.REFERENCED:
        catalog = show_referenced(catalog, kept)
    candidates: list[Candidate] = []
    rejects: list[Reject] = []
    for index, plan in enumerate(plans):
        reason = _reject_reason(plan, config)
        if reason is None:
            candidates.append(_candidate(index, plan, config))
        else:
            rejects.append(_reject(index, plan, *reason))
    notes = _notes(kept) | {"parameters_widened": widened}
    return Loaded(SOURCE, PACKAGE.licence, catalog, candidates, rejects, notes)


def wheel_path(config: NestfulSource, progress: Progress) -> Path:
    """The wheel: the one given, or the cached one, fetched if need be."""
    if config.wheel is None:
        return fetch_wheel(PACKAGE, progress)
    check_wheel(PACKAGE, config.wheel, InputError)
    return config.wheel


def _read(index: int, row: dict[str, Any], progress: Progress) -> RecordedPlan:
    progress.advance()
    try:
        return read_plan(row)
    except (KeyError, TypeError, AttributeError) as error:
        return RecordedPlan(str(row), [], [], [], broken=f"row {index} has another shape: {error!r}")


def _reject_reason(plan: RecordedPlan, config: NestfulSource) -> tuple[str, str] | None:
    """Reason code and sentence for a plan that is not kept."""
    if plan.broken is not None:
        return "broken_reference", plan.broken
    unknowable = [leaf for leaf in plan.leaves if leaf.unknowable]
    if unknowable:
        return "unknowable_literal", f"{_where(unknowable[0])} is neither in the query nor in an earlier response"
    choices = [leaf for leaf in plan.leaves if leaf.choice]
    if choices and config.data_dependent is DataDependent.REJECT:
        return "data_dependent_choice", f"{_where(choices[0])} is picked by what an earlier response holds"
    return None


def _where(leaf: Leaf) -> str:
    name = "/".join(map(str, leaf.tokens))
    return f"step {leaf.step}, {leaf.worker!r}, {name!r}: {str(leaf.value)[:80]!r}"


def _candidate(index: int, plan: RecordedPlan, config: NestfulSource) -> Candidate:
    steps = plan.plan()
    apart = config.data_dependent is DataDependent.PART and any(leaf.choice for leaf in plan.leaves)
    return Candidate(
        id=f"cfb-{index:04d}",
        query=plan.query,
        plan=steps,
        family=family_of(steps),
        source=SOURCE,
        part=DATA_DEPENDENT_PART if apart else None,
        results=plan.results,
    )


def _reject(index: int, plan: RecordedPlan, reason: str, detail: str) -> Reject:
    return Reject(
        id=f"cfb-{index:04d}", query=plan.query, plan=plan.plan(), reason=reason, detail=detail + ".", source=SOURCE
    )


def _notes(plans: list[RecordedPlan]) -> dict[str, int]:
    """What the conversion changed in the plans that it kept."""
    notes = Counter[str](dict.fromkeys(("literals_to_references", "references_kept", "references_to_literals"), 0))
    for leaf in (leaf for plan in plans for leaf in plan.leaves):
        if leaf.chosen is not None:
            notes["references_kept" if leaf.recorded is not None else "literals_to_references"] += 1
            moved = leaf.recorded is not None and leaf.recorded[:2] != leaf.chosen[:2]
            notes["references_moved_to_usual_place"] += moved
            notes["numbers_and_texts_taken_as_equal"] += type(leaf.chosen.value) is not type(leaf.value)
        else:
            notes["references_to_literals"] += leaf.recorded is not None
            notes["reworded_literals"] += leaf.reworded
    return dict(notes)
