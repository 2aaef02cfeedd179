"""A definition file as text, and the problems found in it.

A problem knows its line, but lines are looked up only when there is a problem: a good file never pays for it.
"""

from __future__ import annotations

from datetime import date, datetime, time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from perstack.config.key_path import KeyPath, spell
from perstack.errors import Problem

if TYPE_CHECKING:
    from perstack.config.locate import Lines

TomlValue: TypeAlias = "str | int | float | bool | datetime | date | time | list[TomlValue] | dict[str, TomlValue]"
"""What `tomllib` can return."""

TomlTable: TypeAlias = "dict[str, TomlValue]"


class Source:
    """One definition file."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text

    @cached_property
    def lines(self) -> Lines:
        """Where each key of the file stands."""
        from perstack.config.locate import Lines

        return Lines(self.text)


class Reporter:
    """Takes down what is wrong in one file, into a list that all files share."""

    def __init__(self, source: Source, problems: list[Problem]) -> None:
        self.source = source
        self._problems = problems

    def error(self, path: KeyPath, message: str) -> None:
        """Something that stops the Expert that the key is of; everything, if it is of none."""
        self._add(path, message, "error")

    def warn(self, path: KeyPath, message: str) -> None:
        """Something that is only shown."""
        self._add(path, message, "warning")

    def take(self, problem: Problem, path: KeyPath) -> None:
        """What somebody else has found at this key."""
        self._add(path, problem.message, problem.severity)

    def place(self, path: KeyPath) -> str:
        """`file:line` of a key, for messages that name a second place."""
        return f"{self.source.path}:{self.source.lines.of(path)}"

    def _add(self, path: KeyPath, message: str, severity: str) -> None:
        line = self.source.lines.of(path)
        expert = str(path[1]) if len(path) > 1 and path[0] == "experts" else None
        self._problems.append(Problem(message, str(self.source.path), line, spell(path) or None, severity, expert))
