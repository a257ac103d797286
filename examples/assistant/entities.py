"""Words that fill the slots of `templates.py` and `families.py`: cities, stocks, currencies, dates, order numbers, ...

Reads and writes nothing. `draw` gives the text that goes into a query and the value that goes into its plan; the value
is the text as written, except for a date's preposition, a refund's reason (an enum) and numbers. Swap the pools for
your own.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple


class Entity(NamedTuple):
    """What a slot is filled with."""

    text: str
    """As it stands in the query."""
    value: Any
    """As it stands in the plan."""


def _pool(text: str) -> tuple[str, ...]:
    """Entries of a pool, one after another, cut at semicolons and line ends."""
    return tuple(entry.strip() for line in text.splitlines() for entry in line.split(";") if entry.strip())


CITIES = _pool("""
Paris; Rome; Berlin; Madrid; Lisbon; Vienna; Prague; Budapest; Warsaw; Athens; Dublin; London; Edinburgh; Manchester
Oslo; Stockholm; Helsinki; Copenhagen; Reykjavik; Brussels; Amsterdam; Rotterdam; Zurich; Geneva; Basel; Munich; Hamburg
Cologne; Leipzig; Stuttgart; Lyon; Marseille; Nice; Bordeaux; Milan; Naples; Turin; Venice; Florence; Palermo; Barcelona
Seville; Valencia; Porto; Zagreb; Belgrade; Sofia; Bucharest; Istanbul; Ankara; Izmir; Kyiv; Riga; Tallinn; Vilnius
New York; Boston; Chicago; Seattle; Denver; Austin; Dallas; Houston; Miami; Atlanta; Phoenix; San Francisco; Los Angeles
San Diego; Las Vegas; Portland; Toronto; Montreal; Vancouver; Calgary; Ottawa; Mexico City; Guadalajara; Havana; Bogota
Lima; Quito; Santiago; Buenos Aires; Montevideo; São Paulo; Rio de Janeiro; Salvador; Caracas; Cairo; Casablanca; Tunis
Lagos; Accra; Nairobi; Addis Ababa; Cape Town; Durban; Johannesburg; Dakar; Dubai; Doha; Riyadh; Amman; Beirut; Tel Aviv
Delhi; Mumbai; Kolkata; Chennai; Bangalore; Karachi; Lahore; Dhaka; Colombo; Kathmandu; Bangkok; Hanoi; Saigon; Jakarta
Singapore; Kuala Lumpur; Manila; Taipei; Hong Kong; Shanghai; Beijing; Shenzhen; Chengdu; Seoul; Busan; Tokyo; Osaka
Kyoto; Sapporo; Nagoya; Sydney; Melbourne; Brisbane; Perth; Adelaide; Auckland; Wellington; Honolulu; Anchorage
""")

STOCKS = _pool("""
AAPL; MSFT; GOOGL; AMZN; META; TSLA; NVDA; AMD; INTC; IBM; ORCL; CRM; ADBE; NFLX; DIS; PYPL; UBER; ABNB; SHOP; SNOW
JPM; BAC; GS; WFC; AXP; MA; KO; PEP; MCD; SBUX; NKE; WMT; TGT; COST; HD; LOW; PFE; MRK; JNJ; LLY; ABBV; UNH; CVS; XOM
CVX; BP; SHEL; BA; LMT; GE; CAT; DE; F; GM; TM; HMC; SONY; SAP; ASML; TSM; BABA; VOD; QCOM; TXN; MU; CSCO; PLTR
Apple; Microsoft; Amazon; Tesla; Nvidia; Intel; Oracle; Adobe; Netflix; Disney; Spotify; Airbnb; Shopify; Siemens; Bayer
Nestle; Novartis; Roche; Unilever; Airbus; Boeing; Ford; Toyota; Honda; Sony; Samsung; Nintendo; Volkswagen; Pfizer
Starbucks; Walmart; Costco; General Motors; Goldman Sachs; Morgan Stanley; Coca-Cola; Deutsche Bank; Texas Instruments
""")

CURRENCIES = _pool("""
USD; EUR; GBP; JPY; CHF; CAD; AUD; NZD; SEK; NOK; DKK; PLN; CZK; HUF; RON; TRY; ILS; AED; SAR; ZAR; EGP; KES; NGN; INR
PKR; THB; VND; IDR; MYR; SGD; PHP; HKD; TWD; KRW; CNY; BRL; ARS; CLP; COP; MXN
""")

PEOPLE = _pool("""
Ana; Ben; Chloe; David; Elena; Farid; Grace; Hugo; Ines; Jonas; Kemal; Lena; Marco; Nadia; Omar; Priya; Quentin; Rosa
Samir; Tara; Umut; Vera; Wei; Ximena; Yusuf; Zoe; Anton; Bianca; Carlos; Daria; Emil; Fatima; Goran; Hana; Ivan; Julia
Katya; Liam; Mina; Noah; Olga; Pablo; Ravi; Sofie; Tomas; Ursula; Viktor; Wanda; Yara; Zeynep; Aunt May; Dr. Patel
my brother; my sister; my boss; Mr. Okafor; Mrs. Lindqvist; Uncle Theo; my landlord; Professor Silva
""")

DRUGS = _pool("""
aspirin; ibuprofen; paracetamol; naproxen; diclofenac; codeine; tramadol; morphine; amoxicillin; penicillin; doxycycline
azithromycin; ciprofloxacin; clarithromycin; metformin; insulin; gliclazide; sitagliptin; atorvastatin; simvastatin
rosuvastatin; lisinopril; ramipril; enalapril; losartan; valsartan; amlodipine; bisoprolol; metoprolol; atenolol
propranolol; furosemide; spironolactone; digoxin; warfarin; apixaban; rivaroxaban; clopidogrel; omeprazole; pantoprazole
ranitidine; loratadine; cetirizine; prednisone; hydrocortisone; salbutamol; montelukast; sertraline; fluoxetine
citalopram; venlafaxine; mirtazapine; amitriptyline; diazepam; lorazepam; zolpidem; gabapentin; pregabalin; lamotrigine
carbamazepine; levothyroxine; allopurinol; colchicine; methotrexate; tamoxifen; sildenafil; melatonin; St. John's wort
""")

TITLES = _pool("""
lunch; dinner; breakfast; coffee; brunch; dentist appointment; doctor's appointment; haircut; yoga class; gym session
piano lesson; team sync; project review; budget meeting; sales call; planning session; job interview; design workshop
code review; board meeting; parents evening; birthday party; movie night; game night; book club; car service
house visit; football match; swimming lesson; training run; eye test; flu shot; bank appointment; garage sale
school play; photo shoot; choir practice; language course; client demo; kick-off; retrospective; status call
study group; tax deadline; picnic
""")

MESSAGES = _pool("""
I am running late; I will be there soon; dinner is ready; the meeting is moved; I cannot make it; I am on my way
the train is delayed; I found the keys; the package is here; the door is open; I need ten more minutes; we won the match
the report is finished; I am at the airport; the car is fixed; the kids are asleep; I left the office; lunch is on me
I have landed; I got the job; the dog is fine; I will call back; the tickets are booked; the code is deployed
I am stuck in traffic; the room is free; we are out of milk; the deal is signed; the battery is dead; I miss you
practice is cancelled; the cake is in the oven; the plumber is here; I have paid the bill; the slides are done
the server is back up; I forgot my wallet; the baby is awake; school is closed; I am home now
""")

TIMES = _pool("""
9 am; 10 am; 11 am; noon; 1 pm; 2 pm; 3 pm; 4 pm; 5 pm; 6 pm; 7 pm; 8 pm; 8:30 am; 9:15 am; 10:30 am; 2:30 pm; 3:45 pm
6:30 pm; 08:00; 09:00; 09:30; 10:15; 11:45; 12:30; 13:00; 14:00; 14:45; 15:30; 16:00; 17:15; 18:00; 19:30; 20:00; 21:15
""")

WEEKDAYS = _pool("Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday")
MONTHS = _pool("""
January; February; March; April; May; June; July; August; September; October; November; December
""")

REASONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("damaged", _pool("it arrived damaged; it is damaged; it was damaged in the post; the box came damaged")),
    ("late", _pool("it came too late; it was late; it arrived far too late; it is two weeks late")),
    ("wrong_item", _pool("they sent the wrong item; it is the wrong item; I got the wrong item; the wrong item came")),
    ("unwanted", _pool("it is unwanted; it was an unwanted gift; the thing is unwanted; it turned out unwanted")),
)
"""Value of `shop_refund`'s `reason`, and how a query says it."""


