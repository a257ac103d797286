"""What the checker needs of a catalog's workers, made once a catalog and kept.

Validators are compiled on first use (`around.py`); places that references led to are kept up to a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from plansmith.contract.around import Parameter
from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.schema import Place, find_place

_MAX_PLACES = 1024
_PLAIN_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description"}
    | {"default", "examples", "$schema", "$comment", "$id"}
)
"""Keywords of `args` that are checked a parameter at a time; any other needs a validator for the whole."""


@dataclass(frozen=True, slots=True)
class CompiledWorker:
    """One worker, ready for checks."""

    worker: Worker
    parameters: dict[str, Parameter]
    required: tuple[str, ...]
    whole: Parameter | None
    """The whole of `args`, where it has rules beyond its properties."""
    places: dict[tuple[str, ...], Place]
    """Places of the result that references led to, kept up to a limit."""

    def find(self, tokens: tuple[str, ...]) -> Place:
        """Where a pointer below this worker's result leads."""
        found = self.places.get(tokens)
        if found is None:
            found = find_place(self.worker.returns, tokens)
            if len(self.places) < _MAX_PLACES:
                self.places[tokens] = found
        return found


@lru_cache(maxsize=64)
def compile_catalog(catalog: Catalog) -> dict[str, CompiledWorker]:
    """Every worker by name; catalogs of equal content share one result."""
    return {worker.name: _compile(worker) for worker in catalog.workers}


def _compile(worker: Worker) -> CompiledWorker:
    args = worker.args
    parameters = {name: Parameter(schema, args, ("properties", name)) for name, schema in worker.properties.items()}
    whole = None if args.keys() <= _PLAIN_KEYWORDS else Parameter(args, args, ())
    return CompiledWorker(worker, parameters, tuple(args.get("required", ())), whole, {})
