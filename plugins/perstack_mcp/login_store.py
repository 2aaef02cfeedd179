"""Stored logins at remote servers: one private file of the user per login.

A refresh token can often be used only once. So a process renews a login under a lock, and the others read the result.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

from pydantic import Field, ValidationError

from perstack.core.base.records import JsonObject, Record
from perstack.errors import SkillError
from perstack.system.files import open_regular, read_regular, replace_private_file, try_lock
from perstack.system.user import user_directory

_LOCK_TIMEOUT_S = 30.0  # seconds to wait for another process that renews a login


class Login(Record):
    """A login that is kept between Jobs."""

    endpoint: str
    tokens: JsonObject = Field(default_factory=dict, repr=False)  # token response (RFC 6749, section 5.1)
    expires_at: float | None = None  # seconds since 1970; None without an expiry
    client: JsonObject = Field(default_factory=dict, repr=False)  # registered client (RFC 7591, section 3.2.1)
    server: JsonObject | None = None  # metadata of the authorization server (RFC 8414)
    resource: JsonObject | None = None  # metadata of the server itself (RFC 9728)
    wanted: str | None = None  # missing scopes for which a call was refused; the next login requests them


class Logins:
    """The logins of a user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_user(cls, env: Mapping[str, str]) -> Logins:
        """Return the logins in the user's configuration directory."""
        return cls(user_directory("config", env) / "logins")

    def file_of(self, endpoint: str, client_id: str | None) -> LoginFile:
        """Return the file for the login of one client at one server."""
        return LoginFile(self._folder, endpoint, sha256(f"{endpoint}\0{client_id or ''}".encode()).hexdigest())


_MAX_BYTES = 8 << 20


class LoginFile:
    """The file of a login. It may not exist."""

    def __init__(self, folder: Path, endpoint: str, name: str) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._path = folder / f"{name}.json"

    def read(self) -> Login | None:
        """Return the login; None if the file is missing, unreadable, or of another server."""
        try:
            login = Login.model_validate_json(read_regular(self._path, _MAX_BYTES))
        except (OSError, ValidationError):
            return None
        return login if login.endpoint == self._endpoint else None

    def write(self, login: Login) -> None:
        """Replace the login atomically. Raises SkillError if it cannot be written."""
        try:
            self._make_folder()
            replace_private_file(self._path, login.to_json())
        except OSError as error:
            raise SkillError(f"the login cannot be kept in {self._folder}: {error.strerror}") from error

    def remove(self) -> None:
        """Remove the login if it exists. Call it under the lock."""
        self._path.unlink(missing_ok=True)

    async def forget(self) -> bool:
        """Remove the login. Return False if there is none."""
        if not self._path.exists():
            return False
        async with self.locked():
            self.remove()
        return True

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Lock the login against all processes of this machine. Raises SkillError on a timeout."""
        try:
            self._make_folder()
            handle = open_regular(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
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
        async with asyncio.timeout(_LOCK_TIMEOUT_S):
            while not try_lock(handle):  # noqa: ASYNC110 - the holder is another process, which sets no Event
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise SkillError(f"another process has been renewing the login for {_LOCK_TIMEOUT_S:g} s") from error
