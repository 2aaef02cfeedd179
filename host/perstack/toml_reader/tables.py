"""Validate tables of a definition file against their models: types, rules, missing and unknown keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from re import findall
from types import NoneType, UnionType
from typing import Annotated, TypeVar, Union, cast, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from perstack.core.base.records import Record
from perstack.core.base.text import edit_distance, nearest, suggestion
from perstack.core.base.validation_errors import path_in
from perstack.core.definitions.experts import Expert, FileSearchOptions, Iterate, ProviderToolOptions, WebToolOptions
from perstack.core.definitions.keys import BROKEN, EMPTY, FROM_FILE, PART_OF_FILE, Key, KeyPath, spell
from perstack.core.definitions.models import Price, ProviderLimits
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Audit, Project, Retention, Schedule
from perstack.core.definitions.sandbox import Sandbox
from perstack.core.definitions.settings import Budget, ContextKeys, ProviderSetting
from perstack.core.definitions.skills import (
    AgentSkill,
    InteractiveSkill,
    InteractiveTool,
    McpSseSkill,
    McpStdioSkill,
    McpTool,
    OAuth,
    PluginSkill,
)
from perstack.dataclass import dataclass
from perstack.ports.parts import Part, Parts
from perstack.toml_reader.source import Reporter, TomlTable, TomlValue

_FactT = TypeVar("_FactT", bound=Record)

IGNORED: Mapping[type[Record], Mapping[str, str]] = {  # keys of the original Perstack without effect, with the reason
    Project: {
        "temperature": "set it in the `setting` of [provider]",
        "perstackApiBaseUrl": "there is no registry: `include` adds Experts from other files",
        "perstackBaseSkillCommand": "the base skill is built in and starts no command",
        "network": "set `allowedDomains` of the skill that needs it",
    },
    Expert: {
        "temperature": "set it in the `setting` of [provider], or of [experts.NAME.provider]",
        "network": "set `allowedDomains` of the skill that needs it",
        "providerSkills": "skills that a provider runs itself are not offered",
    },
    McpSseSkill: {"allowedDomains": "the skill connects only to its endpoint"},
}

# keys that are not part of the definition of a Run
READ_SEPARATELY: Mapping[type[Record], Mapping[str, str]] = {
    Expert: {"tests": "queries with their expected results; see `tests` below"}
}

SEPARATE_TABLES: Part[Mapping[type[Record], str]] = Part("tables that are read separately")
"""Models of the tables in keys that are read separately, each with the place that a message names."""

_MAX_WRONG_LETTERS = 2  # maximum letters by which a misspelt key differs from the intended one

_MAX_SHOWN = 40  # characters of a written value that a remedy repeats

_MAX_LISTED_KEYS = 10  # keys that the message about an unknown one names

_TOOL_OPTIONS = (ProviderToolOptions, WebToolOptions, FileSearchOptions)

_GUARDING_TABLES = frozenset((Permissions, Budget, Price, Sandbox, ProviderLimits, Retention, Audit, *_TOOL_OPTIONS))
_GUARDING_KEYS = (  # names of tables and keys that restrict what an Expert may do
    *("permissions", "budget", "prices", "sandbox", "limits", "retention", "audit"),
    *("maxSteps", "maxDepth", "maxRepeats", "maxCost", "maxTokens", "maxTime", "maxToolCalls", "maskSecrets"),
    *("runtime", "required", "approval", "pick", "omit", "allowedDomains"),
)

_SKILLS = (McpStdioSkill, McpSseSkill, InteractiveSkill, PluginSkill, AgentSkill)

_PLACE_BY_MODEL: Mapping[type[Record], str] = {
    Project: "at the top of the file, above the first [table]",
    ProviderSetting: "in [provider]",
    Audit: "in [audit]",
    Retention: "in [retention]",
    Permissions: "in [permissions], or in [experts.NAME.permissions]",
    Budget: "in [budget] or [experts.NAME.budget]",
    Price: 'in [prices."PROVIDER/MODEL"]',
    ProviderLimits: 'in [limits."PROVIDER"]',
    Sandbox: "in [sandbox]",
    Schedule: "in [schedules.NAME]",
    Expert: "in [experts.NAME]",
    **{skill: f"in a skill of type {skill.model_fields['type'].default}" for skill in _SKILLS},
    InteractiveTool: "in a tool of an interactiveSkill",
    McpTool: "in a tool of an MCP server",
    OAuth: "in the `oauth` of a skill of type mcpSseSkill",
    Iterate: "in [experts.NAME.iterate]",
    **dict.fromkeys(_TOOL_OPTIONS, "in [experts.NAME.providerToolOptions]"),
}

_EXPECTED_BY_ERROR = {
    "string_type": 'text in "quotes"',
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list of texts",
    "dict_type": "a table",
}


_KIND_BY_TYPE: Mapping[type[object], str] = {
    bool: "true or false",
    str: "text",
    int: "a number",
    float: "a number",
    list: "a list",
    tuple: "a list",
    dict: "a table",
}


@dataclass(frozen=True, slots=True)
class WrittenKey:
    """Key of a table in a definition file."""

    field: str  # alias of its field, which is its name in records
    meaning: str
    is_required: bool
    tables: tuple[type[Record], ...]  # models of its value, if that is a table or has tables by name; otherwise empty
    is_named: bool  # True for a table with an entry for each name


@cache
def keys_of(model: type[Record]) -> Mapping[str, WrittenKey]:
    """Return the keys of a table in perstack.toml by name: required keys first, rarely used context keys last."""
    keys: dict[str, WrittenKey] = {}
    for _, field in sorted(model.model_fields.items(), key=lambda item: item[0] in ContextKeys.model_fields):
        alias = field.alias or ""
        for key in field.metadata:
            if isinstance(key, Key):
                tables = _tables_in(field.annotation)
                is_named = get_origin(field.annotation) in (tuple, dict)
                is_required = key.is_required or field.is_required()
                keys[key.name or alias] = WrittenKey(alias, key.text, is_required, tables, is_named)
    return dict(sorted(keys.items(), key=lambda item: not item[1].is_required))


def _tables_in(annotation: object) -> tuple[type[Record], ...]:
    if isinstance(annotation, type):
        return (annotation,) if issubclass(annotation, Record) else ()
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated or origin is tuple:
        return _tables_in(parts[0])
    if origin is dict:
        return _tables_in(parts[1])
    if origin not in (Union, UnionType):
        return ()
    groups = [_tables_in(part) for part in parts if part is not NoneType]
    return tuple(table for tables in groups for table in tables) if all(groups) else ()


def read_table(model: type[_FactT], raw: TomlValue, at: KeyPath, report: Reporter, **extra: str) -> _FactT | None:
    """Read the valid part of a table, and report the rest. None if `raw` is no table. `extra`: values of fields."""
    if not isinstance(raw, dict):
        keys = [name for name, key in keys_of(model).items() if key.is_required]
        example_line = (
            f'{keys[0]} = "{raw}"' if isinstance(raw, str) and len(keys) == 1 and len(raw) < _MAX_SHOWN else "its keys"
        )
        report.error(at, f"must be a table, not {kind_of(raw)}: write [{spell(at)}] and {example_line} below it")
        return None
    values: dict[str, object] = {**extra, **_read_values(model, raw, at, report)}
    try:
        return model.model_validate(values, strict=True, extra="forbid", context=FROM_FILE)
    except ValidationError as error:
        errors_by_path = _errors_by_path(error.errors(include_url=False), values)
    key_by_field = {key.field: (name, key.meaning) for name, key in keys_of(model).items()}
    for (field, *subpath), errors in errors_by_path.items():
        # a table's name is not a key in it
        name, meaning = key_by_field.get(str(field), ("", ""))
        report.error((*at, name, *subpath) if name else at, _error_message(errors, meaning))
    return model.model_validate(_valid_values(model, values, errors_by_path), context=PART_OF_FILE)


def _read_values(model: type[Record], raw: TomlTable, at: KeyPath, report: Reporter) -> dict[str, object]:
    keys = keys_of(model)
    values: dict[str, object] = {}
    for name, value in raw.items():
        key = keys.get(name)
        if key is None:
            _report_unknown(name, model, (*at, name), report)
        elif not key.tables:
            values[key.field] = tuple(value) if isinstance(value, list) else value
        elif (inner := _read_inner(key, value, (*at, name), report)) is not None:
            values[key.field] = inner
    for name, key in keys.items():
        if key.is_required and name not in raw:
            report.error((*at, name), f"is missing: {key.meaning}")
    return values


def _read_inner(key: WrittenKey, raw: TomlValue, at: KeyPath, report: Reporter) -> object:
    if not key.is_named:
        return read_table(key.tables[0], raw, at, report)
    if not isinstance(raw, dict):
        report.error(at, f"must be a table, not {kind_of(raw)}")
        return None
    tables: list[Record] = []
    for name, table in raw.items():
        model = _model_of(key.tables, table, (*at, name), report)
        entry = None if model is None else read_table(model, table, (*at, name), report, name=name)
        if entry is not None:
            tables.append(entry)
    return tuple(tables)


def _model_of(models: tuple[type[Record], ...], raw: TomlValue, at: KeyPath, report: Reporter) -> type[Record] | None:
    if len(models) == 1 or not isinstance(raw, dict):
        return models[0]
    by_type = {str(model.model_fields["type"].default): model for model in models}
    kind = raw.get("type")
    if isinstance(kind, str) and kind in by_type:
        return by_type[kind]
    hint = suggestion(kind, by_type) if isinstance(kind, str) else ""
    report.error((*at, "type"), f"{'is missing:' if kind is None else 'must be'} one of {', '.join(by_type)}{hint}")
    return None


def _errors_by_path(errors: Iterable[ErrorDetails], values: object) -> dict[KeyPath, list[ErrorDetails]]:
    """Return the errors by path. An error inside a value replaces the errors of the whole value."""
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    for error in errors:
        if error["type"] != "missing":  # reported already
            by_path.setdefault(path_in(values, error["loc"]), []).append(error)
    enclosing = {at[:length] for at in by_path for length in range(len(at))}
    return {at: group for at, group in by_path.items() if at not in enclosing}


def _valid_values(
    model: type[Record], values: Mapping[str, object], wrong_paths: Iterable[KeyPath]
) -> dict[str, object]:
    """Return the valid values and table entries; a required invalid text becomes empty."""
    prefixes = {path[:2] for path in wrong_paths}
    fields = {path[0] for path in prefixes}
    valid_values: dict[str, object] = {}
    for field in model.model_fields.values():
        name = field.alias or ""
        value = values.get(name)
        if name in values and name not in fields:
            valid_values[name] = value
        elif field.is_required():
            valid_values[name] = ""
        elif isinstance(value, dict) and (name,) not in prefixes and get_origin(field.annotation) is dict:
            table = cast("dict[str, object]", value)
            valid_values[name] = {key: entry for key, entry in table.items() if (name, key) not in prefixes}
    return valid_values


def _error_message(errors: list[ErrorDetails], meaning: str) -> str:
    """Return one message for all errors of a key; `meaning` says what the key is for."""
    for error in errors:
        if error["type"] == BROKEN:
            return f"{EMPTY}: {meaning}" if error["msg"] == EMPTY else error["msg"]
        if error["type"] == "extra_forbidden":
            return "does not belong here: remove it"
        if error["type"] == "invalid-json-value":
            return "must not hold a date or time: write it as text in quotes"
    value = errors[0]["input"]
    choices = [choice for error in errors for choice in findall("'([^']*)'", str(error.get("ctx", {}).get("expected")))]
    expected = [f"one of {', '.join(choices)}"] if choices else []
    expected += [
        _EXPECTED_BY_ERROR.get(error["type"], error["msg"]) for error in errors if error["type"] != "literal_error"
    ]
    if choices and isinstance(value, str):
        return f"must be {' or '.join(expected)}{suggestion(value, choices)}"
    is_fraction = isinstance(value, float) and _EXPECTED_BY_ERROR["int_type"] in expected
    hint = ": write it in [brackets]" if expected == [_EXPECTED_BY_ERROR["tuple_type"]] else ""
    return f"must be {' or '.join(expected)}, not {'a fraction' if is_fraction else kind_of(value)}{hint}"


def kind_of(value: object) -> str:
    """Return the name of a TOML value's kind."""
    return _KIND_BY_TYPE.get(type(value), "a date or time")


