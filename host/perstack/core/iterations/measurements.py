"""Measurements: the JSON object with numbers that an evaluator answers.

    {"metrics": {"score": 0.8}, "analysis": "…", "cases": [{"name": "adds", "passed": true}]}

Numbers may also be at the top of the object, without `metrics`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import cast

from pydantic import ValidationError

from perstack.core.base.records import Fact
from perstack.dataclass import dataclass


class Case(Fact):
    """Result of one test case, as the evaluator reports it."""

    name: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """Metrics, analysis and cases that an evaluator reported."""

    metrics: dict[str, float]
    analysis: str = ""
    cases: tuple[Case, ...] = ()


class _Words(Fact):
    analysis: str = ""
    cases: tuple[Case, ...] = ()


def measurement_in(text: str) -> Measurement:
    """Return the measurement in an output: in all of it, its last line, or between its braces. Raises ValueError."""
    lines = text.strip().splitlines()
    if not lines:
        raise ValueError("it is empty, and should be a JSON object with metrics")
    for part in (text, lines[-1], text[text.find("{") : text.rfind("}") + 1]):
        try:
            found = json.loads(part)
        except (ValueError, RecursionError):
            continue
        return measurement_of(found)
    raise ValueError(f"it is not JSON: {_shown(lines[-1])}")


def measurement_of(answer: object) -> Measurement:
    """Return the measurement in a value. Raises ValueError that says what is wrong."""
    if not isinstance(answer, Mapping):
        raise ValueError(f"it should be a JSON object, and is {_shown(repr(answer))}")
    given = cast("Mapping[str, object]", answer)
    named = given.get("metrics", {})
    if not isinstance(named, Mapping):
        raise ValueError(f"`metrics` should be an object of numbers, and is {_shown(repr(named))}")
    metrics = {name: number for name, value in given.items() if (number := _number(value)) is not None}
    for name, value in cast("Mapping[str, object]", named).items():
        number = _number(value)
        if number is None:
            raise ValueError(f"metric `{name}` should be a number, and is {_shown(repr(value))}")
        metrics[name] = number
    try:
        words = _Words.model_validate({name: given[name] for name in ("analysis", "cases") if given.get(name)})
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}") from error
    return Measurement(metrics, words.analysis, words.cases)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _shown(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"
