"""What a teacher is asked to invent, so that the wanted mix comes out: workers, language and style of each request.

Pure and the same for the same catalog, config and seed. Queries are shared out over steps and languages by largest
remainder; within that, workers are chosen so that each is used as often as its weight says.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.data.query_sources.fitting import Fit, find_chains, find_fits
from plansmith.data.teacher_config import FitRule, Mix


class Kind(StrEnum):
    """What a query needs."""

    ONE = "one"
    """one worker"""
    CHAIN = "chain"
    """several workers, each taking something from the one before"""
    SEPARATE = "separate"
    """several workers that do not need each other"""
    NONE = "none"
    """no worker fits"""


class Cell(NamedTuple):
    """Queries that are counted together."""

    kind: Kind
    steps: int
    language: str


class Slot(NamedTuple):
    """One request: so many queries of one sort."""

    cell: Cell
    workers: tuple[str, ...]
    fits: tuple[Fit, ...]
    """What each worker takes from the one before, in a chain."""
    number: int
    """Of the requests of its round, for style and seed."""
    round: int
    size: int
    """Queries wanted."""


def share_out(count: int, mix: Mix) -> dict[Cell, int]:
    """How many queries of each cell; they add up to `count`."""
    steps = sum(mix.steps.values())
    languages = sum(mix.languages.values())
    shares: dict[Cell, float] = {}
    for language, weight in mix.languages.items():
        part = weight / languages
        shares[Cell(Kind.NONE, 0, language)] = part * mix.abstain
        for length, share in sorted(mix.steps.items()):
            whole = part * (1 - mix.abstain) * share / steps
            if length == 1:
                shares[Cell(Kind.ONE, 1, language)] = whole
            else:
                shares[Cell(Kind.CHAIN, length, language)] = whole * (1 - mix.independent)
                shares[Cell(Kind.SEPARATE, length, language)] = whole * mix.independent
    counts = {cell: int(count * share) for cell, share in shares.items()}
    rest = sorted(shares, key=lambda cell: counts[cell] - count * shares[cell])[: count - sum(counts.values())]
    return {cell: counts[cell] + (cell in rest) for cell in shares if counts[cell] + (cell in rest)}


class Chooser:
    """Chooses workers for one request after the other, those first that were used least for their weight."""

    def __init__(self, catalog: Catalog, mix: Mix, rule: FitRule, seed: int) -> None:
        """Prepare.

        Raises:
            InputError: the catalog is empty, or the mix weighs a worker that it does not have.

        """
        unknown = sorted(set(mix.workers) - set(catalog.names))
        if unknown or not catalog.names:
            raise InputError(
                f"the mix weighs the workers {unknown}, which the catalog {catalog.name!r} does not have."
                if unknown
                else f"the catalog {catalog.name!r} has no workers to grow queries for."
            )
        self.notes: Counter[str] = Counter()
        self._weights: Mapping[str, float] = {name: mix.workers.get(name, 1.0) for name in catalog.names}
        self._used: Counter[str] = Counter()
        self._fits = find_fits(catalog, rule)
        self._chains: dict[int, list[tuple[Fit, ...]]] = {}
        self._seed = seed

    def slots(self, wanted: Mapping[Cell, int], *, per_request: int, number: int) -> Iterator[Slot]:
        """Requests that bring so many queries of each cell; `number` is that of the round."""
        index = 0
        for cell, count in wanted.items():
            for start in range(0, count, per_request):
                size = min(per_request, count - start)
                workers, fits = self._choose(cell, f"{number}/{index}")
                self._used.update(dict.fromkeys(workers, size))
                kind = Kind.SEPARATE if cell.kind is Kind.CHAIN and not fits else cell.kind
                yield Slot(cell._replace(kind=kind), workers, fits, index, number, size)
                index += 1

    def _choose(self, cell: Cell, salt: str) -> tuple[tuple[str, ...], tuple[Fit, ...]]:
        if cell.kind is Kind.NONE:
            return (), ()
        if cell.kind is Kind.CHAIN:
            if cell.steps not in self._chains:
                self._chains[cell.steps] = find_chains(self._fits, cell.steps, self._seed)
            chains = self._chains[cell.steps]
            if chains:
                best = min(chains, key=lambda chain: (self._load(_of_chain(chain)), self._tie(_of_chain(chain), salt)))
                return _of_chain(best), best
            self.notes["chains_that_no_types_fit"] += 1
        ranked = sorted(self._weights, key=lambda name: (self._load((name,)), self._tie((name,), salt)))
        return tuple(ranked[: cell.steps]), ()

    def _load(self, workers: Sequence[str]) -> float:
        return sum(self._used[name] / self._weights[name] for name in workers)

    def _tie(self, workers: Sequence[str], salt: str) -> bytes:
        return hashlib.sha256(f"{self._seed}/{salt}/{workers}".encode()).digest()


def _of_chain(chain: Sequence[Fit]) -> tuple[str, ...]:
    return chain[0].giver, *(fit.taker for fit in chain)
