"""The secret that clients of the HTTP server on this machine show: made once for a project, and kept for its user."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from perstack.errors import UsageError
from perstack.ports.durable import sync

TOKEN_VARIABLE = "PERSTACK_MCP_TOKEN"  # noqa: S105 - the name of a variable
SHORTEST = 32
"""Characters that a token has at least."""

_MODE = 0o600
_MOST = 4096


def token_of(project: Path, env: Mapping[str, str]) -> str:
    """The token of the project in that folder, made if there is none.

    It is kept in the user's state directory, outside every workspace. Raises UsageError if it cannot be, or if others
    may read it.
    """
    base = env.get("XDG_STATE_HOME") or str(Path(env.get("HOME") or Path.home()) / ".local" / "state")
    folder = Path(base) / "perstack" / "http"
    path = folder / f"{sha256(os.fsencode(project)).hexdigest()[:32]}.token"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: set {TOKEN_VARIABLE} to a secret instead") from error


def _make(path: Path) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)  # which only the user may read
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(SHORTEST))
            file.flush()
            sync(file.fileno())
        # of two that make one at the same time, the first one's holds
        with suppress(FileExistsError):
            path.hardlink_to(name)
    finally:
        Path(name).unlink()


def _read(path: Path) -> str:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != _MODE:
            raise UsageError(f"{path} may be read by others: remove it, so that a new one is made")
        return file.read(_MOST)
