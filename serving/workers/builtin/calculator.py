"""A calculator with a grammar of its own: no `eval`, no names but those below, and nothing that takes long.

    sum     = product (("+" | "-") product)*
    product = sign (("*" | "/" | "//" | "%") sign)*
    sign    = ("+" | "-") sign | power
    power   = atom (("**" | "^") sign)?
    atom    = number | constant | function "(" sum ("," sum)* ")" | "(" sum ")"

Integers stay exact, up to a number of digits; everything is checked before it is computed, so `9**9**9` is refused at
once. Results are finite numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from plansmith.serving.workers.base import FailureCode, WorkerError
from plansmith.serving.workers.decorator import FunctionWorker, worker

MAX_LENGTH = 500
MAX_DEPTH = 50
MAX_DIGITS = 300
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_TOKEN = re.compile(rf"\s*(?:{_NUMBER}|[A-Za-z_][A-Za-z_0-9]*|\*\*|//|[-+*/%^(),])", re.ASCII)
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
Number = int | float


class _Function(NamedTuple):
    call: Callable[..., Number]
    least: int
    most: int


def _round(value: Number, digits: Number = 0) -> Number:
    if int(digits) != digits or abs(digits) > 15:
        raise _refuse("digits", f"round() takes a whole number of digits from -15 to 15; found {digits}.")
    return round(value, int(digits)) if digits else round(value)


def _abs(value: Number) -> Number:
    return abs(value)


_FUNCTIONS = {
    "abs": _Function(_abs, 1, 1),
    "sqrt": _Function(math.sqrt, 1, 1),
    "exp": _Function(math.exp, 1, 1),
    "ln": _Function(math.log, 1, 1),
    "log": _Function(math.log, 1, 2),
    "log10": _Function(math.log10, 1, 1),
    "log2": _Function(math.log2, 1, 1),
    "sin": _Function(math.sin, 1, 1),
    "cos": _Function(math.cos, 1, 1),
    "tan": _Function(math.tan, 1, 1),
    "floor": _Function(math.floor, 1, 1),
    "ceil": _Function(math.ceil, 1, 1),
    "round": _Function(_round, 1, 2),
    "min": _Function(min, 2, 20),
    "max": _Function(max, 2, 20),
}


def calculator() -> FunctionWorker[[str], float | int]:
    """The worker `calc_evaluate`."""
    return worker(name="calc_evaluate", effect="pure", idempotent=True, timeout_s=5)(evaluate)


def evaluate(expression: str) -> float | int:
    """Value of an arithmetic expression.

    Args:
        expression: numbers, + - * / // % **, parentheses, pi, e, and functions such as sqrt, log, round, min, max.

    """
    if len(expression) > MAX_LENGTH:
        raise _refuse("length", f"an expression has {MAX_LENGTH} characters at most; found {len(expression)}.")
    try:
        return _finite(_Parser(_tokens(expression)).whole())
    except OverflowError as error:
        raise _too_large() from error


def _tokens(expression: str) -> list[str]:
    found: list[str] = []
    place = 0
    text = expression.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _wrong(f"there is no arithmetic at character {place}: {text[place : place + 10]!r}.")
        found.append(match[0].strip())
        place = match.end()
    return found


class _Parser:
    """Computes while it reads."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._place, self._depth = tokens, 0, 0

    def whole(self) -> Number:
        value = self._sum()
        if self._place < len(self._tokens):
            raise _wrong(f"{self._tokens[self._place]!r} is not expected there.")
        return value

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if token not in wanted or not token:
            return ""
        self._place += 1
        return token

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refuse("depth", f"an expression nests {MAX_DEPTH} levels at most.")
        value = self._product()
        while operator := self._take("+", "-"):
            right = self._product()
            value = _finite(value + right if operator == "+" else value - right)
        self._depth -= 1
        return value

    def _product(self) -> Number:
        value = self._sign()
        while operator := self._take("*", "/", "//", "%"):
            value = _multiply(operator, value, self._sign())
        return value

    def _sign(self) -> Number:
        minus = False
        while operator := self._take("+", "-"):
            minus ^= operator == "-"
        value = self._power()
        return -value if minus else value

    def _power(self) -> Number:
        value = self._atom()
        if not self._take("**", "^"):
            return value
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refuse("depth", f"an expression nests {MAX_DEPTH} levels at most.")
        power = _raise(value, self._sign())
        self._depth -= 1
        return power

    def _atom(self) -> Number:
        if self._take("("):
            return self._closed(self._sum())
        token = self._peek()
        if not token or token in "+-*/%^),":
            raise _wrong(f"a number is expected {f'before {token!r}' if token else 'at the end'}.")
        self._place += 1
        if token[0] in ".0123456789":
            return _number(token)
        name = token.casefold()
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name not in _FUNCTIONS:
            raise _wrong(f"{token!r} is not known; known are {', '.join(sorted([*_CONSTANTS, *_FUNCTIONS]))}.")
        return self._call(name)

    def _call(self, name: str) -> Number:
        function = _FUNCTIONS[name]
        if not self._take("("):
            raise _wrong(f"{name!r} is a function; write {name}(...).")
        values = [self._sum()]
        while self._take(","):
            values.append(self._sum())
        self._closed(0)
        if not function.least <= len(values) <= function.most:
            raise _wrong(f"{name!r} takes {function.least} to {function.most} values; found {len(values)}.")
        try:
            return _finite(function.call(*values))
        except (ValueError, OverflowError, ZeroDivisionError) as error:
            raise _refuse("domain", f"{name}() has no value there.") from error

    def _closed(self, value: Number) -> Number:
        if not self._take(")"):
            raise _wrong("a parenthesis is not closed.")
        return value


def _number(token: str) -> Number:
    digits = token.partition("e")[0].partition("E")[0]
    if len(digits) > MAX_DIGITS:
        raise _refuse("digits", f"a number has {MAX_DIGITS} digits at most.")
    return int(token) if token.isdecimal() else _finite(float(token))


def _multiply(operator: str, left: Number, right: Number) -> Number:
    if operator == "*":
        return _finite(left * right)
    if right == 0:
        raise _refuse("zero", "a division by zero has no value.")
    try:
        value = left / right if operator == "/" else left // right if operator == "//" else left % right
    except OverflowError as error:
        raise _too_large() from error
    return _finite(value)


def _raise(base: Number, power: Number) -> Number:
    """A power, its size checked before it is computed."""
    if base == 0 and power < 0:
        raise _refuse("zero", "zero has no negative power.")
    if base < 0 and int(power) != power:
        raise _refuse("domain", "a negative number has no power that is no whole number.")
    if base not in (0, 1, -1) and (abs(power) > 10_000 or abs(power) * abs(math.log10(abs(base))) > MAX_DIGITS):
        raise _too_large()
    try:
        return _finite(base**power)
    except OverflowError as error:
        raise _too_large() from error


def _finite(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > MAX_DIGITS * 4:
            raise _too_large()
        return value
    if not math.isfinite(value):
        raise _too_large()
    return value


def _too_large() -> WorkerError:
    return _refuse("size", f"a number on the way has more than {MAX_DIGITS} digits.")


def _refuse(rule: str, message: str) -> WorkerError:
    code = FailureCode.FORBIDDEN if rule in ("length", "depth") else FailureCode.INVALID_ARGUMENT
    return WorkerError(code, f"rule {rule!r}: {message}")


def _wrong(message: str) -> WorkerError:
    return WorkerError(FailureCode.INVALID_ARGUMENT, f"rule 'grammar': {message}")
