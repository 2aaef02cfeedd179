"""Find the files that git would execute or read settings from, because its configuration names them.

`core.hooksPath = .githooks` makes every file of an ordinary folder a program that the user's next `git commit` starts.
The configuration of a repository and of its user are read as git reads them, with all included files; conditions of
`includeIf` are assumed to hold. Unknown settings count too: any word of a value that is a path may be a program.

The targets may be anywhere; the caller decides which of them matter.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum

from perstack.dataclass import dataclass

_MAX_BYTES = 1 << 20  # maximum bytes of a configuration file; typical ones have a few hundred
_MAX_INCLUDE_DEPTH = 10  # maximum depth of nested includes; git's own limit

_SECTION = re.compile(r'\s*\[\s*([^\]"\s]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_SETTING = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*(?:=(.*))?$", re.DOTALL)

_FOLDER_KEYS = frozenset({"core.hookspath", "init.templatedir"})
_SECTIONS_WITHOUT_FILES = frozenset({"branch", "color", "url", "user"})  # their values are names, addresses, colours
_READ_ONLY_KEYS = frozenset(  # settings that name a file from which nothing is executed
    {
        "blame.ignorerevsfile",
        "commit.template",
        "core.attributesfile",
        "core.excludesfile",
        "core.worktree",
        "mailmap.file",
    }
)


class TargetKind(Enum):
    """Use that git makes of a path."""

    FOLDER = "programs"  # a folder whose files git executes
    SETTINGS = "settings"  # a file that git reads settings from
    WORD = "word"  # a word of a value that git may execute


@dataclass(frozen=True, slots=True)
class GitTarget:
    """A path that git's configuration names."""

    path: str  # absolute, without `..`. It may contain links, and may not exist
    kind: TargetKind


def git_targets(top: str, env: Mapping[str, str]) -> tuple[GitTarget, ...]:
    """Return the paths that the configuration of the repository at `top` and of the user names.

    `top` is a folder with a `.git`. `env` locates the user's configuration. Unreadable files are skipped, as git skips
    them.
    """
    home = env.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - returns str
    targets: dict[GitTarget, None] = {}
    for file in (*_repository_config_files(os.path.join(top, ".git")), *_user_config_files(home, env)):  # noqa: PTH118
        for target in _targets(file, top, home, 0):
            targets[target] = None
    return tuple(targets)


def repositories_around(folder: str) -> Iterator[str]:
    """Yield `folder` and each of its parents that has a `.git`, from the inside out."""
    current = folder
    while True:
        if os.path.lexists(os.path.join(current, ".git")):  # noqa: PTH118 - this runs before each change of a file
            yield current
        parent = os.path.dirname(current)  # noqa: PTH120
        if parent == current:
            return
        current = parent


def _repository_config_files(git: str) -> Iterator[str]:
    """Yield the configuration files of a repository, whose `.git` may be a file that points to its location."""
    folder = _read_path(git, "gitdir:") or git
    common = _read_path(os.path.join(folder, "commondir"), "") or folder  # noqa: PTH118
    yield os.path.join(common, "config")  # noqa: PTH118
    yield os.path.join(folder, "config.worktree")  # noqa: PTH118


def _user_config_files(home: str, env: Mapping[str, str]) -> Iterator[str]:
    yield "/etc/gitconfig"
    yield os.path.join(env.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "git", "config")  # noqa: PTH118
    yield env.get("GIT_CONFIG_GLOBAL") or os.path.join(home, ".gitconfig")  # noqa: PTH118


def _read_path(file: str, prefix: str) -> str | None:
    """Return the absolute path that a file of git contains after `prefix`; None without one."""
    text = _read_regular_text(file)
    if text is None or not text.startswith(prefix):
        return None
    name = text.removeprefix(prefix).strip()
    return os.path.normpath(os.path.join(os.path.dirname(file), name)) if name else None  # noqa: PTH118, PTH120


def _targets(file: str, top: str, home: str, depth: int) -> Iterator[GitTarget]:
    """Yield the paths that a configuration file names, and those of its includes below `_MAX_INCLUDE_DEPTH`."""
    text = _read_regular_text(file)
    if text is None or depth == _MAX_INCLUDE_DEPTH:
        return
    for section, name, value in _settings(text):
        key = f"{section}.{name}"
        if section in ("include", "includeif") and name == "path":
            path = _absolute_path(value, os.path.dirname(file), home)  # noqa: PTH120
            yield GitTarget(path, TargetKind.SETTINGS)
            yield from _targets(path, top, home, depth + 1)
        elif key in _FOLDER_KEYS and value:
            yield GitTarget(_absolute_path(value, top, home), TargetKind.FOLDER)
        elif section not in _SECTIONS_WITHOUT_FILES and key not in _READ_ONLY_KEYS:
            yield from _targets_in_command(value, top, home)


def _targets_in_command(value: str, top: str, home: str) -> Iterator[GitTarget]:
    """Yield the words of a command that are existing files, or paths that may become files."""
    try:
        words = shlex.split(value.removeprefix("!"))
    except ValueError:
        words = value.split()
    for word in words:
        path = _absolute_path(word, top, home)
        if os.path.isfile(path) or ("/" in word and "://" not in word and not os.path.isdir(path)):  # noqa: PTH112, PTH113
            yield GitTarget(path, TargetKind.WORD)


def _absolute_path(name: str, folder: str, home: str) -> str:
    name = name.replace("\0", "")
    if name == "~" or name.startswith("~/"):
        name = home + name[1:]
    elif name.startswith("~"):
        name = os.path.expanduser(name)  # noqa: PTH111 - returns str
    return os.path.normpath(os.path.join(folder, name))  # noqa: PTH118


def _settings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, name and value of each setting; the first two in lower case."""
    section = ""
    for line in _join_continued(text):
        rest = line
        while (header := _SECTION.match(rest)) is not None:
            section = header[1].partition(".")[0].casefold()
            rest = rest[header.end() :]
        setting = _SETTING.match(rest)
        if setting is not None and section:
            yield section, setting[1].casefold(), _unquote(setting[2] or "")


def _join_continued(text: str) -> Iterator[str]:
    """Yield the lines, each joined with those that continue it after a backslash."""
    unfinished_line = ""
    for line in text.replace("\r\n", "\n").split("\n"):
        joined = unfinished_line + line
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            unfinished_line = joined[:-1]
            continue
        unfinished_line = ""
        yield joined
    if unfinished_line:
        yield unfinished_line


def _unquote(text: str) -> str:
    """Return the value of a setting as git reads it: without quotes, escapes and comment."""
    chars: list[str] = []
    is_quoted, index, end = False, 0, 0
    while index < len(text):
        char = text[index]
        if char == "\\" and index + 1 < len(text):
            index += 1
            chars.append({"n": "\n", "t": "\t", "b": ""}.get(text[index], text[index]))
        elif char == '"':
            is_quoted = not is_quoted
        elif char in "#;" and not is_quoted:
            break
        else:
            chars.append(char)
        end = len(chars) if is_quoted or not char.isspace() else end
        index += 1
    return "".join(chars[:end]).lstrip()


def _read_regular_text(file: str) -> str | None:
    """Return the text of a file; None for one that is missing, unreadable, too large or not regular."""
    with suppress(OSError, ValueError):
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES:
                return os.read(handle, _MAX_BYTES).decode("utf-8", "surrogateescape")
        finally:
            os.close(handle)
    return None
