"""Runs the cases on the program on stdin, and prints what an evaluator prints: one JSON object."""
# ruff: noqa: BLE001, S102, T201 - a program of its own: it runs what it is given, whatever that raises, and prints

import json
import re
import sys

CASES = (
    ("is_leap_year", 2023, False),
    ("is_leap_year", 2024, True),
    ("is_leap_year", 1900, False),
    ("is_leap_year", 2000, True),
    ("factorial", 0, 1),
    ("factorial", 1, 1),
    ("factorial", 3, 6),
    ("factorial", 5, 120),
    ("mean", [3, 1, 2], 2),
    ("mean", [4], 4),
)


def functions_of(text):
    """What the program defines: all of a text, or the block that is fenced in it."""
    fenced = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
    functions = {}
    exec(fenced[1] if fenced else text, functions)
    return functions


def fault(functions, name, argument, wanted):
    """What is wrong with a case; nothing, if it passes."""
    try:
        given = functions[name](argument)
    except Exception as error:
        given = error
    return "" if given == wanted else f"{name}({argument!r}) must be {wanted!r}, but is {given!r}"


def main():
    """Measure. A program that cannot be run passes no case."""
    try:
        functions, analysis = functions_of(sys.stdin.read()), []
    except Exception as error:
        functions, analysis = {}, [f"the program cannot be run: {error!r}"]
    faults = {f"{name}({argument!r})": fault(functions, name, argument, wanted) for name, argument, wanted in CASES}
    wrong = [words for words in faults.values() if words]
    measured = {
        "metrics": {"passed": 1 - len(wrong) / len(CASES)},
        "analysis": "\n".join(analysis or wrong),
        "cases": [{"name": name, "passed": not words} for name, words in faults.items()],
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
