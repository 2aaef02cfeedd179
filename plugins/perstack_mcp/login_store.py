"""Logins at remote servers: a file of the user for each, which nobody else can read.

A refresh token is often good for one use. So it is used under a lock, by whoever comes first of all processes, and the
others find what that one was given.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

from pydantic import Field, ValidationError

from perstack.core.base import Fact, JsonObject
from perstack.errors import SkillError
from perstack.ports.private_file import replace_private_file

_WAIT = 30.0
"""Seconds that another process may take to renew a login."""


class Login(Fact):
    """What is kept between Jobs."""

    endpoint: str
    tokens: JsonObject = Field(default_factory=dict, repr=False)
    """RFC 6749, section 5.1."""
    expires_at: float | None = None
    """Seconds since 1970."""
    client: JsonObject = Field(default_factory=dict, repr=False)
    """RFC 7591, section 3.2.1."""
    server: JsonObject | None = None
    """The authorization server's metadata, RFC 8414."""
    resource: JsonObject | None = None
    """The server's own metadata, RFC 9728."""
    wanted: str | None = None
    """The scopes that a call was refused for, to be asked for at the next login."""


class Logins:
    """The logins of a user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_user(cls, env: Mapping[str, str]) -> Logins:
        """In the user's configuration directory."""
        base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or Path.home()) / ".config")
        return cls(Path(base) / "perstack" / "logins")

    def at(self, endpoint: str, client_id: str | None) -> LoginFile:
        """Where the login of one client at one server is kept."""
        return LoginFile(self._folder, endpoint, sha256(f"{endpoint}\0{client_id or ''}".encode()).hexdigest())


class LoginFile:
    """One login, if there is one."""

    def __init__(self, folder: Path, endpoint: str, name: str) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._path = folder / f"{name}.json"

    def read(self) -> Login | None:
        """None as well if the file cannot be read as one, or is of another server."""
        try:
            login = Login.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return None
        return login if login.endpoint == self._endpoint else None

    def write(self, login: Login) -> None:
        """All of it or nothing. Raises SkillError if it cannot be kept."""
        try:
            self._make_folder()
            replace_private_file(self._path, login.to_json())
        except OSError as error:
            raise SkillError(f"the login cannot be kept in {self._folder}: {error.strerror}") from error

    def remove(self) -> None:
        """To be called under the lock. No error if there is none."""
        self._path.unlink(missing_ok=True)

    async def forget(self) -> bool:
        """Whether there was one."""
        if not self._path.exists():
            return False
        async with self.locked():
            self.remove()
        return True

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Alone among all processes of this machine. Raises SkillError if that takes too long."""
        try:
            self._make_folder()
            handle = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SkillError(f"the login cannot be kept in {self._folder}: {error.strerror}") from error
        try:
            await _lock(handle)
            yield
        finally:
            os.close(handle)

    def _make_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)


async def _lock(handle: int) -> None:
    try:
        async with asyncio.timeout(_WAIT):
            while not _try_lock(handle):  # noqa: ASYNC110 - the holder is another process, which sets no Event
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise SkillError(f"another process has been renewing the login for {_WAIT:g} s") from error


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
