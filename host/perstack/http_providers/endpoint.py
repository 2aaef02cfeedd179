"""Endpoints: address and credentials from settings and environment, and checks before anything is sent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from ipaddress import ip_address
from typing import ClassVar, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator

from perstack.core.base.records import JsonObject, Record
from perstack.core.base.text import nearest
from perstack.core.secrets.masking import masked_words, secrets_in
from perstack.dataclass import dataclass
from perstack.errors import DefinitionError, MissingCredential, Problem, UsageError

_PUBLIC_HEADERS = frozenset(
    {"accept", "anthropic-beta", "anthropic-version", "content-type", "user-agent", "x-amz-date"}
)
_MIN_SECRET_CHARS = 6
_STALL_TIMEOUT_MS = 60_000  # maximum milliseconds of silence within a reply
_SALT = os.urandom(32)


class EndpointSettings(Record, extra="forbid"):
    """Settings that `[provider.setting]` has for every HTTP endpoint."""

    CHANGE_REPLIES: ClassVar[frozenset[str]] = frozenset({"max_tokens", "temperature", "top_p", "structured_output"})
    """Fields that are recorded in logs: they influence replies and are not secret."""

    base_url: str | None = None  # replaces the vendor's address: a proxy, or a compatible server
    headers: dict[str, str] = Field(default_factory=dict)  # sent with every request; they override our own headers
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    structured_output: bool | None = None  # True: send the schema; None: if the model is known to support it
    read_timeout: int = Field(default=300_000, ge=1)  # milliseconds of silence before a reply begins
    stall_timeout: int | None = Field(default=None, ge=1)  # milliseconds of silence within a reply

    def silences(self, *, thinks_silently: bool = False) -> tuple[float, float]:
        """Return the maximum seconds of silence before a reply begins, and within it."""
        usual = self.read_timeout if thinks_silently else min(_STALL_TIMEOUT_MS, self.read_timeout)
        return self.read_timeout / 1000, (self.stall_timeout or usual) / 1000

    def reply_settings(self) -> JsonObject:
        """Return the settings that change replies and are not at their defaults."""
        return self.model_dump(mode="json", by_alias=True, include=set(self.CHANGE_REPLIES), exclude_defaults=True)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not (name and name.isascii() and name.isprintable() and value.isascii() and value.isprintable()):
                raise ValueError(f"header {name!r} has characters that no header can have: use ASCII, on one line")
        return headers


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A validated address, with the headers of every request."""

    base_url: str
    headers: Mapping[str, str]
    read_seconds: float = 300.0  # maximum seconds of silence before a reply begins
    stall_seconds: float = 60.0  # maximum seconds of silence within a reply

    @property
    def is_plain(self) -> bool:
        """True without TLS: a server on this machine or in the user's local network."""
        return urlsplit(self.base_url).scheme == "http"

    @property
    def id(self) -> str:
        """A keyed digest of address and credentials, stable within this process. Neither can be recovered from it."""
        private = sorted((name.lower(), value) for name, value in self.headers.items() if _is_private(name))
        return blake2b(json.dumps([self.base_url, private]).encode(), key=_SALT).hexdigest()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values to remove from errors, longest first: possible credentials in headers and base URL."""
        values = {value for name, value in self.headers.items() if _is_private(name)}
        values |= {value.removeprefix("Bearer ") for value in values}
        values |= set(secrets_in(lambda substitute: masked_words(self.base_url, substitute)))
        return tuple(sorted((value for value in values if len(value) >= _MIN_SECRET_CHARS), key=len, reverse=True))

    def with_headers(self, headers: Mapping[str, str]) -> Endpoint:
        """Return the endpoint with additional headers. Headers that it already has take precedence."""
        existing = {name.lower() for name in self.headers}
        additional = {name: value for name, value in headers.items() if name.lower() not in existing}
        return replace(self, headers={**additional, **self.headers}) if additional else self

    def url(self, path: str) -> str:
        """Return the address of a method. The first segment of `path` is not repeated if the base URL ends with it."""
        first = "/" + path.split("/")[1]
        if self.base_url.endswith(first) and path.count("/") > 1:
            return self.base_url + path[len(first) :]
        return self.base_url + path


_SettingsT = TypeVar("_SettingsT", bound=BaseModel)


def read_settings(kind: type[_SettingsT], setting: JsonObject) -> _SettingsT:
    """Validate `[provider.setting]`. Raises DefinitionError with all problems at once."""
    try:
        return kind.model_validate(setting)
    except ValidationError as error:
        names = sorted(field.alias or name for name, field in kind.model_fields.items())
        problems = tuple(
            Problem(
                _no_such(str(detail["loc"][-1]), names) if detail["type"] == "extra_forbidden" else detail["msg"],
                "perstack.toml",
                key=".".join(["provider.setting", *map(str, detail["loc"])]),
            )
            for detail in error.errors()
        )
        raise DefinitionError(problems) from error


def _no_such(setting: str, names: Sequence[str]) -> str:
    similar = nearest(setting, names)
    hint = f"available: {', '.join(names)}" if similar is None else f"did you mean `{similar}`?"
    return f"there is no such setting; {hint}"


def choose_base_url(
    settings: EndpointSettings,
    env: Mapping[str, str],
    variable: str,
    default: str,
    *,
    allow_plain: bool = False,
) -> str:
    """Return the base URL: from the settings, else the environment, else `default`. `allow_plain` allows http anywhere.

    Raises DefinitionError or UsageError for an invalid address.
    """
    if settings.base_url is not None:
        problem = _problem_of_url(settings.base_url, allow_plain)
        if problem:
            raise DefinitionError((Problem(problem, "perstack.toml", key="provider.setting.baseUrl"),))
        return settings.base_url.rstrip("/")
    url = env.get(variable) or default
    problem = _problem_of_url(url, allow_plain)
    if problem:
        raise UsageError(f"{variable}: {problem}")
    return url.rstrip("/")


def _is_private(header: str) -> bool:
    return header.lower() not in _PUBLIC_HEADERS


def is_loopback(url: str) -> bool:
    """Return whether the address is on this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _problem_of_url(url: str, allow_plain: bool) -> str | None:
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError as error:
        return f"this is not an address: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
        return "the base URL must begin with https:// and name a host"
    if parts.username is not None or parts.password is not None:
        return "the base URL must not hold a password: send it in `headers`"
    if parts.query or parts.fragment:
        return "the base URL must end with its path: no ? and no #"
    if parts.scheme == "http" and not allow_plain and not is_loopback(url):
        return (
            f"http:// is allowed to this machine only, for it would show the key to others: use https://{parts.netloc}"
        )
    return None


def read_key(env: Mapping[str, str], variable: str) -> str | None:
    """Return a key from the environment, or None if it is not set. Raises MissingCredential if it cannot be a key."""
    key = env.get(variable, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise MissingCredential(f"{variable} holds characters that no key has: set it again")
    return key or None


def headers_of_env(env: Mapping[str, str], variable: str) -> dict[str, str]:
    """Return headers from an environment variable of the vendors' SDKs: one `Name: value` per line."""
    pairs = (line.partition(":") for line in env.get(variable, "").splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and name.strip()}


def missing_key(provider: str, variable: str) -> MissingCredential:
    """Return the error for a missing key."""
    return MissingCredential(f"provider {provider} has no key: set {variable} in the environment or in .env")
