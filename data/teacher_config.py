"""Settings of queries and of the teacher. Light: pydantic only.

Read by `plansmith data queries` and `plansmith data teach`. Where the teacher is and how it is reached is not said
here: the command line hands a planner in.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from plansmith.contract.teaching import AnswerForm
from plansmith.data.config import BfclCategory, Section, Share
from plansmith.data.ray_config import RayConfig

Weight = Annotated[float, Field(gt=0)]
DEFAULT_CONCURRENCY = 8
"""Requests under way at once where neither config nor endpoint says how many."""


class LogFormat(StrEnum):
    """What a file of queries is."""

    AUTO = "auto"
    """by the end of its name: `.jsonl`, `.csv`, `.tsv`; anything else is text"""
    JSONL = "jsonl"
    """one JSON object a line"""
    CSV = "csv"
    """comma-separated, with a line of column names first; fields may hold line breaks in quotes"""
    TSV = "tsv"
    """as `csv`, with tabs"""
    TEXT = "text"
    """one query a line"""


class LogQueries(Section):
    """The user's own queries: JSONL, CSV or text, in UTF-8."""

    kind: Literal["log"]
    path: Path
    """The file."""
    format: LogFormat = LogFormat.AUTO
    """What the file is."""
    field: str = "query"
    """Key (JSONL) or column (CSV) that holds the query; `request.messages.0.content` goes down into objects."""
    language: str | None = None
    """Language of all queries in it, where it is known."""
    max_characters: int = Field(default=4000, ge=1)
    """Longer queries are rejected as `too_long`."""
    limit: int | None = Field(default=None, ge=1)
    """Only so many rows of the file are read; None: all."""


class NestfulSet(StrEnum):
    """Parts of IBM's NESTFUL."""

    COMPLEXFUNCBENCH = "complexfuncbench"
    """1,000 travel queries, 38 workers, with recorded results"""
    EXECUTABLE = "executable"
    """85 queries, 39 workers of public APIs"""
    GLAIVE = "glaive"
    """169 queries, 64 workers"""
    SGD = "sgd"
    """46 queries, 30 workers"""


class NestfulQueries(Section):
    """Queries of one part of NESTFUL (Apache-2.0); its specs are the catalog where no other is given."""

    kind: Literal["nestful"]
    part: NestfulSet = NestfulSet.COMPLEXFUNCBENCH
    """Which part."""
    wheel: Path | None = None
    """The package's wheel where it is already on this machine; None fetches it once into the user's cache."""


class BfclQueries(Section):
    """Queries of BFCL v4 (Apache-2.0), with a catalog shared by the rows that go together."""

    kind: Literal["bfcl"]
    categories: tuple[BfclCategory, ...] = tuple(
        category for category in BfclCategory if not category.value.endswith("relevance")
    )
    """Categories to read. Where a catalog is given, those in which no function fits can be read too."""
    max_workers: int = Field(default=64, ge=1)
    """Most functions in the shared catalog."""
    wheel: Path | None = None
    """The package's wheel where it is already on this machine; None fetches it once into the user's cache."""


class Mix(Section):
    """What the plans of grown queries shall be like. The manifests compare it with what came out."""

    abstain: Share = 0.1
    """Share of queries that no worker fits."""
    steps: dict[Annotated[int, Field(ge=1, le=16)], Weight] = Field(default={1: 0.5, 2: 0.3, 3: 0.2})
    """Of the rest: how many steps the plan has, with weights."""
    independent: Share = 0.25
    """Of the queries of several steps: share of those whose steps do not need each other."""
    workers: dict[str, Weight] = Field(default={})
    """How often a worker is used against the others; 1 for those that are not named."""
    languages: dict[str, Weight] = Field(default={"en": 1.0})
    """Languages of the queries, with weights; names as BCP 47 gives them (`en`, `de`, `pt-BR`)."""

    @model_validator(mode="after")
    def _has_steps_and_languages(self) -> Self:
        if not self.steps or not self.languages:
            raise ValueError("'steps' and 'languages' need at least one entry each")
        return self


