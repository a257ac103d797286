"""Errors that a caller sees: one JSON shape, `{"error": {"code", "message", "type", "request_id"}}`.

The shape is OpenAI's, so that its clients read it. Nothing else of an exception leaves the gateway: what is unforeseen
becomes `internal`, with the request's id, under which the log has the rest.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    """What went wrong."""

    BAD_REQUEST = "bad_request"
    """the request cannot be used; the message says what and why"""
    UNAUTHORIZED = "unauthorized"
    """no key, or none that is known"""
    NOT_FOUND = "not_found"
    """there is no such route, run or model"""
    METHOD_NOT_ALLOWED = "method_not_allowed"
    """the route takes other methods"""
    TOO_LARGE = "too_large"
    """the body is larger than is taken"""
    UNSUPPORTED = "unsupported"
    """a field that cannot be honoured; leave it out"""
    NO_VALID_PLAN = "no_valid_plan"
    """neither planner nor fallbacks gave a valid plan"""
    CONFLICT = "conflict"
    """the run is under way or not waiting for anybody"""
    RATE_LIMITED = "rate_limited"
    """too many requests a minute; `Retry-After` says when"""
    QUEUE_FULL = "queue_full"
    """too many requests wait; `Retry-After` says when"""
    PLANNER_UNAVAILABLE = "planner_unavailable"
    """the planner did not answer"""
    DEADLINE = "deadline"
    """the request's time was over"""
    STOPPING = "stopping"
    """the gateway is being stopped"""
    INTERNAL = "internal"
    """something unforeseen"""


INTERNAL = "something unforeseen; the log has it under the request's id."
STATUS = {
    ErrorCode.BAD_REQUEST: 400,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.CONFLICT: 409,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED: 400,
    ErrorCode.NO_VALID_PLAN: 422,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.QUEUE_FULL: 429,
    ErrorCode.INTERNAL: 500,
    ErrorCode.PLANNER_UNAVAILABLE: 503,
    ErrorCode.STOPPING: 503,
    ErrorCode.DEADLINE: 504,
}


class GatewayError(Exception):
    """Ends a request with an error that the caller sees."""

    def __init__(self, code: ErrorCode, message: str, *, retry_after: float | None = None, **details: Any) -> None:
        """Say what went wrong.

        Args:
            code: what.
            message: what was found, what was expected, what to do.
            retry_after: seconds after which another try makes sense.
            **details: further fields of the error.

        """
        super().__init__(message)
        self.code, self.message, self.retry_after, self.details = code, message, retry_after, details

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def body(self, request_id: str) -> dict[str, Any]:
        """The error as JSON."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        told = {"code": self.code.value, "message": self.message, "type": kind, "request_id": request_id}
        return {"error": {**told, **self.details}}

    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        found: dict[str, str] = {}
        if self.retry_after is not None:
            found["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        if self.code is ErrorCode.UNAUTHORIZED:
            found["www-authenticate"] = "Bearer"
        return found
