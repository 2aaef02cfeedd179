"""The globs of permission rules: of plain texts, and of paths. Matching takes time that is linear in the text.

A rule that denies or asks is read generously, one that allows exactly: `is_strict` says which.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cached_property, lru_cache

from perstack.core.patterns import compiled
from perstack.dataclass import dataclass

_ESCAPED = r"\\([*\\,=()?\[\]])"
_MARKED = r"(?s)\0(.)"


@dataclass(frozen=True)
class Glob:
    """One glob as it is written: `*` is a wildcard, and a backslash takes the meaning of the mark after it."""

    text: str

    @cached_property
    def _pieces(self) -> tuple[str, ...]:
        """The literal text between wildcards."""
        return tuple(re.sub(_MARKED, r"\1", piece) for piece in re.split(r"(?<!\0)\*+", _marked(self.text)))

    @property
    def is_literal(self) -> bool:
        """Whether it matches one text only."""
        return len(self._pieces) == 1

    @property
    def literal(self) -> str:
        """What comes before the first wildcard."""
        return self._pieces[0]

    @property
    def weight(self) -> int:
        """How particular it is: the length of what comes before the first wildcard; one more if there is none."""
        return len(self.literal) + self.is_literal

    def matches(self, text: str) -> bool:
        """Whether the whole text matches; a wildcard is any text, line breaks too."""
        first, *rest = self._pieces
        if not rest:
            return text == first
        *middle, last = rest
        if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for piece in middle:
            found = text.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True

    def matches_line(self, line: str) -> bool:
        """The same for a command line: one that ends in ` *` also means the line without what follows."""
        return self.matches(line) or (self._pieces[-1] == "" and len(self._pieces) == 2 and self._is_whole(line))

    def could_match(self, start: str) -> bool:
        """Whether some text that begins like this may match."""
        shorter = min(len(start), len(self.literal))
        return start[:shorter] == self.literal[:shorter]

    def _is_whole(self, line: str) -> bool:
        return self.literal.endswith(" ") and line == self.literal[:-1]

    def matches_path(self, path: str, *, is_strict: bool) -> bool:
        """Whether a path matches, relative to the workspace or absolute; `.` is the workspace.

        `is_strict`: regardless of case, and what is in a folder that the glob names matches as well.
        """
        names = self.text.strip()
        seen = folded_path(path) if is_strict else path
        engine = compiled(_path_pattern(folded_path(names) if is_strict else names, is_strict=is_strict))
        if isinstance(engine, str):
            return is_strict  # a glob that cannot be read allows nothing, and never fails to deny
        return engine.search(seen.encode("utf-8", "replace")) is not None

    def is_around(self, folder: str) -> bool:
        """Whether what the glob names is inside of a folder, so that what happens to the folder happens to it."""
        names = folded_path(_plain(self.text.strip()))
        literal = re.split(r"[*?\[]", names)[0]
        return folder == "." or literal.startswith(f"{folded_path(folder)}/")

    def names_path(self, path: str) -> bool:
        """Whether it names just this path, or just this name of a file, without a wildcard."""
        name = _plain(self.text.strip())
        if re.search(r"[*?\[]", name):
            return False
        return name == path or ("/" not in name and name == path.rpartition("/")[2])


@lru_cache(maxsize=4096)
def folded_path(path: str) -> str:
    """A path as the most forgiving file system would compare it."""
    return path.casefold() if path.isascii() else "/".join(map(folded_name, path.split("/")))


def folded_name(name: str) -> str:
    """Without regard to case, to compatible forms of a character, and to characters that cannot be seen."""
    if name.isascii():
        return name.casefold()
    seen = "".join(each for each in unicodedata.normalize("NFKC", name) if unicodedata.category(each) != "Cf")
    return unicodedata.normalize("NFKC", seen.casefold())


def _marked(text: str) -> str:
    """Escaped marks with a NUL before each, so that none is taken for a wildcard."""
    return re.sub(_ESCAPED, "\0\\1", text.replace("\0", ""))


def _plain(pattern: str) -> str:
    return pattern.removeprefix("./")


@lru_cache(maxsize=1024)
def _path_pattern(glob: str, *, is_strict: bool) -> str:
    pattern = _marked(_plain(glob))
    if pattern.endswith("/"):
        pattern += "**"
    is_anywhere = "/" not in pattern
    body = "".join(_translated(pattern))
    last = pattern.rpartition("/")[2]
    names_folder = is_strict and not re.search(r"(?<!\0)[*?\[]", last)
    if is_strict and body.endswith("/.*"):
        body = f"{body.removesuffix('/.*')}(?:/.*)?"
    below = "(?:/.*)?" if names_folder else ""
    return f"(?s)\\A{'(?:.*/)?' if is_anywhere else ''}{body}{below}\\z"


_PART = (
    r"(?s)\0(?P<literal>.)|(?P<start>(?:^|(?<=/))\*\*/)|(?P<any>\*\*+)|(?P<star>\*)|(?P<one>\?)"
    r"|\[(?P<not>[!^]?)(?P<set>\]?[^\]/]+)\]|(?P<text>.)"
)


def _translated(pattern: str) -> list[str]:
    found: list[str] = []
    for token in re.finditer(_PART, pattern):
        if token["start"] is not None:
            found.append("(?:.*/)?")
        elif token["any"] is not None:
            found.append(".*")
        elif token["star"] is not None:
            found.append("[^/]*")
        elif token["one"] is not None:
            found.append("[^/]")
        elif token["set"] is not None:
            inside = token["set"].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace("^", "\\^")
            found.append(f"[{'^/' if token['not'] else ''}{inside}]")
        else:
            found.append(re.escape(token["literal"] or token["text"]))
    return found
