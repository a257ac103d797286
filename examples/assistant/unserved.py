"""Queries that no worker serves, with the plan `[]`: near misses, other wishes, small talk, and missing information."""

from __future__ import annotations

from templates import Task


def _none(commands: tuple[str, ...], questions: tuple[str, ...], things: tuple[str, ...]) -> Task:
    return Task((), commands, questions, things)


_WHEN = "[ {on}]"
_LANGUAGE = "(French|Spanish|German|Japanese|Arabic|Latin)"
_SUBJECT = "({city}|the sea|autumn|my cat|old trains|friendship|the moon)"

UNSERVED: dict[str, Task] = {
    "none_trade": _none(
        (
            "(buy|sell|short) {age} shares of {stock}( for me|)",
            "(set a price alert|put in a limit order) for {stock} at {money}",
        ),
        (
            "can you (buy|sell) {age} shares of {stock} for me",
            "who (runs|founded|owns) {stock}",
            "how many people work (for|at) {stock}",
        ),
        ("{age} shares of {stock}", "the phone number of {stock}", "a job at {stock}"),
    ),
    "none_travel": _none(
        (
            f"(book|buy|get) me a (train|bus|flight|ferry) ticket to {{city}}{_WHEN}",
            f"(reserve|book|find) a (hotel|hotel room|rental car|table for two) in {{city}}{_WHEN}",
            "(plan|draw) a route from {city} to {city2}",
        ),
        (
            f"when does the (next|first|last) (train|bus|flight) (to|for) {{city}} leave{_WHEN}",
            "how (far|long) is it from {city} to {city2}",
            "how much is a (train|bus|flight) ticket to {city}",
        ),
        (
            f"a (train|bus|plane|ferry) ticket to {{city}}{_WHEN}",
            "a (hotel|taxi|map|guided tour) in {city}",
            "a visa for my trip to {city}",
        ),
    ),
    "none_shop": _none(
        (
            "(cancel|repeat|reorder|gift-wrap) order {order}",
            "change the (address|size|colour) of order {order}",
            "(write|leave) a review for order {order}",
        ),
        (
            "can I (cancel|change|exchange) order {order}",
            "can order {order} be (sent|delivered) to {city} instead",
        ),
        ("a (return label|gift box|new invoice|discount) for order {order}",),
    ),
    "none_calendar": _none(
        (
            "(delete|cancel|move|postpone) (my |the |){title}[ with {person}] {on}",
            "(clear|empty|print) my calendar for {date}",
            "(invite {person} to|accept) my {title} {on}",
        ),
        ("can you (move|postpone) my {title} to {date}", "can {title} be (moved|cancelled) {on}"),
        ("a (room|projector|cake) for {title} {on}",),
    ),
    "none_medicine": _none(
        (
            "(order|buy|reorder) (some |){drug}( for me|)",
            "renew my prescription for {drug}",
            "find a pharmacy that (has|sells) {drug}",
        ),
        (
            "how much does a box of {drug} cost",
            "who (invented|makes) {drug}",
            "where can I buy {drug}",
        ),
        ("a (prescription for|cheaper brand of|box of) {drug}",),
    ),
    "none_person": _none(
        ("(call|phone|email|ring) {person}( for me|)", "(find|look up) {person}'s (address|birthday|phone number)"),
        ("where does {person} live", "when is {person}'s birthday", "what did {person} (say|write)( to me|)"),
        ("{person}'s (phone number|address)", "a (gift|birthday card) for {person}"),
    ),
    "none_money": _none(
        ("(send|transfer|wire|pay) {money} {cur} to {person}", "(open|close) my account in {cur}"),
        ("how much money do I have in {cur}", "can I borrow {money} {cur}"),
        ("a (loan|mortgage) of {money} {cur}", "my balance in {cur}"),
    ),
    "none_write": _none(
        (
            f"write (a poem|a story|an essay|a song) about {_SUBJECT}",
            f"translate '{{text}}' into {_LANGUAGE}",
            f"draw (me |)a picture of {_SUBJECT}",
        ),
        (
            f"how do (you|I) say '{{text}}' in {_LANGUAGE}",
            "can you (sing|dance|cook|play chess|drive a car|see me)",
        ),
        (f"a (poem|joke|story|recipe|logo) about {_SUBJECT}", f"a {_LANGUAGE} translation of '{{text}}'"),
    ),
    "none_chat": _none(
        (
            "(forget|ignore) (what I said|my last question)",
            "(wish me luck|cheer me up|keep me company|be nice|stop talking)",
        ),
        (
            "how (are you|was your day|do you feel)( today|)",
            "(who made you|what is your name|where are you from|are you a robot|do you like me)",
        ),
        ("a (hug|friend|rest|good joke|holiday|new job|break|compliment|bit of luck)",),
    ),
    "none_facts": _none(
        (
            "explain (gravity|inflation|rainbows|black holes|photosynthesis|chess)( to me|)",
            "recommend a book on {city}",
        ),
        (
            "(what is the population|who is the mayor|what is the history) of {city}",
            "which (language|currency) (do people use|is used) in {city}",
            "(how tall is|who built|how old is) (the Eiffel Tower|the Great Wall|Stonehenge|the Colosseum)",
        ),
        ("(the population|the history|the coordinates|a map) of {city}", "(fun facts|news|a film) about {city}"),
    ),
    "none_home": _none(
        (
            "turn (on|off|up|down) the (lights|heating|television|oven|radio)",
            "play (some music|jazz|the radio|a podcast|something calm)",
            "set (an alarm|a timer) for {time}",
        ),
        (
            "is the (front door|garage|window|oven) (closed|locked|open)",
            "can you (dim|switch off) the lights at {time}",
        ),
        ("(more light|less noise|some music) (in|for) the (kitchen|bedroom|garage|living room)",),
    ),
    "none_missing": _none(
        (
            "refund my order",
            "(check|get) the (weather|price)",
            "convert {money} {cur}",
            "(send|write) a message to {person}",
            "(look up|check) the (dose|dosage) of {drug}",
            "refund {money}",
            "(add|put) {title} (to|on) my calendar",
        ),
        (
            "where is my order",
            "what is the weather (like|going to be)",
            "do I need an umbrella",
            "how many {cur} do I get",
            "how much {drug} (can|may) I take",
            "what is the price of the stock",
        ),
        (
            "a refund",
            "the price",
            "the weather",
            "my money back",
            "the dose of {drug}",
            "a calendar entry",
        ),
    ),
}
"""Wordings by kind, as for tasks; `none_missing` lacks what a worker requires, and nothing is invented."""
