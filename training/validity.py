"""What the plan grammar allows before each target token, and which targets continue a worker's name.

Takes target tokens and the catalog that each belongs to; gives packed masks over the rows of the output layer, kept
once each however often they occur (a corpus has some hundreds), and a place in that table for every token. Made on
first use, kept for the run, and made ahead in the background for the batch that comes next. Writes nothing.

Masks come from `plansmith.contract.token_grammar`, which decoding asks too, so the loss and the decoder mean the same
grammar. A target that its own grammar does not allow is refused before the first step: it could never be decoded, and
the validity term would have no finite value there.

Shapes: T target tokens, M distinct masks, W words of a mask.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.grammar import plan_schema
from plansmith.contract.plan import dumps
from plansmith.contract.token_grammar import PlanGrammar, TokenGrammars

_BEFORE_NAME = '{"type":'
_BATCH_WORDS = 2**24
"""Most words of masks that are made at once (64 MiB)."""


class Target(NamedTuple):
    """Target tokens of one example, the stop token last, with the catalog whose grammar they follow."""

    catalog: Catalog
    ids: tuple[int, ...]


class MaskTable:
    """Masks of one output layer, each kept once, in the order in which they came."""

    def __init__(self, num_words: int) -> None:
        self.num_words = num_words
        self._place: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._tensor: Tensor | None = None

    def __len__(self) -> int:
        return len(self._place)

    def add(self, words_TW: NDArray[np.int32]) -> NDArray[np.int32]:
        """Keep masks; gives the place of each."""
        with self._lock:
            places = [self._place.setdefault(row.tobytes(), len(self._place)) for row in words_TW]
        return np.array(places, dtype=np.int32)

    def words(self, device: torch.device) -> Tensor:
        """All masks so far, int32 [M,W]."""
        with self._lock:
            known = self._tensor
            if known is None or len(known) < len(self._place) or known.device != device:
                start = 0 if known is None else len(known)
                new = np.frombuffer(b"".join(list(self._place)[start:]), dtype=np.int32).copy()
                parts = [torch.from_numpy(new.reshape(-1, self.num_words)).to(device)]
                self._tensor = torch.cat(parts if known is None else [known.to(device), *parts])
            return cast("Tensor", self._tensor)


class PlanMasks:
    """Makes and keeps the masks of targets, for one tokenizer and any number of catalogs."""

    def __init__(self, grammars: TokenGrammars, *, max_steps: int) -> None:
        """Take over a tokenizer's grammars.

        Args:
            grammars: of the tokenizer that the targets were encoded with, for the rows of the output layer.
            max_steps: longest plan of the grammar.

        """
        self._grammars = grammars
        self._max_steps = max_steps
        self._compiled: dict[str, PlanGrammar] = {}
        self._places: dict[tuple[str, tuple[int, ...]], NDArray[np.int32]] = {}
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._pending: Future[None] | None = None
        keep = np.full(grammars.num_words, 2**32 - 1, dtype=np.uint32)
        for token in grammars.never:
            keep[token >> 5] &= ~np.uint32(1 << (token & 31))
        self._keep = keep.view(np.int32)
        self.table = MaskTable(grammars.num_words)
        self.tokens = 0
        """Tokens for which a mask was made."""
        self.added = 0
        """Targets among them that the grammar accepts but does not offer: where the text is forced it offers one way
        to spell it, which inside a character can be another than the tokenizer's (`\\xba` `\\xac` for `\\xba\\xac`)."""
        self.seconds = 0.0
        """Time that it took, most of it beside other work."""

    def first_forbidden(self, target: Target) -> int | None:
        """Place of the first token that the catalog's grammar does not allow, or None. Far cheaper than a mask."""
        found = self._grammar(target.catalog).num_allowed(target.ids)
        return None if found == len(target.ids) else found

    def prefetch(self, targets: Sequence[Target]) -> None:
        """Begin to make masks in the background; `places` of the same targets then waits for them."""
        self._wait()
        self._pending = self._ahead.submit(self._make, list(targets))

    def places(self, targets: Sequence[Target]) -> list[NDArray[np.int32]]:
        """For each target, the place in `table` of the mask before each of its tokens.

        Raises:
            GrammarError: a catalog's plan schema cannot be compiled.
            PlansmithError: a target is not allowed by its grammar (`first_forbidden` finds these beforehand).

        """
        self._wait()
        self._make(targets)
        return [self._places[target.catalog.hash, target.ids] for target in targets]

    def close(self) -> None:
        """End the background thread."""
        self._ahead.shutdown(cancel_futures=True)

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _grammar(self, catalog: Catalog) -> PlanGrammar:
        found = self._compiled.get(catalog.hash)
        if found is None:
            found = self._grammars.compile(plan_schema(catalog, max_steps=self._max_steps))
            self._compiled[catalog.hash] = found
        return found

    def _make(self, targets: Sequence[Target]) -> None:
        begun = time.monotonic()
        new = {(target.catalog.hash, target.ids): target for target in targets}
        new = {key: target for key, target in new.items() if key not in self._places}
        batch, size = list[Target](), 0
        for target in new.values():
            if batch and (size + len(target.ids)) * self.table.num_words > _BATCH_WORDS:
                self._make_batch(batch)
                batch, size = [], 0
            batch.append(target)
            size += len(target.ids)
        if batch:
            self._make_batch(batch)
        self.seconds += time.monotonic() - begun

    def _make_batch(self, targets: Sequence[Target]) -> None:
        ids_T = np.array([token for target in targets for token in target.ids])
        words_TW = np.zeros((len(ids_T), self.table.num_words), dtype=np.int32)
        self._grammars.masks_along([(self._grammar(target.catalog), target.ids) for target in targets], words_TW)
        words_TW &= self._keep
        self._add_targets(targets, ids_T, words_TW)
        places_T = self.table.add(words_TW)
        start = 0
        for target in targets:
            self._places[target.catalog.hash, target.ids] = places_T[start : start + len(target.ids)]
            start += len(target.ids)
        self.tokens += len(ids_T)

    def _add_targets(self, targets: Sequence[Target], ids_T: NDArray[np.int64], words_TW: NDArray[np.int32]) -> None:
        """Allow target tokens that the grammar accepts but would not offer, where it spells forced text otherwise."""
        bits_TW = words_TW.view(np.uint32)
        hit_T = (bits_TW[np.arange(len(ids_T)), ids_T >> 5] >> (ids_T & 31).astype(np.uint32)) & 1
        if hit_T.all():
            return
        for target in targets:
            if (place := self.first_forbidden(target)) is not None:
                raise PlansmithError(
                    f"target token {target.ids[place]} at place {place} is not allowed by the grammar of catalog "
                    f"{target.catalog.name!r}; nothing can be learnt from it under the validity term."
                )
        for row in np.flatnonzero(hit_T == 0):
            bits_TW[row, ids_T[row] >> 5] |= np.uint32(1 << int(ids_T[row] & 31))
            self.added += 1


