"""The report's types: every number of an evaluation with what it is a share of. Stored as `report.json`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from plansmith.eval.metrics import FirstFault
from plansmith.eval.stats import Metric

RATES = ("parsed", "registered", "valid", "exact", "equivalent")
"""Shares of items, with Wilson intervals."""
F1S = ("worker_f1", "argument_f1")
"""Micro F1, with bootstrap intervals."""
METRICS = (*RATES, *F1S)
OVERALL = "overall"
"""Name of the part that holds all items."""
SYSTEMS = ("base/free", "base/grammar", "tuned/free", "tuned/grammar")
"""Order of the known systems in tables; others follow in the order of their rows."""
SIGNIFICANT = 0.05
"""P values below this count as a difference shown."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ReportMeta(_Part):
    """Where the numbers come from; everything that could make them differ."""

    name: str
    """Name of the run."""
    seed: int
    """Seed of the run and of the bootstrap."""
    resamples: int = 2000
    """Bootstrap resamples of each interval."""
    failures: int = 20
    """Wrong items written out for each system."""
    command: str = ""
    """Command that made the report."""
    code_version: str
    """Version of the package, with the commit where there is one."""
    machine: str
    """Processor, memory, accelerator and versions, in words."""
    model: str = ""
    """Base model and adapter, in words."""
    data_hashes: dict[str, str] = {}
    """File name to sha256 of the data that the examples come from."""
    left_out: dict[str, int] = {}
    """Test items of each part that were not asked because of a limit."""


class Quantiles(_Part):
    """How a cost spreads over requests, failed ones included; None where there was no request."""

    total: float
    p50: float | None
    p95: float | None


class Cost(_Part):
    """Tokens and time of the requests of one system."""

    requests: int
    prompt_tokens: Quantiles
    completion_tokens: Quantiles
    seconds: Quantiles
    """Wall time of a request, waiting in a batch or queue included."""
    completion_tokens_per_second: float | None
    """Completion tokens over the sum of the requests' seconds: the speed that one request sees. Requests that run side
    by side share the machine, so the machine's own rate is higher."""


class PartReport(_Part):
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


class Failure(_Part):
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


class SystemReport(_Part):
    """One system on all parts."""

    system: str
    parts: dict[str, PartReport]
    """Part name to numbers; `overall` holds all items."""
    wrong: int
    """Items that are not right, over all parts."""
    failures: tuple[Failure, ...]
    """The first of them."""


class Comparison(_Part):
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


class Report(_Part):
    """Everything that an evaluation found."""

    version: Literal[1] = 1
    meta: ReportMeta
    catalog_name: str
    catalog_hash: str
    examples_hash: str
    """Sha256 over the examples scored, in order."""
    items: int
    parts: tuple[str, ...]
    """Part names in the order of the examples."""
    systems: tuple[SystemReport, ...]
    comparisons: tuple[Comparison, ...]
    other_runs: int
    """Rows of items that are not among the examples; left aside."""
