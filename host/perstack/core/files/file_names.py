"""Recognise file names that tools must not touch anywhere: files with keys, and files that decide what is executed.

Names are compared as the most lenient file system does: ignoring case, compatibility forms of characters, and invisible
characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator

Parts = tuple[str, ...]

_DEFINITION_NAMES = frozenset({"perstack.toml", "perstack.lock"})
_GIT_CONFIG_NAMES = frozenset({"hooks", "config", "config.worktree"})
_GIT_LINKS = frozenset({".git", "git~1"})  # `.git`, and its short name on Windows
GIT_CONTENT = frozenset({"objects", "refs", "commondir"})
"""Names next to a file `HEAD`: with the first two, or the last, git treats the folder as a repository and executes what
its `config` says."""
STATE_FOLDER = "perstack"
"""Name of the folder with a project's state, next to its perstack.toml."""
STATE_CONTENT = frozenset(
    {
        *("jobs", "stops", "delegates", "delegatestops", "identity", "tasks", "iterations", "schedules"),
        *("heads", "headsoftasks", "headsofseries", "headsofschedules", ".blobs", ".origins", ".programs", ".rewinds"),
    }
)
"""Names in a state folder that a host acts on: a folder for each kind of log, and the host's own records."""
_SAMPLE_SUFFIXES = frozenset({"example", "sample", "template", "dist"})
"""Suffixes of sample files of variables, which are meant to be copied and contain no keys."""


def protected_by_name(parts: Parts, *, change: bool = False) -> str | None:
    """Return a noun for what a path leads to or into, if its folded names alone protect it; None otherwise.

    `change`: also protect what may be read but not changed. Nothing inside `.git` may be changed: a new `commondir` or
    `objects` makes git execute what another folder says.
    """
    for index, name in enumerate(parts):
        if _holds_variables(name):
            return "a file of environment variables"
        if name in _DEFINITION_NAMES:
            return "the definition of Experts"
        if name in _GIT_LINKS and not _GIT_CONFIG_NAMES.isdisjoint(parts[index + 1 :]):
            return "what git executes"
        if name == STATE_FOLDER and is_state_content(*parts[index + 1 : index + 2]):
            return "the state of a project"
        if change and name in _GIT_LINKS:
            return "git's own"
    return None


def is_state_content(name: str = "") -> bool:
    """Return True if a folder `perstack` with an entry of this folded name is a project's state.

    Other folders of that name, such as a package's sources, are ordinary unless a definition is next to them.
    """
    return name in STATE_CONTENT


def is_state_folder(name: str) -> bool:
    """Return True if a folder of this name, next to a definition, is a project's state."""
    return folded_name(name) == STATE_FOLDER


def is_variables(name: str) -> bool:
    """Return True if a file of this name holds environment variables, and is not a sample."""
    return _holds_variables(*fold_case((name,)))


def is_definition(name: str) -> bool:
    """Return True if a file of this name defines Experts."""
    return fold_case((name,))[0] in _DEFINITION_NAMES


def is_git_link(name: str) -> bool:
    """Return True for `.git`: a folder of this name is a repository, and a file names one, with the hooks that run."""
    return fold_case((name,))[0] in _GIT_LINKS


def is_git_head(name: str) -> bool:
    """Return True if the name is `HEAD`, which every repository has."""
    return fold_case((name,)) == ("head",)


def is_git_content(name: str) -> bool:
    """Return True if the name, next to a file `HEAD`, makes their folder a repository or nearly one."""
    return fold_case((name,))[0] in GIT_CONTENT


def _holds_variables(name: str) -> bool:
    return name == ".env" or (name.startswith(".env.") and name.rpartition(".")[2] not in _SAMPLE_SUFFIXES)


