"""Functions as workers: what the catalog sees, what a function gets, what comes back, and how a call fails."""

from __future__ import annotations

import asyncio
import enum
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from plansmith.contract.catalog import Effect
from plansmith.contract.errors import InputError
from plansmith.serving.workers.base import CallableWorker, CallInfo, FailureCode, WorkerError, failure_of
from plansmith.serving.workers.decorator import FunctionWorker, worker
from plansmith.serving.workers.marks import Secret, is_secret
from plansmith.serving.workers.registry import Registry

INFO = CallInfo(run_id="run", step=0)
CANARY = "canary-7f3a"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Point(BaseModel):
    x: float
    y: float = 0
    note: Any = None


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    inner: int = Field(alias="outer")


class Picky(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def _no_shouting(cls, text: str) -> str:
        if text.isupper():
            raise ValueError(f"{text} is shouted")
        return text


class Login(BaseModel):
    user: str
    password: Annotated[str, Secret()]


@dataclass
class Size:
    width: int
    when: date | None = None


def call(made: FunctionWorker[Any, Any], info: CallInfo = INFO, /, **args: Any) -> Any:
    return asyncio.run(made.call(args, info))


def failure(made: FunctionWorker[Any, Any], /, **args: Any) -> tuple[str, str, bool]:
    with pytest.raises(Exception) as caught:  # noqa: PT011  (any failure is looked at as its data)
        call(made, **args)
    found = failure_of(caught.value)
    return found.code, found.message, found.retryable


def test_a_decorated_function_is_a_worker_and_still_the_function() -> None:
    @worker(effect="read", timeout_s=10, permission="market", idempotent=True, approval=True)
    def fin_quote(symbol: str, exchange: Literal["NYSE", "NASDAQ"] = "NASDAQ") -> str:
        """Latest price of a stock. More words.

        Args:
            symbol: ticker, e.g. `AAPL`.
            exchange: where it is traded.
        """
        return f"{exchange}:{symbol}"

    entry = fin_quote.worker
    assert isinstance(fin_quote, CallableWorker)
    assert (entry.name, entry.effect, entry.timeout_s) == ("fin_quote", Effect.READ, 10)
    assert (entry.permission, entry.idempotent, fin_quote.approval) == ("market", True, True)
    assert entry.properties["symbol"]["description"] == "ticker, e.g. `AAPL`."
    assert fin_quote("AAPL", exchange="NYSE") == "NYSE:AAPL"
    assert (fin_quote.__name__, (fin_quote.__doc__ or "")[:12]) == ("fin_quote", "Latest price")
    assert call(fin_quote, symbol="AAPL") == "NASDAQ:AAPL"


def test_without_arguments_the_decorator_takes_the_careful_guesses() -> None:
    @worker
    def pay(amount: int) -> int:
        return amount

    entry = pay.worker
    assert (entry.effect, entry.idempotent, entry.permission, entry.timeout_s) == (Effect.WRITE, False, None, 30)
    assert (pay.approval, pay.secrets) == (False, frozenset())


GOOGLE = """Send mail.

Args:
    to: who gets it.
"""
NUMPY = """Send mail.

Parameters
----------
to : str
    who gets it.
"""
SPHINX = """Send mail.

:param to: who gets it.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_docstrings_of_three_styles_describe_parameters(text: str, is_async: bool) -> None:
    def mail(to: str, info: CallInfo) -> str:
        return to

    async def mail_async(to: str, info: CallInfo) -> str:
        return to

    fn: Callable[..., Any] = mail_async if is_async else mail
    fn.__doc__ = text
    made = worker(fn)
    assert made.worker.description == "Send mail."
    assert made.worker.properties == {"to": {"type": "string", "description": "who gets it."}}
    assert call(made, to="Ann") == "Ann"


@pytest.mark.parametrize(
    ("annotation", "given_as", "received"),
    [
        (int, 3, 3),
        (int, 3.0, 3),
        (float, 3, 3.0),
        (str, "3", "3"),
        (bool, True, True),
        (int | str, "3", "3"),
        (date, "2026-12-01", date(2026, 12, 1)),
        (datetime, "2026-12-01T10:00:00Z", datetime(2026, 12, 1, 10, tzinfo=UTC)),
        (Color, "red", Color.RED),
        (Point, {"x": 1}, Point(x=1)),
        (list[Point], [{"x": 1}, {"x": 2}], [Point(x=1), Point(x=2)]),
        (Size, {"width": 2}, Size(2)),
        (dict[str, date], {"a": "2026-01-02"}, {"a": date(2026, 1, 2)}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Renamed, {"outer": 4}, Renamed(outer=4)),
        (Annotated[int, Field(ge=2)], 2, 2),
        (str | None, None, None),
        (Decimal, "1.50", Decimal("1.50")),
        (Any, {"a": [1, None]}, {"a": [1, None]}),
    ],
)
def test_a_function_gets_the_typed_object(annotation: Any, given_as: Any, received: Any) -> None:
    seen: list[Any] = []

    def take(value: Any) -> None:
        seen.append(value)

    take.__annotations__["value"] = annotation
    call(worker(take), value=given_as)
    assert seen == [received]
    assert type(seen[0]) is type(received)


def take_number(n: Annotated[int, Field(ge=2)], text: str = "", model: Picky | None = None) -> int:
    return n


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, ["'\"n\"' is a required", "required"]),
        ({"n": "5"}, ["argument 'n'", '"5"', "type"]),
        ({"n": True}, ["argument 'n'", "true", "type"]),
        ({"n": 1}, ["argument 'n'", "1", "minimum"]),
        ({"n": 2.5}, ["argument 'n'", "2.5", "type"]),
        ({"n": 2, "m": 1}, ["'m'", "unexpected"]),
        ({"n": 2, "text": None}, ["argument 'text'", "null"]),
        ({"n": 2, "model": {"text": "LOUD"}}, ["argument 'model'", "'LOUD'", "shouted", "value_error"]),
        ({"n": 1, "text": 3}, ["argument 'n'", "argument 'text'"]),
        ({"n": 2, "text": "\ud800"}, ["argument"]),
        ({"n": math.nan}, ["no JSON"]),
        ({"n": 2, "text": "x" * 5000, "model": 3}, ["argument 'model'"]),
    ],
)
def test_a_wrong_argument_is_refused_with_name_value_and_rule(args: dict[str, Any], words: list[str]) -> None:
    code, message, retryable = failure(worker(take_number), **args)
    assert (code, retryable) == (FailureCode.INVALID_ARGUMENT, False)
    assert [word for word in words if word.replace("'\"n\"'", '"n"') not in message] == []
    assert len(message) < 1000


def test_a_default_of_the_function_is_its_own_object_and_a_field_gives_its_value() -> None:
    marker = [1]

    def take(given: int, own: list[int] = marker, field: int = Field(default=4, ge=1)) -> bool:
        return own is marker and field == 4

    assert call(worker(take), given=1) is True


def test_the_call_info_is_handed_over_hidden_and_out_of_a_plans_reach() -> None:
    @worker
    def write(text: str, info: CallInfo, again: CallInfo | None = None) -> str:
        assert info is again
        return f"{info.run_id}/{info.step}/{info.idempotency_key}: {text}"

    assert list(write.worker.properties) == ["text"]
    assert call(write, CallInfo("r", 3, idempotency_key="k"), text="a") == "r/3/k: a"
    code, message, _ = failure(write, text="a", info={"run_id": "x", "step": 1})
    assert (code, "'info'" in message) == (FailureCode.INVALID_ARGUMENT, True)
    assert write("b", INFO, INFO) == "run/0/None: b"


@pytest.mark.parametrize(
    ("annotation", "secret"),
    [
        (str, False),
        (Annotated[str, Secret()], True),
        (Annotated[str | None, Secret()], True),
        (list[Annotated[str, Secret()]], True),
        (Annotated[str, Field(min_length=2), Secret()] | None, True),
        (Annotated[str, Secret], True),
        (SecretStr, True),
        (Login, True),
        (dict[str, list[Login]], True),
        (Point, False),
        (Size, False),
    ],
)
def test_a_secret_is_found_at_any_depth_of_an_annotation(annotation: Any, secret: bool) -> None:
    assert is_secret(annotation) is secret


@pytest.mark.parametrize(
    "args",
    [
        {"key": CANARY + "x" * 50, "login": None},
        {"key": CANARY, "login": {"user": CANARY}},
        {"key": CANARY, "login": {"user": "a", "password": [CANARY]}},
        {"key": [CANARY]},
        {"key": {CANARY: CANARY}},
        {"key": "ab", "picky": {"text": CANARY.upper()}},
        {"key": "\ud800" + CANARY},
    ],
)
def test_no_refusal_shows_the_value_of_a_secret_argument(args: dict[str, Any]) -> None:
    @worker
    def enter(
        key: Annotated[str, Field(max_length=20), Secret()],
        login: Login | None = None,
        picky: Annotated[Picky, Secret()] | None = None,
    ) -> str:
        return "in"

    assert enter.secrets == {"key", "login", "picky"}
    with pytest.raises(WorkerError) as caught:
        call(enter, **args)
    shown: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        shown.append(f"{error!r} {error}")
        error = error.__cause__
    assert CANARY not in " ".join(shown)
    assert CANARY.upper() not in " ".join(shown)


def test_a_secret_reaches_the_function() -> None:
    @worker
    def enter(key: SecretStr, other: Annotated[str, Secret()]) -> bool:
        return (key.get_secret_value(), other) == ("a", "b")

    assert call(enter, key="a", other="b") is True


@pytest.mark.parametrize(
    ("returned", "as_json"),
    [
        (None, None),
        (Point(x=1), {"x": 1.0, "y": 0.0, "note": None}),
        ([Size(1, date(2026, 1, 2))], [{"width": 1, "when": "2026-01-02"}]),
        ({"c": Color.RED, "l": Level.LOW}, {"c": "red", "l": 1}),
        ((1, 2), [1, 2]),
        (Renamed(outer=2), {"outer": 2}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (Decimal("1.5"), "1.5"),
        ("é\u2028", "é\u2028"),
        ({"a": None}, {"a": None}),
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_results_become_json_data(returned: Any, as_json: Any, is_async: bool) -> None:
    def give():
        return returned

    async def give_async():
        return returned

    assert call(worker(give_async if is_async else give)) == as_json


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (math.nan, "NaN"),
        ([1.0, math.inf], "NaN"),
        ({"a": {"b": [-math.inf]}}, "NaN"),
        (Point(x=math.nan), "NaN"),
        (Point(x=1, note=math.nan), "NaN"),
        (Point(x=1, note={"deep": [math.inf]}), "NaN"),
        ({1: "a"}, "key 1"),
        ({"a": [{None: 1}]}, "key None"),
        (object(), "no JSON"),
        ({"a": lambda: 1}, "no JSON"),
        (b"\xff", "UTF-8"),
        ("\ud800", "UTF-8"),
        ("x" * 2000, "2,002 bytes"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_what_json_cannot_hold_is_an_invalid_result(returned: Any, words: str, is_async: bool) -> None:
    def give() -> Any:
        return returned

    async def give_async() -> Any:
        return returned

    code, message, retryable = failure(worker(max_result_bytes=1000)(give_async if is_async else give))
    assert (code, retryable) == (FailureCode.INVALID_RESULT, False)
    assert words in message


def test_circles_and_bottomless_results_are_invalid_results() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (circle, deep):
        assert failure(worker(lambda_of(value)))[0] == FailureCode.INVALID_RESULT
    while deep:
        deep = deep[0]


def lambda_of(value: Any) -> Callable[[], Any]:
    def give() -> Any:
        return value

    return give


@pytest.mark.parametrize(
    ("annotation", "returned", "words"),
    [
        (int, "three", "integer"),
        (Point, {"y": 1}, '"x" is a required property'),
        (list[int], [1, "b"], "/1"),
        (Literal["a"], "b", '"a"'),
        (None, 1, "null"),
        (dict[str, int], {"a": "b"}, "/a"),
    ],
)
def test_a_result_that_does_not_fit_what_is_declared_is_invalid(annotation: Any, returned: Any, words: str) -> None:
    give = lambda_of(returned)
    give.__annotations__["return"] = annotation
    code, message, _ = failure(worker(give))
    assert (code, words in message) == (FailureCode.INVALID_RESULT, True)


class OwnBase(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (SystemExit(3), "INTERNAL", False),
        (KeyboardInterrupt(), "INTERNAL", False),
        (GeneratorExit(), "INTERNAL", False),
        (OwnBase("x"), "INTERNAL", False),
        (asyncio.CancelledError(), "INTERNAL", False),
        (StopIteration(1), "INTERNAL", False),
        (StopAsyncIteration(), "INTERNAL", False),
        (BaseExceptionGroup("g", [SystemExit(1)]), "INTERNAL", False),
        (ValueError("x"), "INTERNAL", False),
        (TimeoutError(), "TIMEOUT", True),
        (ConnectionResetError(), "NETWORK", True),
        (WorkerError("SOLD_OUT", "none left", retryable=True), "SOLD_OUT", True),
        (RecursionError(), "INTERNAL", False),
        (MemoryError(), "INTERNAL", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_whatever_a_function_raises_ends_the_call_and_nothing_else(
    error: BaseException, code: str, retryable: bool, is_async: bool
) -> None:
    def fail(bad: bool) -> int:
        if bad:
            raise error
        return 1

    async def fail_async(bad: bool) -> int:
        await asyncio.sleep(0)
        return fail(bad)

    made = worker(fail_async if is_async else fail)

    async def main() -> tuple[Any, list[Any]]:
        beside = asyncio.create_task(made.call({"bad": False}, INFO))
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await made.call({"bad": True}, INFO)
        after = await made.call({"bad": False}, INFO)
        return failure_of(caught.value), [await beside, after]

    found, others = asyncio.run(main())
    assert (found.code, found.retryable, others) == (code, retryable, [1, 1])
    if code == "INTERNAL" and not (is_async and isinstance(error, StopIteration)):  # Python renames that one itself
        assert type(error).__name__ in found.message


def test_a_sync_function_that_gives_something_to_await_is_awaited() -> None:
    async def inner() -> dict[str, int]:
        return {"a": 1}

    @worker
    def outer() -> Any:
        return inner()

    assert call(outer) == {"a": 1}


class Shop:
    def __init__(self) -> None:
        self.sold: list[str] = []

    def sell(self, item: str) -> int:
        """Sell an item."""
        self.sold.append(item)
        return len(self.sold)


def test_bound_methods_and_partials_work_and_registries_hold_workers() -> None:
    shop = Shop()
    registry = Registry("shop", [worker(shop.sell), worker(name="sell_pen")(partial(shop.sell))])
    assert registry.catalog.names == ("sell", "sell_pen")
    made = registry.get("sell_pen")
    assert made is not None
    assert asyncio.run(made.call({"item": "pen"}, INFO)) == 1
    assert shop.sold == ["pen"]


def generator() -> Any:
    yield 1


async def async_generator() -> Any:
    yield 1


def star(*args: int) -> int:
    return len(args)


@pytest.mark.parametrize(
    ("fn", "options", "words"),
    [
        (generator, {}, "generator"),
        (async_generator, {}, "generator"),
        (star, {}, "names every argument"),
        (lambda_of(1), {"max_result_bytes": 0}, "max_result_bytes"),
        (lambda_of(1), {"effect": "sometimes"}, "effect"),
        (lambda_of(1), {"timeout_s": 0}, "timeout_s"),
        (Shop.sell, {}, "method"),
        (lambda: 1, {}, "no name"),
    ],
)
def test_what_cannot_be_a_worker_is_refused_when_it_is_decorated(fn: Any, options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        worker(**options)(fn)


def test_notes_say_what_the_signature_left_open() -> None:
    @worker
    def loose(anything) -> int:  # pyright: ignore
        return 1

    assert loose.notes == ("worker 'loose', parameter 'anything': a parameter without annotation may hold any type",)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet=st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=10,
)


@worker
def echo(value: Any) -> Any:
    return value


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_json_data_passes_through_unchanged(value: Any) -> None:
    assert json.dumps(call(echo, value=value)) == json.dumps(value)
