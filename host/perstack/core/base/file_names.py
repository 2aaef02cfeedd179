"""Recognise file names that tools must not touch anywhere: files with keys, and files that decide what is executed.

Names are compared as the most lenient file system does: ignoring case, compatibility forms of characters, and invisible
characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase

Parts = tuple[str, ...]

_DEFINITIONS = frozenset({"perstack.toml", "perstack.lock"})
_OF_GIT = frozenset({"hooks", "config", "config.worktree"})
_GIT_LINKS = frozenset({".git", "git~1"})  # `.git`, and its short name on Windows
GIT_CONTENT = frozenset({"objects", "refs", "commondir"})
"""Names next to a file `HEAD`: with the first two, or the last, git treats the folder as a repository and executes what
its `config` says."""
_SAMPLES = frozenset({"example", "sample", "template", "dist"})
"""Suffixes of sample files of variables, which are there to be copied and contain no keys."""


def protected_by_name(way: Parts, *, change: bool = False) -> str | None:
    """Return what a path leads to or into if its names alone protect it; None otherwise. The names must be folded.

    `change`: include what may be read but not changed. Nothing inside `.git` may be: a new `commondir` or `objects`
    makes git execute what another folder says.
    """
    for place, name in enumerate(way):
        if _holds_variables(name):
            return "a file of environment variables"
        if name in _DEFINITIONS:
            return "the definition of Experts"
        if name in _GIT_LINKS and not _OF_GIT.isdisjoint(way[place + 1 :]):
            return "what git executes"
        if change and name in _GIT_LINKS:
            return "git's own"
    return None


def is_variables(name: str) -> bool:
    """Return True if a file of this name holds environment variables, and is not a sample."""
    return _holds_variables(*fold_case((name,)))


def is_definition(name: str) -> bool:
    """Return True if a file of this name defines Experts."""
    return fold_case((name,))[0] in _DEFINITIONS


def is_git_link(name: str) -> bool:
    """Return True if a file of this name could name a repository, and so the hooks that run, or is its folder."""
    return fold_case((name,))[0] in _GIT_LINKS


def is_git_head(name: str) -> bool:
    """Return True if the name is `HEAD`, which every repository has."""
    return fold_case((name,)) == ("head",)


def is_git_content(name: str) -> bool:
    """Return True if the name, next to a file `HEAD`, makes their folder a repository or nearly one."""
    return fold_case((name,))[0] in GIT_CONTENT


def _holds_variables(name: str) -> bool:
    return name == ".env" or (name.startswith(".env.") and name.rpartition(".")[2] not in _SAMPLES)


def matches_pattern(way: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True if the parts of a path match the parts of an `include` pattern; `**` is any number of folders."""
    reached = {0}
    for part in fold_case(tuple(way)):
        reached = {after for at in _skip_double_stars(reached, pattern) for after in _steps(part, pattern, at)}
    return len(pattern) in _skip_double_stars(reached, pattern)


def fold_case(parts: Parts) -> Parts:
    """Return the names in the form in which they are compared."""
    return tuple(map(folded_name, parts))


def folded_name(name: str) -> str:
    """Return a name without case, compatibility forms and invisible characters."""
    if name.isascii():
        return name.casefold()
    seen = "".join(each for each in unicodedata.normalize("NFKC", name) if unicodedata.category(each) != "Cf")
    return unicodedata.normalize("NFKC", seen.casefold())


def _skip_double_stars(reached: set[int], pattern: Sequence[str]) -> set[int]:
    """Return the pattern positions reachable without consuming a part, because `**` may match none."""
    found: set[int] = set()
    for place in reached:
        at = place
        found.add(at)
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            found.add(at)
    return found


def _steps(part: str, pattern: Sequence[str], at: int) -> tuple[int, ...]:
    if at == len(pattern):
        return ()
    if pattern[at] == "**":
        return (at,)
    return (at + 1,) if fnmatchcase(part, fold_case((pattern[at],))[0]) else ()


# File names are arbitrary bytes. A tree spells a name as UTF-8 text; a byte that is not valid UTF-8 is `\xHH`, and a
# backslash is `\\`: every name has one spelling, and every spelling means one name.

LONGEST_NAME = 255
LONGEST_PATH = 4096
DEEPEST = 128  # maximum nesting of folders; deeper ones are not recorded

_ESCAPE = re.compile(rb"\\(\\|x[0-9a-f]{2})")


def spell(name: bytes) -> str:
    """Return the spelling of a name or path, for JSON and people."""
    return name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def parse_spelling(text: str) -> bytes:
    """Return the name for a spelling. Raises ValueError if `spell` would not produce it."""
    name = _ESCAPE.sub(_unescape, text.encode())
    if spell(name) != text:
        raise ValueError("this is not how a name is spelled")
    return name


STAGING = ".perstack-rewind-"
"""Prefix of the folder in which a rewind prepares files. It is in the workspace because files are moved within one
file system."""


def is_name(name: bytes) -> bool:
    """Return True if a file may have this name: it cannot refer to another folder."""
    return 0 < len(name) <= LONGEST_NAME and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def is_never_recorded(name: bytes) -> bool:
    """Return True for git's folder, files of variables (`.env*`) and a rewind's folder, wherever they are."""
    if not name.isascii():
        return _is_private(name.decode("utf-8", "replace"))
    return name.startswith(b".") and _is_private(name.decode())


def _is_private(name: str) -> bool:
    (plain,) = fold_case((name,))
    return plain == ".git" or plain.startswith((".env", STAGING))


def _unescape(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    return escape if escape == b"\\" else bytes((int(escape[1:], 16),))
