"""Tests each row of a table against the rules: `python3 -I check.py FILE` prints a line for each that breaks one."""

import csv
import sys
from datetime import date
from pathlib import Path

seen: set[str] = set()
rows = 0
with Path(sys.argv[1]).open(newline="", encoding="utf-8") as file:
    for line, row in enumerate(csv.DictReader(file), start=2):
        rows += 1
        if row["id"] in seen:
            print(f"line {line}: id {row['id']} is used before")
        seen.add(row["id"])
        if float(row["amount"]) <= 0:
            print(f"line {line}: amount {row['amount']} is not above 0")
        try:
            found = date.fromisoformat(row["date"])
        except ValueError:
            print(f"line {line}: date {row['date']} does not exist")
        else:
            if found.year != 2026:
                print(f"line {line}: date {row['date']} is not in 2026")
print(f"{rows} rows")
