"""Python functions into a catalog: signature and docstring -> pydantic model -> JSON Schema.

Reads annotated functions (plain or async), their defaults and docstrings (Google, NumPy, Sphinx). A parameter may be
whatever pydantic has a JSON Schema for: `Literal`, `Optional`, `Enum`, `Annotated[..., Field()]`, nested models,
dataclasses, lists, dicts, dates. The return annotation becomes `returns`. Models are closed in both unless they say
`extra="allow"`; `$defs` stay, titles go. Not covered: `*args`, `**kwargs` and positional-only parameters, because a
plan names every argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable
from typing import Annotated, Any, cast

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from plansmith.contract.catalog import Catalog, Effect, Schema, Worker
from plansmith.contract.errors import InputError
from plansmith.contract.importers.result import Notes, make_catalog, make_worker, require_plain_json
from plansmith.contract.importers.schemas import subschemas

Function = Callable[..., Any]

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def worker_from_function(
    fn: Function,
    *,
    name: str | None = None,
    effect: Effect | str = Effect.WRITE,
    idempotent: bool = False,
    permission: str | None = None,
    timeout_s: float = 30.0,
    hidden: Container[str] = (),
    notes: Notes | None = None,
) -> Worker:
    """The worker that calls `fn`, as data.

    Args:
        fn: a function or bound method with annotations.
        name: the worker's name; the function's own where it is not given.
        effect: what a call does to the world; nothing in a signature says it, so the default is the careful guess.
        idempotent: whether a repeated call changes nothing further.
        permission: the permission that a caller must hold.
        timeout_s: time limit of one call in seconds.
        hidden: parameters that no plan can give, since whoever calls the function fills them in.
        notes: receives what could not be read (a parameter without annotation, a default that is no JSON).

    Raises:
        InputError: no name, `*args`, `**kwargs`, positional-only parameters, or an annotation without JSON Schema.

    """
    notes = Notes() if notes is None else notes
    name = name if name is not None else getattr(fn, "__name__", None)
    if name is None or name == "<lambda>":
        raise InputError(f"{fn!r} has no name of its own. Pass name=...")
    description, texts = _docstring(fn)
    texts = {key: text for key, text in texts.items() if key not in hidden}
    signature = _without(read_signature(fn), hidden)
    values = {
        "name": name,
        "description": description,
        "args": _args(fn, name, signature, texts, notes),
        "returns": _returns(name, signature.return_annotation, notes),
        "effect": effect,
        "idempotent": idempotent,
        "permission": permission,
        "timeout_s": timeout_s,
    }
    require_plain_json({**values, "effect": str(effect)}, f"the description of function {name!r}")
    return make_worker(**values)


def catalog_from_functions(name: str, fns: Iterable[Function | Worker], *, notes: Notes | None = None) -> Catalog:
    """A catalog of functions; a `Worker` among them (from `worker_from_function`) is taken as it is.

    Raises:
        InputError: a function cannot become a worker.
        CatalogError: the workers cannot form a catalog (a name twice).

    """
    return make_catalog(name, [fn if isinstance(fn, Worker) else worker_from_function(fn, notes=notes) for fn in fns])


def argument_model(fn: Function, *, hidden: Container[str] = ()) -> type[BaseModel]:
    """The model that validates a call's arguments: one field a parameter, with the parameter's name as alias.

    Raises:
        InputError: as `worker_from_function`.

    """
    return _model(fn, getattr(fn, "__name__", "function"), _without(read_signature(fn), hidden))


def _without(signature: inspect.Signature, hidden: Container[str]) -> inspect.Signature:
    kept = [parameter for parameter in signature.parameters.values() if parameter.name not in hidden]
    return signature.replace(parameters=kept)


def read_signature(fn: Function) -> inspect.Signature:
    """The signature with annotations evaluated, and only parameters that can be given by name.

    Raises:
        InputError: annotations that cannot be evaluated, or a parameter that no plan can name.

    """
    what = f"function {getattr(fn, '__name__', fn)!r}"
    if inspect.isclass(fn) or not callable(fn):
        raise InputError(f"expected a function, found {fn!r}. Wrap it in a function with annotated parameters.")
    try:
        signature = inspect.signature(fn, eval_str=True)
    except Exception as error:  # evaluating an annotation runs the user's code, which may raise anything
        raise InputError(f"{what}: its annotations cannot be read: {error}. Import the names that they use.") from error
    for parameter in signature.parameters.values():
        if parameter.kind not in _BY_NAME:
            raise InputError(
                f"{what} takes {str(parameter)!r} ({parameter.kind.description}), but a plan names every argument. "
                "Give it named parameters."
            )
        if parameter.name in ("self", "cls") and parameter.annotation is parameter.empty:
            raise InputError(f"{what} takes {parameter.name!r}: it is a method. Pass the bound method of an object.")
    return signature


def _model(fn: Function, name: str, signature: inspect.Signature) -> type[BaseModel]:
    """Fields are numbered and aliased: a parameter may be called `_x`, `json` or `model_config`, a field may not."""
    fields = {f"p{index}": _field(parameter) for index, parameter in enumerate(signature.parameters.values())}
    config = ConfigDict(extra="forbid")
    try:
        return create_model(f"{name}_arguments", __config__=config, __module__=fn.__module__, **fields)
    except Exception as error:  # annotations may hold the user's own schema hooks, which may raise anything
        raise _unsupported(name, signature, error) from error


def _field(parameter: inspect.Parameter) -> Any:
    """Annotation and default as `create_model` takes them; a default may be a `Field(...)`, as for web frameworks."""
    annotated, annotation = cast("Any", Annotated), parameter.annotation
    if annotation is parameter.empty:
        annotation = Any
    is_field = isinstance(parameter.default, FieldInfo)
    if is_field:
        annotation = annotated[annotation, parameter.default]
    # the last annotation wins, so a parameter keeps its name whatever alias its own Field gives
    name = Field(alias=parameter.name, validation_alias=parameter.name, serialization_alias=parameter.name)
    has_default = not is_field and parameter.default is not parameter.empty
    return annotated[annotation, name] if not has_default else (annotated[annotation, name], parameter.default)


def _unsupported(name: str, signature: inspect.Signature, error: Exception) -> InputError:
    """The error for the first parameter whose annotation has no JSON Schema."""
    for parameter in signature.parameters.values():
        try:
            _Generator().generate(TypeAdapter(parameter.annotation).core_schema)
        except Exception as reason:  # as above
            return _annotation_error(name, f"parameter {parameter.name!r}", parameter.annotation, reason)
    return InputError(f"function {name!r}: its parameters have no JSON Schema: {_first_line(error)}")


def _annotation_error(name: str, what: str, annotation: Any, reason: Exception) -> InputError:
    return InputError(
        f"function {name!r}: {what} has the annotation {inspect.formatannotation(annotation)}, which has no "
        f"JSON Schema ({_first_line(reason)}). Use types that JSON can hold, or a pydantic model."
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with closed models, and with its warnings kept instead of printed."""

    def __init__(self) -> None:
        super().__init__(by_alias=True)
        self.warned: list[str] = []

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        self.warned.append(detail)


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def _schema(source: core_schema.CoreSchema, mode: JsonSchemaMode, where: str, notes: Notes) -> Schema:
    generator = _Generator()
    schema = generator.generate(source, mode)
    for detail in generator.warned:
        notes.add(detail, where)
    return cast("Schema", _without_titles(schema))


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        node = cast("dict[str, Any]", schema)
        node.pop("title", None)
        for _, child in subschemas(node):
            _without_titles(child)
    return cast("Any", schema)


