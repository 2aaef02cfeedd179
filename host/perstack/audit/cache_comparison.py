"""Compare a cache with the value derived from the logs, at every leaf.

A cache (job.json, an entry, run-setting.json, a checkpoint) has to be the JSON that this version writes for the same
logs. Both are compared as JSON values, so a field of a model is compared from the moment it exists, at any depth, and
no list of names has to be kept. A value that is missing, added, of another type or there twice is a difference too: no
perstack of this version writes it.

Differences without a meaning are ignored: in the order of keys, white space and escapes, and in the order of a Job's
Runs, which may have begun at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, TypeAlias

from pydantic import JsonValue

from perstack.core.base.records import read_json

_Pairs: TypeAlias = list[tuple[str, JsonValue]]
_MAX_SHOWN_CHARS = 80


class _Nothing:
    """The absence of a value, which is not null."""


_NOTHING: Final = _Nothing()
_Value: TypeAlias = JsonValue | _Nothing


def cache_differences(stored: bytes, expected: bytes) -> list[str]:
    """Return how a cache differs from the JSON that the logs give. Raises ValueError if it is not JSON."""
    if stored == expected:
        return []
    read_json(stored)  # raises ValueError for nesting that is too deep for `json`
    repeated: list[str] = []

    def read_object(pairs: _Pairs) -> dict[str, JsonValue]:
        value = dict(pairs)
        if len(value) < len(pairs):
            names = [name for name, _ in pairs]
            repeated.extend(name for name in value if names.count(name) > 1)
        return value

    actual: JsonValue = json.loads(stored, object_pairs_hook=read_object)
    return [
        *(f"has the key {_shorten(name)} twice in one object" for name in repeated),
        *_differences("", actual, json.loads(expected)),
    ]


def _differences(path: str, actual: _Value, expected: _Value) -> Iterator[str]:
    if isinstance(actual, dict) and isinstance(expected, dict):
        for key in {**actual, **expected}:
            yield from _differences(_child_path(path, key), actual.get(key, _NOTHING), expected.get(key, _NOTHING))
    elif isinstance(actual, list) and isinstance(expected, list):
        yield from _run_differences(actual, expected) if path == "runs" else _item_differences(path, actual, expected)
    elif type(actual) is not type(expected) or repr(actual) != repr(expected):  # 1, 1.0 and true are equal in Python
        yield f"says {path or 'it'} is {_format_value(actual)}, the logs say {_format_value(expected)}"


def _item_differences(path: str, actual: list[JsonValue], expected: list[JsonValue]) -> Iterator[str]:
    for index in range(max(len(actual), len(expected))):
        item: _Value = actual[index] if index < len(actual) else _NOTHING
        expected_item: _Value = expected[index] if index < len(expected) else _NOTHING
        yield from _differences(_child_path(path, str(index)), item, expected_item)


def _run_differences(actual: list[JsonValue], expected: list[JsonValue]) -> Iterator[str]:
    """Yield the differences of Runs with the same id: Runs that ran concurrently may be listed in another order."""
    remaining = {_run_id(run): run for run in expected}
    expected_ids = frozenset(remaining)
    for run in actual:
        run_id = _run_id(run)
        if run_id in remaining:
            yield from _differences(_shorten(run_id), run, remaining.pop(run_id))
        else:
            yield (
                f"lists {_shorten(run_id)} twice"
                if run_id in expected_ids
                else f"lists a Run {_format_value(run)}, which has no log"
            )
    yield from (f"does not list the Run {run_id}" for run_id in remaining)


def _run_id(run: JsonValue) -> str:
    run_id = run.get("id") if isinstance(run, dict) else None
    return run_id if isinstance(run_id, str) else ""


def _child_path(path: str, key: str) -> str:
    return f"{path}.{_shorten(key)}" if path else _shorten(key)


def _format_value(value: _Value) -> str:
    return "nothing" if isinstance(value, _Nothing) else _shorten(json.dumps(value, ensure_ascii=False))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 1]}…"
