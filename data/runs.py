"""Which of very many texts another text may hold, by the runs of words that they share.

Reads runs of words with a number for each text; gives the texts of which a row may hold a wanted share. A row that
holds so many of a text's runs holds at least one of any few of them (prefix filtering, Chaudhuri et al. 2006), so only
each text's rarest runs are kept, 12 bytes a run, and a wording that thousands of texts share costs nothing. A text that
is given here may still turn out not to be held; one that is held is always given. Imports numpy, so it is imported
where it is used.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterable

import numpy as np
from numpy.typing import NDArray


class RunIndex:
    """Texts by their rarest runs. All are added first, then asked for."""

    def __init__(self, overlap: float) -> None:
        """`overlap`: the share of a text's runs that a row must hold."""
        self._overlap = overlap
        self._hashes = array("q")
        self._owners = array("I")
        self._kept = array("I")
        """By text: how many of its runs are kept."""
        self._keys: NDArray[np.int64] | None = None
        self._numbers: NDArray[np.uint32] = np.empty(0, np.uint32)

    def add(self, number: int, runs: Collection[Hashable]) -> None:
        """Add a text under a number that is higher than all before."""
        self._kept.extend([0] * (number - len(self._kept)))
        needed = max(1, int(self._overlap * len(runs) - 1e-6))
        self._kept.append(len(runs) - needed + 1 if runs else 0)
        self._hashes.extend(map(hash, runs))
        self._owners.extend([number] * len(runs))

    def candidates(self, runs: Iterable[Hashable]) -> list[int]:
        """Numbers of the texts of which a row with these runs may hold the wanted share, in order."""
        keys = self._sorted() if self._keys is None else self._keys
        wanted = np.fromiter(map(hash, runs), np.int64)
        if not len(keys) or not len(wanted):
            return []
        first = np.searchsorted(keys, wanted)
        held = keys[np.minimum(first, len(keys) - 1)] == wanted
        if not held.any():
            return []
        last = np.searchsorted(keys, wanted[held], "right")
        found = [self._numbers[start:end] for start, end in zip(first[held].tolist(), last.tolist(), strict=True)]
        return np.unique(np.concatenate(found)).tolist()

    def _sorted(self) -> NDArray[np.int64]:
        """Keep each text's rarest runs, sorted by their hashes."""
        keys, owners = np.array(self._hashes, np.int64), np.array(self._owners, np.uint32)
        self._hashes, self._owners = array("q"), array("I")
        _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
        order = np.lexsort((keys, counts[place.reshape(-1)], owners))
        owners = owners[order]
        rank = np.arange(len(owners)) - np.searchsorted(owners, owners)
        kept = rank < np.array(self._kept, np.int64)[owners]
        keys, owners = keys[order][kept], owners[kept]
        order = np.argsort(keys, kind="stable")
        self._keys, self._numbers = keys[order], owners[order]
        return self._keys
