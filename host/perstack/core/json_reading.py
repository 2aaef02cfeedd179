"""JSON from outside: read only if all of it can be kept, and read again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import cast

from pydantic import JsonValue
from pydantic_core import from_json

_HUGE = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")
"""What a number needs that is more than a float holds."""


def read_json(data: bytes) -> JsonValue:
    """The value. Raises ValueError for what is not JSON, is nested some 200 levels deep, has a number that is none or
    more than a float holds, half of a character, or bytes that are not UTF-8.
    """
    value: JsonValue = from_json(data, allow_inf_nan=False)
    if _HUGE.search(data) and _has_infinity(value):
        raise ValueError("a number is out of range")
    return value


def _has_infinity(value: JsonValue) -> bool:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, float) and math.isinf(one):
            return True
        if isinstance(one, (list, dict)):
            left.extend(cast("Iterable[JsonValue]", one.values() if isinstance(one, dict) else one))
    return False
