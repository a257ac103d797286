"""Generator of queries with their plans, right by construction, for the example catalog `catalog.json`.

Reads nothing; `python queries.py --seed 0 --count 5` prints rows. A wording is chosen and expanded, its slots are
filled with entities, and the same entities are put into the task's steps, so the plan follows from the query by fixed
conventions (README.md). Not covered: dialogue, other languages, and queries where several plans would be right.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import families
from chains import CHAINS
from entities import draw
from families import PAIRS, SEVERAL, THEN, TRIPLES, shift
from templates import TASKS, Task
from unserved import UNSERVED

SOURCE = "examples/assistant"
"""Generated text under the licence of this repository."""

ALL_TASKS = TASKS | CHAINS
KINDS = ("commands", "questions", "things")
GROUPS = {"single": 52, "chain": 20, "several": 8, "pair": 6, "triple": 1, "then": 1, "none": 12}
"""Share of each group of families in percent."""

LOWER_SHARE = 0.1
"""Share of queries in lower case, entities included (they are copied as written)."""
TYPO_SHARE = 0.03
"""Share of queries with one typing error outside the entities."""
_MAX_TRIES = 200

Plan = list[dict[str, Any]]


class Clause(NamedTuple):
    """A wording with its slots filled, and the values for the plan."""

    text: str
    values: dict[str, Any]


def candidates(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` rows of distinct queries, the same for the same seed; the first rows do not depend on `count`.

    Raises:
        ValueError: so many distinct queries were not found.

    """
    rng = Random(f"assistant-{seed}")
    seen: set[str] = set()
    for index in range(count):
        query, plan, family = _distinct(rng, seen)
        yield {
            "id": f"assistant-{seed}-{index:06}",
            "query": query,
            "plan": plan,
            "family": family,
            "source": SOURCE,
        }


def normalise(query: str) -> str:
    """Lower-case words only: two queries that differ in less are the same query."""
    return " ".join(re.findall(r"\w+", query.casefold()))


def _distinct(rng: Random, seen: set[str]) -> tuple[str, Plan, str]:
    for _ in range(_MAX_TRIES):
        group = rng.choices(list(GROUPS), weights=list(GROUPS.values()))[0]
        name = rng.choice(FAMILIES[group])
        query, plan = _row(name, rng)
        key = normalise(query)
        if key not in seen:
            seen.add(key)
            return query, plan, name
    raise ValueError(f"only {len(seen)} distinct queries found; ask for fewer, or add wordings and entities.")


def _families() -> dict[str, list[str]]:
    """Family names by group: `quote/questions`, `quote+forecast`, `add>send`, `none_trade/things`."""
    single = [name for name, task in ALL_TASKS.items() if len(task.steps) == 1]
    chain = [name for name in ALL_TASKS if name not in single]
    return {
        "single": [f"{name}/{kind}" for name in single for kind in KINDS],
        "chain": [f"{name}/{kind}" for name in chain for kind in KINDS],
        "several": [f"{name}/{kind}" for name in SEVERAL for kind in KINDS],
        "pair": [pair.replace(" ", "+") for pair in PAIRS.split(", ")],
        "triple": [triple.replace(" ", "+") for triple in TRIPLES.split(", ")],
        "then": [pair.replace(" ", ">") for pair in THEN.split(", ")],
        "none": [f"{name}/{kind}" for name in UNSERVED for kind in KINDS],
    }


FAMILIES = _families()


def _row(family: str, rng: Random) -> tuple[str, Plan]:
    lower = rng.random() < LOWER_SHARE
    names = re.split(r"[+>]", family)
    if "/" in family:
        name, kind = family.split("/")
        task = (ALL_TASKS | SEVERAL | UNSERVED)[name]
        wording, parts = _framed(_wording(task, kind, rng), kind, rng), [task]
    elif ">" in family:
        parts = [ALL_TASKS[name] for name in names]
        texts = [_wording(task, "commands", rng) for task in parts]
        wording = _framed(_numbered(texts, families.THEN_JOINS, rng), "commands", rng)
    else:
        rng.shuffle(names)
        names.sort(key=lambda name: name in families.LAST)
        parts = [ALL_TASKS[name] for name in names]
        wording = _joined(parts, rng)
    clause = _fill(_finished(wording, lower, rng), rng, lower=lower)
    return clause.text, _plan(parts, clause.values, wait=">" in family)


def _wording(task: Task, kind: str, rng: Random) -> str:
    options: tuple[str, ...] = getattr(task, kind)
    return expand(rng.choice(options), rng)


def _joined(parts: list[Task], rng: Random) -> str:
    """Several tasks in one query: as commands, questions or things in one sentence, or as sentences of any kind."""
    kind = rng.choice((*KINDS, "sentences"))
    if kind == "sentences":
        kinds = [rng.choice(KINDS) for _ in parts]
        texts = [_framed(_wording(t, k, rng), k, rng) for t, k in zip(parts, kinds, strict=True)]
        return " ".join(_numbered_slots(_capital(text), index) for index, text in enumerate(texts))
    texts = [_wording(task, kind, rng) for task in parts]
    return _framed(_numbered(texts, families.JOINS[kind], rng), kind, rng)


