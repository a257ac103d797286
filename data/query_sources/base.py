"""What every source of queries gives, and when two queries are the same."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import PlansmithError
from plansmith.contract.records import Query, Reject

DUPLICATE = "duplicate"


@dataclass(slots=True)
class Found:
    """All rows of one source; every one read is a query or a reject."""

    source: str
    licence: str
    rows: Iterable[Query | Reject]
    """In the order of the source; read once."""
    catalog: Catalog | None = None
    """The catalog that comes with the source."""
    notes: dict[str, int] = field(default_factory=dict[str, int])
    """What else is to be known, by kind; complete once the rows are read."""
    stopped: PlansmithError | None = None
    """Why not all rows could be had, where there are more to come."""


def same_text(query: str) -> str:
    """What two equal queries have in common: the text in Unicode NFC, runs of white space as one space."""
    return " ".join(unicodedata.normalize("NFC", query).split())


def text_id(prefix: str, query: str) -> str:
    """An id that a query keeps wherever it stands in its file."""
    return f"{prefix}-{hashlib.sha256(same_text(query).encode()).hexdigest()[:12]}"


def rejected(*, row_id: str, query: str, source: str, reason: str, detail: str) -> Reject:
    """A reject of a query; texts that UTF-8 cannot hold are written as escapes."""
    storable = query.encode("utf-8", "backslashreplace").decode()
    return Reject(id=row_id, query=storable, plan=None, reason=reason, detail=detail.rstrip(".") + ".", source=source)