def require_allowed(masks: PlanMasks, targets: Sequence[Target], names: Sequence[str], show: Any) -> None:
    """Refuse targets that their own grammar does not allow.

    Args:
        masks: asked for each target.
        targets: one for each row.
        names: the rows' ids.
        show: gives the text of some tokens (a tokenizer's `decode`).

    Raises:
        InputError: some are not allowed; the message counts them and shows where the first one leaves the grammar.

    """
    faults = [
        (row, place) for row, target in enumerate(targets) if (place := masks.first_forbidden(target)) is not None
    ]
    if not faults:
        return
    row, place = faults[0]
    ids = targets[row].ids
    raise InputError(
        f"{len(faults)} of {len(targets)} rows have a plan that the plan grammar of their catalog cannot write: row "
        f"{names[row]!r} leaves it after {show(list(ids[:place]))!r} with {show([ids[place]])!r}. Take them out of the "
        "data (a plan may use what no grammar writes, such as $literal or keys that the catalog does not declare), or "
        "set training.validity to false."
    )


def name_spans(text: str) -> list[tuple[int, int]]:
    """Where workers' names stand in a plan's canonical text, as UTF-8 bytes: each name with the quote that ends it.

    The quote is part of the name here: writing it decides that the name ends, and another token would go on to a name
    that nobody registered.

    Raises:
        InputError: the text is not canonical.

    """
    plan = cast("list[dict[str, Any]]", json.loads(text))
    parts = [dumps(step) for step in plan]
    if "[" + ",".join(parts) + "]" != text or not all(part.startswith(_BEFORE_NAME) for part in parts):
        raise InputError(f"{text!r:.200} is not the canonical text of a plan; worker names cannot be found in it.")
    spans: list[tuple[int, int]] = []
    place = 1
    for step, part in zip(plan, parts, strict=True):
        start = place + len(_BEFORE_NAME)
        spans.append((start + 1, start + len(dumps(step["type"]).encode())))
        place += len(part.encode()) + 1
    return spans


def name_positions(pieces: Sequence[bytes], text: str) -> NDArray[np.bool_]:
    """For each target token, whether it writes any part of a worker's name.

    Args:
        pieces: what each token writes; the stop token, which is last, counts as nothing.
        text: the plan's canonical text.

    Raises:
        InputError: the pieces are not the text.

    """
    if b"".join(pieces[:-1]) != text.encode():
        raise InputError(f"the tokens of the plan write {b''.join(pieces[:-1])!r}, expected {text!r}.")
    inside = np.zeros(len(text.encode()) + 1, dtype=np.int64)
    for start, end in name_spans(text):
        inside[start + 1 : end + 1] = 1
    before = inside.cumsum()
    ends = np.cumsum([len(piece) for piece in pieces[:-1]], dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    return np.append(before[ends] > before[starts], False)
