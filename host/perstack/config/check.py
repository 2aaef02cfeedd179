"""One table of a definition file against its keys in `schema`: types, missing keys, unknown keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, time
from math import isfinite

from perstack.config.schema import AUDIT, EXPERT, ITERATE, OAUTH, PROJECT, PROVIDER, SKILLS, TOOL, Key, Kind, Table
from perstack.config.source import KeyPath, Reporter, TomlTable, TomlValue, spell

_BUDGETS = ("none", "minimal", "low", "medium", "high")

_ELSEWHERE: Mapping[str, Table] = {
    "at the top of the file, above the first [table]": PROJECT,
    "in [provider]": PROVIDER,
    "in [audit]": AUDIT,
    "in [experts.NAME]": EXPERT,
    **{f"in a skill of type {name}": table for name, table in SKILLS.items()},
    "in a tool of an interactiveSkill": TOOL,
    "in the `oauth` of a skill of type mcpSseSkill": OAUTH,
    "in [experts.NAME.iterate]": ITERATE,
}


def read_table(raw: TomlValue, keys: Table, at: KeyPath, report: Reporter) -> TomlTable | None:
    """What is right in this table, by key. Everything else is reported; None if it is no table at all."""
    if not isinstance(raw, dict):
        report.error(at, f"must be a table, not {a_kind_of(raw)}: write [{spell(at)}] and its keys below it")
        return None
    good: TomlTable = {}
    for name, value in raw.items():
        key = keys.get(name)
        if key is None:
            report.warn((*at, name), unknown_key(name, keys))
        elif key.kind == "ignored":
            report.warn((*at, name), f"has no effect: {key.meaning}")
        elif fits(value, key, (*at, name), report):
            good[name] = value
    for name, key in keys.items():
        if key.required and name not in raw:
            report.error((*at, name), f"is missing: {key.meaning}")
    return good


def fits(value: TomlValue, key: Key, at: KeyPath, report: Reporter) -> bool:
    """Whether the value is of the key's kind; what is wrong with it is reported, item by item for lists."""
    pairs: Iterable[tuple[KeyPath, TomlValue]] = ((at, value),)
    if key.kind in ("texts", "domains") or (key.kind in _SEVERAL and isinstance(value, list)):
        if not isinstance(value, list):
            report.error(at, f"must be a list of texts, not {a_kind_of(value)}: write it in [brackets]")
            return False
        if not value and key.kind in _SEVERAL:
            report.error(at, f"must not be empty: {key.meaning}")
        pairs = (((*at, index), item) for index, item in enumerate(value))
    complaint = _COMPLAINTS[key.kind]
    wrong = [(path, words) for path, item in pairs if (words := complaint(item, key)) is not None]
    for path, words in wrong:
        report.error(path, words)
    return not wrong


_SEVERAL: tuple[Kind, ...] = ("words", "evaluator")
"""Kinds of which there may be one, or a list."""


def a_kind_of(value: TomlValue) -> str:
    """What a TOML value is, in words."""
    # bool first: in Python it is an int
    for kind, words in (
        (bool, "true or false"),
        (str, "text"),
        ((int, float), "a number"),
        (list, "a list"),
        (dict, "a table"),
    ):
        if isinstance(value, kind):
            return words
    return "a date or time"


def unknown_key(name: str, keys: Table) -> str:
    """What to say of a key that nobody knows: the nearest one that is known, or where it belongs."""
    same = _plain(name)
    for known in keys:
        if _plain(known) == same:
            return f"unknown key, ignored; did you mean `{known}`?"
    for place, table in _ELSEWHERE.items():
        if name in table and table is not keys:
            return f"unknown key here, ignored; `{name}` belongs {place}"
    near = nearest(name, keys)
    if near is not None:
        return f"unknown key, ignored; did you mean `{near}`?"
    wanted = ", ".join(f"`{known}`" for known, key in keys.items() if key.kind != "ignored")
    return f"unknown key, ignored; known here: {wanted}"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word most like this one, if any is much like it."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(words), n=1, cutoff=0.6)), None)


def suggestion(word: str, words: Iterable[str]) -> str:
    """`; did you mean «x»?`, or nothing."""
    near = nearest(word, words)
    return "" if near is None else f"; did you mean `{near}`?"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _text(value: TomlValue, key: Key) -> str | None:
    if not isinstance(value, str):
        return f'must be text in "quotes", not {a_kind_of(value)}'
    if key.least > 0 and not value.strip():
        return f"must not be empty: {key.meaning}"
    if key.longest is not None and len(value) > key.longest:
        return f"has {len(value):,} characters: shorten it to {key.longest:,}"
    return None


def _evaluator(value: TomlValue, key: Key) -> str | None:
    if isinstance(value, dict):
        names = [name for name in value if name in ("expert", "entry")]
        if len(names) != 1 or len(value) != 1:
            return "must be a command, or a table with one key: `expert`, or `entry`"
        value = value[names[0]]
    return _text(value, key)


def _flag(value: TomlValue, key: Key) -> str | None:
    return None if isinstance(value, bool) else f"must be true or false, not {a_kind_of(value)}"


def _number(value: TomlValue, key: Key) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool):
        kind = "a fraction" if isinstance(value, float) else a_kind_of(value)
        return f"must be a whole number, not {kind}"
    return None if value >= key.least else f"must be at least {key.least}, not {value}"


def _decimal(value: TomlValue, key: Key) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"must be a number, not {a_kind_of(value)}"
    return None if isfinite(value) else "must be a number that has an end"


def _budget(value: TomlValue, key: Key) -> str | None:
    if isinstance(value, str):
        if value in _BUDGETS:
            return None
        return f"must be a number of tokens or one of {', '.join(_BUDGETS)}{suggestion(value, _BUDGETS)}"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return None
    return f"must be a number of tokens or one of {', '.join(_BUDGETS)}"


def _choice(value: TomlValue, key: Key) -> str | None:
    known = ", ".join(key.choices)
    if not isinstance(value, str):
        return f"must be one of {known}, not {a_kind_of(value)}"
    return None if value in key.choices else f"must be one of {known}{suggestion(value, key.choices)}"


def _table(value: TomlValue, key: Key) -> str | None:
    return None if isinstance(value, dict) else f"must be a table, not {a_kind_of(value)}"


def _json(value: TomlValue, key: Key) -> str | None:
    words = _table(value, key)
    if words is None and _has_date(value):
        words = "must not hold a date or time: write it as text in quotes"
    return words


def _has_date(value: TomlValue) -> bool:
    if isinstance(value, dict):
        return any(map(_has_date, value.values()))
    if isinstance(value, list):
        return any(map(_has_date, value))
    return isinstance(value, (date, time))


def _domain(value: TomlValue, key: Key) -> str | None:
    import re

    if not isinstance(value, str):
        return _text(value, key)
    label = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
    if not re.fullmatch(rf"(?:\*\.)?{label}(?:\.{label})*", value):
        return "is no domain: write `example.com`, or `*.example.com` for all below it"
    # a look-alike name in punycode reads like another one
    if any(part.casefold().startswith("xn--") for part in value.split(".")):
        return "must not be punycode (xn--): only plain ASCII domains are taken"
    return None


_COMPLAINTS: Mapping[Kind, Callable[[TomlValue, Key], str | None]] = {
    "text": _text,
    "texts": _text,
    "words": _text,
    "evaluator": _evaluator,
    "decimal": _decimal,
    "flag": _flag,
    "number": _number,
    "budget": _budget,
    "choice": _choice,
    "table": _table,
    "json": _json,
    "domains": _domain,
}
