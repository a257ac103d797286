"""Settings of the planner engines. Light: pydantic only, so that the command line can show them without torch."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class EngineConfig(BaseModel):
    """How the local engine decodes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    batch_size: int = Field(default=32, ge=1, le=1024)
    """Most queries decoded at once; more is faster up to about 64, and takes memory for their keys and values."""
    max_new_tokens: int = Field(default=384, ge=1)
    """Token limit of one plan; a plan that reaches it ends with finish reason `length`."""
    max_steps: int = Field(default=8, ge=1, le=64)
    """Most steps that the plan grammar allows (constrained decoding only)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: the first CUDA device where there is one, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: bfloat16 on CUDA; float32 on the CPU, where the short types are far slower without AMX."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch for the whole process; None leaves torch's own choice."""
    prefix_cache_size: int = Field(default=4, ge=1)
    """Catalogs whose prompt prefix (keys and values) and compiled grammar are kept; the least recently used goes."""
    prefill_tokens: int = Field(default=1024, ge=16)
    """Most prompt tokens in one forward pass: bounds the memory of long catalogs and of many new rows."""
    gather_seconds: float = Field(default=0.005, ge=0, le=1)
    """How long a lone `plan` call waits for others to share its batch; a running batch takes new calls at once."""
    queue_size: int = Field(default=1024, ge=1)
    """`plan` calls that may wait; further callers wait for a place before they are queued."""


class Route(StrEnum):
    """Which of an endpoint's two ways to ask is used."""

    CHAT = "chat"
    """`/chat/completions`: instruction and workers as the system message, the query as the user's; for teachers and
    hosted models"""
    COMPLETIONS = "completions"
    """`/completions` with the very prompt that training used; for a served adapter of ours"""
    PLANS = "plans"
    """`/plans` of a gateway (`plansmith serve`): the query alone; prompt and grammar are the gateway's own"""


class Constraint(StrEnum):
    """How an endpoint is told the plan grammar."""

    RESPONSE_FORMAT = "response_format"
    """`response_format` of type `json_schema`: vLLM on both routes, llama.cpp on the chat route"""
    STRUCTURED_OUTPUTS = "structured_outputs"
    """`structured_outputs`, vLLM's own field"""
    JSON_SCHEMA = "json_schema"
    """`json_schema`, llama.cpp's own field, which its completions route needs"""
    NONE = "none"
    """nothing is sent, for endpoints that cannot decode under our schema; plans are checked here all the same"""


class OtherModel(StrEnum):
    """What happens to an answer that names another model than was asked."""

    COUNT = "count"
    """it is kept and counted under `other_model`"""
    REFUSE = "refuse"
    """it ends the work, since the answers would be another model's"""


_OWN_FIELDS = (
    *("model", "messages", "prompt", "stream", "n", "response_format", "structured_outputs", "json_schema"),
    *("tools", "tool_choice"),
    *("temperature", "top_p", "seed", "stop", "logprobs", "top_logprobs"),
)


class EndpointConfig(BaseModel):
    """An OpenAI-compatible endpoint, and how it is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str
    """Base URL, in most cases ending in `/v1`, without user name, password or query."""
    model: str = Field(min_length=1)
    """The model's name, as the endpoint calls it."""
    api_key_env: str | None = Field(default=None, min_length=1)
    """Name of the environment variable that holds the key; None sends none. The key itself is never stored or shown."""
    route: Route = Route.CHAT
    """`chat` for teachers and hosted models, `completions` for a served adapter of ours."""
    constraint: Constraint = Constraint.RESPONSE_FORMAT
    """How the plan grammar is sent where plans are decoded under it."""
    max_tokens: int = Field(default=512, ge=1)
    """Token limit of one plan; a plan that reaches it ends with finish reason `length`."""
    max_steps: int = Field(default=8, ge=1, le=64)
    """Most steps that the plan grammar allows (constrained decoding only)."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """Sampling temperature, 0 is greedy; None sends none, for models that refuse the field."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Only the likeliest tokens up to this share are sampled; None sends none."""
    seed: int | None = None
    """Seed of the endpoint's sampling, for all requests that are given none of their own; None sends none."""
    stop: tuple[str, ...] = ()
    """Texts that end the plan."""
    top_logprobs: int | None = Field(default=None, ge=1, le=20)
    """How many of the likeliest tokens are kept with their log-probability at each place; None asks for none."""
    extra_body: dict[str, Any] = {}
    """Further fields of the request. A null takes `max_tokens` out, for models that want it by another name:
    `{"max_tokens": null, "max_completion_tokens": 512}`."""
    other_model: OtherModel = OtherModel.COUNT
    """What happens to an answer that names another model; a dated name of the model asked for is none."""
    concurrency: int = Field(default=8, ge=1, le=4096)
    """Most requests under way at once; fewer after 429, and then more again."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """How long one request may take as a whole before it is given up and tried again."""
    retries: int = Field(default=6, ge=0)
    """How often a request is tried again after 429, 5xx, a time-out, a broken connection or an unusable answer."""
    backoff_seconds: float = Field(default=0.5, gt=0)
    """Longest wait before the first retry where the endpoint names none; it doubles with each, and a random part of it
    is waited."""
    backoff_max_seconds: float = Field(default=30.0, gt=0)
    """Longest such wait of all."""
    retry_after_max_seconds: float = Field(default=120.0, ge=0)
    """An endpoint that asks for a longer wait (`Retry-After`) is not waited for: the request fails."""

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give a URL with http:// or https:// and a host, e.g. http://localhost:8000/v1")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ValueError("the URL may hold no user name, password, query or fragment; a key goes into api_key_env")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _gateway_decodes_as_it_does(self) -> EndpointConfig:
        if self.route is Route.PLANS:
            told = {"temperature": (0.0, None), "top_p": (None,), "seed": (None,), "top_logprobs": (None,)}
            given = [name for name, usual in told.items() if getattr(self, name) not in usual]
            given += [name for name in ("stop", "extra_body") if getattr(self, name)]
            if given:
                raise ValueError(f"a gateway decodes greedily, as it is set; {given[0]!r} cannot be set for it")
        return self

    @field_validator("extra_body")
    @classmethod
    def _no_field_of_ours(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name in fields:
            if name.startswith("guided_"):
                raise ValueError(f"{name!r} is ignored by vLLM, so plans would be unconstrained; use 'constraint'")
            if name in _OWN_FIELDS:
                raise ValueError(f"{name!r} is set by the planner itself and cannot stand in extra_body")
        return fields
