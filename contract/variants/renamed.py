"""The renaming variant: workers and parameters under other names, in every place of the schemas that names them.

The idea is the function masking of Hammer (Lin et al., 2024): a planner that has learnt names instead of reading the
catalog fails here. Results keep their fields, nested properties keep their names, descriptions are handled as asked.
The prompt shows types, names and the first sentence of a worker's description only; once names carry no hint, what a
parameter is can stand only there, so by default it is put there, else no reader could tell two text parameters apart.
Not covered: an old name inside a description's text stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from plansmith.contract.catalog import Catalog, Schema, Worker
from plansmith.contract.variants.base import Names, Variant, permutation, variant_name
from plansmith.contract.variants.lots import picked
from plansmith.contract.variants.naming import NameKind, NameStyle, changed, cut_sentence, new_names, spoken
from plansmith.contract.variants.parameters import declared_parameters, mentioned_names, rename_parameters, why_fixed

_LONGEST_HINT = 60


class Descriptions(StrEnum):
    """What becomes of descriptions when names change."""

    KEEP = "keep"
    """they stay as they are"""
    EXPLAIN = "explain"
    """the first sentence says what each masked parameter is; a masked worker without description gets its old name's
    words. Reworded names say it themselves: nothing is added"""
    DROP = "drop"
    """those of workers and of their parameters are left out: with masked names only types are left"""


def renamed(
    catalog: Catalog,
    seed: int,
    *,
    worker_rate: float = 1.0,
    parameter_rate: float = 1.0,
    style: NameStyle = NameStyle.MASKED,
    descriptions: Descriptions = Descriptions.EXPLAIN,
) -> Variant:
    """Workers and parameters under other names.

    Args:
        catalog: the original.
        seed: another seed picks others and gives other names.
        worker_rate: share of the workers that get a new name; 0 none, 1 all.
        parameter_rate: share of each worker's parameters that get a new name. Workers whose schema has rules about
            parameter names by pattern keep all of them; they are in the variant's `unchanged_parameters`.
        style: what new names look like.
        descriptions: what becomes of descriptions.

    """
    chosen = picked(catalog.names, worker_rate, seed, "workers")
    order = [name for name in catalog.names if name in chosen]
    workers = new_names(order, style, NameKind.WORKER, taken=catalog.names, seed=seed, scope=())
    fixed = {worker.name: reason for worker in catalog.workers if (reason := why_fixed(worker.args)) is not None}
    parameters = {
        worker.name: _parameter_names(worker, style, parameter_rate, seed)
        for worker in catalog.workers
        if worker.name not in fixed
    }
    names = Names(permutation(workers), {name: permutation(own) for name, own in parameters.items() if own})
    made = [
        _renamed_worker(worker, workers.get(worker.name), parameters.get(worker.name, {}), names, style, descriptions)
        for worker in catalog.workers
    ]
    target = Catalog(variant_name(catalog, "renamed"), made)
    return Variant("renamed", catalog, target, names, unchanged_parameters=fixed if parameter_rate > 0 else {})


def _parameter_names(worker: Worker, style: NameStyle, rate: float, seed: int) -> dict[str, str]:
    declared = declared_parameters(worker.args)
    chosen = picked(declared, rate, seed, "parameters", worker.name)
    order = [name for name in declared if name in chosen]
    taken = mentioned_names(worker.args)
    return new_names(order, style, NameKind.PARAMETER, taken=taken, seed=seed, scope=(worker.name,))


def _renamed_worker(
    worker: Worker,
    new_name: str | None,
    parameters: Mapping[str, str],
    names: Names,
    style: NameStyle,
    descriptions: Descriptions,
) -> Worker:
    masked = style is NameStyle.MASKED
    args: Schema = rename_parameters(worker.args, names.parameters.get(worker.name, {}))
    if masked or descriptions is Descriptions.DROP:
        args = _without_hints(args, set(parameters.values()), masked=masked, descriptions=descriptions)
    description = worker.description
    if descriptions is Descriptions.DROP:
        description = ""
    elif descriptions is Descriptions.EXPLAIN and masked:
        description = _explained(worker, new_name is not None, parameters)
    return changed(worker, name=new_name or worker.name, args=args, description=description)


def _without_hints(args: Schema, new: set[str], *, masked: bool, descriptions: Descriptions) -> Schema:
    """The schema without titles, which repeat old names, and without descriptions where they are to go."""
    dropped = descriptions is Descriptions.DROP
    made = {key: value for key, value in args.items() if not (masked and new and key == "title")}
    if dropped:
        made.pop("description", None)
    if "properties" not in made:
        return made
    properties: dict[str, Any] = {}
    for name, schema in cast("dict[str, Any]", made["properties"]).items():
        gone = {"title"} if masked and name in new else set[str]()
        gone |= {"description"} if dropped else set()
        node = cast("dict[str, Any]", schema) if isinstance(schema, dict) else None
        properties[name] = schema if node is None else {key: node[key] for key in node if key not in gone}
    return made | {"properties": properties}


def _explained(worker: Worker, name_is_masked: bool, parameters: Mapping[str, str]) -> str:
    """The description with its first sentence made to say what the masked names no longer say."""
    sentence, rest = cut_sentence(worker.description)
    if not parameters and (sentence or not name_is_masked):
        return worker.description
    sentence = sentence.rstrip(".!?") or spoken(worker.name)
    hints = [f"{new}: {_hint(worker, old)}" for old, new in parameters.items()]
    made = f"{sentence} ({'; '.join(hints)})." if hints else f"{sentence}."
    return f"{made} {rest}".strip()


def _hint(worker: Worker, parameter: str) -> str:
    """What a parameter is, in a few words: the first sentence of its description, else its old name's words."""
    schema = worker.properties.get(parameter)
    told = cast("dict[str, Any]", schema).get("description") if isinstance(schema, dict) else None
    text = " ".join(cut_sentence(told)[0].rstrip(".!?").split()) if isinstance(told, str) else ""
    text = text or spoken(parameter)
    return text if len(text) <= _LONGEST_HINT else text[: _LONGEST_HINT - 3].rstrip() + "..."
