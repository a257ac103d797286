"""Functions of a small shop, with everything an annotation may hold, and one docstring style each."""

from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from plansmith.contract.importers.functions import worker_from_function


class Size(Enum):
    """How large a parcel is."""

    SMALL = "s"
    LARGE = "l"


class Address(BaseModel):
    """Where a parcel goes."""

    street: str
    lines: list[str] = []
    country: str = Field(default="NO", description="Two letters.")


class Quote(BaseModel):
    """What sending costs."""

    price: float
    days: int | None = None
    to: Address


def ship_get_quote(  # noqa: D417
    to: Address,
    size: Size = Size.SMALL,
    weight_kg: Annotated[float, Field(gt=0, description="Weight with packing.")] = 1.0,
    day: date | None = None,
    extras: list[Literal["gift", "sign"]] | None = None,
) -> Quote:
    """Price of sending a parcel. Taxes are included.

    Longer text is kept too.

    Args:
        to: Where the parcel
            goes.
        size: How large it is.
        weight_kg: Not used, the annotation says it.
        day (date | None): Day of delivery.

    Returns:
        The price.

    """
    ...


async def stock_count(sku: str, labels: dict[str, int], _internal: Any = None, json: bool = False) -> list[int]:  # noqa: D417
    """Count what is there.

    Parameters
    ----------
    sku : str
        Article number.
    labels : dict
        Labels to count.

    Returns
    -------
    list of int
        One number a shelf.

    """
    ...


def order_cancel(order_id: str) -> None:
    """Cancel an order.

    :param order_id: Number of the order.
    """


def _private() -> None: ...


WORKERS = [
    worker_from_function(ship_get_quote, effect="read", idempotent=True),
    worker_from_function(order_cancel, name="shop_order_cancel", permission="orders", idempotent=True, timeout_s=5),
    stock_count,
]
BY_NAME = {"shop.cancel (final)": order_cancel}
