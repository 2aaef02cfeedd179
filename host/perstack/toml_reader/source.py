"""Text of a definition file, its bounded TOML parser, and the problems found in it."""

from __future__ import annotations

import re
import tomllib
from datetime import date, datetime, time
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from perstack.config.file_patterns import SearchBudget
from perstack.core.base.records import layers
from perstack.core.definitions.keys import KeyPath, spell
from perstack.errors import Problem
from perstack.ports.parts import NO_PARTS, Parts
from perstack.system.files import FileTooLarge, read_regular

if TYPE_CHECKING:
    from perstack.toml_reader.key_lines import KeyLines


TomlValue: TypeAlias = "str | int | float | bool | datetime | date | time | list[TomlValue] | dict[str, TomlValue]"

TomlTable: TypeAlias = "dict[str, TomlValue]"


class Source:
    """Text of one definition file."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text

    @classmethod
    def of(cls, path: Path, max_bytes: int) -> Source:
        """Read a file. Raises NotRead if it is too large or not UTF-8, and OSError."""
        try:
            return cls(path, read_bounded(path, max_bytes).decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise NotRead(f"is not UTF-8 at byte {error.start}: save it as UTF-8") from error

    @cached_property
    def lines(self) -> KeyLines:
        from perstack.toml_reader.key_lines import KeyLines

        return KeyLines(self.text)


class Reporter:
    """Collector of one file's problems, in a list that all files share."""

    def __init__(
        self, source: Source, problems: list[Problem], search: SearchBudget | None = None, parts: Parts = NO_PARTS
    ) -> None:
        """Append to `problems`. `search` is shared by the patterns of all files; `parts` has readers of features."""
        self.source = source
        self.parts = parts
        self.search = SearchBudget() if search is None else search
        self._problems = problems

    def error(self, path: KeyPath, message: str) -> None:
        """Report an error. It makes the key's Expert unusable; everything, if the key belongs to none."""
        self._add(path, message, "error")

    def warn(self, path: KeyPath, message: str) -> None:
        self._add(path, message, "warning")

    def refuse(self, path: KeyPath, message: str) -> None:
        """Report an error with which no Job of the key's Expert can begin; Jobs that have begun continue."""
        self._add(path, message, "error", only_new_jobs=True)

    def take(self, problem: Problem, path: KeyPath) -> None:
        """Report another component's problem at this key."""
        self._add(path, problem.message, problem.severity)

    def place(self, path: KeyPath) -> str:
        """Return `file:line` of a key, for messages about a second place."""
        return f"{self.source.path}:{self.source.lines.of(path)}"

    def _add(self, path: KeyPath, message: str, severity: str, *, only_new_jobs: bool = False) -> None:
        line = self.source.lines.of(path)
        expert = str(path[1]) if len(path) > 1 and path[0] == "experts" else None
        location = (str(self.source.path), line, spell(path) or None)
        self._problems.append(Problem(message, *location, severity, expert, only_new_jobs))


# Untrusted TOML is bounded here, because `tomllib` has no limits.

MAX_DEFINITION_BYTES = 8 << 20  # maximum bytes of one file
MAX_TOML_DEPTH = 64  # maximum levels of tables and arrays

_AT_LINE = r"\(at line (\d+), column \d+\)$"
_QUOTED = r'"[^"\n]*"|\'[^\'\n]*\''
_BETWEEN_KEYS = r"[^\w\-. \t]"


class NotRead(ValueError):
    """Error of a refused file; the message is the predicate of a sentence about it."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def read_bounded(path: Path, max_bytes: int = MAX_DEFINITION_BYTES) -> bytes:
    """Return a file's content. Raises NotRead if it is too large, and OSError, also if it is no regular file."""
    try:
        return read_regular(path, max_bytes)
    except FileTooLarge:
        raise NotRead(f"is larger than {max_bytes >> 20} MiB: make it smaller") from None


def parse_toml(text: str) -> TomlTable:
    """Parse TOML. Raises NotRead, also for deep nesting or a number of thousands of digits."""
    too_deep_error = NotRead(f"is nested more than {MAX_TOML_DEPTH} levels deep: make it flatter")
    if any(_has_endless_key(line) for line in text.splitlines() if line.count(".") > MAX_TOML_DEPTH):
        raise too_deep_error
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise too_deep_error from None
    except tomllib.TOMLDecodeError as error:
        match = re.search(_AT_LINE, str(error))
        line = int(match[1]) if match is not None else text.count("\n") + 1
        hint = ": a text in quotes must end on its line" if "Illegal character '\\n'" in str(error) else ""
        raise NotRead(f"is not TOML: {error}{hint}", line) from error
    except ValueError:  # from `int`, whose message is for programmers
        raise NotRead("has a number of thousands of digits: write a shorter one") from None
    if any(level > MAX_TOML_DEPTH for level, _ in enumerate(layers(table))):
        raise too_deep_error
    return table


def _has_endless_key(line: str) -> bool:
    """Return whether a line has a dotted key with too many parts, which `tomllib` would take quadratic time for."""
    for piece in re.split(_BETWEEN_KEYS, re.sub(_QUOTED, "q", line)):
        # a part with blanks is prose in a multi-line text
        parts = (bool(part.strip()) and len(part.split()) == 1 for part in piece.split("."))
        if any(is_key and len(list(run)) > MAX_TOML_DEPTH for is_key, run in groupby(parts)):
            return True
    return False
