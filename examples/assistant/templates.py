"""Tasks: what a user may want, in many wordings, and the steps of its plan.

A task has wordings of three kinds, so that `queries.py` can combine tasks: commands ("get the price of AAPL"),
questions without their mark ("how much is AAPL") and things ("the price of AAPL").

Notation of a wording: `(a|b)` one of these, `[x]` present or absent, `{slot}` an entity from `entities.py`.
Notation of a step: `@slot` the slot's value (an argument whose slot is absent is left out), `{"$from": "/0/field"}` the
result of an earlier step of the same task, counted from 0.

Not covered: free choices. Whatever a wording leaves open is left out of the plan, so that a query has one right plan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Steps = tuple[tuple[str, dict[str, Any]], ...]


class Task(NamedTuple):
    """One wish with its plan."""

    steps: Steps
    """Worker and arguments of each step."""
    commands: tuple[str, ...]
    questions: tuple[str, ...]
    things: tuple[str, ...]


def ref(pointer: str) -> dict[str, str]:
    """Reference to a field of an earlier result."""
    return {"$from": pointer}


def labelled(label: str, pointer: str) -> dict[str, Any]:
    """Text made of the query's own words and a field: `AAPL: 187.4`. All messages about results look like this."""
    return {"$format": label + ": {0}", "with": [ref(pointer)]}


QUOTE = ("fin_get_quote", {"stock": "@stock"})
FORECAST = ("weather_get_forecast", {"city": "@city", "date": "@date"})
ORDER = ("shop_get_order", {"order_id": "@order"})
ANALYZE_QUOTE = ("fin_analyze", {"stock": "@stock", "price": ref("/0/price")})
CONVERT_QUOTE = ("fin_convert", {"amount": ref("/0/price"), "source": ref("/0/currency"), "target": "@cur"})

_WHEN = "[ {on}]"
_WITH = "[ with ({person}|{person} and {person2})]"
_AT = "[ at {time}]"
_WHY = "[ because {reason}]"
_DRUGS = "({drug} and {drug2}|{drug}, {drug2} and {drug3})"
_NOW = "( right now| at the moment|)"
_FOR_AGE = "(for age {age}|at age {age}|for a person aged {age}|for someone who is {age})"