def _args(fn: Function, name: str, signature: inspect.Signature, texts: dict[str, str], notes: Notes) -> Schema:
    model = _model(fn, name, signature)
    where = f"worker {name!r}"
    try:
        schema = _schema(model.__pydantic_core_schema__, "validation", where, notes)
    except PydanticUserError as error:
        raise _unsupported(name, signature, error) from error
    properties = cast("dict[str, dict[str, Any]]", schema.get("properties", {}))
    for parameter in signature.parameters.values():
        if parameter.annotation is parameter.empty:
            notes.add("a parameter without annotation may hold any type", f"{where}, parameter {parameter.name!r}")
        if parameter.name in texts:
            properties[parameter.name].setdefault("description", texts[parameter.name])
    for text in texts.keys() - properties.keys():
        notes.add("the docstring describes a parameter that the function does not have", f"{where}, {text!r}")
    head = {"type": "object", "properties": properties}
    return {**head, **{key: value for key, value in schema.items() if key not in (*head, "description")}}


def _returns(name: str, annotation: Any, notes: Notes) -> Schema | None:
    """Schema of the result as it is serialized; None where the function does not say, or says `Any`."""
    if annotation is inspect.Signature.empty:
        return None
    try:
        schema = _schema(TypeAdapter(annotation).core_schema, "serialization", f"worker {name!r}, result", notes)
    except Exception as error:  # annotations may hold the user's own schema hooks, which may raise anything
        raise _annotation_error(name, "the result", annotation, error) from error
    return schema or None


def _docstring(fn: Function) -> tuple[str, dict[str, str]]:
    """Description without the sections, and the text of each parameter."""
    text = inspect.getdoc(fn) or ""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    parts = [part.strip() for part in (parsed.short_description, parsed.long_description) if part and part.strip()]
    texts = {
        name.strip().lstrip("*"): " ".join(parameter.description.split())
        for parameter in parsed.params
        if parameter.description
        for name in parameter.arg_name.split(",")
    }
    return "\n\n".join(parts), texts
