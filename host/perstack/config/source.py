"""Text of a definition file, its bounded TOML parser, and problems, whose lines are computed only when needed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from perstack.core.base.records import JsonObject, layers
from perstack.core.definitions.keys import KeyPath, spell
from perstack.errors import Problem
from perstack.system.regular_files import TooLarge, read_regular

if TYPE_CHECKING:
    from perstack.config.toml_lines import Lines


# Output of problems.


def describe_problems(problems: Sequence[Problem]) -> list[str]:
    """Return a line for each problem, `file:line: severity: key: message`, and a last line with counts."""
    lines = [_describe(problem) for problem in problems]
    lines.append(f"{_count(problems, 'error')}, {_count(problems, 'warning')}")
    return lines


def problems_to_json(problems: Iterable[Problem]) -> list[JsonObject]:
    """Return an object for each problem; `line` and `key` are null if unknown."""
    return [
        {
            "severity": problem.severity,
            "file": problem.file,
            "line": problem.line,
            "key": problem.key,
            "message": problem.message,
        }
        for problem in problems
    ]


def _describe(problem: Problem) -> str:
    parts = [problem.file if problem.line is None else f"{problem.file}:{problem.line}", problem.severity]
    if problem.key is not None:
        parts.append(problem.key)
    return ": ".join((*parts, problem.message))


def _count(problems: Iterable[Problem], severity: str) -> str:
    number = sum(problem.severity == severity for problem in problems)
    return f"{number} {severity}" if number == 1 else f"{number} {severity}s"


TomlValue: TypeAlias = "str | int | float | bool | datetime | date | time | list[TomlValue] | dict[str, TomlValue]"

TomlTable: TypeAlias = "dict[str, TomlValue]"


class Source:
    """Text of one definition file."""

    def __init__(self, path: Path, text: str) -> None:
        """Keep the path and the text."""
        self.path = path
        self.text = text

    @cached_property
    def lines(self) -> Lines:
        """The lines of the file's keys."""
        from perstack.config.toml_lines import Lines

        return Lines(self.text)


class Reporter:
    """Collector of one file's problems, in a list that all files share."""

    def __init__(self, source: Source, problems: list[Problem]) -> None:
        """Append to `problems`."""
        self.source = source
        self._problems = problems

    def error(self, path: KeyPath, message: str) -> None:
        """Report an error. It makes the key's Expert unusable; everything, if the key belongs to none."""
        self._add(path, message, "error")

    def warn(self, path: KeyPath, message: str) -> None:
        """Report a warning."""
        self._add(path, message, "warning")

    def take(self, problem: Problem, path: KeyPath) -> None:
        """Report another component's problem at this key."""
        self._add(path, problem.message, problem.severity)

    def place(self, path: KeyPath) -> str:
        """Return `file:line` of a key, for messages about a second place."""
        return f"{self.source.path}:{self.source.lines.of(path)}"

    def _add(self, path: KeyPath, message: str, severity: str) -> None:
        line = self.source.lines.of(path)
        expert = str(path[1]) if len(path) > 1 and path[0] == "experts" else None
        self._problems.append(Problem(message, str(self.source.path), line, spell(path) or None, severity, expert))


# Untrusted TOML is bounded here, because `tomllib` has no limits.

LARGEST = 8 << 20  # maximum bytes of one file
DEEPEST = 64  # maximum levels of tables and arrays

_QUOTED = r'"[^"\n]*"|\'[^\'\n]*\''
_BETWEEN_KEYS = r"[^\w\-. \t]"


class NotRead(ValueError):
    """File that was refused; the message continues its name."""


def read_bounded(path: Path, most: int = LARGEST) -> bytes:
    """Return a file's content. Raises NotRead if it is too large, and OSError, also if it is no regular file."""
    try:
        return read_regular(path, most)
    except TooLarge:
        raise NotRead(f"is larger than {most >> 20} MiB: make it smaller") from None


def parse_toml(text: str) -> TomlTable:
    """Parse TOML. Raises TOMLDecodeError, and NotRead for deep nesting or a number of thousands of digits."""
    too_deep = NotRead(f"is nested more than {DEEPEST} levels deep: make it flatter")
    if any(_has_endless_key(line) for line in text.splitlines() if line.count(".") > DEEPEST):
        raise too_deep
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # from `int`, whose message is for programmers
        raise NotRead("has a number of thousands of digits: write a shorter one") from None
    if any(level > DEEPEST for level, _ in enumerate(layers(table))):
        raise too_deep
    return table


def _has_endless_key(line: str) -> bool:
    """Return whether a line has a dotted key with too many parts, which `tomllib` would take quadratic time for."""
    for piece in re.split(_BETWEEN_KEYS, re.sub(_QUOTED, "q", line)):
        # words with blanks are prose in a text of several lines
        parts = (bool(part.strip()) and len(part.split()) == 1 for part in piece.split("."))
        if any(is_key and len(list(run)) > DEEPEST for is_key, run in groupby(parts)):
            return True
    return False
