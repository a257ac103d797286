"""Typed settings: a YAML file gives values, `--section.field value` flags override them, docstrings are the help.

Reads one YAML file (safe subset, no duplicate keys) and a list of flags; gives a frozen pydantic object or one
`InputError` that lists every problem with its file, line and key. pydantic-settings parses the flags. Environment
variables are not read: a run depends on its file and its command line only. Not covered: includes and anchors across
files.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from plansmith.contract.errors import InputError

Loc = tuple[int | str, ...]


class Settings(BaseModel):
    """Base of every config class; the sentence under a field gives its unit and meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of a config class, as help and error messages show it."""

    name: str
    """Dotted name without the dashes: `training.steps`."""
    type: str
    default: str
    """The default as text, or `required`."""
    help: str


def load_settings(cls: type[Model], file: str | Path | None, overrides: Sequence[str] = ()) -> Model:
    """Read a config.

    Args:
        cls: the config class; nested classes are its sections.
        file: YAML file with the values, or None for defaults and flags only.
        overrides: flags in the forms `--section.field=value` and `--section.field value`; lists and objects as JSON.

    Raises:
        InputError: the file cannot be read or is no YAML mapping, a key or flag is unknown, a value has the wrong
            type, or values do not go together. The message names file, line and key of every problem.

    """
    name = str(file) if file is not None else "the settings"
    values, lines = _read_yaml(Path(file)) if file is not None else ({}, {})
    flags = parse_flags(cls, overrides)
    merged = _merge(values, flags)
    try:
        return cls.model_validate(merged)
    except ValidationError as error:
        problems = [_explain(item, cls, merged, flags, lines, name) for item in error.errors()]
        raise InputError("\n".join(problems)) from None


def has_section(file: str | Path, name: str) -> bool:
    """Whether a config file has a key at its top; raises `InputError` where it cannot be read."""
    return name in _read_yaml(Path(file))[0]


def parse_flags(cls: type[BaseModel], overrides: Sequence[str]) -> dict[str, Any]:
    """The flags as nested values; raises `InputError` for an unknown name or a missing value."""
    from pydantic_settings import BaseSettings, CliSettingsSource, SettingsError

    pairs = list(_pair_up(overrides))
    if not pairs:
        return {}
    known = {name for setting in iter_settings(cls) for name in _with_sections(setting.name)}
    for flag, _ in pairs:
        if flag not in known:
            raise InputError(f"unknown setting '--{flag}'{closest(flag, known)}.")
    bases: Any = (cls, BaseSettings)
    reader = cast("type[BaseSettings]", type(cls.__name__, bases, {"__module__": __name__}))
    arguments = [f"--{flag}={value}" for flag, value in pairs]
    try:
        return dict(CliSettingsSource[Any](reader, cli_parse_args=arguments, cli_exit_on_error=False)())
    except SettingsError as error:
        raise InputError(f"the flags {' '.join(overrides)} cannot be used: {error}.") from error


def iter_settings(cls: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """Every leaf setting of a config class, in the order of its fields; variants of a union one after the other."""
    for name, field in cls.model_fields.items():
        path = f"{prefix}{name}"
        models = _models_in(field.annotation)
        if models:
            for model in models:
                yield from iter_settings(model, f"{path}.")
            continue
        default = "required" if field.is_required() else _plain(field.get_default(call_default_factory=True))
        yield Setting(path, _type_text(field.annotation), default, " ".join((field.description or "").split()))


def closest(name: str, known: Sequence[str] | set[str]) -> str:
    """`; closest: 'steps'` for a mistyped name, or the known names where none is close and they are few."""
    found = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    if found:
        return "; closest: " + ", ".join(map(repr, found))
    return "; known: " + ", ".join(map(repr, sorted(known))) if 0 < len(known) <= 20 else ""


def _pair_up(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = list(overrides)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise InputError(f"unexpected argument {flag!r}; settings are given as --section.field value.")
        name, equals, value = flag[2:].partition("=")
        if not equals and not rest:
            raise InputError(f"expected a value after {flag!r}.")
        yield name, value if equals else rest.pop(0)


def _with_sections(name: str) -> list[str]:
    """`a.b.c` and the sections around it: `a`, `a.b`."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        nested = isinstance(value, dict) and isinstance(old, dict)
        merged[key] = _merge(cast("dict[str, Any]", old), cast("dict[str, Any]", value)) if nested else value
    return merged


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        text = str(key.value)
        if text in seen:
            raise yaml.MarkedYAMLError(problem=f"key {text!r} is given twice", problem_mark=key.start_mark)
        seen.add(text)
    loader.flatten_mapping(node)
    return cast("dict[Any, Any]", yaml.SafeLoader.construct_mapping(loader, node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[Loc, int]]:
    """The file's mapping, and the line (from 1) of every key in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"config file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"config file {str(path)!r} is not UTF-8: {error.reason} at byte {error.start}.") from error
    try:
        root = cast("Any", yaml).compose(text, Loader=_Loader)
        value: Any = yaml.load(text, Loader=_Loader) if root is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{where}: not usable YAML: {error.problem or error.context}.") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: not usable YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a mapping of sections (`data:`, `training:`, ...), found {value!r:.60}.")
    lines: dict[Loc, int] = {}
    _note_lines(root, (), lines)
    return {str(key): item for key, item in cast("dict[Any, Any]", value).items()}, lines


def _note_lines(node: Any, loc: Loc, lines: dict[Loc, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            lines[(*loc, str(key.value))] = key.start_mark.line + 1
            _note_lines(child, (*loc, str(key.value)), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            lines[(*loc, index)] = child.start_mark.line + 1
            _note_lines(child, (*loc, index), lines)


def _explain(
    item: ErrorDetails,
    cls: type[BaseModel],
    values: dict[str, Any],
    flags: dict[str, Any],
    lines: dict[Loc, int],
    name: str,
) -> str:
    """One line for one of pydantic's findings: where it stands, what was found, what was expected."""
    missing = item["type"] == "missing"
    loc = _place(item["loc"], values, keep_last=missing)
    key = ".".join(map(str, loc)) or "the file"
    if _holds(flags, loc) and loc:
        where = f"--{key}"
    else:
        line = next((lines[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in lines), None)
        where = f"{name}, line {line}: {key}" if line else f"{name}: {key}"
    if item["type"] == "extra_forbidden":
        return f"{where}: unknown key{closest(str(loc[-1]), _field_names(cls, loc[:-1]))}."
    if missing:
        return f"{where}: required, but not given."
    message = item["msg"].removeprefix("Value error, ").rstrip(".")
    shown = "" if isinstance(item["input"], dict | BaseModel) else f" (found {item['input']!r:.60})"
    return f"{where}: {message}{shown}."


def _place(loc: Loc, values: Any, *, keep_last: bool) -> Loc:
    """Pydantic's location without the names of union variants, which stand for no key of the file."""
    kept: list[int | str] = []
    at: Any = values
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(at, dict) and part in at:
            at = cast("dict[Any, Any]", at)[part]
        elif isinstance(at, list) and isinstance(part, int) and part < len(cast("list[Any]", at)):
            at = cast("list[Any]", at)[part]
        elif not (keep_last and last):
            continue
        kept.append(part)
    return tuple(kept)


def _holds(values: Any, loc: Loc) -> bool:
    for part in loc:
        if not isinstance(values, dict) or part not in values:
            return False
        values = cast("dict[Any, Any]", values)[part]
    return True


def _field_names(cls: type[BaseModel], loc: Loc) -> set[str]:
    """Names of the fields that a section may have, over all variants."""
    models = [cls]
    for part in loc:
        annotations = [model.model_fields[str(part)].annotation for model in models if str(part) in model.model_fields]
        models = [found for annotation in annotations for found in _models_in(annotation)]
    return {name for model in models for name in model.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Config classes that a field may hold: itself, or the variants of a union; none for lists and scalars."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return [model for part in get_args(annotation) for model in _models_in(part)]
    return _models_in(get_args(annotation)[0]) if origin is Annotated else []


def _type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return "|".join(_type_text(part) for part in get_args(annotation))
    if origin is Annotated:
        return _type_text(get_args(annotation)[0])
    if origin is Literal:
        return "|".join(map(str, get_args(annotation)))
    if origin is not None:
        inner = ", ".join("..." if part is Ellipsis else _type_text(part) for part in get_args(annotation))
        return f"{getattr(origin, '__name__', origin)}[{inner}]"
    if annotation is type(None):
        return "null"
    return _enum_text(annotation) or str(getattr(annotation, "__name__", annotation))


def _enum_text(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    return ""


def _plain(value: Any) -> str:
    """A default as a user would write it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, set | frozenset):  # in an order that does not change from run to run
        return "[" + ", ".join(sorted(_plain(item) for item in cast("Any", value))) + "]"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_plain(item) for item in cast("Any", value)) + "]"
    return str(getattr(value, "value", value))
