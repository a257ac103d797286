"""What a query grounds: words, numbers, dates and times, and what reading it leads to."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract.amounts import numbers_in_words, scaled_numbers
from plansmith.contract.grounding import Invented, Query, as_date, dates_named, is_grounded, times_named, words


def grounded(value: Any, query: str) -> bool:
    return is_grounded(value, Query(query))


@pytest.mark.parametrize(
    ("value", "query"),
    [
        ("Lisbon", "a trip to LISBON, please"),
        ("São Paulo", "from sao paulo"),
        ("Paulo (São)", "from são paulo"),
        ("the trip", "a trip to the sea"),
        ("hotel", "two hotels"),
        ("hotels", "a hotel"),
        ("rock'n'roll", "play rock 'n' roll"),
        ("东京", "我想去东京旅行"),
        ("", "anything"),
        ("+", "a + b"),
        ("2024-11-30", "next Saturday"),
        ("2024-11-30T10:00:00Z", "next Saturday at ten"),
        ("18:45", "in the evening"),
        ("6 p.m.", "in the evening"),
        (True, "x"),
        (None, "x"),
        (3, "a few"),
        (-99, "x"),
        ("12,7", "x"),
        (1200, "about 1,200 people"),
        (1200.0, "about 1.2k people"),
        ("1200", "about 1,200 people"),
        (-1200, "owes 1200"),
        (0.05, "5% off"),
        (250, "two hundred and fifty"),
        (0.5, "half of it"),
        (2.75, "costs 2.75"),
    ],
)
def test_what_the_query_says_or_leads_to_is_grounded(value: Any, query: str):
    assert grounded(value, query)


@pytest.mark.parametrize(
    ("value", "query"),
    [
        ("Rome", "a trip to Lisbon"),
        ("Lisbon Airport", "a trip to Lisbon"),
        ("isbon", "a trip to Lisbon"),
        ("as", "a trip"),
        ("大阪", "我想去东京旅行"),
        ("+", "a and b"),
        ("2024-13-30", "next Saturday"),
        (100, "a few"),
        (1201, "about 1,200 people"),
        ("1201", "about 1,200 people"),
        (2.5, "costs 2.75"),
        (250, "two hundred"),
        (5000, "5%"),
    ],
)
def test_what_comes_from_nowhere_is_not(value: Any, query: str):
    assert not grounded(value, query)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20) | st.integers(0, 10**9), st.text(max_size=10), st.text(max_size=10))
def test_whatever_stands_in_the_query_is_grounded(value: Any, before: str, behind: str):
    assert grounded(value, f"{before} {value} {behind}")


def test_dates_and_times_of_english_wording():
    assert dates_named("from November 3rd to the 5th, then 2024-12-01") >= {(11, 3), (11, 5), (12, 1)}
    assert dates_named("the 4th of July") == {(7, 4)}
    assert times_named("at 7 p.m.") == {(19, 0)}
    assert times_named("at 7:30") == {(7, 30), (19, 30)}
    assert times_named("noon or midnight") == {(12, 0), (0, 0)}
    assert as_date("2024-02-30") is None


def test_amounts_in_words_and_with_scales():
    assert numbers_in_words("two hundred thousand five") >= {200_005}
    assert numbers_in_words("seventeen and a quarter") == {17, 0.25}
    assert scaled_numbers("1.5 million, 3 dozen, 20 percent") == {1_500_000, 36, 0.2}


def test_an_invented_value_is_written_as_place_and_json():
    assert str(Invented((0, "args", "a/b", 1), "Rome")) == '/0/args/a~1b/1: "Rome"'
    assert str(Invented((0, "args", "x"), float("inf"))) == "/0/args/x: inf"


@given(st.text())
def test_the_short_way_for_plain_letters_gives_the_same_words(text: str):
    plain = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    assert words(text) == " " + re.sub(r"[\W_]+", " ", plain).strip() + " "
