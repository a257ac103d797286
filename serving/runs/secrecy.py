"""Secrets of a run: which values they are, and texts and JSON without them.

Secret are the arguments that a worker names so (`CallableWorker.secrets`), literals inside them, and the places of
earlier results that they refer to. Text that holds a secret of four characters or more is changed in every place;
shorter text and other values are changed only where they are the whole value of a secret argument. Not covered: a
worker that shows a changed form (encoded, hashed) of its secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from plansmith.contract.errors import ResolutionError
from plansmith.contract.plan import FORMAT, FROM, LITERAL, Json, Plan, Step, lookup, references
from plansmith.serving.workers.base import CallFailure
from plansmith.serving.workers.registry import Registry

REDACTED = "[redacted]"
_SHORTEST = 4


class Secrets:
    """Secret values of one run; grows as results come in."""

    def __init__(self, plan: Plan, registry: Registry) -> None:
        """Take the secret literals of a plan."""
        self._registry = registry
        self._texts: set[str] = set()
        self._places: dict[int, set[tuple[str, ...]]] = {}
        for step in plan.steps:
            for name in self.names(step):
                self._texts.update(text for text in _texts(step.args.get(name)) if len(text) >= _SHORTEST)
                for reference in references({name: step.args.get(name)}):
                    self._places.setdefault(reference.step, set()).add(reference.tokens)

    def names(self, step: Step) -> frozenset[str]:
        """Secret parameters of a step."""
        found = self._registry.get(step.type)
        return found.secrets if found is not None else frozenset()

    def learn_args(self, step: Step, args: dict[str, Json]) -> None:
        """Take the resolved values of secret arguments."""
        for name in self.names(step):
            self._texts.update(text for text in _texts(args.get(name)) if len(text) >= _SHORTEST)

    def learn_result(self, index: int, result: Json) -> None:
        """Take what later steps use as secrets."""
        for tokens in self._places.get(index, ()):
            pointer = "/0" + "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)
            try:
                value = lookup(pointer, [result])
            except ResolutionError:
                continue
            self._texts.update(text for text in _texts(value) if len(text) >= _SHORTEST)

    def args(self, step: Step, args: dict[str, Json]) -> dict[str, Json]:
        """Arguments to show: secret ones are gone, and secrets inside others."""
        names = self.names(step)
        return {name: REDACTED if name in names else self.value(value) for name, value in args.items()}

    def plan(self, plan: Plan) -> Json:
        """A plan to show or keep."""
        return [{**step.to_json(), "args": self._kept(step)} for step in plan.steps]

    def _kept(self, step: Step) -> dict[str, Json]:
        names = self.names(step)
        kept: dict[str, Json] = {}
        for name, value in step.args.items():
            plain = isinstance(value, dict) and FROM in value
            kept[name] = value if plain else REDACTED if name in names else self.value(value)
        return kept

    def value(self, value: Json) -> Json:
        """JSON without secrets; keys of objects included."""
        if not self._texts:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in cast("list[Json]", value)]
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in cast("dict[str, Json]", value).items()}
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return REDACTED if number and str(value) in self._texts else value

    def text(self, text: str) -> str:
        """Text without secrets, the longest first."""
        for secret in sorted(self._texts, key=len, reverse=True):
            if secret in text:
                text = text.replace(secret, REDACTED)
        return text

    def failure(self, failure: CallFailure) -> CallFailure:
        """A failure without secrets."""
        code, message = self.text(failure.code), self.text(failure.message)
        return failure.model_copy(update={"code": code, "message": message})


def holds_redacted(value: Json) -> bool:
    """Whether something was taken out of a value."""
    return any(REDACTED in text for text in _texts(value))


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int | float):
        yield str(value)
    elif isinstance(value, list):
        for item in cast("list[Json]", value):
            yield from _texts(item)
    elif isinstance(value, dict):
        node = cast("dict[str, Json]", value)
        if LITERAL in node:
            yield from _texts(node[LITERAL])
        elif FORMAT in node:
            yield str(node[FORMAT])
            yield from _texts(node.get("with"))
        elif FROM not in node:
            for item in node.values():
                yield from _texts(item)