class FitRule(StrEnum):
    """Which results count as fit for a parameter, when queries for several workers are grown."""

    NAMED = "named"
    """the types fit, and the names of the result's field and the parameter share a word; all fits where none do"""
    TYPED = "typed"
    """the types fit"""


class Budget(Section):
    """Limits on what the service is asked; earlier answers that are still used count too."""

    requests: int | None = Field(default=None, ge=1)
    """Most requests, repeated ones included; None: no limit."""
    tokens: int | None = Field(default=None, ge=1)
    """Most tokens of prompts and answers together; None: no limit."""
    money: float | None = Field(default=None, gt=0)
    """Most money, at the prices below; None: no limit."""
    price_prompt: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens."""
    price_completion: float | None = Field(default=None, ge=0)
    """Price of a million completion tokens."""
    currency: str = "USD"
    """Currency of the prices."""

    @model_validator(mode="after")
    def _has_prices(self) -> Self:
        if self.money is not None and not (self.price_prompt or self.price_completion):
            raise ValueError("a limit on money needs 'price_prompt' and 'price_completion' of a million tokens")
        return self


class GrownQueries(Section):
    """Queries that a teacher invents from the catalog."""

    kind: Literal["grown"]
    count: int = Field(default=400, ge=1)
    """How many queries are wanted; fewer may come where the teacher repeats itself."""
    mix: Mix = Mix()
    """What their plans shall be like."""
    fits: FitRule = FitRule.NAMED
    """Which workers follow each other in queries of several steps."""
    per_request: int = Field(default=8, ge=1, le=50)
    """Queries asked for in one request."""
    rounds: int = Field(default=3, ge=1)
    """How often what is missing is asked for anew."""
    temperature: float | None = Field(default=1.0, ge=0, le=2)
    """Sampling temperature; None: the endpoint's own."""
    max_tokens: int = Field(default=1024, ge=1)
    """Token limit of one answer."""
    max_characters: int = Field(default=600, ge=1)
    """Longer queries are rejected as `too_long`."""
    concurrency: int | None = Field(default=None, ge=1, le=4096)
    """Requests under way at once; None: as many as the endpoint's own setting allows."""
    budget: Budget = Budget()
    """Where to stop."""


QuerySource = Annotated[LogQueries | NestfulQueries | BfclQueries | GrownQueries, Field(discriminator="kind")]


class QueriesConfig(Section):
    """Where queries come from."""

    sources: tuple[QuerySource, ...] = Field(min_length=1)
    """Read in this order; of two equal queries the first is kept."""


class Repaired(StrEnum):
    """What happens to an answer that had to be mended to be read."""

    KEEP = "keep"
    """it goes on to be verified, and is counted as repaired"""
    REJECT = "reject"
    """it is rejected under `repaired`"""


class TeachConfig(Section):
    """How the teacher is asked, and how much."""

    examples: Path | None = None
    """JSONL of examples `{"query","note","plan"}` that the teacher sees; None: none."""
    form: AnswerForm = AnswerForm.NOTE_AND_PLAN
    """What the teacher writes."""
    samples: int = Field(default=1, ge=1, le=100)
    """Answers a query; all first ones are asked before any second one."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """0: greedy; above: sampled, each answer with a seed of its own; None: the endpoint's own, without seeds."""
    seed: int = Field(default=1, ge=0)
    """What the seeds are made from."""
    constrained: bool = True
    """Have the endpoint decode under the plan grammar, where it can; plans are checked all the same."""
    concurrency: int | None = Field(default=None, ge=1, le=4096)
    """Requests under way at once, fewer while the endpoint says that it is asked too much; None: as many as the
    endpoint's own setting allows."""
    give_up_after: int = Field(default=20, ge=1)
    """Requests that may fail one after the other, each after its own retries, before the service counts as gone."""
    repaired: Repaired = Repaired.KEEP
    """What happens to answers that had to be mended."""
    budget: Budget = Budget()
    """Where to stop."""
    ray: RayConfig | None = None
    """Have workers of Ray ask the endpoint, each with its share of `concurrency`; changes no answer's key. None: this
    process asks."""

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("samples above 1 need a temperature above 0: greedy answers are all the same")
        return self
