"""Who works this process."""

from __future__ import annotations

import os
import socket
import sys
from functools import cache, lru_cache

from perstack.core.by import By


def this_user(door: str = "python", client: str = "", source: str = "") -> By:
    """The user of the operating system whose process this is, at a door."""
    return _by(_user(), door, client, source)


def this_process() -> str:
    """What a lease names as its holder."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


@lru_cache(maxsize=64)
def _by(user: str, door: str, client: str, source: str) -> By:
    return By(user=user, door=door, client=client, source=source)


def _user() -> str:
    """By the process's own id, which unlike an environment variable cannot be set by whoever starts it."""
    return os.environ.get("USERNAME", "") if sys.platform == "win32" else _name_of(os.getuid())


@cache
def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
