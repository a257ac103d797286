"""Types of the report's further tables: what a system costs, teacher against student, and the headline's form."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from plansmith.eval.stats import Metric


class Row(BaseModel):
    """Base of the report's types."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Quantiles(Row):
    """How a cost spreads over requests, failed ones included; None where there was no request."""

    total: float
    p50: float | None
    p95: float | None
    p99: float | None


class Cost(Row):
    """Tokens, time and money of the requests of one system in one part."""

    requests: int
    prompt_tokens: Quantiles
    completion_tokens: Quantiles
    seconds: Quantiles
    """Wall time of a request, waiting in a batch or queue included."""
    completion_tokens_per_second: float | None
    """Completion tokens over the sum of the requests' seconds: the speed that one request sees. Requests that run side
    by side share the machine, so the machine's own rate is higher."""
    price: float | None
    """What the requests cost at the configured prices; None where no price is given."""
    price_per_solved: float | None
    """`price` over the items whose plan is equivalent to a reference; None where nothing was solved or no price is
    given. Failed and wrong requests are paid too."""


class TeacherRow(Row):
    """One student beside the teacher on the same items of one part."""

    part: str
    student: str
    items: int
    teacher_correct: Metric
    """`equivalent` of the teacher against the references."""
    student_correct: Metric
    """`equivalent` of the student against the references."""
    agreement: Metric
    """Share of items on which the student's plan is equivalent to the teacher's, right or wrong."""
    teacher_unreadable: int
    """Items on which the teacher gave no plan: nobody can agree there; they stay in the denominator."""
    self_agreement: Metric | None
    """The teacher's agreement with itself when it is sampled: the ceiling of agreement. None where it was not."""


class TeacherTable(Row):
    """Agreement and correctness, never mixed."""

    teacher: str
    sampled: str | None
    """The system whose samples give the self-agreement."""
    temperature: float | None
    rows: tuple[TeacherRow, ...]


class Headline(Row):
    """Student against teacher in one run on one machine: accuracy difference, times faster, memory saved."""

    teacher: str
    student: str
    items: int
    metric: str
    difference: float
    """Student minus teacher, as a share of items."""
    low: float
    high: float
    """95% interval of the difference (paired bootstrap)."""
    p_value: float | None
    """McNemar's exact test."""
    times_faster: float | None
    """Plans a second of the student over those of the teacher, each at its own concurrency; None where unknown."""
    latency_ratio: float | None
    """Median seconds of a request of the teacher over the student's."""
    memory_saved: float | None
    """1 minus peak memory of the student over the teacher's, as a share; negative where it takes more."""
    bytes_saved: float | None
    """The same for the bytes of the weights on disk."""
