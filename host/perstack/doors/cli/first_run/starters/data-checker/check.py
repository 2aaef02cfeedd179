"""Check each order against rules.md: `python3 -I check.py FILE` prints a line for each order that breaks a rule."""

import csv
import sys
from datetime import date
from pathlib import Path

YEAR = 2026  # rule 3


def problem_of_amount(text: str) -> str | None:
    """Return what is wrong with an amount; None if nothing is."""
    try:
        amount = float(text)
    except ValueError:
        return "is not a number"
    return None if amount > 0 else "is not above 0"


def problem_of_date(text: str) -> str | None:
    """Return what is wrong with a date; None if nothing is."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return "does not exist"
    return None if found.year == YEAR else f"is not in {YEAR}"


seen: set[str] = set()
rows = 0
with Path(sys.argv[1]).open(newline="", encoding="utf-8") as file:
    for line, row in enumerate(csv.DictReader(file, restval=""), start=2):
        rows += 1
        if row["id"] in seen:
            print(f"line {line}: id {row['id']} is used before")
        seen.add(row["id"])
        if problem := problem_of_amount(row["amount"]):
            print(f"line {line}: amount {row['amount']} {problem}")
        if problem := problem_of_date(row["date"]):
            print(f"line {line}: date {row['date']} {problem}")
print(f"{rows} rows")
