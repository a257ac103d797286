"""Several processes that train one adapter together: each runs a share of a step's micro-batches.

Reads the environment that `torchrun` and `accelerate launch` set (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
MASTER_PORT). The frozen base is in every process whole; what is exchanged is the sum of the adapter's gradients, once a
step, a few megabytes. Since the loss of a step is divided once by the weight of the whole step, the sum over processes
is the gradient that one process would have computed, however the micro-batches are dealt out.

Not covered: a base too large for one device (FSDP).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.nn import Parameter

from plansmith.contract.errors import InputError

_PATIENCE = timedelta(hours=2)
"""How long a process waits for the others: preparing a base model and validating are done by one alone."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class World:
    """One process among all that train together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Number of this process on its machine: which of its GPUs it takes."""

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def even(self, batch_size: int, micro_batch_size: int) -> int:
        """Most examples of a micro-batch, so that a step has at least one for each process."""
        return min(micro_batch_size, max(1, -(-batch_size // self.size)))

    def deal(self, items: Sequence[Item], costs: Sequence[int]) -> list[Item]:
        """Items of this process: the costliest item goes to whoever has least so far, so all finish together.

        Args:
            items: the same in every process.
            costs: of each item, e.g. its tokens.

        """
        loads = [0] * self.size
        mine: list[int] = []
        for index in sorted(range(len(items)), key=lambda index: (-costs[index], index)):
            rank = loads.index(min(loads))
            loads[rank] += costs[index]
            if rank == self.rank:
                mine.append(index)
        return [items[index] for index in sorted(mine)]

    def sum_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Replace every gradient by its sum over all processes; a process without one adds zero."""
        if self.size == 1:
            return
        chosen = list(parameters)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in chosen]
        flat = torch.cat([grad.detach().reshape(-1).float() for grad in grads])
        dist.all_reduce(flat)
        offset = 0
        for parameter in chosen:
            size = parameter.numel()
            parameter.grad = flat[offset : offset + size].view_as(parameter).to(parameter.dtype).clone()
            offset += size

    def sum_values(self, values: Sequence[float]) -> list[float]:
        """Each value's sum over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def any(self, here: bool) -> bool:
        """Whether it is so in one of the processes."""
        return self.sum_values([float(here)])[0] > 0

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


ALONE = World()


@contextmanager
def joined() -> Iterator[World]:
    """The processes that a launcher started, or this one alone.

    Raises:
        InputError: the environment names several processes but is not complete.

    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(
            f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set. Start with torchrun or accelerate launch, or "
            "unset WORLD_SIZE to train in one process."
        )
    world = World(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    if torch.cuda.is_available():
        torch.cuda.set_device(world.device)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=_PATIENCE)
    try:
        yield world
    finally:
        dist.destroy_process_group()
