"""Numbers that an English text states with a scale or in words: `1.2k`, `5%`, `two hundred and fifty`, `half`.

Pure. Read generously: every reading of a word counts (`one two` is 1, 2 and 3), because the only question asked is
whether a text can have led to a number. Not covered: other languages, ordinals, and fractions beyond half and quarter.
"""

from __future__ import annotations

import re

_SCALED = re.compile(
    r"(\d[\d,]*(?:\.\d+)?)\s*(%|percent\b|k\b|thousand\b|m\b|million\b|bn\b|billion\b|dozen\b)", re.IGNORECASE
)
_SCALES = {"k": 10**3, "thousand": 10**3, "m": 10**6, "million": 10**6, "bn": 10**9, "billion": 10**9, "dozen": 12}
_FRACTIONS = {"half": 0.5, "quarter": 0.25}
_POWERS = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9}
# fmt: off
_BELOW_TWENTY = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on
_UNITS = {word: number for number, word in enumerate(_BELOW_TWENTY)} | {
    word: 10 * number for number, word in enumerate(_TENS, 2)
}


def scaled_numbers(text: str) -> frozenset[float]:
    """Numbers in digits with a scale behind them, multiplied out; a percentage as its hundredth."""
    found: set[float] = set()
    for match in _SCALED.finditer(text):
        number = float(match[1].replace(",", ""))
        scale = _SCALES.get(match[2].casefold())
        found.add(number * scale if scale is not None else number / 100)
    return frozenset(found)


def numbers_in_words(text: str) -> frozenset[float]:
    """Numbers in words: each run of number words as one number, and each word by itself.

    Args:
        text: lower-case words between spaces, without punctuation.

    """
    found: set[float] = set()
    run: list[str] = []
    for word in [*text.split(), ""]:
        if word in _UNITS or word in _POWERS:
            run.append(word)
            found.add(_UNITS.get(word, _POWERS.get(word, 0)))
        elif run and word != "and":
            found.add(_number(run))
            run = []
        if word in _FRACTIONS:
            found.add(_FRACTIONS[word])
    return frozenset(found)


def _number(run: list[str]) -> int:
    """`["two", "hundred", "thousand", "five"]` is 200,005."""
    total = part = 0
    for word in run:
        if word in _UNITS:
            part += _UNITS[word]
        elif word == "hundred":
            part = max(part, 1) * 100
        else:
            total, part = total + max(part, 1) * _POWERS[word], 0
    return total + part