def matches_pattern(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True if the parts of a path match the parts of an `include` pattern; `**` is any number of folders."""
    positions = {0}
    for part in fold_case(tuple(parts)):
        positions = {
            next_position
            for position in _skip_double_stars(positions, pattern)
            for next_position in _next_positions(part, pattern, position)
        }
    return len(pattern) in _skip_double_stars(positions, pattern)


def fold_case(parts: Parts) -> Parts:
    """Return the names in the form in which they are compared."""
    return tuple(map(folded_name, parts))


def folded_name(name: str) -> str:
    """Return a name without case, compatibility forms and invisible characters."""
    if name.isascii():
        return name.casefold()
    folded = "".join(char for char in unicodedata.normalize("NFKC", name) if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", folded.casefold())


def _skip_double_stars(positions: set[int], pattern: Sequence[str]) -> set[int]:
    """Return the pattern positions reachable without consuming a part, because `**` may match none."""
    reachable: set[int] = set()
    for start in positions:
        position = start
        reachable.add(position)
        while position < len(pattern) and pattern[position] == "**":
            position += 1
            reachable.add(position)
    return reachable


def _next_positions(part: str, pattern: Sequence[str], position: int) -> tuple[int, ...]:
    if position == len(pattern):
        return ()
    if pattern[position] == "**":
        return (position,)
    return (position + 1,) if fnmatchcase(part, fold_case((pattern[position],))[0]) else ()


# File names are arbitrary bytes. A tree spells a name as UTF-8 text; a byte that is not valid UTF-8 is `\xHH`, and a
# backslash is `\\`: every name has one spelling, and every spelling means one name.

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4096
MAX_FOLDER_DEPTH = 128  # maximum nesting of folders; deeper ones are not recorded

_ESCAPE = re.compile(rb"\\(\\|x[0-9a-f]{2})")


def spell(name: bytes) -> str:
    """Return the spelling of a name or path, for JSON and people."""
    return name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def parse_spelling(text: str) -> bytes:
    """Return the name for a spelling. Raises ValueError if `spell` would not produce it."""
    name = _ESCAPE.sub(_unescape, text.encode())
    if spell(name) != text:
        raise ValueError("this is not a valid spelling of a file name")
    return name


STAGING_PREFIX = ".perstack-rewind-"
"""Prefix of the folder in which a rewind prepares files. It is in the workspace because files are moved within one
file system."""


def is_name(name: bytes) -> bool:
    """Return True if a file may have this name: it cannot refer to another folder."""
    return 0 < len(name) <= MAX_NAME_BYTES and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def is_never_recorded(name: bytes) -> bool:
    """Return True for git's folder, files of variables (`.env*`) and a rewind's folder, wherever they are."""
    if not name.isascii():
        return _is_private(name.decode("utf-8", "replace"))
    return name.startswith(b".") and _is_private(name.decode())


def is_path(path: bytes) -> bool:
    """Return True for a path below a folder that this host could have recorded.

    False for absolute paths, `..`, names that no file can have, and what is never recorded. Links are refused where the
    path is opened: only the file system knows them.
    """
    return len(path) <= MAX_PATH_BYTES and all(
        is_name(part) and not is_never_recorded(part) for part in path.split(b"/")
    )


def checked_path(text: str) -> str:
    """Return the spelling of a path. Raises ValueError unless `is_path` accepts it."""
    if not is_path(parse_spelling(text)):
        raise ValueError("this is not the path of a file below a folder")
    return text


StoredPath = Annotated[str, AfterValidator(checked_path)]
"""A path as logs, journals and lists of files have it: relative to a folder, in the form of `spell`."""


def _checked_staging(text: str) -> str:
    if re.fullmatch(rf"{re.escape(STAGING_PREFIX)}[0-9a-f]{{12}}", text) is None:
        raise ValueError("this is not the name of a rewind's folder")
    return text


StagingName = Annotated[str, AfterValidator(_checked_staging)]
"""Name of the folder in which a rewind prepares files."""


def _is_private(name: str) -> bool:
    (plain,) = fold_case((name,))
    return plain == ".git" or plain.startswith((".env", STAGING_PREFIX))


def _unescape(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    return escape if escape == b"\\" else bytes((int(escape[1:], 16),))