TASKS: dict[str, Task] = {
    "quote": Task(
        (QUOTE,),
        (
            "(get|fetch|look up|check|pull up) the (current |latest |)(price|stock price|share price) (of|for) {stock}",
            "(get|fetch|pull up) a quote for {stock}",
            f"(check|tell me|find out) what {{stock}} (costs|trades at){_NOW}",
        ),
        (
            f"(what is|what's) {{stock}} trading at{_NOW}",
            f"how much (is|does) (a|one) share of {{stock}}( cost|){_NOW}",
            "(what is|what's) the (price|stock price|share price) of {stock}",
            f"where is {{stock}} trading{_NOW}",
        ),
        (
            "the (current |latest |)(price|stock price|share price|quote) (of|for) {stock}",
            "(a|the latest) quote for {stock}",
            "{stock}'s (current |latest |)(price|share price)",
        ),
    ),
    "analyze_at": Task(
        (("fin_analyze", {"stock": "@stock", "price": "@money"}),),
        (
            "(analyze|assess|evaluate) {stock} at (a price of |){money}",
            "(tell me|find out) (whether|if) {stock} is (worth buying|a buy|cheap) at {money}",
        ),
        (
            "is {stock} (a buy|a good buy|worth buying|cheap) at {money}",
            "should I (buy|sell|hold) {stock} at {money}",
            "would {stock} be (a buy|a bargain) (at|for) {money}",
        ),
        ("(an analysis|a verdict|an assessment) of {stock} at {money}", "(advice|a verdict) on {stock} at {money}"),
    ),
    "advice": Task(
        (QUOTE, ANALYZE_QUOTE),
        (
            "(analyze|assess|evaluate) {stock} at (its current|today's) price",
            "(get|check|look up) the price of {stock} and (analyze|assess|evaluate) it",
            "(tell me|find out) (whether|if) {stock} is (worth buying|a buy|a good buy)",
        ),
        (
            f"is {{stock}} (a buy|a good buy|worth buying|overpriced|cheap){_NOW}",
            f"should I (buy|sell|hold) {{stock}}{_NOW}",
            "what is {stock} trading at and is it (a buy|worth buying|cheap)",
        ),
        (
            "(an analysis|an assessment|a verdict) of {stock}",
            "(advice|buy or sell advice|a verdict) on {stock}",
            "the price of {stock} and whether it is (a buy|worth buying)",
        ),
    ),
    "convert": Task(
        (("fin_convert", {"amount": "@money", "source": "@cur", "target": "@cur2"}),),
        (
            "(convert|change|turn) {money} {cur} (to|into) {cur2}",
            "(calculate|work out|find out|tell me) (how much|what) {money} {cur} is in {cur2}",
            "convert {cur} {money} (to|into) {cur2}",
        ),
        (
            "(how much|what) is {money} {cur} in {cur2}",
            "how many {cur2} (do I get|are there|would I get) for {money} {cur}",
            "(how much|what) is {cur} {money} worth in {cur2}",
        ),
        ("the (value|worth|equivalent) of {money} {cur} in {cur2}", "{money} {cur} (converted to|in) {cur2}"),
    ),
    "price_in": Task(
        (QUOTE, CONVERT_QUOTE),
        (
            "(get|look up|check|fetch) the (current |)(price|share price) of {stock} in {cur}",
            "convert the (current |)price of {stock} (to|into) {cur}",
            "(look up|check) {stock} and convert (the|its) price (to|into) {cur}",
        ),
        (
            f"(what is|what's) {{stock}} trading at in {{cur}}{_NOW}",
            "how much is (a share of |one share of |){stock} in {cur}",
            "how many {cur} (is|does it take for) one share of {stock}",
        ),
        ("the (current |)(price|share price) of {stock} in {cur}", "{stock}'s price (converted to|in) {cur}"),
    ),
    "forecast": Task(
        (FORECAST,),
        (
            f"(check|get|look up|pull up) the (weather|forecast|weather forecast) (for|in) {{city}}{_WHEN}",
            f"(check|tell me|find out) (whether|if) it will (rain|snow|be sunny|be cold) in {{city}}{_WHEN}",
            f"(check|tell me|find out) how (warm|cold|hot) it will be in {{city}}{_WHEN}",
        ),
        (
            f"(what is|what's) the weather (like |)in {{city}}{_WHEN}",
            f"how is the weather in {{city}}{_WHEN}",
            f"will it (rain|snow|be sunny|be warm) in {{city}}{_WHEN}",
            f"how (warm|cold|hot) will it be in {{city}}{_WHEN}",
        ),
        (f"the (weather|forecast|weather forecast) (for|in) {{city}}{_WHEN}", f"a weather report for {{city}}{_WHEN}"),
    ),
    "umbrella": Task(
        (FORECAST, ("weather_advise_umbrella", {"rain_chance": ref("/0/rain_chance")})),
        (
            f"(check|tell me|find out) (whether|if) I need an umbrella in {{city}}{_WHEN}",
            f"(tell me|find out) (whether|if) I should (pack|take|bring) an umbrella (to|for) {{city}}{_WHEN}",
            f"check the (weather|forecast) (in|for) {{city}}{_WHEN} and tell me (whether|if) I need an umbrella",
        ),
        (
            f"(do|will) I need an umbrella in {{city}}{_WHEN}",
            f"should I (take|bring|pack|carry) an umbrella (in|to) {{city}}{_WHEN}",
            f"if it rains in {{city}}{_WHEN}, should I (take|carry) an umbrella",
            f"what is the weather in {{city}}{_WHEN} and do I need an umbrella",
        ),
        (
            f"(umbrella advice|advice on taking an umbrella) for {{city}}{_WHEN}",
            f"the (weather|forecast) for {{city}}{_WHEN} and whether I need an umbrella",
        ),
    ),
    "order": Task(
        (ORDER,),
        (
            "(check|look up|track|find|pull up) order {order}",
            "(check|look up|tell me) the (status|total|delivery date) of order {order}",
            "(see|find out|tell me) where order {order} is",
        ),
        (
            "where is (my |)order {order}",
            "what is the (status|total|delivery date) of order {order}",
            "when (will|does) order {order} arrive",
            "has order {order} (shipped|been shipped|been delivered)( yet|)",
        ),
        ("the (status|details|delivery date|total) of order {order}", "an update on order {order}"),
    ),
    "refund_part": Task(
        (("shop_refund", {"order_id": "@order", "amount": "@money", "reason": "@reason"}),),
        (
            f"refund {{money}} (for|on|of) order {{order}}{_WHY}",
            f"(give|pay) me {{money}} back (for|on) order {{order}}{_WHY}",
            f"issue a refund of {{money}} (for|on) order {{order}}{_WHY}",
        ),
        (
            f"can I (get|have) {{money}} back (for|on) order {{order}}{_WHY}",
            f"is a refund of {{money}} possible (for|on) order {{order}}{_WHY}",
        ),
        (
            f"a refund of {{money}} (for|on) order {{order}}{_WHY}",
            f"{{money}} back (for|on|from) order {{order}}{_WHY}",
        ),
    ),
    "refund_full": Task(
        (ORDER, ("shop_refund", {"order_id": "@order", "amount": ref("/0/total"), "reason": "@reason"})),
        (
            f"refund order {{order}}( completely| in full|){_WHY}",
            f"give me (all my money|the full amount|everything) back for order {{order}}{_WHY}",
            f"(look up|check|find) order {{order}} and refund (it|the total|the full amount){_WHY}",
        ),
        (
            f"can I (get|have) (a full refund|my money back|everything back) for order {{order}}{_WHY}",
            f"is a full refund possible for order {{order}}{_WHY}",
        ),
        (f"a full refund (for|of|on) order {{order}}{_WHY}", f"(all |)my money back for order {{order}}{_WHY}"),
    ),
    "order_in": Task(
        (ORDER, ("fin_convert", {"amount": ref("/0/total"), "source": ref("/0/currency"), "target": "@cur"})),
        (
            "convert the total of order {order} (to|into) {cur}",
            "(check|look up) order {order} and convert (the|its) total (to|into) {cur}",
            "(tell me|work out) what order {order} cost in {cur}",
        ),
        (
            "how much (was|is) order {order} in {cur}",
            "what is the total of order {order} in {cur}",
            "what did order {order} cost in {cur}",
        ),
        ("the (total|price|amount) of order {order} in {cur}", "order {order}'s total (converted to|in) {cur}"),
    ),
    "events": Task(
        (("cal_list_events", {"date": "@date"}),),
        (
            "(check|show me|list|pull up) my (calendar|schedule|events|appointments|agenda) for {date}",
            "(check|tell me|find out) what I have (on my calendar |planned |){on}",
        ),
        (
            "what (is|do I have) on my calendar {on}",
            "(what|which) (meetings|appointments|events) do I have {on}",
            "am I (busy|free) {on}",
            "do I have (anything planned|any meetings|any appointments) {on}",
        ),
        ("my (schedule|calendar|agenda|events|appointments|meetings) for {date}",),
    ),
    "add": Task(
        (
            (
                "cal_add_event",
                {"title": "@title", "date": "@date", "time": "@time", "guests": ["@person", "@person2"]},
            ),
        ),
        (
            f"(add|put) {{title}}{_WITH} (to|on|in) my calendar {{on}}{_AT}",
            f"(schedule|book|plan) (my |){{title}}{_WITH} for {{date}}{_AT}",
            f"(create|make|add) a calendar entry for {{title}}{_WITH} {{on}}{_AT}",
        ),
        (
            f"can {{title}}{_WITH} go (on|into) my calendar {{on}}{_AT}",
            f"is it possible to (schedule|book) (my |){{title}}{_WITH} for {{date}}{_AT}",
        ),
        (
            f"a calendar entry for {{title}}{_WITH} {{on}}{_AT}",
            f"{{title}}{_WITH} (on|in) my calendar {{on}}{_AT}",
        ),
    ),
    "slot": Task(
        (
            ("cal_list_events", {"date": "@date"}),
            (
                "cal_add_event",
                {
                    "title": "@title",
                    "date": "@date",
                    "time": ref("/0/free_time"),
                    "guests": ["@person", "@person2"],
                },
            ),
        ),
        (
            f"(find|pick) a free (slot|time) {{on}} and (book|schedule) {{title}}{_WITH}",
            f"(schedule|book|put) (my |){{title}}{_WITH} in my first free (slot|hour|time) {{on}}",
            f"(schedule|book|plan) (my |){{title}}{_WITH} {{on}} when I am free",
        ),
        (
            f"can {{title}}{_WITH} go into (a|my first) free (slot|hour) {{on}}",
            f"when am I free {{on}}, and can you book {{title}}{_WITH} then",
        ),
        (f"(my |){{title}}{_WITH} in (a|my first) free (slot|hour) {{on}}",),
    ),
    "interactions": Task(
        (("med_check_interactions", {"drugs": ["@drug", "@drug2", "@drug3"]}),),
        (
            f"(check|tell me|find out) (whether|if) {_DRUGS} (interact|go together|are safe together)",
            f"check {_DRUGS} for interactions",
            f"(check|look up) the interactions (of|between) {_DRUGS}",
        ),
        (
            "can I (take|combine|mix) {drug} (with|and) {drug2}",
            "is it (safe|ok|dangerous) to (take|combine) {drug} with {drug2}[ and {drug3}]",
            f"do {_DRUGS} interact",
        ),
        (f"the interactions (of|between) {_DRUGS}", f"an interaction check for {_DRUGS}"),
    ),
    "dose": Task(
        (("med_get_dose", {"drug": "@drug", "age": "@age"}),),
        (
            f"(check|look up|find|tell me) the (right |)(dose|dosage) of {{drug}} {_FOR_AGE}",
            "(tell me|find out) how much {drug} (someone|a person) aged {age} (may|can) take",
        ),
        (
            f"what is the (right |)(dose|dosage) of {{drug}} {_FOR_AGE}",
            "how much {drug} can (someone aged {age}|a person aged {age}|someone who is {age}) take",
        ),
        (f"the (right |)(dose|dosage) of {{drug}} {_FOR_AGE}",),
    ),
    "send": Task(
        (("msg_send", {"to": "@person", "text": "@text"}),),
        (
            "(tell|text|message) {person} that {text}",
            "(send|write) {person} a (message|text) (saying|that says) {text}",
            "let {person} know that {text}",
            "(text|message) {person}: {text}",
        ),
        ("can {person} be told that {text}", "can {person} get a (message|text) that says {text}"),
        ("a (message|text) to {person} saying {text}",),
    ),
}
