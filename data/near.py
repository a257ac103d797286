"""Finding queries that are nearly the same: MinHash signatures, cut into bands, looked up in sorted arrays.

Reads normalised texts and hashes of their plans; gives row numbers that are worth comparing, and the exact similarity
of two texts. Signatures come from rensa (MinHash in Rust; measured 30 times as fast as datasketch here). The index is
our own: the libraries' keep 2 to 5.5 KiB a row (over 2 GiB for a million rows) and know nothing of plans, this one
keeps 24 bytes a band. The bands follow Broder (1997) and Indyk and Motwani (1998). Results depend on texts, config and
seed only. Imports numpy, so it is imported where it is used. Not covered: similarity of meaning; rows on several
machines (signatures can be computed anywhere, the index is one).
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plansmith.contract.errors import MissingExtraError
from plansmith.contract.store import StorageError
from plansmith.data.dedupe_config import NearConfig

U64 = NDArray[np.uint64]
Grams = frozenset[tuple[str, ...]]
Rows = tuple[int, ...]
EXTRA = "data"
RECALL = 0.99
"""Share of pairs at the threshold that the bands must find; more similar pairs are found more surely."""
IN_BUCKET = 16
"""Rows of one bucket that are considered, the earliest first."""
TRIES = 24
"""Rows that are compared with a new one, those that share most bands first."""
_MIX, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)
_PAD = "\0"


def require_packages() -> None:
    """Raise `MissingExtraError` (an `InputError`) where a package that near duplicates need is not installed."""
    if find_spec("rensa") is None:
        raise MissingExtraError("rensa", EXTRA)


def text_key(text: str) -> int:
    """64-bit hash of a text."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


@lru_cache(maxsize=2048)
def grams(text: str, size: int) -> Grams:
    """All runs of `size` characters; a shorter text is one run."""
    if len(text) < size:
        return frozenset([tuple(text)])
    return frozenset(zip(*[text[at:] for at in range(size)], strict=False))


def jaccard(one: Grams, other: Grams) -> float:
    """Size of the intersection over size of the union, 0 to 1."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


class Bands(NamedTuple):
    """How a signature is cut: `bands` bands of `width` values. Texts that agree in a whole band are compared."""

    bands: int
    width: int

    def found(self, similarity: float) -> float:
        """Probability that two texts of this similarity agree in at least one band."""
        return 1 - (1 - similarity**self.width) ** self.bands


def bands_for(threshold: float, permutations: int) -> Bands:
    """The widest bands that still find `RECALL` of the pairs at the threshold."""
    cuts = (Bands(permutations // width, width) for width in range(permutations, 1, -1))
    return next((cut for cut in cuts if cut.found(threshold) >= RECALL), Bands(permutations, 1))


class Signer:
    """Gives each text one 64-bit key a band; pure, so that any process may do it for any texts."""

    def __init__(self, config: NearConfig, *, seed: int) -> None:
        require_packages()
        self.cut = bands_for(config.threshold, config.permutations)
        self._size = config.shingle
        self._seed = seed % 2**64
        self._rensa: Any = import_module("rensa")

    def keys(self, texts: Sequence[str]) -> U64:
        """Keys, texts x bands."""
        count, width = self.cut
        if not texts:
            return np.empty((0, count), np.uint64)
        hashes, offsets = _gram_hashes(texts, self._size)
        matrix = self._rensa.RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, count * width, self._seed)
        values = chain.from_iterable(matrix.to_rows())
        signatures = np.fromiter(values, np.uint64, len(texts) * count * width).reshape(len(texts), count, width)
        keys = np.broadcast_to(np.arange(count, dtype=np.uint64), (len(texts), count))
        for place in range(width):
            keys = _mixed(keys ^ signatures[:, :, place])
        return keys


def _gram_hashes(texts: Sequence[str], size: int) -> tuple[U64, U64]:
    """64-bit hashes of all shingles of all texts one after the other, and where each text's begin (and the end)."""
    padded = [text.ljust(size, _PAD) for text in texts]
    codes = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    windows = np.zeros(len(codes) - size + 1, np.uint64)
    for place in range(size):
        windows = _mixed(windows + codes[place : place + len(windows)] + np.uint64(1))
    lengths = np.fromiter(map(len, padded), np.int64, len(padded))
    counts = lengths - size + 1
    offsets = np.concatenate(([0], np.cumsum(counts)))
    across = np.repeat(np.arange(len(padded)) * (size - 1), counts)
    return windows[np.arange(offsets[-1]) + across], offsets.astype(np.uint64)


