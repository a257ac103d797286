"""Settings of the gateway: address, keys, limits, times, fallbacks. Data only."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

_SETTINGS = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class KeyConfig(BaseModel):
    """A key that callers may use. The key itself is stored nowhere: `plansmith serve --new-key NAME` makes one."""

    model_config = _SETTINGS

    name: str = Field(pattern=r"^[A-Za-z0-9_.]{1,32}$")
    """Shown in logs and metrics in the key's place."""
    sha256: Sha256
    """Of the key, as 64 hex digits."""
    permissions: frozenset[str] = frozenset()
    """What runs of this key may do, besides what all may."""


class LimitsConfig(BaseModel):
    """How much is taken on."""

    model_config = _SETTINGS

    body_bytes: int = Field(default=1 << 18, ge=256)
    """Largest request body; a larger one is 413."""
    query_chars: int = Field(default=8000, ge=1)
    """Longest query."""
    concurrency: int = Field(default=16, ge=1)
    """Plans and runs under way at once."""
    queue_size: int = Field(default=64, ge=0)
    """Requests that may wait for their turn; further ones are 429."""
    rate_per_minute: float | None = Field(default=None, gt=0)
    """Requests a minute that a key may make (without keys: all callers together); None sets no limit."""
    deadline_s: float = Field(default=60.0, gt=0)
    """Seconds that a request may take, its wait included, unless it asks for less; then it is 504."""
    grace_s: float = Field(default=30.0, ge=0)
    """Seconds that running requests get to end when the gateway is told to stop."""
    recent_runs: int = Field(default=1000, ge=1)
    """Runs that are kept in memory for `GET /v1/runs/{id}`; older ones are in the journal, where there is one."""
    recent_bytes: int = Field(default=64 << 20, ge=1024)
    """Most bytes of JSON that they may have together."""


class LadderConfig(BaseModel):
    """What is tried where the planner gives no valid plan."""

    model_config = _SETTINGS

    constrained: bool = True
    """Decode under the plan grammar."""
    reask: bool = True
    """Ask the planner once more, with the findings and the names of the workers."""


class ReadyConfig(BaseModel):
    """How readiness is found out."""

    model_config = _SETTINGS

    query: str = "ready?"
    """What the planner is asked; its plan is thrown away."""
    every_s: float = Field(default=30.0, gt=0)
    """Seconds between probes; a plan for a user counts as one."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long a probe may take."""


class GatewayConfig(BaseModel):
    """The gateway."""

    model_config = _SETTINGS

    host: str = "127.0.0.1"
    """Address to listen on; without keys only a loopback address is taken."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port to listen on; 0 takes a free one, which is printed."""
    model: str = Field(default="planner", min_length=1, max_length=128)
    """The planner's name in the OpenAI-compatible routes."""
    keys: tuple[KeyConfig, ...] = ()
    """Keys that callers may use; none lets everybody in, on a loopback address only."""
    open_metrics: bool = False
    """Whether `/metrics` answers without a key."""
    limits: LimitsConfig = LimitsConfig()
    ladder: LadderConfig = LadderConfig()
    ready: ReadyConfig = ReadyConfig()

    @model_validator(mode="after")
    def _keys_fit(self) -> GatewayConfig:
        names = [key.name for key in self.keys]
        if len(set(names)) < len(names):
            raise ValueError("two keys have one name; give each its own")
        loopback = self.host in ("localhost", "::1") or self.host.startswith("127.")
        if not self.keys and not loopback:
            raise ValueError(
                f"host {self.host!r} can be reached from elsewhere, and there are no keys; make one with "
                "`plansmith serve --new-key NAME`, or listen on 127.0.0.1"
            )
        return self
