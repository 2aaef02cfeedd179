"""Functions of numbers. Some of their cases fail: check.py has them."""


def is_leap_year(year):
    """Whether a year can be divided by 4, but not by 100, unless by 400."""
    return year % 4 == 0


def factorial(number):
    """The product of all numbers from 1 to this one."""
    product = 1
    for factor in range(1, number):
        product *= factor
    return product


def median(numbers):
    """The middle one of the sorted numbers; of an even count, the mean of the middle two."""
    return sorted(numbers)[len(numbers) // 2]
