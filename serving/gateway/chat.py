"""OpenAI's chat completions over a planner: the query is the one user message, the answer is the plan as JSON text.

Pure. A field that cannot be honoured is refused by name and never ignored: a planner has its own prompt, decodes
greedily and knows no tools. What its clients send for themselves (`user`, `metadata`, `store`) is taken and left aside.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from plansmith.contract.plan import dumps
from plansmith.serving.gateway.errors import ErrorCode, GatewayError
from plansmith.serving.gateway.wire import PlanResponse

_ASIDE = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"})
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (0, None),
    "top_p": (1, None),
    "n": (1, None),
    "stop": (None, []),
    "tools": (None, []),
    "response_format": (None, {"type": "text"}),
    "logprobs": (None, False),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "parallel_tool_calls": (None, True, False),
    "tool_choice": (None, "none", "auto"),
}
"""Fields that are taken only with values that change nothing."""


class ChatRequest(BaseModel):
    """What is taken of a request; further fields are looked at one by one."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    seed: int | None = None
    """Without meaning: decoding is greedy, so every seed gives the same plan."""


def query_of(request: ChatRequest, model: str) -> str:
    """The query of a request.

    Raises:
        GatewayError: another model is asked for, the conversation is more than one user message, or a field cannot be
            honoured.

    """
    if request.model != model:
        raise GatewayError(ErrorCode.NOT_FOUND, f"there is no model {request.model[:80]!r} here; it is {model!r}.")
    for name, value in (request.model_extra or {}).items():
        if name in _ASIDE or any(value == one and type(value) is type(one) for one in _NEUTRAL.get(name, ())):
            continue
        if name in ("temperature", "top_p") and isinstance(value, float) and value == _NEUTRAL[name][0]:
            continue
        raise GatewayError(ErrorCode.UNSUPPORTED, f"a planner cannot honour {name!r}; leave it out.", param=name)
    if len(request.messages) != 1 or request.messages[0].get("role") != "user":
        roles = ", ".join(str(message.get("role"))[:16] for message in request.messages[:8]) or "none"
        message = f"a planner takes one user message, its query, and has a prompt of its own; found messages: {roles}."
        raise GatewayError(ErrorCode.UNSUPPORTED, message, param="messages")
    return _text(request.messages[0].get("content"))


def _text(content: Any) -> str:
    if isinstance(content, list):
        found = [_part(part) for part in cast("list[Any]", content)]
        content = None if None in found else "".join(part or "" for part in found)
    if not isinstance(content, str) or not content:
        raise GatewayError(ErrorCode.BAD_REQUEST, "the user message holds no text.", param="messages")
    return content


def _part(part: Any) -> str | None:
    """The text of a part of a message; None for an image or anything else."""
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    text = fields.get("text")
    return text if fields.get("type") == "text" and isinstance(text, str) else None


def completion(planned: PlanResponse, model: str) -> dict[str, Any]:
    """A whole answer.

    Raises:
        GatewayError: there is no valid plan.

    """
    usage = _usage(planned)
    message = {"role": "assistant", "content": _plan_text(planned), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {
        **_head(planned, model, "chat.completion"),
        "choices": [choice],
        "usage": usage,
        "plansmith": _more(planned),
    }


def chunks(planned: PlanResponse, model: str, *, with_usage: bool) -> Iterator[bytes]:
    """The same as server-sent events: the plan is checked as a whole, so its text comes in one piece."""
    head = _head(planned, model, "chat.completion.chunk")
    deltas: list[tuple[dict[str, Any], str | None]] = [
        ({"role": "assistant", "content": _plan_text(planned)}, None),
        ({}, "stop"),
    ]
    for delta, finish in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    if with_usage:
        yield _event({**head, "choices": [], "usage": _usage(planned)})
    yield b"data: [DONE]\n\n"


def models(model: str) -> dict[str, Any]:
    """The list of models: one."""
    return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "plansmith"}]}


def _plan_text(planned: PlanResponse) -> str:
    if planned.plan is None:
        errors = [str(one["message"]) for one in planned.findings if one.get("severity") == "error"]
        said = "; ".join(errors[:3]) or "no rung gave a plan"
        rungs = [one.model_dump(mode="json") for one in planned.rungs]
        raise GatewayError(ErrorCode.NO_VALID_PLAN, f"there is no valid plan: {said}", rungs=rungs)
    return dumps(planned.plan)


def _head(planned: PlanResponse, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{planned.request_id}", "object": kind, "created": int(time.time()), "model": model}


def _usage(planned: PlanResponse) -> dict[str, int]:
    total = planned.prompt_tokens + planned.completion_tokens
    return {
        "prompt_tokens": planned.prompt_tokens,
        "completion_tokens": planned.completion_tokens,
        "total_tokens": total,
    }


def _more(planned: PlanResponse) -> dict[str, Any]:
    return {"rung": planned.rung, "findings": list(planned.findings), "catalog": planned.catalog}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
