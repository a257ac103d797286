"""Marks in annotations: which parameters are secret, and which take the call's info.

`Annotated[str, Secret()]` says that a value is shown to nobody: not in logs, events, errors or the journal. Pydantic's
`SecretStr` and `SecretBytes` say the same. A mark inside a list, a union or a model's field counts for the whole
parameter, since nobody could show the rest of the value safely.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic import Secret as PydanticSecret


@dataclass(frozen=True, slots=True)
class Secret:
    """`Annotated[..., Secret()]`: the values of this parameter are shown to nobody."""


def is_secret(annotation: Any) -> bool:
    """Whether an annotation holds a secret at any depth."""
    return has_mark(annotation, Secret, SecretStr, SecretBytes, PydanticSecret)


def has_mark(annotation: Any, *marks: type) -> bool:
    """Whether one of the types, or an object of them, is part of an annotation at any depth."""
    pending, seen = [annotation], set[int]()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, marks) or (isinstance(node, type) and issubclass(node, marks)) or get_origin(node) in marks:
            return True
        pending += _parts(node)
    return False


def _parts(node: Any) -> list[Any]:
    if isinstance(node, type) and issubclass(node, BaseModel):
        fields = node.model_fields.values()
        return [part for field in fields for part in (field.annotation, *field.metadata)]
    if isinstance(node, type) and dataclasses.is_dataclass(node):
        return list(get_type_hints(node, include_extras=True).values())
    other = cast("Any", node)
    alias = getattr(other, "__value__", None)  # a `type X = ...` statement
    return [*get_args(other), *getattr(other, "__metadata__", ()), *([] if alias is None else [alias])]
