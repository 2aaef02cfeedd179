"""Match untrusted regular expressions in linear time: they run in RE2, whose time grows only with the text."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from typing import Protocol, cast

MAX_PATTERN_CHARS = 10_000  # maximum characters of a pattern

_MAX_MEMORY_BYTES = 1 << 20  # bytes that a compiled pattern may use, including the engine's cache

_SYNTAX = (
    r"(?s)\\(?:u(?P<first>[0-9a-fA-F]{4})(?:\\u(?P<second>[dD][c-fC-F][0-9a-fA-F]{2}))?"
    r"|u\{(?P<braced>[0-9a-fA-F]{1,6})\}|(?P<space>[sS])(?P<dash>-?)|.)|\[\^?\]?|\]"
)

# ECMA-262's white space, which includes line terminators; RE2's `\s` is that of ASCII.
_SPACE = r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_NOT_SPACE = (
    r"\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}"
    r"\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}"
)
_EMPTY_CLASSES = {"[]": r"[^\x{0}-\x{10ffff}]", "[^]": "(?s:.)"}


class Pattern(Protocol):
    """A compiled pattern of RE2."""

    @property
    def programsize(self) -> int:
        """The size of the compiled program, which bounds the time per character."""
        ...

    def search(self, text: bytes) -> object | None:
        """Return a match anywhere in the text; None if there is none."""
        ...


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

    def compile(self, pattern: str | bytes, re2_options: _Options) -> Pattern: ...


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Pattern | str:
    """Return an ECMA-262 pattern compiled, or why it cannot be matched in linear time (such as look-around)."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"it has more than {MAX_PATTERN_CHARS} characters"
    engine = cast("_Engine", import_module("re2"))  # the import takes 10 ms
    options = engine.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    try:
        return engine.compile(_re2_pattern(pattern), options)
    except engine.error as error:
        message = error.args[0] if error.args else ""
        return message.decode("utf-8", "replace")[:200] if isinstance(message, bytes) else str(message)[:200]
    except ValueError:
        return "it holds half of a surrogate pair"


def compiled_bytes(pattern: bytes) -> Pattern | None:
    """Return a pattern in RE2's syntax for arbitrary bytes; None if it is invalid or needs too much memory."""
    engine = cast("_Engine", import_module("re2"))
    options = engine.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    options.encoding = options.Encoding.LATIN1
    try:
        return engine.compile(pattern, options)
    except engine.error:
        return None


def _re2_pattern(pattern: str) -> str:
    """Translate what ECMA-262 and RE2 write differently in a pattern to RE2's syntax."""
    is_in_class = False

    def translate(match: re.Match[str]) -> str:
        nonlocal is_in_class
        text = match.group()
        if match["space"] is not None:
            ranges = _SPACE if match["space"] == "s" else _NOT_SPACE
            # a dash after a class is literal in ECMA-262; after these ranges, RE2 would read one more range
            return f"{ranges}{match['dash'] and chr(92) + '-'}" if is_in_class else f"[{ranges}]{match['dash']}"
        if match["first"] is not None or match["braced"] is not None:
            return _code_point(match)
        if not is_in_class and text in _EMPTY_CLASSES:
            return _EMPTY_CLASSES[text]
        if text.startswith("[") and is_in_class:
            is_in_class = not text.endswith("]")
            return f"\\{text}"
        if text in ("[", "[^", "]"):
            is_in_class = text != "]"
        return text

    return re.sub(_SYNTAX, translate, pattern)


def _code_point(match: re.Match[str]) -> str:
    code, second = int(match["first"] or match["braced"], 16), match["second"]
    if second is None:
        return f"\\x{{{code:x}}}"
    if 0xD800 <= code < 0xDC00:
        return f"\\x{{{0x10000 + ((code - 0xD800) << 10) + (int(second, 16) - 0xDC00):x}}}"
    return f"\\x{{{code:x}}}\\x{{{int(second, 16):x}}}"
