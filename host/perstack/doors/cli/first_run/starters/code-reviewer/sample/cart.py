"""The total of a shopping cart: a sample with two mistakes, for the reviewer to find."""

from typing import NamedTuple


class Line(NamedTuple):
    price: float
    quantity: int


def total(lines: list[Line], discount: float = 0) -> float:
    return sum(line.price for line in lines) * (1 - discount)


def parse(text: str) -> Line:
    price, quantity = text.split(",")
    try:
        return Line(float(price), int(quantity))
    except ValueError:
        return Line(0, 0)
