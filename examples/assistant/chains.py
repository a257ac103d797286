"""More tasks: chains that end in a message or an event, where results are put into text (notation: `templates.py`)."""

from __future__ import annotations

from templates import ANALYZE_QUOTE, CONVERT_QUOTE, FORECAST, ORDER, QUOTE, Steps, Task, labelled, ref

_WHEN = "[ {on}]"


def _message(before: Steps, label: str, pointer: str) -> Steps:
    return (*before, ("msg_send", {"to": "@person", "text": labelled(label, pointer)}))


CHAINS: dict[str, Task] = {
    "send_price": Task(
        _message((QUOTE,), "@stock", "/0/price"),
        (
            "(text|send|message) {person} the (current |latest |)(price|share price) of {stock}",
            "let {person} know what {stock} (trades at|costs)",
            "(look up|check|get) (the price of |){stock} and (send|text) the price to {person}",
        ),
        (
            "can {person} get a (message|text) with the (current |)price of {stock}",
            "what is {stock} trading at, and can you (text|send) that to {person}",
        ),
        ("a (message|text) to {person} with the (current |)price of {stock}",),
    ),
    "send_price_in": Task(
        _message((QUOTE, CONVERT_QUOTE), "@stock", "/1/amount"),
        (
            "(text|send|message) {person} the (current |)price of {stock} in {cur}",
            "convert the price of {stock} (to|into) {cur} and (send|text) (it|that) to {person}",
        ),
        ("can {person} get a (message|text) with the price of {stock} in {cur}",),
        ("a (message|text) to {person} with the price of {stock} in {cur}",),
    ),
    "send_advice": Task(
        _message((QUOTE, ANALYZE_QUOTE), "@stock", "/1/verdict"),
        (
            "(tell|text|message) {person} (whether|if) {stock} is (a buy|worth buying)",
            "(analyze|assess) {stock} at its current price and (send|text) the verdict to {person}",
        ),
        ("is {stock} (a buy|worth buying), and can you (text|send) the verdict to {person}",),
        ("a (message|text) to {person} with (a verdict|buy or sell advice) on {stock}",),
    ),
    "send_weather": Task(
        _message((FORECAST,), "@city", "/0/summary"),
        (
            f"(text|send|message) {{person}} the (weather|forecast|weather forecast) for {{city}}{_WHEN}",
            f"let {{person}} know what the weather is like in {{city}}{_WHEN}",
            f"check the (weather|forecast) (in|for) {{city}}{_WHEN} and (send|text) it to {{person}}",
        ),
        (
            f"can {{person}} get a (message|text) with the (weather|forecast) for {{city}}{_WHEN}",
            f"what is the weather in {{city}}{_WHEN}, and can you (text|send) that to {{person}}",
        ),
        (f"a (message|text) to {{person}} with the (weather|forecast) for {{city}}{_WHEN}",),
    ),
    "send_order": Task(
        _message((ORDER,), "@order", "/0/status"),
        (
            "(text|send|message) {person} the (current |)status of order {order}",
            "(check|look up) order {order} and (send|text) the status to {person}",
            "let {person} know the (current |)status of order {order}",
        ),
        (
            "can {person} get a (message|text) with the status of order {order}",
            "what is the status of order {order}, and can you (text|send) that to {person}",
        ),
        ("a (message|text) to {person} with the (current |)status of order {order}",),
    ),
    "delivery": Task(
        (
            ORDER,
            ("cal_add_event", {"title": labelled("@order", "/0/status"), "date": ref("/0/delivery_date")}),
        ),
        (
            "(put|add) the (delivery|arrival|delivery date) of order {order} (on|to|in) my calendar",
            "(check|look up) when order {order} arrives and (put|add) that (on|to) my calendar",
            "(create|make|add) a calendar entry for the (delivery|arrival) of order {order}",
        ),
        (
            "can the (delivery|arrival) of order {order} go (on|into) my calendar",
            "when does order {order} arrive, and can you put that on my calendar",
        ),
        ("a calendar entry for the (delivery|arrival) of order {order}",),
    ),
}
