"""Rows in Arrow: Parquet and JSONL files that `datasets.load_dataset` reads.

A column has one type in Arrow. Plans whose steps have different arguments would become one struct with every key, most
of them `None` (trl 5118, axolotl 3136), and a column with integers and numbers would lose which is which. So what is no
plain text or number is kept as JSON text: `plan`, `results`, `allowed`, `why`. `to_columns` and `from_columns` are each
other's inverse. Needs the packages of the extra `data`, inside the functions that use them. Not covered: the folder as
a whole (`export.py`).
"""

from __future__ import annotations

import json
import types
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin

from pydantic import ValidationError

from plansmith.contract.errors import InputError, MissingExtraError, PlansmithError
from plansmith.contract.plan import dumps
from plansmith.contract.records import Record
from plansmith.contract.store import StorageError

EXTRA = "data"
Row = TypeVar("Row", bound=Record)


class Column(StrEnum):
    """How a field is kept; the value is the type's name in Arrow."""

    TEXT = "string"
    """text as it is"""
    INTEGER = "int64"
    """a whole number"""
    NUMBER = "float64"
    """any number"""
    BOOLEAN = "bool"
    """true or false"""
    JSON = "large_string"
    """any JSON, as JSON text"""


class FileFormat(StrEnum):
    """Kind of file; the value is its folder and the end of its name."""

    PARQUET = "parquet"
    """compressed columns, what `load_dataset` reads by default"""
    JSONL = "jsonl"
    """one JSON object a line, with the same columns"""


def require_packages() -> None:
    """Raise `MissingExtraError` (an `InputError`) where a package that Arrow files need is not installed."""
    if find_spec("datasets") is None:
        raise MissingExtraError("datasets", EXTRA)


def columns(row_type: type[Record]) -> dict[str, Column]:
    """The column of each field, in the order of the fields."""
    return {name: _column(field.annotation) for name, field in row_type.model_fields.items()}


def _column(annotation: Any) -> Column:
    """Column of a field's type; None is allowed in every column."""
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = {_column(item) for item in get_args(annotation) if item is not type(None)}
        return kinds.pop() if len(kinds) == 1 else Column.JSON
    sample: object = get_args(annotation)[0] if get_origin(annotation) is Literal else None
    kind = type(sample) if sample is not None else annotation
    if not isinstance(kind, type):
        return Column.JSON
    plain = {bool: Column.BOOLEAN, int: Column.INTEGER, float: Column.NUMBER, str: Column.TEXT}
    return next((column for base, column in plain.items() if issubclass(kind, base)), Column.JSON)


def to_columns(row: Record) -> dict[str, Any]:
    """A row as one value a column."""
    values = row.model_dump(mode="json")
    for name, column in columns(type(row)).items():
        if column is Column.JSON and values[name] is not None:
            values[name] = dumps(values[name])
    return values


def from_columns(values: dict[str, Any], row_type: type[Row]) -> Row:
    """The row that `to_columns` was given.

    Raises:
        InputError: the values are no such row.

    """
    row = dict(values)
    try:
        for name, column in columns(row_type).items():
            if column is Column.JSON and row.get(name) is not None:
                row[name] = json.loads(row[name])
        return row_type.model_validate(row)
    except (ValidationError, ValueError, TypeError) as error:
        raise InputError(f"row {values.get('id')!r} is no {row_type.__name__}: {error}") from error


def write_file(rows: Iterable[Row], row_type: type[Row], folder: Path, name: str, formats: Iterable[FileFormat]) -> int:
    """Write rows into `folder/FORMAT/name.FORMAT` for each format and return how many there are.

    Rows are read once and go through a temporary Arrow file in the folder, so memory does not grow with them.
    Without rows no file is written: `load_dataset` refuses splits without rows in some formats.

    Raises:
        MissingExtraError: a package of the extra `data` is not installed.
        StorageError: a file cannot be written.

    """
    require_packages()
    datasets: Any = import_module("datasets")
    source = _Counted(rows)
    first = next(source, None)
    if first is None:
        return 0
    features = datasets.Features({name: datasets.Value(kind.value) for name, kind in columns(row_type).items()})

    def encoded() -> Iterator[dict[str, Any]]:
        yield to_columns(first)
        yield from map(to_columns, source)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with quiet(), TemporaryDirectory(dir=folder, prefix=".arrow-") as cache:
            table = datasets.Dataset.from_generator(encoded, features=features, cache_dir=cache, fingerprint="rows")
            for kind in formats:
                target = folder / kind.value / f"{name}.{kind.value}"
                target.parent.mkdir(parents=True, exist_ok=True)
                if kind is FileFormat.PARQUET:
                    table.to_parquet(target)
                else:
                    table.to_json(target, force_ascii=False)
    except (OSError, datasets.exceptions.DatasetGenerationError) as error:
        _raise_cause(error, f"cannot write {name!r} into {str(folder)!r}")
    return source.count


def _raise_cause(error: Exception, what: str) -> NoReturn:
    """Raise what `datasets` wrapped: our own errors as they are, the system's as a `StorageError`."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError | PlansmithError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, PlansmithError):
        raise cause
    if isinstance(cause, OSError):
        raise StorageError(f"{what}: {cause.strerror or cause}.") from cause
    raise error


def read_split(folder: Path, split: str, row_type: type[Row]) -> Iterator[Row]:
    """Rows of an exported folder as `datasets.load_dataset` gives them, one by one.

    Raises:
        MissingExtraError: a package of the extra `data` is not installed.
        InputError: the folder is none of ours, or holds another kind of row.

    """
    require_packages()
    datasets: Any = import_module("datasets")
    with quiet():
        try:
            table = datasets.load_dataset(str(folder), split=split, streaming=True)
        except (OSError, ValueError) as error:
            raise InputError(f"{str(folder)!r} holds no split {split!r} that datasets can load: {error}") from error
    for values in table:
        yield from_columns(cast("dict[str, Any]", values), row_type)


class _Counted(Generic[Row]):
    """Rows that are counted while they are read."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.count = 0
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        row = next(self._rows)
        self.count += 1
        return row


@contextmanager
def quiet() -> Generator[None]:
    """No progress bars of `datasets` inside the block."""
    logging: Any = import_module("datasets.utils.logging")
    shown: bool = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
