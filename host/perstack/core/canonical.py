"""JSON of which there is one text for one value, to take digests of.

Its form is specified in docs/events.md, and is that of Python's `json` without spaces and escapes: keys in the order
they are in, for that order is sent to models as well. A change of it is a new version of what is made from it.
"""

from __future__ import annotations

import json
from math import isfinite

from pydantic import JsonValue

from perstack.core.base import Fact

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode


def canonical_json(value: JsonValue) -> bytes:
    """The one text of a JSON value; a number that is not finite is null, as it is in a log."""
    try:
        text = _encode(value)
    except ValueError:
        text = _encode(_finite(value))
    return text.encode("utf-8", "surrogatepass")


def canonical_fact(fact: Fact) -> bytes:
    """The one text of a record: as it stands in a log, but for how numbers are written."""
    return canonical_json(fact.model_dump(mode="json", by_alias=True, exclude_none=True))


def _finite(value: JsonValue) -> JsonValue:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
