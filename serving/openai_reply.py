"""Reads what an OpenAI-compatible endpoint sent back, whatever it is. Pure; never raises but `UnusableReplyError`.

Takes the bytes of a response with status 200 and gives the text with its finish reason, token counts and
log-probabilities, and what was odd about it, which the planner counts. The official client's own models are not used
here: they take any JSON for a completion and fail later.
"""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Any, NamedTuple, cast

from plansmith.contract.endpoint import TokenLogprob, ToolCall
from plansmith.contract.records import FinishReason
from plansmith.serving.config import Route
from plansmith.serving.openai_request import Asked, estimate_tokens


class Event(StrEnum):
    """What is counted about an endpoint."""

    SENT = "sent"
    """requests sent, retries included"""
    ANSWERED = "answered"
    """requests that brought an answer"""
    RETRIED = "retried"
    """requests that were tried again"""
    RATE_LIMITED = "rate_limited"
    """answers 429"""
    SERVER_ERROR = "server_error"
    """answers 5xx, and those 4xx that ask to try again (408, 409, 425)"""
    TIMEOUT = "timeout"
    """requests that took longer than `timeout_seconds`"""
    DISCONNECTED = "disconnected"
    """no connection, or one that broke before the whole answer was there"""
    UNREADABLE = "unreadable"
    """answers 200 that are no JSON object"""
    NO_CHOICES = "no_choices"
    """answers 200 without a usable choice"""
    FAILED = "failed"
    """queries given up after the last retry"""
    TOO_LONG = "too_long"
    """queries that the endpoint refused as too long for the model"""
    QUERY_REFUSED = "query_refused"
    """single queries that the endpoint refused for another reason"""
    FILTERED = "filtered"
    """answers that the endpoint's content filter withheld"""
    NO_CONTENT = "no_content"
    """answers whose text is null; they count as empty text"""
    REFUSAL = "refusal"
    """answers in which the model declines; its words are the text"""
    BAD_UNICODE = "bad_unicode"
    """answers with half a surrogate pair, which no UTF-8 holds; it is written as its escape"""
    NO_FINISH_REASON = "no_finish_reason"
    """answers that do not say why they ended; taken for `stop`"""
    NO_USAGE = "no_usage"
    """answers without token counts; they are estimated"""
    WRONG_USAGE = "wrong_usage"
    """answers whose token counts cannot be (0 for some text, more than the limit); they are estimated"""
    OTHER_MODEL = "other_model"
    """answers that name another model than was asked"""
    BAD_TOOL_CALLS = "bad_tool_calls"
    """tool calls in no usable form; they are left out"""
    NO_VALID_PLAN = "no_valid_plan"
    """answers of a gateway that found no valid plan on any rung; their text is empty"""
    NO_LOGPROBS = "no_logprobs"
    """answers without the log-probabilities that were asked for"""


class UnusableReplyError(Exception):
    """A response with status 200 that holds no answer; worth another try."""

    def __init__(self, event: Event, found: str) -> None:
        super().__init__(found)
        self.event = event


class Reply(NamedTuple):
    """An answer as read."""

    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    model: str | None
    """The model that the answer names; None where it names none."""
    logprobs: tuple[TokenLogprob, ...] | None
    events: tuple[Event, ...]
    """What was odd about it."""
    calls: tuple[ToolCall, ...] = ()
    """Calls that the model asks for."""
    catalog: str | None = None
    """Hash of the catalog that a gateway planned for."""


