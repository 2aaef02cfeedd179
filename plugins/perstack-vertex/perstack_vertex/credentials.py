"""Google credentials and their access tokens.

Source: Google Cloud documentation, "How Application Default Credentials works".
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from perstack.dataclass import dataclass
from perstack.errors import MissingCredential, ProviderError
from perstack.http_providers.provider import are_installed
from perstack_vertex import LIBRARIES

FILE = "GOOGLE_APPLICATION_CREDENTIALS"
INSTALL = "pip install 'perstack[vertex]'"

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LOGIN = f"run `gcloud auth application-default login`, or set {FILE} to the file of a service account's key"
_REFRESH_TIMEOUT_S = 30.0
_REQUEST_TIMEOUT_S = 10  # timeout of each request of a refresh: a thread cannot be cancelled, so it must end by itself


class GoogleCredentials(Protocol):
    """Used part of google-auth's credentials."""

    token: str | None

    @property
    def valid(self) -> bool:
        """True if the token does not expire within the next minutes."""
        ...

    def refresh(self, request: object) -> None:
        """Get a new token. Blocks."""
        ...


class _GoogleAuth(Protocol):
    """Functions of google-auth that are called here; it has no types for them."""

    def load_credentials_from_file(self, filename: str) -> tuple[GoogleCredentials, str | None]: ...
    def default(self) -> tuple[GoogleCredentials, str | None]: ...


class _Scoping(Protocol):
    def with_scopes_if_required(self, credentials: GoogleCredentials, scopes: list[str]) -> GoogleCredentials: ...


@dataclass(frozen=True, slots=True)
class Token:
    """Access token with the data needed to send it."""

    value: str
    quota_project: str | None = None
    is_new: bool = False  # True if it was created for this caller: if it is refused, another one would be too

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the token, and the project whose quota counts, if the credentials name one."""
        project = {"x-goog-user-project": self.quota_project} if self.quota_project else {}
        return {"authorization": f"Bearer {self.value}", **project}


class Identity:
    """Source of one identity's tokens; a token is shared by all requests until shortly before it expires."""

    def __init__(self, file: Path | None) -> None:
        """Use the credentials in `file`, else the machine's default ones."""
        self._file = file
        self._google: GoogleCredentials | None = None
        self._token: Token | None = None
        self._refresh_lock = asyncio.Lock()

    async def token(self, *, instead_of: Token | None = None) -> Token:
        """Return a token other than `instead_of`, which was refused. Raises ProviderError and MissingCredential."""
        async with self._refresh_lock:
            cached = self._token
            is_refused = cached is not None and instead_of is not None and cached.value == instead_of.value
            if cached is not None and not is_refused and self._google is not None and self._google.valid:
                return cached
            self._token = await self._create_token()
            return replace(self._token, is_new=True)

    async def _create_token(self) -> Token:
        try:
            async with asyncio.timeout(_REFRESH_TIMEOUT_S):
                return await asyncio.to_thread(self._refresh)
        except TimeoutError:
            message = f"Google gave no access token within {_REFRESH_TIMEOUT_S:.0f} s"
            raise ProviderError(message, name="Timeout", is_retryable=True) from None

    def _refresh(self) -> Token:
        """Refresh the credentials, loading them the first time. Blocks."""
        from google.auth.exceptions import GoogleAuthError

        try:
            google = self._google = self._google or _load_credentials(self._file)
        except (GoogleAuthError, OSError, ValueError) as error:
            raise _missing_error(self._file, error) from None
        try:
            _request_token(google)
        except GoogleAuthError as error:
            raise _refusal_error(google, error) from None
        return Token(google.token or "", getattr(google, "quota_project_id", None))


def identity_of(env: Mapping[str, str], *, is_needed: bool) -> Identity | None:
    """Return the Application Default Credentials; None without any and no need. Raises MissingCredential."""
    file = _credentials_file(env)
    if file is None and not is_needed:
        return None
    if not are_installed(LIBRARIES):
        raise MissingCredential(f"provider google-vertex needs Google's library for credentials: {INSTALL}")
    if file is None and env.get("NO_GCE_CHECK", "").strip().lower() == "true":
        raise _missing_error(None)
    return Identity(file)


def _credentials_file(env: Mapping[str, str]) -> Path | None:
    """Return the file that the environment names, or gcloud's; None if neither exists. Raises MissingCredential."""
    configured = env.get(FILE, "").strip()
    if configured:
        if not Path(configured).is_file():
            raise MissingCredential(f"{FILE}: there is no file {configured}")
        return Path(configured)
    folder = env.get("CLOUDSDK_CONFIG") or (f"{env['HOME']}/.config/gcloud" if env.get("HOME") else None)
    default_file = Path(folder) / "application_default_credentials.json" if folder else None
    return default_file if default_file is not None and default_file.is_file() else None


def _load_credentials(file: Path | None) -> GoogleCredentials:
    library = cast("_GoogleAuth", import_module("google.auth"))
    with warnings.catch_warnings():
        # it warns that the file must be trusted; it is the user's own
        warnings.simplefilter("ignore")
        credentials, _ = library.load_credentials_from_file(str(file)) if file else library.default()
    return cast("_Scoping", import_module("google.auth.credentials")).with_scopes_if_required(credentials, [_SCOPE])


def _request_token(google: GoogleCredentials) -> None:
    import requests
    from google.auth.transport.requests import Request

    with requests.Session() as session:
        google.refresh(partial(Request(session), timeout=_REQUEST_TIMEOUT_S))


def _missing_error(file: Path | None, error: Exception | None = None) -> MissingCredential:
    if file is None:
        return MissingCredential(f"provider google-vertex has no credentials: {_LOGIN}")
    return MissingCredential(f"{file} holds no credentials of Google's ({_message_line(error)}): {_LOGIN}")


def _refusal_error(google: GoogleCredentials, error: Exception) -> ProviderError:
    """Convert google-auth's error, without the secrets that its text may quote."""
    from google.auth.exceptions import TransportError

    if isinstance(error, TransportError):
        message = f"no access token, because Google cannot be reached: {_message_line(error)}"
        return ProviderError(message, name="ConnectError", is_retryable=True)
    message_line = _message_line(error)
    for name in ("refresh_token", "client_secret"):
        secret = getattr(google, name, None)
        message_line = (
            message_line.replace(secret, "[redacted]") if isinstance(secret, str) and secret else message_line
        )
    return ProviderError(
        f"Google gave no access token: {message_line}",
        name="Authentication",
        is_retryable=bool(getattr(error, "retryable", False)),
    )


def _message_line(error: Exception | None) -> str:
    """Return the first argument of an error on one line; further ones contain the whole response."""
    argument = error.args[0] if error is not None and error.args else error
    return " ".join(str(argument).split())
