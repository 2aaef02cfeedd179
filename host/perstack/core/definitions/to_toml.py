"""Write a definition as perstack.toml: the inverse of what `perstack.config` reads.

The keys, their names in files and their defaults come from the models, as for reading: a new setting needs no change.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import cast

from pydantic.fields import FieldInfo

from perstack.core.base.records import Record
from perstack.core.definitions.keys import InText, Key
from perstack.core.definitions.skills import PluginSkill
from perstack.errors import UsageError

_OMITTED_KEYS = ("include",)  # the Experts of included files are in the project already


def toml_of(record: Record) -> str:
    """Return the text of a project's perstack.toml. Raises UsageError for a value that TOML cannot express."""
    import tomli_w

    table = {name: value for name, value in _table(record).items() if name not in _OMITTED_KEYS}
    pretty = tomli_w.dumps(table, multiline_strings=True)
    # a multi-line string would change carriage returns
    return pretty if tomllib.loads(pretty) == table else tomli_w.dumps(table)


def _table(record: Record) -> dict[str, object]:
    if isinstance(record, PluginSkill) and record.functions:
        names = ", ".join(record.functions)
        raise UsageError(
            f"{names}: a Python function cannot be written as TOML; put it into a file, and declare that as a skill"
            ' with `type = "pluginSkill"` and `file`'
        )
    keys = {name: (field, key) for name, field in type(record).model_fields.items() if (key := _key_of(field))}
    if not keys:  # a table that is the value of a key, such as `workspace`
        return cast("dict[str, object]", _plain(record.model_dump(by_alias=True, exclude_defaults=True), record))
    table: dict[str, object] = {}
    for name, (field, key) in keys.items():
        value = getattr(record, name)
        if key.is_required or field.is_required() or value != field.get_default(call_default_factory=True):
            table[key.name or field.alias or name] = _toml_value(value, field, record)
    return table


def _key_of(field: FieldInfo) -> Key | None:
    return next((item for item in field.metadata if isinstance(item, Key)), None)


def _toml_value(value: object, field: FieldInfo, record: Record) -> object:
    if any(isinstance(item, InText) for item in field.metadata):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Record):
        return _table(value)
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        tables = [item for item in items if isinstance(item, Record)]
        return {str(getattr(item, "name", "")): _table(item) for item in tables} or [
            _plain(item, record) for item in items
        ]
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value).items()
        return {name: _table(item) if isinstance(item, Record) else _plain(item, record) for name, item in entries}
    return _plain(value, record)


def _plain(value: object, record: Record) -> object:
    match value:
        case None:
            raise UsageError(f"{type(record).__name__} cannot be written as TOML, which has no null: leave it out")
        case dict():
            return {name: _plain(item, record) for name, item in cast("dict[str, object]", value).items()}
        case list() | tuple():
            return [_plain(item, record) for item in cast("list[object]", value)]
        case _:
            return value
