"""Regular expressions of strangers, in an engine whose time grows with the text alone, however they are written."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from typing import Protocol, cast

LONGEST = 10_000
"""Characters of a pattern."""

_MOST_MEMORY = 1 << 20
"""Bytes that one compiled pattern may use, with what its engine keeps while it matches."""

_ESCAPE = r"(?s)\\(?:u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|u\{([0-9a-fA-F]{1,6})\}|(.))"


class Pattern(Protocol):
    """A compiled pattern of RE2."""

    @property
    def programsize(self) -> int: ...

    def search(self, text: bytes) -> object | None: ...


class _Encodings(Protocol):
    LATIN1: object


class _Options(Protocol):
    log_errors: bool
    max_mem: int
    encoding: object
    Encoding: _Encodings


class _Engine(Protocol):
    error: type[Exception]

    def Options(self) -> _Options: ...

    def compile(self, pattern: str | bytes, options: _Options) -> Pattern: ...


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Pattern | str:
    """The pattern, read as JSON Schema says (ECMA-262); in words why it cannot be matched in linear time, if so.

    Look-around and back references cannot be, nor what the engine does not know or has no memory for.
    """
    if len(pattern) > LONGEST:
        return f"it has more than {LONGEST} characters"
    engine = cast("_Engine", import_module("re2"))  # 10 ms, for the first schema that has a pattern
    options = engine.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    try:
        return engine.compile(re.sub(_ESCAPE, _translated, pattern), options)
    except engine.error as error:
        said = error.args[0] if error.args else ""
        return said.decode("utf-8", "replace")[:200] if isinstance(said, bytes) else str(said)[:200]
    except ValueError:
        return "it holds half of a surrogate pair"


def compiled_bytes(pattern: bytes) -> Pattern | None:
    """A pattern of RE2's own syntax, for texts that are any bytes; None if it is none, or takes too much memory."""
    engine = cast("_Engine", import_module("re2"))
    options = engine.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    options.encoding = options.Encoding.LATIN1
    try:
        return engine.compile(pattern, options)
    except engine.error:
        return None


def _translated(found: re.Match[str]) -> str:
    """How RE2 writes a character by its number."""
    first, second, braced, other = found.groups()
    if other is not None:
        return found.group()
    code = int(first or braced, 16)
    if second is None:
        return f"\\x{{{code:x}}}"
    if 0xD800 <= code < 0xDC00:
        return f"\\x{{{0x10000 + ((code - 0xD800) << 10) + (int(second, 16) - 0xDC00):x}}}"
    return f"\\x{{{code:x}}}\\x{{{int(second, 16):x}}}"