def read_reply(content: bytes, asked: Asked, route: Route) -> Reply:
    """Read the body of a response; raises `UnusableReplyError` where it holds no answer."""
    body = _parse(content)
    if route is Route.PLANS:
        return _gateway_reply(body, asked)
    choice = _choice(body)
    events: list[Event] = []
    finish = _finish_reason(choice, events)
    calls = _tool_calls(choice, events) if "tools" in asked.body else ()
    said = "" if finish is FinishReason.ERROR else _text(choice, route, events, calls)
    text = plain_text(said)
    if text != said:
        events.append(Event.BAD_UNICODE)
    logprobs = _logprobs(choice, route)
    if logprobs is None and "logprobs" in asked.body:
        events.append(Event.NO_LOGPROBS)
    written = text + "".join(call.name + call.arguments for call in calls)
    prompt, completion = _usage(body, written, asked, logprobs, events)
    model = body.get("model")
    asked_model = cast("str", asked.body["model"])
    if isinstance(model, str) and not _same_model(asked_model, model):
        events.append(Event.OTHER_MODEL)
    return Reply(
        text=text,
        finish_reason=finish,
        prompt_tokens=prompt,
        completion_tokens=completion,
        model=plain_text(model) if isinstance(model, str) else None,
        logprobs=logprobs,
        events=tuple(events),
        calls=calls,
    )


def _gateway_reply(body: dict[str, Any], asked: Asked) -> Reply:
    """What a gateway's `/plans` gave: the plan as compact text, or no text where no rung gave a valid one."""
    plan, catalog = body.get("plan"), body.get("catalog")
    if "plan" not in body or not isinstance(plan, list | None) or not isinstance(catalog, str):
        raise UnusableReplyError(Event.NO_CHOICES, f"status 200 without the plan of a gateway: {list(body)!r:.80}")
    events: list[Event] = [] if plan is not None else [Event.NO_VALID_PLAN]
    text = "" if plan is None else plain_text(json.dumps(plan, ensure_ascii=False, separators=(",", ":")))
    prompt, completion = _usage({"usage": body}, text, asked, None, events)
    return Reply(text, FinishReason.STOP, prompt, completion, None, None, tuple(events), catalog=plain_text(catalog))


def plain_text(text: str) -> str:
    """The text with halves of surrogate pairs written as their escapes, so that it can be stored."""
    return text.encode("utf-8", "backslashreplace").decode()


def _parse(content: bytes) -> dict[str, Any]:
    try:
        body: Any = json.loads(content)
    except (ValueError, RecursionError):
        shown = content[:80].decode("utf-8", "replace")
        raise UnusableReplyError(
            Event.UNREADABLE, f"status 200 with {len(content)} bytes that are no JSON: {shown!r}"
        ) from None
    if not isinstance(body, dict):
        raise UnusableReplyError(Event.UNREADABLE, f"status 200 with JSON that is no object: {body!r:.80}")
    return cast("dict[str, Any]", body)


def _choice(body: dict[str, Any]) -> dict[str, Any]:
    choices = body.get("choices")
    first: Any = cast("list[Any]", choices)[0] if isinstance(choices, list) and choices else None
    if isinstance(first, dict):
        return cast("dict[str, Any]", first)
    error: Any = body.get("error")
    reason = f"; it says: {error!r:.200}" if error else ""
    raise UnusableReplyError(Event.NO_CHOICES, f"status 200 without choices{reason}")


def _text(choice: dict[str, Any], route: Route, events: list[Event], calls: tuple[ToolCall, ...]) -> str:
    if route is Route.COMPLETIONS:
        content, refusal = choice.get("text"), None
    else:
        message: Any = choice.get("message")
        if not isinstance(message, dict):
            raise UnusableReplyError(Event.NO_CHOICES, "status 200 with a choice that has no message")
        fields = cast("dict[str, Any]", message)
        content, refusal = fields.get("content"), fields.get("refusal")
    if content is None and isinstance(refusal, str) and refusal:
        events.append(Event.REFUSAL)
        return refusal
    if content is None:
        events.extend(() if calls else (Event.NO_CONTENT,))
        return ""
    if isinstance(content, list):
        parts = [cast("dict[str, Any]", part).get("text") for part in cast("list[Any]", content) if _is_object(part)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str):
        raise UnusableReplyError(Event.NO_CHOICES, f"status 200 with text of an unknown form: {content!r:.80}")
    return content


