"""Functions of numbers. Some of their cases fail: check.py has them."""


def is_leap_year(year):
    """Whether a year can be divided by 4, but not by 100, unless by 400."""
    return year % 4 == 0


def factorial(number):
    product = 1
    for factor in range(1, number):
        product *= factor
    return product


def mean(numbers):
    return sum(numbers) / (len(numbers) - 1)
