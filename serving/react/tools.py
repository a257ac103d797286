"""The tools of an agent: workers in OpenAI's form, and what the model asks for read back into calls. No call is made.

A worker is a tool if its effect and permission are allowed; others are listed in `withheld` with the reason. Names that
OpenAI's form does not take get one that it does. A call is checked as a plan of one step, so the checks and words are
those of plans.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.endpoint import ToolCall
from plansmith.contract.errors import InputError
from plansmith.contract.execution import prepare_args
from plansmith.contract.findings import Severity
from plansmith.contract.parse import ParseError, parse_json
from plansmith.contract.plan import Json
from plansmith.serving.react.config import ReActConfig
from plansmith.serving.workers.base import FailureCode
from plansmith.serving.workers.registry import Registry

FINAL_ANSWER = "final_answer"
"""The tool that ends a run."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN = 3
_FINAL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": FINAL_ANSWER,
        "description": "Give the answer to the user's query and end. Call it alone, when nothing further is needed.",
        "parameters": {
            "type": "object",
            "properties": {
                "answer": {"type": "string", "description": "Text for the user."},
                "confidence": {
                    "type": "number",
                    "minimum": 0,
                    "maximum": 1,
                    "description": "How sure you are that it is right and complete.",
                },
            },
            "required": ["answer"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True, slots=True)
class GoodCall:
    """A call that can be made."""

    worker: str
    args: dict[str, Json]


@dataclass(frozen=True, slots=True)
class BadCall:
    """A call that cannot be made, and why, in words for the model."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The end of a run."""

    answer: str
    confidence: float | None


class Tools:
    """What an agent may call."""

    def __init__(self, registry: Registry, config: ReActConfig) -> None:
        """Choose the workers.

        Raises:
            InputError: a worker has the name of the tool that ends a run.

        """
        if registry.get(FINAL_ANSWER) is not None:
            raise InputError(f"a worker is named {FINAL_ANSWER!r}, which ends an agent's run; give it another name.")
        self.withheld: dict[str, str] = {}
        """Workers that are no tools, and why."""
        self._names: dict[str, str] = {}
        for one in registry:
            worker = one.worker
            if worker.effect not in config.effects:
                self.withheld[worker.name] = f"its effect is {worker.effect.value!r}"
            elif worker.permission is not None and worker.permission not in config.permissions:
                self.withheld[worker.name] = f"it needs the permission {worker.permission!r}"
            else:
                self._names[self._tool_name(worker.name)] = worker.name
        self.catalog: Catalog = registry.catalog.subset(list(self._names.values()))

    def _tool_name(self, worker: str) -> str:
        if _NAME.fullmatch(worker) and worker not in self._names:
            return worker
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", worker)[:56] or "tool"
        name, number = plain, 2
        while name in self._names or name == FINAL_ANSWER:
            name, number = f"{plain}_{number}", number + 1
        return name

    def definitions(self, removed: Collection[str] = ()) -> list[dict[str, Any]]:
        """All tools in OpenAI's form but the removed workers, the one that ends a run last."""
        found: list[dict[str, Any]] = []
        for name, worker_name in self._names.items():
            worker = self.catalog.get(worker_name)
            if worker is not None and worker_name not in removed:
                function = {"name": name, "description": worker.description, "parameters": worker.args}
                found.append({"type": "function", "function": function})
        return [*found, _FINAL]

    def read(self, call: ToolCall, removed: Collection[str] = ()) -> GoodCall | BadCall | FinalAnswer:
        """What a call of the model means."""
        name = call.name
        if name != FINAL_ANSWER and name not in self._names:
            return BadCall(FailureCode.NOT_FOUND, self._unknown(name, removed))
        if self._names.get(name) in removed:
            return BadCall(FailureCode.UNAVAILABLE, f"{name!r} is not available any more. {self._known(removed)}")
        try:
            args = parse_json(call.arguments or "{}")
        except ParseError as error:
            message = f"the arguments of {name!r} are no JSON: {error}. Call it again with one JSON object."
            return BadCall(FailureCode.INVALID_ARGUMENT, message)
        if not isinstance(args, dict):
            message = f"the arguments of {name!r} must be one JSON object, found {_kind(args)}. Call it again."
            return BadCall(FailureCode.INVALID_ARGUMENT, message)
        fields = cast("dict[str, Json]", args)
        return _final(fields) if name == FINAL_ANSWER else self._checked(self._names[name], fields)

    def _checked(self, worker: str, args: dict[str, Json]) -> GoodCall | BadCall:
        check = check_plan([{"type": worker, "args": args}], self.catalog)
        if check.plan is None:
            errors = [found.message for found in check.findings if found.severity is Severity.ERROR]
            more = f" ({len(errors) - _SHOWN} more)" if len(errors) > _SHOWN else ""
            message = f"{worker!r} cannot be called so: {'; '.join(errors[:_SHOWN])}{more}"
            return BadCall(FailureCode.INVALID_ARGUMENT, message)
        return GoodCall(worker, prepare_args(check.plan.steps[0], (), None))

    def _unknown(self, name: str, removed: Collection[str]) -> str:
        close = difflib.get_close_matches(name[:128], self._names, n=3)
        hint = f"closest: {', '.join(map(repr, close))}. " if close else ""
        return f"there is no tool {name[:128]!r}; {hint}{self._known(removed)}"

    def _known(self, removed: Collection[str]) -> str:
        names = [name for name, worker in self._names.items() if worker not in removed]
        return f"Tools: {', '.join([*names, FINAL_ANSWER])}."


def _final(args: dict[str, Json]) -> FinalAnswer | BadCall:
    answer, confidence = args.get("answer"), args.get("confidence")
    number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
    if not isinstance(answer, str) or not answer.strip():
        message = f"{FINAL_ANSWER!r} needs 'answer', a text that is not empty. Call it again."
        return BadCall(FailureCode.INVALID_ARGUMENT, message)
    if confidence is not None and not (number and 0 <= cast("float", confidence) <= 1):
        message = f"'confidence' of {FINAL_ANSWER!r} is a number from 0 to 1, found {confidence!r:.40}. Call it again."
        return BadCall(FailureCode.INVALID_ARGUMENT, message)
    return FinalAnswer(answer, None if confidence is None else float(cast("float", confidence)))


def _kind(value: Json) -> str:
    if isinstance(value, list):
        return "an array"
    return "a text" if isinstance(value, str) else "a number, true, false or null"