def _report_unknown(name: str, model: type[Record], at: KeyPath, report: Reporter) -> None:
    """Report an unknown key: an error if ignoring it might fail open, otherwise a warning."""
    if name in IGNORED.get(model, ()):
        report.warn(at, f"has no effect: {IGNORED[model][name]}")
    elif _may_be_a_guard(name, model) or (model is Expert and _is_misspelt(name, model)):
        report.refuse(at, f"unknown key{_unknown_key_hint(name, model, report.parts)}")
    else:
        report.warn(at, f"unknown key{_unknown_key_hint(name, model, report.parts, ', ignored')}")


def _unknown_key_hint(name: str, model: type[Record], parts: Parts, what_happens: str = "") -> str:
    """Return the words after `unknown key`: the most similar key, where the key belongs, or the known keys."""
    known_keys = [*keys_of(model), *IGNORED.get(model, ()), *READ_SEPARATELY.get(model, ())]
    plain_name = _normalize(name)
    hint = next(
        (f"; did you mean `{key}`?" for key in known_keys if _normalize(key) == plain_name),
        suggestion(name, known_keys, 0.85),
    )
    if hint:
        return f"{what_happens}{hint}"
    separate: Mapping[type[Record], str] = parts.get(SEPARATE_TABLES) if parts.has(SEPARATE_TABLES) else {}
    for other, place in {**_PLACE_BY_MODEL, **separate}.items():
        if other is not model and (name in keys_of(other) or name in IGNORED.get(other, ())):
            return f" here{what_happens}; `{name}` belongs {place}"
    keys = [f"`{key}`" for key in keys_of(model)]
    more = f" and {len(keys) - _MAX_LISTED_KEYS} more" if len(keys) > _MAX_LISTED_KEYS else ""
    hint = suggestion(name, known_keys) or f"; known here: {', '.join(keys[:_MAX_LISTED_KEYS])}{more}"
    return f"{what_happens}{hint}"


def _may_be_a_guard(name: str, model: type[Record]) -> bool:
    """Return whether an unknown key may be meant to restrict something."""
    guards = (*_GUARDING_KEYS, "experts") if model is Project else _GUARDING_KEYS
    return model in _GUARDING_TABLES or nearest(_normalize(name), map(_normalize, guards)) is not None


def _is_misspelt(name: str, model: type[Record]) -> bool:
    """Return whether an unknown key is a known one with at most `_MAX_WRONG_LETTERS` wrong letters."""
    return any(edit_distance(_normalize(name), _normalize(key)) <= _MAX_WRONG_LETTERS for key in keys_of(model))


def _normalize(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()
