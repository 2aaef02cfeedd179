"""The operating-system user and the process, as recorded in logs and leases; directories of the user; notices."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from perstack.core.base.ids import By
from perstack.core.base.text import one_line
from perstack.errors import StorageError

# Notices on stderr.


def notice(text: str) -> None:
    """Print one line on stderr. Control characters are removed, so that the text cannot move a terminal's cursor."""
    print(f"perstack: {one_line(text)}", file=sys.stderr, flush=True)  # noqa: T201


def this_user(door: str = "python", client: str = "", source: str = "") -> By:
    """Return the operating-system user of this process, with the interface (`door`) that was used."""
    return _make_by(_user(), door, client, source)


def this_process() -> str:
    """Return the holder text for leases of this process."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


_DIRECTORIES = {
    "config": ("XDG_CONFIG_HOME", ".config"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
    "state": ("XDG_STATE_HOME", ".local/state"),
}


UserDirectory = Literal["config", "cache", "state"]
USER_DIRECTORIES: tuple[UserDirectory, ...] = ("config", "cache", "state")


def user_directory(kind: UserDirectory, env: Mapping[str, str]) -> Path:
    """Return perstack's directory for the user's settings, caches or state, which may not exist.

    Source: XDG Base Directory Specification. A relative path in a variable is ignored, as it requires: it would name
    another directory in each working directory. Raises StorageError without a home directory.
    """
    variable, _ = _DIRECTORIES[kind]
    configured = Path(env.get(variable, ""))
    return configured / "perstack" if configured.is_absolute() else _default_directory(kind, env)


def user_directories(*environments: Mapping[str, str]) -> tuple[Path, ...]:
    """Return all of perstack's directories for the user that these environments name, and the default ones.

    If a variable was set later, earlier keys and agreements are still in the default directory. Raises StorageError if
    a directory has neither a variable nor a home.
    """
    folders = [user_directory(kind, env) for env in environments for kind in USER_DIRECTORIES]
    with suppress(StorageError):  # without a home there are no default ones
        folders += (_default_directory(kind, env) for env in environments for kind in USER_DIRECTORIES)
    return tuple(dict.fromkeys(folders))


def _default_directory(kind: UserDirectory, env: Mapping[str, str]) -> Path:
    variable, default = _DIRECTORIES[kind]
    try:
        return Path(env.get("HOME") or Path.home()) / default / "perstack"
    except RuntimeError as error:  # neither HOME nor an entry in the user database
        raise StorageError(f"there is no home directory: set HOME, or {variable} to an absolute path") from error


@lru_cache(maxsize=64)
def _make_by(user: str, door: str, client: str, source: str) -> By:
    return By(user=user, door=door, client=client, source=source)


def _user() -> str:
    """Return the name for the process's user id, which no environment variable can forge."""
    return os.environ.get("USERNAME", "") if sys.platform == "win32" else _name_of(os.getuid())


@cache
def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
