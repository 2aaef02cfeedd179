"""Who works this process."""

from __future__ import annotations

import os
import socket

from perstack.core.by import By


def this_user(door: str = "python", client: str = "", source: str = "") -> By:
    """The user of the operating system whose process this is, at a door."""
    return By(user=_user(), door=door, client=client, source=source)


def this_process() -> str:
    """What a lease names as its holder."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _user() -> str:
    """By the process's own id, which unlike an environment variable cannot be set by whoever starts it."""
    try:
        import pwd
    except ImportError:
        return os.environ.get("USERNAME", "")
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
