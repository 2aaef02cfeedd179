"""Files of a definition: match patterns of names, read files, parse TOML within bounds, and report problems."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Generator
from datetime import date, datetime, time
from fnmatch import translate
from functools import cached_property
from itertools import groupby
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypeAlias

from perstack.core.base.records import layers
from perstack.core.definitions.keys import KeyPath, spell
from perstack.errors import Problem
from perstack.ports.parts import NO_PARTS, Parts
from perstack.system.files import FileTooLarge, read_regular

if TYPE_CHECKING:
    from perstack.config.toml_lines import KeyLines


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
        from perstack.config.toml_lines import KeyLines

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
    too_deep = NotRead(f"is nested more than {MAX_TOML_DEPTH} levels deep: make it flatter")
    if any(_has_endless_key(line) for line in text.splitlines() if line.count(".") > MAX_TOML_DEPTH):
        raise too_deep
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except tomllib.TOMLDecodeError as error:
        match = re.search(_AT_LINE, str(error))
        line = int(match[1]) if match is not None else text.count("\n") + 1
        hint = ": a text in quotes must end on its line" if "Illegal character '\\n'" in str(error) else ""
        raise NotRead(f"is not TOML: {error}{hint}", line) from error
    except ValueError:  # from `int`, whose message is for programmers
        raise NotRead("has a number of thousands of digits: write a shorter one") from None
    if any(level > MAX_TOML_DEPTH for level, _ in enumerate(layers(table))):
        raise too_deep
    return table


def _has_endless_key(line: str) -> bool:
    """Return whether a line has a dotted key with too many parts, which `tomllib` would take quadratic time for."""
    for piece in re.split(_BETWEEN_KEYS, re.sub(_QUOTED, "q", line)):
        # a part with blanks is prose in a multi-line text
        parts = (bool(part.strip()) and len(part.split()) == 1 for part in piece.split("."))
        if any(is_key and len(list(run)) > MAX_TOML_DEPTH for is_key, run in groupby(parts)):
            return True
    return False


# Patterns of `include` and of Agent Skills, expanded without scanning a whole disk.

MAX_EXAMINED_NAMES = 500_000  # maximum names of files and folders, for all patterns of a definition together
MAX_EXAMINED_OUTSIDE = 10_000  # maximum names for a pattern that leads out of the folder of its definition
MAX_FOLDER_DEPTH = 100  # maximum nesting of folders for `**`: a program may have created a thousand levels

_START_FOLDER = ""
_WILDCARD = re.compile(r"[*?[]")


class TooMuch(ValueError):
    """Error of a pattern that examines more names than any project has; the message is a predicate."""


class SearchBudget:
    """Number of names of files and folders that searches may still examine."""

    def __init__(self) -> None:
        self.remaining = MAX_EXAMINED_NAMES

    def limit_of(self, parts: tuple[str, ...]) -> int:
        """Return the limit of one pattern: a low one if it leads out of its folder, where a whole disk may be."""
        is_outside = parts[:1] == ("/",) or ".." in parts
        return min(self.remaining, MAX_EXAMINED_OUTSIDE) if is_outside else self.remaining


def matches(pattern: str, folder: Path, budget: SearchBudget | None = None) -> list[str]:
    """Return the files that a pattern matches as in `glob`, relative to `folder`, sorted. Raises TooMuch."""
    budget, parts = budget or SearchBudget(), PurePath(pattern).parts
    search = _PatternSearch(folder, budget.limit_of(parts))
    try:
        names = set(search.matches_below(_START_FOLDER, parts))
    finally:
        budget.remaining -= search.examined
    return sorted(name for name in names if (folder / name).is_file())


class _PatternSearch:
    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self.examined = 0

    def matches_below(self, subfolder: str, parts: tuple[str, ...]) -> Generator[str]:
        """Yield the matches of the remaining parts of a pattern in a folder."""
        if not parts:
            yield subfolder
            return
        first, rest = parts[0], parts[1:]
        if first == "**":
            yield from self.matches_below(subfolder, rest or ("*",))
            is_deep = subfolder.count(os.sep) >= MAX_FOLDER_DEPTH
            for name, is_folder in () if is_deep else self._names(subfolder):
                if is_folder and not name.startswith("."):
                    yield from self.matches_below(os.path.join(subfolder, name), parts)  # noqa: PTH118 - seen from the folder
        elif _WILDCARD.search(first) is None:
            path = os.path.join(subfolder, first)  # noqa: PTH118
            if os.path.lexists(self._folder / path):
                yield from self.matches_below(path, rest)
        else:
            matches_part = re.compile(translate(first)).match
            for name, is_folder in self._names(subfolder):
                if (
                    matches_part(name)
                    and (first.startswith(".") or not name.startswith("."))
                    and (is_folder or not rest)
                ):
                    yield from self.matches_below(os.path.join(subfolder, name), rest)  # noqa: PTH118

    def _names(self, subfolder: str) -> list[tuple[str, bool]]:
        names: list[tuple[str, bool]] = []
        try:
            with os.scandir(self._folder / subfolder) as entries:
                for entry in entries:
                    if self.examined == self._limit:
                        raise TooMuch(f"looks at more than {self._limit} files and folders: name a smaller folder")
                    self.examined += 1
                    names.append((entry.name, entry.is_dir(follow_symlinks=False) or self._is_inner_link(entry)))
        except OSError:
            return names
        return names

    def _is_inner_link(self, entry: os.DirEntry[str]) -> bool:
        """Return whether a link leads to a folder inside the searched one; a pattern follows no other link."""
        if not entry.is_symlink():
            return False
        target = Path(os.path.realpath(entry.path))
        return target.is_relative_to(os.path.realpath(self._folder)) and target.is_dir()