def _tool_calls(choice: dict[str, Any], events: list[Event]) -> tuple[ToolCall, ...]:
    """The calls of a chat answer; arguments that came as an object are written as the text they should have been."""
    message: Any = choice.get("message")
    listed: Any = cast("dict[str, Any]", message).get("tool_calls") if isinstance(message, dict) else None
    if listed is None:
        return ()
    found: list[ToolCall] = []
    for item in cast("list[Any]", listed) if isinstance(listed, list) else [None]:
        call = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        function: Any = call.get("function")
        fields = cast("dict[str, Any]", function) if isinstance(function, dict) else {}
        name, arguments, known = fields.get("name"), fields.get("arguments"), call.get("id")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if not isinstance(name, str) or not isinstance(arguments, str | None):
            events.append(Event.BAD_TOOL_CALLS)
            continue
        id_ = plain_text(known) if isinstance(known, str) else ""
        found.append(ToolCall(id_, plain_text(name), plain_text(arguments or "")))
    return tuple(found)


def _finish_reason(choice: dict[str, Any], events: list[Event]) -> FinishReason:
    reason = choice.get("finish_reason")
    if reason in ("length", "max_tokens"):
        return FinishReason.LENGTH
    if reason == "content_filter":
        events.append(Event.FILTERED)
        return FinishReason.ERROR
    if reason in ("abort", "error"):
        raise UnusableReplyError(Event.NO_CHOICES, f"status 200, but the generation ended with {reason!r}")
    if not isinstance(reason, str):
        events.append(Event.NO_FINISH_REASON)
    return FinishReason.STOP


def _usage(
    body: dict[str, Any],
    text: str,
    asked: Asked,
    logprobs: tuple[TokenLogprob, ...] | None,
    events: list[Event],
) -> tuple[int, int]:
    """Tokens of prompt and completion; estimates where the endpoint gives no count that can be."""
    usage: Any = body.get("usage")
    counts = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    prompt, completion = _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))
    if prompt is None or completion is None:
        events.append(Event.NO_USAGE)
    limit = asked.max_tokens
    prompt_wrong = prompt == 0
    completion_wrong = completion is not None and (
        (completion == 0 and text != "") or (limit is not None and completion > limit)
    )
    if prompt_wrong or completion_wrong:
        events.append(Event.WRONG_USAGE)
    if prompt is None or prompt_wrong:
        prompt = asked.prompt_tokens
    if completion is None or completion_wrong:
        completion = len(logprobs) if logprobs is not None else estimate_tokens(text)
        completion = completion if limit is None else min(completion, limit)
    return prompt, completion


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def _same_model(asked: str, found: str) -> bool:
    """Whether an answer's model is the one asked for, or a dated or tagged name of it."""
    return found == asked or any(found.startswith(asked + mark) for mark in "-:@")


def _logprobs(choice: dict[str, Any], route: Route) -> tuple[TokenLogprob, ...] | None:
    """Log-probabilities in the form of the route; None where they are absent or malformed."""
    found: Any = choice.get("logprobs")
    if not isinstance(found, dict):
        return None
    fields = cast("dict[str, Any]", found)
    try:
        return _chat_logprobs(fields) if route is Route.CHAT else _completion_logprobs(fields)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _chat_logprobs(fields: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            _token(item["token"]),
            _logprob(item["logprob"]),
            tuple((_token(other["token"]), _logprob(other["logprob"])) for other in item.get("top_logprobs") or ()),
        )
        for item in fields["content"]
    )


def _completion_logprobs(fields: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    tokens, values = fields["tokens"], fields["token_logprobs"]
    tops = fields.get("top_logprobs") or [None] * len(tokens)
    return tuple(
        TokenLogprob(
            _token(token),
            _logprob(value),
            tuple((_token(name), _logprob(other)) for name, other in cast("dict[Any, Any]", top or {}).items()),
        )
        for token, value, top in zip(tokens, values, tops, strict=True)
    )


def _token(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a token must be text, found {value!r:.40}")
    return plain_text(value)


def _logprob(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a log-probability is no finite number")
    return number


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