def _mixed(values: U64) -> U64:
    values = values * _MIX
    return values ^ (values >> _SHIFT)


def with_plans(keys: U64, plans: Sequence[int]) -> U64:
    """Band keys that agree only where the plans' hashes do too."""
    return _mixed(keys ^ np.array(plans, np.uint64)[:, None])


class SortedRuns:
    """A map from 64-bit keys to row numbers: a few sorted arrays, each at least twice as long as the next.

    Row numbers must grow from call to call, so that a key's rows come out in the order in which they were added.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[U64, NDArray[np.uint32]]] = []

    def add(self, keys: U64, rows: NDArray[np.uint32]) -> None:
        """Add pairs; where a key comes twice, its rows must be in order."""
        if len(keys):
            self._runs.append(_sorted(keys, rows))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            (keys, rows), (more_keys, more_rows) = self._runs[-2:]
            del self._runs[-2:]
            self._runs.append(_sorted(np.concatenate((keys, more_keys)), np.concatenate((rows, more_rows))))

    def first(self, keys: U64, limit: int) -> dict[int, Rows]:
        """The first rows of each key, at most `limit`, by the key's place; keys without rows are left out."""
        order: NDArray[np.int64] = np.argsort(keys)
        wanted = keys[order]
        room = np.full(len(keys), limit)
        found: dict[int, Rows] = {}
        for run_keys, rows in self._runs:
            at = np.searchsorted(run_keys, wanted)
            open_ = np.flatnonzero(room)
            while len(open_):
                open_ = open_[at[open_] < len(run_keys)]
                open_ = open_[run_keys[at[open_]] == wanted[open_]]
                places: list[int] = order[open_].tolist()
                for place, row in zip(places, rows[at[open_]].tolist(), strict=True):
                    found[place] = (*found.get(place, ()), row)
                room[open_] -= 1
                at[open_] += 1
                open_ = open_[room[open_] > 0]
        return found


def _sorted(keys: U64, rows: NDArray[np.uint32]) -> tuple[U64, NDArray[np.uint32]]:
    order = np.argsort(keys, kind="stable")
    return keys[order], rows[order]


