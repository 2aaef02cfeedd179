"""Globs of permission rules and of paths, matched in linear time."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

from perstack.core.files.file_names import folded_name
from perstack.core.schemas.patterns import compile_pattern
from perstack.dataclass import dataclass

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
        """Return True if a path matches. `is_strict`: ignore case, and match all files in a folder that it names."""
        names = self.text.strip()
        folded = folded_path(path) if is_strict else path
        engine = compile_pattern(_path_pattern(folded_path(names) if is_strict else names, is_strict=is_strict))
        if isinstance(engine, str):
            return is_strict  # an invalid glob allows nothing, and always denies
        return engine.search(folded.encode("utf-8", "replace")) is not None

    def names_something_in(self, folder: str) -> bool:
        """Return True if the glob names something inside the folder, so that a change of the folder affects it."""
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
