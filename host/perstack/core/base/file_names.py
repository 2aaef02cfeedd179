"""Which names tools keep off, wherever they are: files that hold keys, and files that say what is executed.

A name is compared as the most forgiving file system would: without regard to case, to compatible forms of a character,
and to characters that cannot be seen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase

Parts = tuple[str, ...]

_DEFINITIONS = frozenset({"perstack.toml", "perstack.lock"})
_OF_GIT = frozenset({"hooks", "config", "config.worktree"})
_SAMPLES = frozenset({"example", "sample", "template", "dist"})
"""What a file of variables ends with that is there to be copied, and holds no key."""


def protected_by_name(way: Parts) -> str | None:
    """What a way leads to, or into, if its names alone say that it is protected; they are folded."""
    for place, name in enumerate(way):
        if _holds_variables(name):
            return "a file of environment variables"
        if name in _DEFINITIONS:
            return "the definition of Experts"
        if name == ".git" and not _OF_GIT.isdisjoint(way[place + 1 :]):
            return "what git executes"
    return None


def is_variables(name: str) -> bool:
    """Whether a file of that name holds environment variables, and is no sample of one."""
    return _holds_variables(*folded((name,)))


def is_definition(name: str) -> bool:
    """Whether a file of that name defines Experts."""
    return folded((name,))[0] in _DEFINITIONS


def is_git_link(name: str) -> bool:
    """Whether a file of that name would say where a repository is, and so which hooks are run; a folder is one."""
    return folded((name,)) == (".git",)


def _holds_variables(name: str) -> bool:
    return name == ".env" or (name.startswith(".env.") and name.rpartition(".")[2] not in _SAMPLES)


def matches_pattern(way: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a way are what those of a pattern of `include` mean; `**` is any number of folders."""
    reached = {0}
    for part in folded(tuple(way)):
        reached = {after for at in _passing(reached, pattern) for after in _steps(part, pattern, at)}
    return len(pattern) in _passing(reached, pattern)


def folded(parts: Parts) -> Parts:
    """Names as they are compared."""
    return tuple(part.casefold() if part.isascii() else _plain(part) for part in parts)


def _passing(reached: set[int], pattern: Sequence[str]) -> set[int]:
    """The places of a pattern that can be reached without a part, by a `**` that means none."""
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
    return (at + 1,) if fnmatchcase(part, folded((pattern[at],))[0]) else ()


def _plain(part: str) -> str:
    seen = "".join(each for each in unicodedata.normalize("NFKC", part) if unicodedata.category(each) != "Cf")
    return unicodedata.normalize("NFKC", seen.casefold())
