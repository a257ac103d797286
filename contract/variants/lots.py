"""Choices that depend on a seed and on names only, through sha256: the same on every machine and Python version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def lot(seed: int, *parts: str) -> int:
    """A whole number from 0 to 2**64 - 1 that depends on the arguments only."""
    data = "\0".join([str(seed), *parts]).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:8])


def ranked(items: Iterable[str], seed: int, *what: str) -> list[str]:
    """The items in the order of their lots."""
    return sorted(items, key=lambda item: (lot(seed, *what, item), item))


def picked(items: Sequence[str], rate: float, seed: int, *what: str) -> frozenset[str]:
    """A share of the items, those with the lowest lots; a rate above 0 picks at least one where there is one."""
    count = max(round(rate * len(items)), 1 if rate > 0 else 0)
    return frozenset(ranked(items, seed, *what)[:count])


def mixed_in(base: Sequence[Item], added: Sequence[tuple[str, Item]], seed: int) -> list[Item]:
    """`base` in its order, with the added items (each with its name) put between at random places."""
    places: dict[int, list[Item]] = {}
    for name, item in added:
        places.setdefault(lot(seed, "place", name) % (len(base) + 1), []).append(item)
    made: list[Item] = []
    for index in range(len(base) + 1):
        made += places.get(index, [])
        made += base[index : index + 1]
    return made
