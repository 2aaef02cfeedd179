"""The total of a shopping cart."""

from typing import NamedTuple


class Line(NamedTuple):
    price: float
    number: int


def total(lines: list[Line], discount: float = 0) -> float:
    return sum(line.price for line in lines) * (1 - discount)


def parse(text: str) -> Line:
    price, number = text.split(",")
    try:
        return Line(float(price), int(number))
    except ValueError:
        return Line(0, 0)
