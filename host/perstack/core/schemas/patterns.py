"""Match untrusted patterns in linear time: regular expressions, and the globs of permission rules."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Protocol, cast

from perstack.core.base.file_names import folded_name
from perstack.dataclass import dataclass

# Untrusted regular expressions run in RE2, whose time grows only with the text.

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

    def compile(self, pattern: str | bytes, options: _Options) -> Pattern: ...


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
    """Return an ECMA-262 pattern in RE2's syntax, where the two write one thing differently."""
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


_ESCAPED = r"\\([*\\,=()?\[\]])"
_MARKED = r"(?s)\0(.)"


@dataclass(frozen=True)
class Glob:
    """A glob: `*` is a wildcard, and a backslash escapes the character after it."""

    text: str

    @cached_property
    def _pieces(self) -> tuple[str, ...]:
        return tuple(re.sub(_MARKED, r"\1", piece) for piece in re.split(r"(?<!\0)\*+", _mark_escaped(self.text)))

    @property
    def texts(self) -> tuple[str, ...]:
        """The literal texts between the wildcards."""
        return self._pieces

    @property
    def is_literal(self) -> bool:
        return len(self._pieces) == 1

    @property
    def literal(self) -> str:
        """The text before the first wildcard."""
        return self._pieces[0]

    @property
    def weight(self) -> int:
        """The specificity: the length of the text before the first wildcard, plus one without wildcards."""
        return len(self.literal) + self.is_literal

    def matches(self, text: str) -> bool:
        """Return True if the whole text matches; a wildcard matches any text, including line breaks."""
        first, *rest = self._pieces
        if not rest:
            return text == first
        *middle, last = rest
        if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
            return False
        start, end = len(first), len(text) - len(last)
        for piece in middle:
            position = text.find(piece, start, end)
            if position < 0:
                return False
            start = position + len(piece)
        return True

    def matches_line(self, line: str) -> bool:
        """Return True if a command line matches; a glob that ends in ` *` also matches the line without arguments."""
        return self.matches(line) or (self._pieces[-1] == "" and len(self._pieces) == 2 and self._is_whole(line))

    def could_match(self, start: str) -> bool:
        """Return True if a text with this beginning could match."""
        shorter = min(len(start), len(self.literal))
        return start[:shorter] == self.literal[:shorter]

    def _is_whole(self, line: str) -> bool:
        return self.literal.endswith(" ") and line == self.literal[:-1]

    def matches_path(self, path: str, *, is_strict: bool) -> bool:
        """Return True if a path matches. `is_strict`: ignore case, and match all in a folder that the glob names."""
        names = self.text.strip()
        folded = folded_path(path) if is_strict else path
        engine = compile_pattern(_path_pattern(folded_path(names) if is_strict else names, is_strict=is_strict))
        if isinstance(engine, str):
            return is_strict  # an invalid glob allows nothing, and always denies
        return engine.search(folded.encode("utf-8", "replace")) is not None

    def is_around(self, folder: str) -> bool:
        """Return True if the glob names something inside the folder, which changes with the folder."""
        names = folded_path(_plain(self.text.strip()))
        literal = re.split(r"[*?\[]", names)[0]
        return folder == "." or literal.startswith(f"{folded_path(folder)}/")

    def names_path(self, path: str) -> bool:
        """Return True if the glob names exactly this path or file name, without wildcards."""
        name = _plain(self.text.strip())
        if re.search(r"[*?\[]", name):
            return False
        is_anywhere = "/" not in self.text.strip()
        return name == path or (is_anywhere and name == path.rpartition("/")[2])


@lru_cache(maxsize=4096)
def folded_path(path: str) -> str:
    """Return a path in the form in which the most lenient file system compares it."""
    return path.casefold() if path.isascii() else "/".join(map(folded_name, path.split("/")))


def _mark_escaped(text: str) -> str:
    """Put a NUL before each escaped character, so that it is not read as a wildcard."""
    return re.sub(_ESCAPED, "\0\\1", text.replace("\0", ""))


def _plain(pattern: str) -> str:
    return pattern.removeprefix("./")


@lru_cache(maxsize=1024)
def _path_pattern(glob: str, *, is_strict: bool) -> str:
    pattern = _mark_escaped(_plain(glob))
    if pattern.endswith("/"):
        pattern += "**"
    # in an allow rule `./name` is one file; a deny rule keeps meaning the name in any folder
    is_anywhere = "/" not in pattern and (is_strict or not glob.startswith("./"))
    body = "".join(_translated(pattern))
    last = pattern.rpartition("/")[2]
    names_folder = is_strict and not re.search(r"(?<!\0)[*?\[]", last)
    if is_strict and body.endswith("/.*"):
        body = f"{body.removesuffix('/.*')}(?:/.*)?"
    descendants = "(?:/.*)?" if names_folder else ""
    return f"(?s)\\A{'(?:.*/)?' if is_anywhere else ''}{body}{descendants}\\z"


_PART = (
    r"(?s)\0(?P<literal>.)|(?P<start>(?:^|(?<=/))\*\*/)|(?P<any>\*\*+)|(?P<star>\*)|(?P<one>\?)"
    r"|\[(?P<not>[!^]?)(?P<set>\]?[^\]/]+)\]|(?P<text>.)"
)


def _translated(pattern: str) -> list[str]:
    parts: list[str] = []
    for token in re.finditer(_PART, pattern):
        if token["start"] is not None:
            parts.append("(?:.*/)?")
        elif token["any"] is not None:
            parts.append(".*")
        elif token["star"] is not None:
            parts.append("[^/]*")
        elif token["one"] is not None:
            parts.append("[^/]")
        elif token["set"] is not None:
            members = token["set"].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace("^", "\\^")
            parts.append(f"[{'^/' if token['not'] else ''}{members}]")
        else:
            parts.append(re.escape(token["literal"] or token["text"]))
    return parts
