"""YAML of strangers, as far as it is plain: tables, lists and texts, and nothing that YAML could do besides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, cast

DEEPEST = 4
"""Levels of tables and lists."""
_MOST = 1_000
"""Values."""

Value: TypeAlias = "str | Sequence[Value] | Mapping[str, Value]"


class NotPlain(ValueError):
    """Why a text was not taken, in words that follow the name of its file."""


class _Event(Protocol):
    """What PyYAML's parser gives, which has no types of its own."""

    anchor: str | None
    tag: str | None
    value: str


def read_table(text: str, first_line: int = 1) -> Mapping[str, Value]:
    """The table that a text says; `first_line` is where it begins in its file. Raises NotPlain.

    No value is taken for a date, a number or true: all are texts. Aliases are refused, by which a few bytes stand for
    gigabytes, and so are tags, which name a type to make. How long it takes grows with the text alone.
    """
    import yaml

    # the parser in Python: the one in C aborts on some texts, and a table this small is read in a moment
    events = cast("Iterator[_Event]", yaml.parse(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    try:
        return _Reading(events).table()
    except yaml.YAMLError as error:
        raise NotPlain(f"has YAML that cannot be read{_why(error, first_line)}") from None


def _why(error: Exception, first_line: int) -> str:
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f" at line {mark.line + first_line}"
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    hint = "; put a text that has `: ` in it in quotes" if problem.startswith("mapping values") else ""
    return f"{line} ({problem}){hint}"


class _Reading:
    """Events into values, one after the other: the parser does no more than it is asked for."""

    def __init__(self, events: Iterator[_Event]) -> None:
        self._events = events
        self._count = 0

    def table(self) -> Mapping[str, Value]:
        """The one document, which must be a table."""
        kind, _ = self._next()
        if kind == "StreamStart":
            kind, _ = self._next()
        found = self._value(*self._next(), 1) if kind == "DocumentStart" else ""
        if not isinstance(found, Mapping):
            raise NotPlain("has no table in its YAML")
        self._next()
        if self._next()[0] != "StreamEnd":
            raise NotPlain("has several documents in its YAML")
        return found

    def _next(self) -> tuple[str, _Event]:
        event = next(self._events)
        kind = type(event).__name__.removesuffix("Event")
        self._count += 1
        if self._count > _MOST:
            raise NotPlain(f"has more than {_MOST} values in its YAML")
        if kind == "Alias" or getattr(event, "anchor", None) is not None:
            raise NotPlain("has an anchor or an alias in its YAML: write the value out")
        if kind != "DocumentStart" and getattr(event, "tag", None) is not None:
            raise NotPlain("has a tag in its YAML: leave it out")
        return kind, event

    def _value(self, kind: str, event: _Event, level: int) -> Value:
        if level > DEEPEST:
            raise NotPlain(f"is nested more than {DEEPEST} levels deep in its YAML")
        match kind:
            case "Scalar":
                return event.value
            case "SequenceStart":
                return self._items(level)
            case _:
                return self._entries(level)

    def _items(self, level: int) -> list[Value]:
        found: list[Value] = []
        while (one := self._next())[0] != "SequenceEnd":
            found.append(self._value(*one, level + 1))
        return found

    def _entries(self, level: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while (one := self._next())[0] != "MappingEnd":
            kind, key = one
            if kind != "Scalar":
                raise NotPlain("has a key in its YAML that is no text")
            if key.value in found:
                raise NotPlain(f"has `{key.value[:64]}` twice in its YAML")
            found[key.value] = self._value(*self._next(), level + 1)
        return found
