"""What a check can find: the closed set of faults, their severity, and one finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from plansmith.contract.plan import Json


class Severity(StrEnum):
    """Whether a finding makes the plan invalid."""

    ERROR = "error"
    """the plan is invalid"""
    WARNING = "warning"
    """the plan may run, but what is known does not promise it"""


class Fault(StrEnum):
    """Every kind of fault that a plan can have."""

    TOO_LARGE = "too_large"
    """the text is over 256 KiB"""
    NOT_JSON = "not_json"
    """the text is not RFC 8259 JSON"""
    DUPLICATE_KEY = "duplicate_key"
    """an object has a key twice"""
    TOO_DEEP = "too_deep"
    """nesting over 64"""
    NOT_ARRAY = "not_array"
    """JSON, but no array"""
    TOO_MANY_STEPS = "too_many_steps"
    """more steps than `max_steps`"""
    STEP_NOT_OBJECT = "step_not_object"
    """a step is no object"""
    MISSING_KEY = "missing_key"
    """a step lacks `type` or `args`"""
    UNKNOWN_KEY = "unknown_key"
    """a step has a key other than `type`, `args`, `after`"""
    TYPE_NOT_STRING = "type_not_string"
    """`type` is no string"""
    ARGS_NOT_OBJECT = "args_not_object"
    """`args` is no object"""
    UNKNOWN_WORKER = "unknown_worker"
    """`type` is not in the catalog"""
    MISSING_ARG = "missing_arg"
    """a required parameter is absent"""
    UNKNOWN_ARG = "unknown_arg"
    """the worker has no such parameter"""
    BAD_VALUE = "bad_value"
    """a value breaks the parameter's schema"""
    MALFORMED_REFERENCE = "malformed_reference"
    """`$from` is not a pointer into the results"""
    FORWARD_REFERENCE = "forward_reference"
    """a reference or `after` names its own or a later step"""
    DANGLING_REFERENCE = "dangling_reference"
    """the pointed step's result has no such place"""
    REFERENCE_TYPE = "reference_type"
    """the pointed place's type cannot satisfy the parameter"""
    MALFORMED_FORMAT = "malformed_format"
    """`$format` is not a template with its values"""
    UNKNOWN_OPERATOR = "unknown_operator"
    """an object with a key that starts with `$` is none of the three operators"""
    BAD_AFTER = "bad_after"
    """`after` is not a list of step indices"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault at one place of a plan."""

    fault: Fault
    severity: Severity
    step: int | None
    """Index of the step, None for the plan as a whole."""
    path: str
    """RFC 6901 pointer into the plan."""
    message: str
    """What was found, what was expected, what to do."""

    def to_json(self) -> dict[str, Json]:
        return {
            "fault": self.fault.value,
            "severity": self.severity.value,
            "step": self.step,
            "path": self.path,
            "message": self.message,
        }


_NO_WORKER = frozenset({Fault.UNKNOWN_WORKER, Fault.TYPE_NOT_STRING, Fault.STEP_NOT_OBJECT})


def unregistered(findings: Iterable[Finding]) -> bool:
    """Whether a step names no worker of the catalog: its `type` is unknown, no string, or absent."""
    return any(
        found.fault in _NO_WORKER or (found.fault is Fault.MISSING_KEY and found.path.endswith("/type"))
        for found in findings
    )
