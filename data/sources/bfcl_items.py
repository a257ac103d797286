"""BFCL v4's single-turn rows for Python, each with its own functions, as items to evaluate with.

Reads the wheel of `bfcl-eval` 2026.3.23 (Apache-2.0), fetched once into the user's cache without its dependencies;
runs none of its code. Gives one item a row, and a reject with its reason for a row that cannot be one. An item's plan
is made from the possible answer (`bfcl_plans`) and scored by `plansmith.eval.bfcl`. Counts by category: `docs/bfcl.md`.
Not covered: Java, JavaScript, multi-turn, memory, web search and format sensitivity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.errors import CatalogError, InputError
from plansmith.contract.importers.bfcl import from_bfcl
from plansmith.contract.plan import Json
from plansmith.contract.progress import Progress
from plansmith.contract.records import AllowedCalls, PlanJson, Reject
from plansmith.data.config import BfclCategory
from plansmith.data.packages import Package, check_wheel, fetch_wheel, read_member_lines
from plansmith.data.sources.bfcl_plans import UnanswerableError, plan_of

PACKAGE = Package(
    name="bfcl-eval",
    version="2026.3.23",
    wheel="bfcl_eval-2026.3.23-py3-none-any.whl",
    sha256="3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    licence="Apache-2.0",
    megabytes=2,
)
SOURCE = "bfcl/v4"
ABSTAIN = frozenset({BfclCategory.IRRELEVANCE, BfclCategory.LIVE_IRRELEVANCE})
"""Categories in which no function fits; they have no file of answers."""
_ROWS = "bfcl_eval/data/BFCL_v4_{}.json"
_ANSWERS = "bfcl_eval/data/possible_answer/BFCL_v4_{}.json"


@dataclass(frozen=True, slots=True)
class BfclItem:
    """One row: a query, the functions that may be called for it, and what is right."""

    id: str
    category: BfclCategory
    query: str
    catalog: Catalog
    """The row's own functions, under their own names, in their order; empty where the row has none."""
    allowed: AllowedCalls
    """BFCL's possible answer; empty where no function fits."""
    plan: PlanJson
    """The shortest right plan."""


@dataclass(slots=True)
class BfclItems:
    """Every row read is in `items` or in `rejects`."""

    items: list[BfclItem] = field(default_factory=list[BfclItem])
    rejects: list[Reject] = field(default_factory=list[Reject])
    notes: Counter[str] = field(default_factory=Counter[str])
    """What was found or changed in rows that are kept, by kind."""


class _UnusableRowError(ValueError):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def bfcl_wheel(wheel: Path | None, progress: Progress) -> Path:
    """The wheel: the one given, or the cached one, fetched if need be.

    Raises:
        ServiceError: the package could not be fetched.
        InputError: the wheel given is another file.

    """
    if wheel is None:
        return fetch_wheel(PACKAGE, progress)
    check_wheel(PACKAGE, wheel, InputError)
    return wheel


def read_bfcl(wheel: Path, categories: Iterable[BfclCategory], progress: Progress) -> BfclItems:
    """All rows of the categories, in their order.

    Raises:
        InputError: the wheel is damaged.

    """
    found = BfclItems()
    for category in dict.fromkeys(categories):
        rows = read_member_lines(wheel, _ROWS.format(category))
        answers = _answers(wheel, category)
        progress.start(f"rows of {category}", len(rows))
        for row in rows:
            add_row(found, row, category, answers.get(row["id"]))
            progress.advance()
        progress.finish()
    return found


def _answers(wheel: Path, category: BfclCategory) -> dict[str, AllowedCalls]:
    if category in ABSTAIN or category is BfclCategory.LIVE_RELEVANCE:
        return {}
    return {row["id"]: row["ground_truth"] for row in read_member_lines(wheel, _ANSWERS.format(category))}


def add_row(found: BfclItems, row: dict[str, Json], category: BfclCategory, allowed: AllowedCalls | None) -> None:
    """Add a row as an item or as a reject.

    Args:
        found: receives it.
        row: the row as BFCL's file has it, with `id`, `question` and `function`.
        category: the file that it is from.
        allowed: its possible answer; None where the file of answers has none.

    """
    notes = Counter[str]()
    try:
        item = _item(row, category, [] if category in ABSTAIN else allowed, notes)
    except (_UnusableRowError, UnanswerableError) as error:
        query = "\n\n".join(_texts(row["question"][0]))
        source = f"{SOURCE}/{category}"
        found.rejects.append(
            Reject(id=row["id"], query=query, plan=None, reason=error.reason, detail=f"{error}.", source=source)
        )
        return
    found.items.append(item)
    found.notes += notes


def _item(row: dict[str, Json], category: BfclCategory, allowed: AllowedCalls | None, notes: Counter[str]) -> BfclItem:
    query = _query(row["question"], notes)
    if allowed is None:
        raise _UnusableRowError("no_possible_answer", "BFCL does not say which calls are right")
    try:
        catalog = from_bfcl(row, name=row["id"]).catalog
    except CatalogError as error:
        raise _UnusableRowError("bad_function_doc", str(error).rstrip(".")) from error
    plan = plan_of(allowed, catalog)
    notes["rows_without_functions"] += not catalog.workers
    notes["plans_against_the_function_docs"] += bool(plan) and not check_plan(plan, catalog).valid
    return BfclItem(row["id"], category, query, catalog, allowed, plan)


def _query(turns: list[list[dict[str, str]]], notes: Counter[str]) -> str:
    """The one query: a system message and the user's messages, with an empty line between them."""
    roles = [message["role"] for message in turns[0]]
    if len(turns) != 1 or "assistant" in roles:
        raise _UnusableRowError("conversation", f"a conversation ({', '.join(roles)}), and a planner reads one query")
    notes["system_messages_joined"] += "system" in roles
    notes["user_messages_joined"] += roles.count("user") > 1
    return "\n\n".join(_texts(turns[0]))


def _texts(messages: Any) -> list[str]:
    return [message["content"].strip() for message in cast("list[dict[str, str]]", messages)]
