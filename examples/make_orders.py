"""Write `orders.csv`: a year of orders of an imaginary garden shop.

Not run by cellwall; it is here so that nobody wonders where the figures come from. Invariant: the
same bytes on every machine, so it uses its own small generator instead of `random`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

PRODUCTS = (
    ("Watering can", "tools", 1890),
    ("Trowel", "tools", 1150),
    ("Secateurs", "tools", 3475),
    ("Tomato seeds", "seeds", 295),
    ("Lavender seeds", "seeds", 340),
    ("Potting soil 20 l", "soil", 799),
    ("Bark mulch 60 l", "soil", 1249),
    ("Apple tree", "plants", 4250),
    ("Rosemary", "plants", 475),
)
REGIONS = ("North", "East", "South", "West")
CHANNELS = ("shop", "web", "phone")
MONTHLY = (3, 5, 12, 18, 20, 14, 9, 8, 11, 9, 4, 3)
"""Orders per ten days by month: gardens are planted in spring."""


def numbers(seed: int) -> Iterator[int]:
    """Yield 31-bit numbers (the "minimal standard" of Park and Miller)."""
    while True:
        seed = seed * 48271 % 0x7FFFFFFF
        yield seed


def orders() -> Iterator[tuple[object, ...]]:
    """Yield the rows, day by day."""
    draw = numbers(20_251)
    number = 10_000
    for offset in range(365):
        day = date(2025, 1, 1) + timedelta(days=offset)
        todays = MONTHLY[day.month - 1] * 2 + next(draw) % 10
        for _ in range(todays // 10):
            number += 1 + next(draw) % 3
            product, category, cents = PRODUCTS[next(draw) % len(PRODUCTS)]
            quantity = 1 + next(draw) % (6 if cents < 1000 else 3)
            discount = (0, 0, 0, 5, 10, 15)[next(draw) % 6]
            rating = "" if next(draw) % 4 == 0 else str(2 + next(draw) % 4)
            yield (
                number,
                day.isoformat(),
                REGIONS[next(draw) % 4],
                CHANNELS[next(draw) % 3],
                product,
                category,
                quantity,
                f"{cents / 100:.2f}",
                discount,
                rating,
            )


def main() -> None:
    """Write to the path given, or beside this file."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("orders.csv")
    with target.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            [
                "order",
                "date",
                "region",
                "channel",
                "product",
                "category",
                "quantity",
                "unit_price",
                "discount_percent",
                "rating",
            ]
        )
        writer.writerows(orders())


if __name__ == "__main__":
    main()
