"""Where Ray is, for work that is to go past one machine. Light: pydantic only.

Stands in `data.ray` (who checks rows, `on_ray.py`) and in `teach.ray` (who asks the teacher, `teacher_on_ray.py`).
Neither changes an outcome.
"""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from plansmith.contract.errors import PlansmithError
from plansmith.contract.settings import Settings


class NoRayError(PlansmithError):
    """Ray could not be started or joined, or gives no worker (exit code 3). No row and no request is to blame."""

    exit_code = 3


class RayConfig(Settings):
    """A Ray cluster, and how many workers of it are used (needs the extra `ray`)."""

    address: str | None = None
    """None starts Ray on this machine for the time of the command; `auto` joins the cluster that this machine belongs
    to; `host:port` joins that one. Every machine of a cluster needs the same plansmith."""
    workers: int = Field(default=2, ge=1, le=1024)
    """Worker processes; those that check rows take a core each."""

    @field_validator("address")
    @classmethod
    def _no_client(cls, address: str | None) -> str | None:
        if address is not None and not re.fullmatch(r"auto|[^/\s]+:\d+", address):
            raise ValueError(
                "give 'auto' or host:port of a cluster that this machine belongs to (ray start --address=host:port "
                "joins one), or nothing for a Ray of the command's own; addresses of Ray Client (ray://) do not work"
            )
        return address