class KeyMap:
    """Rows by key, at most `limit` for each key: those that came first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._runs = SortedRuns()

    def open(self, keys: U64) -> Batch:
        """Look up rows x keys at once; rows of the batch can then be added one by one, and see each other."""
        return Batch(keys, self._runs.first(keys.reshape(-1), self.limit), self.limit)

    def close(self, batch: Batch) -> None:
        """Take over the rows that were added to a batch; every batch is closed before the next is opened."""
        self._runs.add(*batch.added())


class Batch:
    """Some rows with their keys: what a `KeyMap` has for them, and which of them share keys.

    Only keys that have rows already or come twice need work row by row; most do not.
    """

    def __init__(self, keys: U64, stored: dict[int, Rows], limit: int) -> None:
        self._keys, self._stored, self._limit = keys, stored, limit
        self._room = np.ones(keys.shape, np.bool_)
        flat = keys.reshape(-1)
        _, first, counts = np.unique(flat, return_inverse=True, return_counts=True)
        shared: list[int] = np.flatnonzero(counts[first.reshape(-1)] > 1).tolist()
        self._shared: dict[int, list[int]] = {}
        recent: dict[int, list[int]] = {}
        for place in shared:
            self._shared[place] = recent.setdefault(int(flat[place]), [])
        self._places: dict[int, list[int]] = {}
        for place in sorted({*stored, *shared}):
            self._places.setdefault(place // keys.shape[1], []).append(place)
        self._rows: list[int] = []
        self._numbers: list[int] = []

    def rows(self, at: int) -> list[int]:
        """Rows that share a key with a row of the batch, those that share most keys first, then the earliest."""
        found: list[int] = []
        for place in self._places.get(at, ()):
            stored = self._stored.get(place, ())
            found += stored
            found += self._shared.get(place, ())[: self._limit - len(stored)]
        if len(found) < 2:
            return found
        shared = Counter(found)
        return sorted(shared, key=lambda row: (-shared[row], row))

    def add(self, at: int, number: int) -> None:
        """Add a row of the batch under a number that is higher than all before."""
        self._rows.append(at)
        self._numbers.append(number)
        for place in self._places.get(at, ()):
            recent = self._shared.get(place)
            if len(self._stored.get(place, ())) + len(recent or ()) >= self._limit:
                self._room[at, place % self._keys.shape[1]] = False
            elif recent is not None:
                recent.append(number)

    def added(self) -> tuple[U64, NDArray[np.uint32]]:
        """Keys and numbers of the added rows, without those for which a key has no room."""
        room = self._room[self._rows]
        numbers = np.broadcast_to(np.array(self._numbers, np.uint32)[:, None], room.shape)
        return self._keys[self._rows][room], numbers[room]


class NearIndex:
    """Rows by their band keys, for rows of the same plan and, where plans are kept apart, for rows of any plan."""

    def __init__(self, *, plans: bool) -> None:
        """`plans`: whether rows of different plans are kept apart; false ignores plans."""
        self._plans = plans
        self._own = KeyMap(IN_BUCKET)
        self._plain = KeyMap(1)

    def open(self, keys: U64, plans: Sequence[int]) -> NearBatch:
        """Look up some rows at once."""
        if not self._plans:
            return NearBatch(self._own.open(keys), None)
        return NearBatch(self._own.open(with_plans(keys, plans)), self._plain.open(keys))

    def close(self, batch: NearBatch) -> None:
        """Take over the rows that were added to a batch; every batch is closed before the next is opened."""
        self._own.close(batch.own)
        if batch.plain is not None:
            self._plain.close(batch.plain)


class NearBatch(NamedTuple):
    """Some rows looked up in a `NearIndex`."""

    own: Batch
    """By keys that agree only where plans do, or by plain keys where plans are not kept apart."""
    plain: Batch | None

    def same_plan(self, at: int) -> list[int]:
        """Rows (of the same plan, where plans are kept apart) that share a band, those that share most bands first."""
        return self.own.rows(at)

    def any_plan(self, at: int) -> list[int]:
        """The first row of each band's bucket whatever its plan, those that share most bands first."""
        return [] if self.plain is None else self.plain.rows(at)

    def add(self, at: int, number: int) -> None:
        """Add a row of the batch under a number that is higher than all before."""
        self.own.add(at, number)
        if self.plain is not None:
            self.plain.add(at, number)


class Stored(NamedTuple):
    """A row as the comparison needs it."""

    id: str
    text: str
    plan: int


class TextStore:
    """Ids and texts of rows in a temporary file (16 bytes a row stay in memory), plan hashes beside them (8 bytes)."""

    def __init__(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(prefix="plansmith-")  # noqa: SIM115
        except OSError as error:
            raise _storage_error(error) from error
        self._starts = array("Q", [0])
        self._id_ends = array("Q")
        self._plans = array("Q")
        self._recent: dict[int, Stored] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, row: Stored) -> int:
        """Store a row and return its number, counted from 0."""
        row_id, text = (value.encode("utf-8", "surrogatepass") for value in row[:2])
        try:
            self._file.write(row_id + text)
        except OSError as error:
            raise _storage_error(error) from error
        self._id_ends.append(self._starts[-1] + len(row_id))
        self._starts.append(self._id_ends[-1] + len(text))
        self._plans.append(row.plan)
        self._recent[len(self) - 1] = row
        return len(self) - 1

    def get(self, number: int) -> Stored:
        """A row by its number."""
        if (recent := self._recent.get(number)) is not None:
            return recent
        start, middle, end = self._starts[number], self._id_ends[number], self._starts[number + 1]
        try:
            data = os.pread(self._file.fileno(), end - start, start)
        except OSError as error:
            raise _storage_error(error) from error
        row_id, text = data[: middle - start], data[middle - start :]
        return Stored(
            row_id.decode("utf-8", "surrogatepass"), text.decode("utf-8", "surrogatepass"), self._plans[number]
        )

    def flush(self) -> None:
        """Write what is buffered, so that it needs no memory."""
        try:
            self._file.flush()
        except OSError as error:
            raise _storage_error(error) from error
        self._recent.clear()

    def close(self) -> None:
        """Give the file's space back."""
        self._file.close()


def _storage_error(error: OSError) -> StorageError:
    return StorageError(
        f"cannot keep texts in the temporary folder {tempfile.gettempdir()!r}: {error.strerror or error}. "
        "Make room there, or set TMPDIR to another folder."
    )
