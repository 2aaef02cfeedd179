"""A secret of a project on this machine: created once, outside every workspace, and readable by its user only."""

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
from perstack.system.files import sync
from perstack.system.user import user_directory

_SECRET_BYTES = 32
_FILE_MODE = 0o600
_MAX_FILE_BYTES = 4096


def local_secret(purpose: str, project: Path, env: Mapping[str, str], remedy: str = "") -> str:
    """Return the project's secret for a purpose, such as `http`. Raises UsageError if others may read it.

    `remedy` says what to do where no file can be created.
    """
    folder = user_directory("state", env) / purpose
    path = folder / f"{sha256(os.fsencode(project)).hexdigest()[:32]}.token"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise UsageError(": ".join(filter(None, (str(path), error.strerror, remedy)))) from error


def _make(path: Path) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)  # mkstemp makes it readable only by this user
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(_SECRET_BYTES))
            file.flush()
            sync(file.fileno())
        # if two processes create it at once, both use the first one's secret
        with suppress(FileExistsError):
            path.hardlink_to(name)
    finally:
        Path(name).unlink()


def _read(path: Path) -> str:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) != _FILE_MODE:
            raise UsageError(f"{path} can be read by others: remove it, so that a new one is created")
        return file.read(_MAX_FILE_BYTES)