def draw(slot: str, rng: Random) -> Entity:
    """An entity for a slot; `city2` is drawn as `city` is.

    Raises:
        KeyError: there is no such slot.

    """
    return _SAMPLERS[slot.rstrip("0123456789")](rng)


def _from(pool: tuple[str, ...]) -> Callable[[Random], Entity]:
    def sample(rng: Random) -> Entity:
        text = rng.choice(pool)
        return Entity(text, text)

    return sample


def _date(rng: Random) -> tuple[str, str]:
    """A date as words that are copied verbatim, and the preposition that it takes."""
    kind = rng.random()
    if kind < 0.3:
        return "", rng.choice(("today", "tomorrow", "the day after tomorrow", "tonight", "this weekend"))
    if kind < 0.5:
        return "", f"{rng.choice(('this', 'next'))} {rng.choice(WEEKDAYS)}"
    if kind < 0.7:
        return "on ", rng.choice(WEEKDAYS)
    day, month = rng.randint(1, 28), rng.randint(1, 12)
    if kind < 0.85:
        name = MONTHS[month - 1]
        return "on ", f"{name} {day}" if rng.random() < 0.5 else f"{day} {name}"
    return "on ", f"{rng.randint(2026, 2028)}-{month:02}-{day:02}"


def _bare_date(rng: Random) -> Entity:
    text = _date(rng)[1]
    return Entity(text, text)