def _numbered(texts: list[str], joins: tuple[str, ...], rng: Random) -> str:
    """Texts in one sentence; each keeps slots of its own (`{city.0}`, `{city.1}`)."""
    text = _numbered_slots(texts[0], 0)
    for index, item in enumerate(texts[1:], 1):
        join = rng.choice(joins) if index == len(texts) - 1 else ", "
        text += join + _numbered_slots(item, index)
    return text


def _numbered_slots(text: str, index: int) -> str:
    return re.sub(r"\{(\w+)\}", rf"{{\1.{index}}}", text)


def _framed(text: str, kind: str, rng: Random) -> str:
    opener, end = rng.choice(families.OPENERS[kind])
    return opener + text + end


def _finished(text: str, lower: bool, rng: Random) -> str:
    """Small talk, capital letters, a typing error, a missing full stop: what people do around a wish."""
    text = _capital(text)
    if rng.random() < 0.08:
        text = f"{rng.choice(families.SMALL_TALK)} {text}"
    if text[-1] in ".?":
        text = text[:-1] if rng.random() < 0.25 else text + rng.choice(families.CLOSERS)
    if rng.random() < TYPO_SHARE:
        text = _with_typo(text, rng)
    return _outside_slots(text, str.lower) if lower else text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _outside_slots(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if part.startswith("{") else change(part) for part in re.split(r"(\{[\w.]+\})", text))


def _with_typo(text: str, rng: Random) -> str:
    """Two letters swapped or one left out, in one longer word outside the slots."""
    words = [match for match in re.finditer(r"(?<![{\w.])[a-z]{5,}(?![}\w.])", text)]
    if not words:
        return text
    word = rng.choice(words)
    place = word.start() + rng.randint(1, len(word[0]) - 3)
    swap = text[place + 1] + text[place] if rng.random() < 0.5 else text[place]
    return text[:place] + swap + text[place + 2 :]


def expand(template: str, rng: Random) -> str:
    """Choose among `(a|b)` and `[x]` of a wording, inner ones first; slots stay.

    Example: `(get|fetch) {stock}[ now]` may become `fetch {stock}`.
    """
    while (match := re.search(r"\(([^()\[\]]*)\)|\[([^()\[\]]*)\]", template)) is not None:
        optional = match[2]
        chosen = rng.choice(match[1].split("|")) if optional is None else rng.choice((optional, ""))
        template = template[: match.start()] + chosen + template[match.end() :]
    return template


def _fill(text: str, rng: Random, *, lower: bool) -> Clause:
    """Put an entity into each slot; no entity stands twice in one query."""
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    used: set[str] = set()

    def put(match: re.Match[str]) -> str:
        slot = match[1]
        if slot in texts:
            return texts[slot]
        entity = draw(slot.split(".")[0], rng)
        while entity.text.casefold() in used:
            entity = draw(slot.split(".")[0], rng)
        used.add(entity.text.casefold())
        texts[slot] = entity.text.lower() if lower else entity.text
        value = entity.value
        values[re.sub(r"^on(?=\d|\.|$)", "date", slot)] = value.lower() if lower and isinstance(value, str) else value
        return texts[slot]

    return Clause(re.sub(r"\{([\w.]+)\}", put, text), values)


def _plan(parts: list[Task], values: dict[str, Any], *, wait: bool) -> Plan:
    """The steps of all parts, one part after another, with the query's values in them."""
    plan: Plan = []
    for index, task in enumerate(parts):
        own = {name.removesuffix(f".{index}"): value for name, value in values.items() if _belongs(name, index)}
        first = len(plan)
        for worker, args in task.steps:
            step: dict[str, Any] = {"type": worker, "args": _with_values(shift(args, first), own)}
            plan.append(step | {"after": [first - 1]} if wait and first and len(plan) == first else step)
    return plan


def _belongs(name: str, index: int) -> bool:
    return "." not in name or name.endswith(f".{index}")


_ABSENT = object()


def _with_values(value: Any, values: dict[str, Any]) -> Any:
    """A step's arguments with `@slot` replaced; what has no value in the query is left out."""
    if isinstance(value, dict):
        filled = {key: _with_values(item, values) for key, item in value.items()}
        return {key: item for key, item in filled.items() if item is not _ABSENT}
    if isinstance(value, list):
        items = [item for item in (_with_values(item, values) for item in value) if item is not _ABSENT]
        return items or _ABSENT
    if isinstance(value, str) and value.startswith("@"):
        slot, rest = re.fullmatch(r"@(\w+)(.*)", value, re.DOTALL).groups()  # type: ignore[union-attr]
        if rest:
            return str(values[slot]) + rest
        return values.get(slot, _ABSENT)
    return value


def main() -> None:
    """Print rows as JSON lines."""
    parser = argparse.ArgumentParser(description="Print generated queries with their plans, one JSON object a line.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    for row in candidates(options.seed, options.count):
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
