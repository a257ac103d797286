"""Python functions as workers: annotations, docstrings, refusals, and modules by name and by file."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from plansmith.contract.catalog import Catalog, Effect
from plansmith.contract.check import check_plan
from plansmith.contract.errors import CatalogError, InputError
from plansmith.contract.importers import import_catalog
from plansmith.contract.importers.functions import argument_model, catalog_from_functions, worker_from_function
from plansmith.contract.importers.modules import catalog_from_module
from plansmith.contract.importers.result import Notes
from plansmith.contract.prompt import signature

STORE = Path(__file__).parents[1] / "golden" / "importers" / "store_tools.py"


class Color(enum.Enum):
    RED = "r"
    BLUE = 2


class Point(BaseModel):
    x: float
    y: float = 0


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Tree(BaseModel):
    children: list[Tree] = []


@dataclass
class Size:
    width: int


class Row(TypedDict):
    key: str


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (date, {"type": "string", "format": "date"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (Annotated[int, Field(ge=1, lt=9)], {"type": "integer", "minimum": 1, "exclusiveMaximum": 9}),
        (Color, {"$ref": "#/$defs/Color"}),
        (Point, {"$ref": "#/$defs/Point"}),
        (list[Tree], {"type": "array", "items": {"$ref": "#/$defs/Tree"}}),
    ],
)
def test_an_annotation_becomes_its_json_schema(annotation: Any, schema: dict[str, Any]) -> None:
    def fn(value: Any) -> None: ...

    fn.__annotations__ = {"value": annotation}
    assert worker_from_function(fn).args["properties"] == {"value": schema}


def test_definitions_are_kept_closed_and_without_titles() -> None:
    def place(point: Point, color: Color, tree: Tree, loose: Loose, size: Size, row: Row) -> None: ...

    defs = worker_from_function(place).args["$defs"]
    assert defs["Point"] == {
        "type": "object",
        "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert defs["Color"] == {"enum": ["r", 2]}
    assert {name: node.get("additionalProperties") for name, node in defs.items() if name != "Color"} == {
        "Point": False,
        "Tree": False,
        "Loose": True,
        "Size": False,
        "Row": False,
    }


def test_a_parameter_called_title_is_no_title() -> None:
    def page(title: str, properties: list[int]) -> None: ...

    assert worker_from_function(page).args["properties"] == {
        "title": {"type": "string"},
        "properties": {"type": "array", "items": {"type": "integer"}},
    }


def test_defaults_make_parameters_optional_and_are_shown() -> None:
    def fn(a: int, b: Color = Color.RED, *, day: date = date(2026, 1, 2), p: Point = Point(x=1)) -> None: ...  # noqa: B008

    worker = worker_from_function(fn)
    assert worker.required == {"a"}
    defaults = {name: schema.get("default") for name, schema in worker.properties.items()}
    assert defaults == {"a": None, "b": "r", "day": "2026-01-02", "p": {"x": 1.0, "y": 0}}


def test_a_default_that_is_no_json_and_a_choice_without_schema_are_noted() -> None:
    def fn(a: Any = object(), b: Callable[[], int] | int = 3) -> None: ...  # noqa: B008

    notes = Notes()
    worker = worker_from_function(fn, notes=notes)
    assert worker.properties == {"a": {}, "b": {"type": "integer", "default": 3}}
    assert worker.required == set()
    assert len(notes.lines()) == 2


def test_the_result_annotation_becomes_a_closed_schema() -> None:
    def quote() -> Point: ...
    def many() -> list[Point]: ...
    def nothing() -> None: ...
    def anything() -> Any: ...
    def silent(): ...  # type: ignore[no-untyped-def]
    async def later() -> dict[str, int]: ...

    returns = [worker_from_function(fn).returns for fn in (quote, many, nothing, anything, silent, later)]
    assert returns[0] is not None
    assert returns[0]["additionalProperties"] is False
    assert returns[1] is not None
    assert returns[1]["$defs"]["Point"]["additionalProperties"] is False
    assert returns[2:] == [
        {"type": "null"},
        None,
        None,
        {"type": "object", "additionalProperties": {"type": "integer"}},
    ]


def test_a_wrong_reference_into_a_model_is_an_error() -> None:
    def geo_locate(city: str) -> Point: ...
    def geo_near(x: float) -> None: ...

    catalog = catalog_from_functions("geo", [geo_locate, geo_near])

    def found(pointer: str) -> list[tuple[str, str]]:
        plan = [
            {"type": "geo_locate", "args": {"city": "Oslo"}},
            {"type": "geo_near", "args": {"x": {"$from": pointer}}},
        ]
        return [(f.fault.value, f.severity.value) for f in check_plan(plan, catalog).findings]

    assert found("/0/x") == []
    assert found("/0/z") == [("dangling_reference", "error")]


@pytest.mark.parametrize(
    "text",
    [
        "Say it. Twice.\n\nMore.\n\nArgs:\n    a: First\n        one.\n    b (int): Second.\n\nReturns:\n    Nothing.",
        "Say it. Twice.\n\nMore.\n\nParameters\n----------\na : str\n    First\n    one.\nb : int\n    Second.\n",
        "Say it. Twice.\n\nMore.\n\n:param a: First\n    one.\n:param int b: Second.\n:returns: Nothing.",
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_the_docstring_gives_description_and_parameter_texts(text: str) -> None:
    def fn(a: str, b: Annotated[int, Field(description="Own text.")], c: int = 0) -> None: ...

    fn.__doc__ = text
    worker = worker_from_function(fn)
    assert worker.description == "Say it. Twice.\n\nMore."
    assert [schema.get("description") for schema in worker.properties.values()] == ["First one.", "Own text.", None]
    assert signature(worker).endswith("# Say it.")


def test_a_docstring_about_an_absent_parameter_and_a_bare_parameter_are_noted() -> None:
    def fn(a, b=None):  # type: ignore[no-untyped-def]  # noqa: D417
        """Do it.

        Args:
            gone: Was here.

        """

    notes = Notes()
    worker = worker_from_function(fn, notes=notes)
    assert worker.properties == {"a": {}, "b": {"default": None}}
    lines = "\n".join(notes.lines())
    assert "parameter 'a'" in lines
    assert "'gone'" in lines


def test_parameters_may_have_names_that_a_model_may_not() -> None:
    def fn(json: int, _x: int, model_config: int, schema: int, copy: int, self_: int, p0: int) -> None: ...

    names = ["json", "_x", "model_config", "schema", "copy", "self_", "p0"]
    assert list(worker_from_function(fn).properties) == names
    assert argument_model(fn).model_validate({name: 1 for name in names})


def test_a_field_may_stand_as_default_and_does_not_rename_its_parameter() -> None:
    def fn(
        a: Annotated[int, Field(alias="z", ge=1)], b: int = Field(3, le=9, description="B."), c: int = Field()
    ) -> None: ...

    worker = worker_from_function(fn)
    assert worker.required == {"a", "c"}
    assert worker.properties == {
        "a": {"type": "integer", "minimum": 1},
        "b": {"type": "integer", "maximum": 9, "default": 3, "description": "B."},
        "c": {"type": "integer"},
    }


def test_a_model_inside_keeps_its_own_names() -> None:
    @dataclass
    class Inner:
        p0: int

    def fn(a: Inner) -> None: ...

    fn.__annotations__["a"] = Inner
    assert list(worker_from_function(fn).args["$defs"]["Inner"]["properties"]) == ["p0"]


def test_the_argument_model_validates_and_refuses_as_the_schema_says() -> None:
    def fn(point: Point, day: date | None = None) -> None: ...

    model = argument_model(fn)
    made = model.model_validate({"point": {"x": 1}, "day": "2026-01-02"})
    assert made.model_dump() == {"p0": {"x": 1.0, "y": 0}, "p1": date(2026, 1, 2)}
    for bad in ({}, {"point": {"x": 1}, "more": 1}, {"point": 3}):
        with pytest.raises(ValueError, match="validation error"):
            model.model_validate(bad)


class Opaque:
    """No schema."""

    def method(self, a: int) -> None: ...


def variadic(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...
def positional(a: int, /) -> None: ...
def opaque(a: int, b: Opaque) -> None: ...
def callback(a: int, b: Callable[[], int]) -> None: ...
def unresolved(a: Absent) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def opaque_result(a: int) -> Opaque: ...


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (variadic, ["'variadic'", "*args", "a plan names every argument"]),
        (keywords, ["'keywords'", "**kwargs"]),
        (positional, ["'positional'", "positional-only"]),
        (opaque, ["'opaque'", "parameter 'b'", "Opaque", "no JSON Schema"]),
        (callback, ["'callback'", "parameter 'b'", "no JSON Schema"]),
        (unresolved, ["'unresolved'", "Absent"]),
        (opaque_result, ["'opaque_result'", "the result", "Opaque"]),
        (lambda a: a, ["has no name", "name=..."]),
        (functools.partial(opaque, a=1), ["has no name"]),
        (Opaque, ["expected a function"]),
        (Opaque.method, ["'method'", "bound method"]),
        (print, ["'print'"]),
        (3, ["has no name"]),
    ],
)
def test_what_cannot_be_a_worker_is_refused_with_the_reason(fn: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        worker_from_function(fn)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_bound_methods_partials_and_wrapped_functions_work() -> None:
    @functools.wraps(variadic)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    wrapper.__wrapped__ = Opaque().method  # type: ignore[attr-defined]
    assert list(worker_from_function(Opaque().method).properties) == ["a"]
    assert list(worker_from_function(wrapper).properties) == ["a"]
    assert list(worker_from_function(functools.partial(Opaque().method), name="m").properties) == ["a"]


def test_what_a_signature_does_not_say_is_given_by_the_caller() -> None:
    def fn() -> None: ...

    careful = worker_from_function(fn)
    assert (careful.effect, careful.idempotent, careful.permission, careful.timeout_s) == (
        Effect.WRITE,
        False,
        None,
        30,
    )
    given = worker_from_function(fn, name="a b", effect="pure", idempotent=True, permission="p", timeout_s=1)
    assert (given.name, given.effect, given.idempotent, given.permission, given.timeout_s) == (
        "a b",
        "pure",
        True,
        "p",
        1,
    )
    with pytest.raises(InputError, match="effect"):
        worker_from_function(fn, effect="none")
    with pytest.raises(InputError, match="timeout_s"):
        worker_from_function(fn, timeout_s=0)
    with pytest.raises(InputError, match="surrogate"):
        worker_from_function(fn, name="\ud800")
    with pytest.raises(CatalogError, match="duplicate name 'fn'"):
        catalog_from_functions("n", [fn, careful])


def test_a_file_gives_its_public_functions_in_order() -> None:
    result = import_catalog(STORE)
    assert result.catalog.name == "store_tools"
    assert result.catalog.names == ("ship_get_quote", "stock_count", "order_cancel")
    assert {worker.effect for worker in result.catalog.workers} == {Effect.WRITE}
    assert Catalog.from_json(result.catalog.to_json()) == result.catalog


def test_an_attribute_of_a_file_gives_its_functions_and_workers() -> None:
    catalog = catalog_from_module(f"{STORE}:WORKERS", name="store")
    assert catalog.names == ("ship_get_quote", "shop_order_cancel", "stock_count")
    assert [worker.effect.value for worker in catalog.workers] == ["read", "write", "write"]
    assert catalog_from_module(f"{STORE}:BY_NAME").names == ("shop.cancel (final)",)
    assert catalog_from_module(f"{STORE}:order_cancel").names == ("order_cancel",)


def test_a_module_on_the_path_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_shop_tools.py").write_text("def shop_open(day: str) -> bool:\n    return True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert import_catalog("my_shop_tools").catalog.names == ("shop_open",)
    assert import_catalog("my_shop_tools:shop_open", name="n").catalog.name == "n"


def test_a_module_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_types.py").write_text("Day = str\n", encoding="utf-8")
    (tmp_path / "tools.py").write_text(
        "from neighbour_types import Day\ndef shop_open(day: Day) -> bool:\n    return True\n", encoding="utf-8"
    )
    assert import_catalog(tmp_path / "tools.py").catalog.names == ("shop_open",)


@pytest.mark.parametrize(
    ("spec", "text", "words"),
    [
        ("{}/absent.py", "", "does not exist"),
        ("{}/tools.py:absent", "def f() -> None: ...", "has no 'absent'; it has f"),
        ("{}/tools.py", "x = 1", "defines no public function"),
        ("{}/tools.py", "import absent_package_of_nobody", "ModuleNotFoundError"),
        ("{}/tools.py", "raise SystemExit(3)", "SystemExit"),
        ("{}/tools.py", "def f(:", "SyntaxError"),
        ("{}/tools.py:x", "x = [3]", "must hold functions or workers, found 3"),
        ("{}/tools.py:x", "x = []", "holds no functions"),
        ("{}/tools.py:x", "x = 3", "must hold functions or workers"),
        ("absent_package_of_nobody.tools", "", "cannot be imported"),
    ],
)
def test_modules_that_cannot_be_used_are_refused(tmp_path: Path, spec: str, text: str, words: str) -> None:
    (tmp_path / "tools.py").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        import_catalog(spec.format(tmp_path))
    assert words in str(error.value)
