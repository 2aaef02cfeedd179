"""Find the line of each key of a TOML text.

`tomllib` keeps no positions, so this walks over the text again. It relies on `tomllib` having accepted the text, and
recognizes only where keys, strings, arrays and inline tables begin and end.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from perstack.core.definitions.keys import KeyPath

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'  # up to two quotes may touch the closing three
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]*")


class KeyLines:
    """Line numbers, from 1, of the keys, tables and array items of one text."""

    def __init__(self, text: str) -> None:
        """Index a text, which must be valid TOML."""
        self._line_by_path: dict[KeyPath, int] = {(): 1}
        # positions are in ascending order, so each line break is counted once
        line, counted_to = 1, 0
        for path, position in _LineFinder(text).read_document():
            line += text.count("\n", counted_to, position)
            counted_to = position
            for length in range(1, len(path) + 1):
                self._line_by_path.setdefault(path[:length], line)

    def of(self, path: KeyPath) -> int:
        """Return the line of a key; of the nearest enclosing table if the text does not have it."""
        while path not in self._line_by_path:
            path = path[:-1]
        return self._line_by_path[path]

    def paths(self) -> frozenset[KeyPath]:
        return frozenset(self._line_by_path)


class _LineFinder:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.arrays: dict[KeyPath, int] = {}

    def read_document(self) -> Iterator[tuple[KeyPath, int]]:
        table: KeyPath = ()
        while not self._skip_to_end_or_key():
            start = self.at
            if self._take_mark("["):
                table = self._read_header()
                yield table, start
            else:
                yield from self._read_pair(table)

    def _skip_to_end_or_key(self) -> bool:
        self._skip(_BLANK)
        return self.at >= len(self.text)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"not TOML at character {self.at}")
        self.at = match.end()
        return match[0]

    def _take_mark(self, mark: str) -> bool:
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def _read_header(self) -> KeyPath:
        is_item = self._take_mark("[")
        key = self._read_key()
        self._take_mark("]]" if is_item else "]")
        if is_item:
            array = self._resolve_header(key[:-1]) + key[-1:]
            self.arrays[array] = self.arrays.get(array, -1) + 1
        return self._resolve_header(key)

    def _resolve_header(self, key: KeyPath) -> KeyPath:
        """Return the path of a header, in which `a.b` means the last `[[a]]` so far."""
        path: KeyPath = ()
        for part in key:
            path = (*path, part)
            if path in self.arrays:
                path = (*path, self.arrays[path])
        return path

    def _read_key(self) -> KeyPath:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            parts.append(self._read_name())
            self._skip(_SPACE)
            if not self._take_mark("."):
                return tuple(parts)

    def _read_name(self) -> str:
        if self.text[self.at] not in "\"'":
            return self._skip(_BARE_KEY)
        # tomllib resolves the escapes of a quoted key
        return next(iter(tomllib.loads(f"{self._skip(_STRING)} = 0")))

    def _read_pair(self, table: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        start = self.at
        path = table + self._read_key()
        self._take_mark("=")
        yield path, start
        self._skip(_SPACE)
        yield from self._read_value(path)

    def _read_value(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        if self._take_mark("["):
            yield from self._read_array(path)
        elif self._take_mark("{"):
            yield from self._read_inline_table(path)
        elif self.text[self.at] in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _read_array(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        index = 0
        self._skip(_BLANK)
        while not self._take_mark("]"):
            item = (*path, index)
            yield item, self.at
            yield from self._read_value(item)
            self._skip(_BLANK)
            self._take_mark(",")
            self._skip(_BLANK)
            index += 1

    def _read_inline_table(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        self._skip(_BLANK)
        while not self._take_mark("}"):
            yield from self._read_pair(path)
            self._skip(_BLANK)
            self._take_mark(",")
            self._skip(_BLANK)