def _on_date(rng: Random) -> Entity:
    preposition, text = _date(rng)
    return Entity(preposition + text, text)


def _money(rng: Random) -> Entity:
    """Whole (`40`) or with a fraction that does not end in 0 (`39.95`): JSON writes the number as the query does."""
    whole = rng.choice((rng.randint(5, 99), rng.randint(100, 999), 50 * rng.randint(2, 60)))
    if rng.random() < 0.65:
        return Entity(str(whole), whole)
    text = f"{whole}.{rng.choice(('5', '25', '75', '95', '99', '45', '12'))}"
    return Entity(text, float(text))


def _age(rng: Random) -> Entity:
    age = rng.randint(2, 90)
    return Entity(str(age), age)


def _order(rng: Random) -> Entity:
    text = f"{rng.choice('ABCDEFGHKLMNPRSTXZ')}-{rng.randint(10000, 99999)}"
    return Entity(text, text)


def _reason(rng: Random) -> Entity:
    value, texts = rng.choice(REASONS)
    return Entity(rng.choice(texts), value)


_SAMPLERS: dict[str, Callable[[Random], Entity]] = {
    "city": _from(CITIES),
    "stock": _from(STOCKS),
    "cur": _from(CURRENCIES),
    "person": _from(PEOPLE),
    "drug": _from(DRUGS),
    "title": _from(TITLES),
    "text": _from(MESSAGES),
    "time": _from(TIMES),
    "date": _bare_date,
    "on": _on_date,
    "money": _money,
    "age": _age,
    "order": _order,
    "reason": _reason,
}
