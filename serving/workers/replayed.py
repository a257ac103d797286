"""Workers that answer from a record: real plans run end to end without the real APIs.

Takes a catalog and recorded calls (`contract/replay.py`); gives a registry with that catalog, each of whose workers
answers a call that was recorded, and fails any other as UNRECORDED. Effects, permissions and time limits are the
catalog's, so permissions hold in a replay too; nothing is written anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.plan import Json
from plansmith.contract.replay import RecordedCall, Replay, UnrecordedCallError
from plansmith.serving.workers.base import CallInfo, WorkerError
from plansmith.serving.workers.registry import Registry

UNRECORDED = "UNRECORDED"
"""Failure code of a call that nobody made when the record was taken."""


@dataclass(frozen=True, slots=True)
class ReplayedWorker:
    """A catalog entry whose calls are looked up."""

    worker: Worker
    replay: Replay
    secrets: frozenset[str] = field(default_factory=frozenset[str])
    approval: bool = False

    async def call(self, args: dict[str, Json], info: CallInfo) -> Json:
        """The recorded result of a call.

        Raises:
            WorkerError: the record has none.

        """
        del info
        try:
            return self.replay.call(self.worker.name, args)
        except UnrecordedCallError as error:
            raise WorkerError(UNRECORDED, str(error)) from error


def replay_registry(catalog: Catalog, calls: Iterable[RecordedCall], *, nearest: bool = False) -> Registry:
    """All workers of a catalog, answering from one record.

    Args:
        catalog: their entries.
        calls: what was called, with what result.
        nearest: answer a call that nobody made with the recorded one that shares most arguments.

    """
    replay = Replay(calls, nearest=nearest)
    return Registry(catalog.name, [ReplayedWorker(worker, replay) for worker in catalog.workers])
