"""What an evaluator answers: one JSON object, with numbers.

    {"metrics": {"score": 0.8}, "analysis": "…", "cases": [{"name": "adds", "passed": true}]}

Numbers may as well stand at the top of the object, without `metrics`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import cast

from pydantic import TypeAdapter, ValidationError

from perstack.core.base import Fact
from perstack.core.iteration_events import Case


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured."""

    metrics: dict[str, float]
    analysis: str = ""
    cases: tuple[Case, ...] = ()


class _Words(Fact):
    analysis: str = ""
    cases: tuple[Case, ...] = ()


def measurement_in(text: str) -> Measurement:
    """The measurement in an output: all of it is the object, or its last line, or what is between its braces.

    Raises ValueError, which says what is wrong.
    """
    lines = text.strip().splitlines()
    if not lines:
        raise ValueError("it is empty, and should be a JSON object with metrics")
    for part in (text, lines[-1], text[text.find("{") : text.rfind("}") + 1]):
        try:
            found = json.loads(part)
        except ValueError:
            continue
        return measurement_of(found)
    raise ValueError(f"it is no JSON: {_shown(lines[-1])}")


def measurement_of(answer: object) -> Measurement:
    """The measurement that a value is. Raises ValueError, which says what is wrong."""
    if not isinstance(answer, Mapping):
        raise ValueError(f"it should be a JSON object, and is {_shown(repr(answer))}")
    given = cast("Mapping[str, object]", answer)
    named = given.get("metrics", {})
    if not isinstance(named, Mapping):
        raise ValueError(f"`metrics` should be an object of numbers, and is {_shown(repr(named))}")
    top = {name: value for name, value in given.items() if _is_number(value)}
    metrics = {**top, **cast("Mapping[str, object]", named)}
    wrong = next((name for name, value in metrics.items() if not _is_number(value)), None)
    if wrong is not None:
        raise ValueError(f"metric `{wrong}` should be a number, and is {_shown(repr(metrics[wrong]))}")
    try:
        words = _Words.model_validate({name: given[name] for name in ("analysis", "cases") if given.get(name)})
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}") from error
    return Measurement(_numbers.validate_python(metrics), words.analysis, words.cases)


_numbers: TypeAdapter[dict[str, float]] = TypeAdapter(dict[str, float])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _shown(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"
