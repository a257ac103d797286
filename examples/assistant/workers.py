"""The assistant's workers: the code behind `catalog.json`.

Reads prices and rates from `recorded.json`; weather, orders, diaries and doses are made up from the words of the call,
the same for the same words. Workers that write put a row into a SQLite file (`PLANSMITH_ASSISTANT_STATE`, or
`out/assistant-state.sqlite`) under the call's idempotency key, so a call that is repeated after a crash changes nothing
and gets the first answer again. Exchange the bodies for your own systems.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from plansmith.contract.catalog import Catalog
from plansmith.serving.workers.base import CallInfo, FailureCode, WorkerError
from plansmith.serving.workers.decorator import worker
from plansmith.serving.workers.registry import Registry

FOLDER = Path(__file__).parent
CATALOG = Catalog.load(FOLDER / "catalog.json")
SUMMARIES = ("sunny", "cloudy", "light rain", "heavy rain", "snow", "fog", "windy")
STATUSES = ("packed", "sent", "delivered", "delayed")
Reason = Literal["damaged", "late", "wrong_item", "unwanted"]


@cache
def recorded() -> dict[str, Any]:
    """The recorded tables."""
    return json.loads((FOLDER / "recorded.json").read_text(encoding="utf-8"))


def number(*words: object, below: int) -> int:
    """A number that the words decide."""
    text = "/".join(str(word).casefold() for word in words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % below


def fin_get_quote(stock: str) -> dict[str, Any]:
    quotes: dict[str, Any] = {name.casefold(): quote for name, quote in recorded()["quotes"].items()}
    if stock.casefold() not in quotes:
        raise WorkerError(FailureCode.NOT_FOUND, f"no quote of {stock!r} is recorded; there are {len(quotes)} others.")
    return quotes[stock.casefold()]


def fin_analyze(stock: str, price: float) -> dict[str, Any]:
    fair = fin_get_quote(stock)["price"]
    verdict = "buy" if price < 0.95 * fair else "sell" if price > 1.05 * fair else "hold"
    return {"verdict": verdict}


def fin_convert(amount: float, source: str, target: str) -> dict[str, Any]:
    rates: dict[str, float] = recorded()["rates"]
    for code in (source, target):
        if code.upper() not in rates:
            raise WorkerError(FailureCode.NOT_FOUND, f"no rate of {code!r} is recorded; use a three-letter code.")
    return {"amount": round(amount / rates[source.upper()] * rates[target.upper()], 2)}


def weather_get_forecast(city: str, date: str = "today") -> dict[str, Any]:
    summary = SUMMARIES[number("sky", city, date, below=len(SUMMARIES))]
    low, high = {"light rain": (50, 80), "heavy rain": (80, 100), "snow": (40, 90)}.get(summary, (0, 40))
    return {"summary": summary, "rain_chance": low + number("rain", city, date, below=high - low)}


def weather_advise_umbrella(rain_chance: float) -> dict[str, Any]:
    return {"advice": "take an umbrella" if rain_chance >= 50 else "no umbrella needed"}


def shop_get_order(order_id: str) -> dict[str, Any]:
    day = 1 + number("day", order_id, below=28)
    return {
        "status": STATUSES[number("status", order_id, below=len(STATUSES))],
        "total": 5 + number("total", order_id, below=40_000) / 100,
        "currency": "EUR",
        "delivery_date": f"2027-03-{day:02d}",
    }


def shop_refund(call: CallInfo, order_id: str, amount: float, reason: Reason | None = None) -> dict[str, Any]:
    total = shop_get_order(order_id)["total"]
    if amount > total:
        raise WorkerError("AMOUNT_TOO_HIGH", f"order {order_id!r} was {total} EUR; {amount} cannot be paid back.")
    return {"refund_id": write_once("refund", call, {"order_id": order_id, "amount": amount, "reason": reason})}


def cal_list_events(date: str) -> dict[str, Any]:
    written = [f"{row.get('time', 'all day')}: {row['title']}" for row in written_rows("event") if row["date"] == date]
    hour = 9 + number("free", date, below=8)
    return {"events": [f"{hour - 1:02d}:00: standing appointment", *written], "free_time": f"{hour:02d}:00"}


def cal_add_event(
    call: CallInfo, title: str, date: str, time: str | None = None, guests: Sequence[str] = ()
) -> dict[str, Any]:
    event = {"title": title, "date": date, "guests": list(guests)} | ({"time": time} if time else {})
    return {"event_id": write_once("event", call, event)}


def med_check_interactions(drugs: Sequence[str]) -> dict[str, Any]:
    severity = ("none", "minor", "moderate", "severe")[number(*sorted(d.casefold() for d in drugs), below=4)]
    return {"severity": severity, "advice": f"made-up example data ({severity}): ask a pharmacist"}


def med_get_dose(drug: str, age: int) -> dict[str, Any]:
    amount = 5 * (1 + number("dose", drug, below=20)) * (1 if age >= 12 else 0.5)
    return {"dose": f"{amount:g} mg (made-up example data, not advice)"}


def msg_send(call: CallInfo, to: str, text: str) -> dict[str, Any]:
    return {"message_id": write_once("message", call, {"to": to, "text": text})}


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    fin_get_quote,
    fin_analyze,
    fin_convert,
    weather_get_forecast,
    weather_advise_umbrella,
    shop_get_order,
    shop_refund,
    cal_list_events,
    cal_add_event,
    med_check_interactions,
    med_get_dose,
    msg_send,
)


def state() -> sqlite3.Connection:
    """The file that workers write to."""
    path = Path(os.environ.get("PLANSMITH_ASSISTANT_STATE", "out/assistant-state.sqlite"))
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=10)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS written (id INTEGER PRIMARY KEY, key TEXT UNIQUE, kind TEXT, row TEXT)"
    )
    return connection


def write_once(kind: str, call: CallInfo, row: dict[str, Any]) -> str:
    """Write a row, or find the one that the same call wrote before; returns its id."""
    key = call.idempotency_key or f"{call.run_id}/{call.step}"
    connection = state()
    with connection:
        new = (key, kind, json.dumps(row, ensure_ascii=False))
        connection.execute("INSERT OR IGNORE INTO written (key, kind, row) VALUES (?, ?, ?)", new)
        found = connection.execute("SELECT id FROM written WHERE key = ?", (key,)).fetchone()[0]
    connection.close()
    return f"{kind}-{found}"


def written_rows(kind: str) -> list[dict[str, Any]]:
    """All rows of a kind, in the order in which they were written."""
    connection = state()
    rows = connection.execute("SELECT row FROM written WHERE kind = ? ORDER BY id", (kind,)).fetchall()
    connection.close()
    return [json.loads(row) for (row,) in rows]


REGISTRY = Registry("assistant", map(worker, FUNCTIONS)).under(CATALOG)
"""What `plansmith run --workers examples/assistant/workers.py:REGISTRY` loads: the code under the catalog's entries."""
