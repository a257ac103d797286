"""What is made of the tasks: the same for several entities, two or three tasks in one query, an order, and no worker.

Also the words around a task (openers, joins, small talk). Notation: `templates.py`. A query that no worker serves, or
that lacks what a worker needs, has the plan `[]`.
"""

from __future__ import annotations

from typing import Any

from templates import QUOTE, TASKS, Steps, Task, ref


def shift(value: Any, by: int) -> Any:
    """Steps or arguments with every reference moved by a number of steps."""
    if isinstance(value, dict):
        return {key: _moved(item, by) if key == "$from" else shift(item, by) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(shift(item, by) for item in value)
    return value


def _moved(pointer: str, by: int) -> str:
    step, slash, rest = pointer[1:].partition("/")
    return f"/{int(step) + by}{slash}{rest}"


def _each(name: str, slot: str, count: int) -> Steps:
    """The steps of a task once for each of `{slot}`, `{slot2}`, ...; one after another, in the order of the query."""
    steps: list[tuple[str, dict[str, Any]]] = []
    for number in range(1, count + 1):
        renamed = f"@{slot}{number}" if number > 1 else f"@{slot}"
        for worker, args in TASKS[name].steps:
            named = {key: renamed if value == f"@{slot}" else value for key, value in args.items()}
            steps.append((worker, shift(named, (number - 1) * len(TASKS[name].steps))))
    return tuple(steps)


def _into(number: str) -> tuple[str, dict[str, Any]]:
    return "fin_convert", {"amount": ref("/0/price"), "source": ref("/0/currency"), "target": f"@cur{number}"}


_WHEN = "[ {on}]"

SEVERAL: dict[str, Task] = {
    "quote*2": Task(
        _each("quote", "stock", 2),
        ("(get|check|look up) the prices of {stock} and {stock2}", "(get|pull up) quotes for {stock} and {stock2}"),
        (
            "what are {stock} and {stock2} trading at( right now|)",
            "how much is one share of {stock} and one of {stock2}",
        ),
        ("the (prices|quotes|share prices) (of|for) {stock} and {stock2}",),
    ),
    "quote*3": Task(
        _each("quote", "stock", 3),
        ("(get|check|look up) the prices of {stock}, {stock2} and {stock3}",),
        ("what are {stock}, {stock2} and {stock3} trading at( right now|)",),
        ("the (prices|quotes|share prices) (of|for) {stock}, {stock2} and {stock3}",),
    ),
    "advice*2": Task(
        _each("advice", "stock", 2),
        ("(tell me|find out) (whether|if) {stock} and {stock2} are (worth buying|a buy)",),
        ("are {stock} and {stock2} (worth buying|a buy)( right now|)", "should I (buy|sell) {stock} and {stock2}"),
        ("(an analysis|an assessment|a verdict) of {stock} and {stock2}",),
    ),
    "price_in*2": Task(
        (QUOTE, _into(""), _into("2")),
        ("(get|look up|check) the price of {stock} in {cur} and {cur2}",),
        ("how much is {stock} in {cur} and in {cur2}", "what is {stock} trading at in {cur} and {cur2}"),
        ("the price of {stock} in {cur} and {cur2}",),
    ),
    "convert*2": Task(
        (
            ("fin_convert", {"amount": "@money", "source": "@cur", "target": "@cur2"}),
            ("fin_convert", {"amount": "@money", "source": "@cur", "target": "@cur3"}),
        ),
        ("(convert|change) {money} {cur} (to|into) {cur2} and {cur3}",),
        ("(how much|what) is {money} {cur} in {cur2} and in {cur3}",),
        ("the value of {money} {cur} in {cur2} and {cur3}",),
    ),
    "forecast*2": Task(
        _each("forecast", "city", 2),
        (
            f"(check|get|look up) the (weather|forecast) (in|for) {{city}} and {{city2}}{_WHEN}",
            f"compare the weather in {{city}} and {{city2}}{_WHEN}",
        ),
        (
            f"(what is|what's|how is) the weather in {{city}} and {{city2}}{_WHEN}",
            f"will it (rain|snow|be warm) in {{city}} or {{city2}}{_WHEN}",
        ),
        (f"the (weather|forecast) (in|for) {{city}} and {{city2}}{_WHEN}",),
    ),
    "forecast*3": Task(
        _each("forecast", "city", 3),
        (f"(check|get|look up) the (weather|forecast) (in|for) {{city}}, {{city2}} and {{city3}}{_WHEN}",),
        (f"(what is|how is) the weather in {{city}}, {{city2}} and {{city3}}{_WHEN}",),
        (f"the (weather|forecast) (in|for) {{city}}, {{city2}} and {{city3}}{_WHEN}",),
    ),
    "umbrella*2": Task(
        _each("umbrella", "city", 2),
        (f"(check|find out|tell me) (whether|if) I need an umbrella in {{city}} and {{city2}}{_WHEN}",),
        (f"(do|will) I need an umbrella in {{city}} or {{city2}}{_WHEN}",),
        (f"umbrella advice for {{city}} and {{city2}}{_WHEN}",),
    ),
    "order*2": Task(
        _each("order", "order", 2),
        ("(check|look up|track) orders {order} and {order2}",),
        ("where are (my |)orders {order} and {order2}", "have orders {order} and {order2} (shipped|been delivered)"),
        ("the (status|details) of orders {order} and {order2}",),
    ),
    "refund_full*2": Task(
        _each("refund_full", "order", 2),
        ("refund orders {order} and {order2}( in full|)",),
        ("can I (get|have) my money back for orders {order} and {order2}",),
        ("a full refund (for|of) orders {order} and {order2}",),
    ),
    "events*2": Task(
        _each("events", "date", 2),
        ("(check|show me|list) my (calendar|schedule|events) for {date} and {date2}",),
        ("what do I have on my calendar {on} and {on2}", "am I (busy|free) {on} or {on2}"),
        ("my (schedule|calendar|agenda) for {date} and {date2}",),
    ),
    "dose*2": Task(
        _each("dose", "drug", 2),
        ("(check|look up|tell me) the doses of {drug} and {drug2} (for|at) age {age}",),
        ("how much {drug} and how much {drug2} can someone aged {age} take",),
        ("the (doses|dosages) of {drug} and {drug2} (for|at) age {age}",),
    ),
    "send*2": Task(
        _each("send", "person", 2),
        ("(tell|text|message) {person} and {person2} that {text}", "let {person} and {person2} know that {text}"),
        ("can {person} and {person2} be told that {text}",),
        ("a (message|text) to {person} and {person2} saying {text}",),
    ),
}
"""One wish for two or three entities: the task's steps once for each, what is needed by all only once."""

PAIRS = (
    "quote forecast, quote order, quote events, quote dose, advice umbrella, advice order, forecast events, "
    "forecast order, forecast add, umbrella add, umbrella events, order add, order convert, convert forecast, "
    "convert events, interactions dose, interactions add, interactions order, interactions umbrella, "
    "interactions send, umbrella order, dose forecast, events interactions, "
    "refund_full events, refund_full forecast, refund_part order, refund_part quote, quote analyze_at, "
    "price_in forecast, price_in events, order send, events send, forecast send, dose send, slot quote, slot forecast, "
    "advice refund_full, delivery quote, events send_price, order send_weather, order_in events, analyze_at order"
)
TRIPLES = "quote forecast events, order forecast dose, convert quote events, forecast add send, advice order events"
THEN = "refund_part send, refund_full send, add send, slot send, send add, send refund_part"
"""The second step waits for the first by `after`: the query says so, and no reference makes it wait already."""

LAST = frozenset(("send", "send_price", "send_weather"))
"""Tasks that stand last in a pair: what follows free text could be read as part of it."""

COMMAND_OPENERS = (
    *(("", "."),) * 4,
    ("please ", "."),
    ("could you ", "?"),
    ("could you please ", "?"),
    ("can you ", "?"),
    ("would you ", "?"),
    ("hey, ", "."),
    ("hi, please ", "."),
    ("hey, can you ", "?"),
    ("I need you to ", "."),
    ("I want you to ", "."),
    ("I would like you to ", "."),
    ("go ahead and ", "."),
    ("help me out and ", "."),
)
QUESTION_OPENERS = (
    *(("", "?"),) * 5,
    ("hey, ", "?"),
    ("hi, ", "?"),
    ("quick question: ", "?"),
    ("so, ", "?"),
    ("tell me, ", "?"),
    ("just checking: ", "?"),
    ("one question, ", "?"),
    ("let me ask: ", "?"),
)
THING_OPENERS = (
    ("I need ", "."),
    ("I want ", "."),
    ("I would like ", "."),
    ("give me ", "."),
    ("get me ", "."),
    ("please get me ", "."),
    ("can I have ", "?"),
    ("can you get me ", "?"),
    ("could I get ", "?"),
    ("what I need is ", "."),
    ("", "."),
)
OPENERS = {"commands": COMMAND_OPENERS, "questions": QUESTION_OPENERS, "things": THING_OPENERS}
"""What stands before a wording and after it."""

CLOSERS = (*("",) * 6, " Thanks.", " Thank you!", " Cheers.", " It is urgent.", " No rush.")
SMALL_TALK = (
    "Good morning!",
    "Hello there.",
    "I am in a hurry.",
    "I have two small things to sort out.",
    "Sorry to bother you again.",
    "Busy day today.",
    "I am back.",
    "You helped me a lot last time.",
    "I keep forgetting things.",
    "It is me again.",
)
COMMAND_JOINS = (" and ", ", and ", " and also ", ", and please ", "; also ")
QUESTION_JOINS = (", and ", "? And ", "? Also, ", " and ")
THING_JOINS = (" and ", ", and also ", " as well as ", " plus ", ", and ")
JOINS = {"commands": COMMAND_JOINS, "questions": QUESTION_JOINS, "things": THING_JOINS}
THEN_JOINS = (
    ". Once that is done, ",
    ". As soon as that is done, ",
    ". After that, ",
    ", and after that ",
    " and once that is done ",
    " and then ",
    ", then ",
)
