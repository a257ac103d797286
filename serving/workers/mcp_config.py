"""Settings of one MCP server: where it is, and what its tools may do. Light: pydantic only."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from plansmith.contract.catalog import Effect
from plansmith.serving.workers.results import MAX_RESULT_BYTES


class McpServer(BaseModel):
    """Where a server is, and what its tools may do."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(min_length=1, max_length=128)
    """Name of the catalog, and of the server in messages."""
    command: tuple[str, ...] = ()
    """Program and arguments of a server over stdio; give this or `url`."""
    url: str | None = None
    """Address of a server over streamable HTTP, e.g. `http://127.0.0.1:8000/mcp`."""
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """Environment of the program besides a few harmless variables (`PATH`, `HOME`); nothing else is inherited."""
    cwd: Path | None = None
    """Folder in which the program runs; None: ours."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """HTTP headers of every request, e.g. an authorization."""
    log: Path | None = None
    """File to which a stdio server's standard error is appended; None: our own standard error."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Time limit of one call in seconds; a run's deadline may shorten it."""
    connect_timeout_s: float = Field(default=15.0, gt=0)
    """Time limit of starting the server and shaking hands."""
    tools: tuple[str, ...] | None = None
    """Names of the tools that are taken; None: all."""
    effect: Effect = Effect.WRITE
    """What the server's tools do unless `effects` says otherwise; a hint may turn it to `write`, never away from it."""
    effects: dict[str, Effect] = Field(default_factory=dict[str, Effect])
    """Your own word about single tools, by name."""
    idempotent: frozenset[str] = frozenset()
    """Tools whose repeated call changes nothing further."""
    permission: str | None = None
    """The permission that a caller must hold for all of its tools."""
    approval: bool | frozenset[str] = False
    """Tools for whose calls a person must agree; true: all. A tool that hints that it destroys is always one of them
    unless `effects` names it."""
    secrets: dict[str, frozenset[str]] = Field(default_factory=dict[str, frozenset[str]])
    """Parameters whose values are shown to nobody, by tool; parameters marked `writeOnly` or `password` are among
    them anyway."""
    max_result_bytes: int = Field(default=MAX_RESULT_BYTES, gt=0)
    """Largest result as JSON."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("give either 'command' (stdio) or 'url' (streamable HTTP)")
        return self
