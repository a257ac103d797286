"""The report's types: every number of an evaluation with what it is a share of. Stored as `report.json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plansmith.eval.items import SystemInfo
from plansmith.eval.metrics import F1S, MAIN_METRICS, MEANS, METRICS, RATES, FirstFault
from plansmith.eval.stats import Metric
from plansmith.eval.tables import Cost, Headline, Quantiles, Row, TeacherRow, TeacherTable

__all__ = [
    "F1S",
    "MAIN_METRICS",
    "MEANS",
    "METRICS",
    "OVERALL",
    "RATES",
    "SIGNIFICANT",
    "SYSTEMS",
    "Comparison",
    "Cost",
    "Failure",
    "Headline",
    "PartReport",
    "Quantiles",
    "Report",
    "ReportMeta",
    "SuiteInfo",
    "SystemReport",
    "TeacherRow",
    "TeacherTable",
]

OVERALL = "overall"
"""Name of the part that holds all items of the plain suite; variants of the catalog are reported apart."""
SYSTEMS = ("base/free", "base/grammar", "tuned/free", "tuned/grammar")
"""Order of the known systems in tables; others follow in the order of their rows."""
SIGNIFICANT = 0.05
"""P values below this count as a difference shown."""


class ReportMeta(Row):
    """Where the numbers come from; everything that could make them differ."""

    name: str
    """Name of the run."""
    seed: int
    """Seed of the run and of the bootstrap."""
    resamples: int = 2000
    """Bootstrap resamples of each interval."""
    failures: int = 20
    """Wrong items written out for each system."""
    page_items: int = 2000
    """Items that the HTML page holds."""
    currency: str = "USD"
    """Currency of all prices."""
    command: str = ""
    """Command that made the report."""
    code_version: str
    """Version of the package, with the commit where there is one."""
    machine: str
    """Processor, memory, accelerator and versions, in words."""
    model: str = ""
    """Base model and adapter, in words."""
    data_hashes: dict[str, str] = Field(default_factory=dict)
    """File name to sha256 of the data that the examples come from."""
    left_out: dict[str, int] = Field(default_factory=dict)
    """Test items of each part that were not asked because of a limit."""


class SuiteInfo(Row):
    """Items that were asked with one catalog."""

    name: str
    """`plain`, or the variant of the catalog."""
    catalog_name: str
    catalog_hash: str
    prompt_hash: str
    """Of the prompt that the catalog gives."""
    examples_hash: str
    """Sha256 over the examples, in order."""
    items: int
    parts: tuple[str, ...]
    """Part names in the order of the examples."""


class PartReport(Row):
    """One system on the items of one part."""

    part: str
    items: int
    missing: int
    """Items without any row: misses."""
    failed: int
    """Items whose request failed: misses."""
    cut: int
    """Answers that the token limit cut off; scored as they are."""
    metrics: dict[str, Metric]
    first_faults: dict[FirstFault, int]
    """Items by first fault; the counts add up to `items`."""
    cost: Cost


class Failure(Row):
    """A wrong item, written out."""

    id: str
    part: str
    query: str
    reference: str
    """Canonical text of the reference plan."""
    candidate: str
    """Generated text; empty where there is none."""
    fault: FirstFault
    finding: str | None
    """The checker's first error, or why the request failed."""


class SystemReport(Row):
    """One system on all parts."""

    system: str
    parts: dict[str, PartReport]
    """Part name to numbers; `overall` holds all items of the plain suite."""
    wrong: int
    """Items that are not right, over all parts, variants included."""
    failures: tuple[Failure, ...]
    """The first of them."""
    info: SystemInfo | None = None
    """How the system was asked; None where that is not known."""
    plans_per_second: float | None = None
    """Answers over the time in which the system was asked, at the concurrency that `info` states."""


class Comparison(Row):
    """Two systems on the same items, pair by pair: `second` minus `first`."""

    first: str
    second: str
    metric: str
    items: int
    difference: float
    low: float
    high: float
    """95% interval of the difference (paired bootstrap)."""
    p_value: float | None
    """McNemar's exact test; None for an F1."""
    only_first: int
    """Items that only the first system has right."""
    only_second: int

    @property
    def shown(self) -> bool:
        """Whether a difference is shown: the interval leaves out zero, and McNemar's test, if there is one, agrees."""
        return (self.low > 0 or self.high < 0) and (self.p_value is None or self.p_value < SIGNIFICANT)


class Report(Row):
    """Everything that an evaluation found."""

    version: Literal[2] = 2
    meta: ReportMeta
    suites: tuple[SuiteInfo, ...]
    """What was asked, the plain suite first."""
    items: int
    """Items of the plain suite."""
    parts: tuple[str, ...]
    """Parts of the plain suite, then the variants', in order."""
    systems: tuple[SystemReport, ...]
    comparisons: tuple[Comparison, ...]
    """Two systems over the plain suite."""
    variants: tuple[Comparison, ...] = ()
    """One system with itself: each item under the plain catalog (`first`) and under a variant (`second`)."""
    teacher: TeacherTable | None = None
    headline: tuple[Headline, ...] = ()
    other_runs: int
    """Rows of items that are not among the examples; left aside."""
