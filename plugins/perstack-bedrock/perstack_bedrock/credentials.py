"""AWS credentials as botocore finds them, and the request signatures made with them.

Source: AWS SDKs and Tools reference guide, "Standardized credential providers"; AWS IAM user guide, "Signature Version
4".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.errors import MissingCredential, ProviderError, UsageError
from perstack.system.concurrency import in_daemon_thread

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials
    from botocore.session import Session

_SERVICE = "bedrock"
_LOOKUP_TIMEOUT_S = 60.0  # maximum seconds to find credentials: a login may start a program, or query servers of AWS
_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
_VENDOR_OF_MACHINE = Path("/sys/class/dmi/id/sys_vendor")


class AwsAccount:
    """Signer of requests. It finds the credentials of one identity once, and renews them before they expire."""

    def __init__(self, profile: str | None, env: Mapping[str, str], region: str) -> None:
        """Look up nothing yet. `profile` None means the profile that the environment names, if any."""
        self._profile = profile
        self._env = env
        self._region = region
        self._cached: Credentials | None = None
        self._lookup_lock = asyncio.Lock()

    async def signature(self, url: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that sign a POST of `body`. Raises MissingCredential, and ProviderError after a minute."""
        credentials = self._permanent_credentials() or await self._get_credentials_in_thread()
        return _sign_request(credentials, self._region, url, body, headers)

    def _permanent_credentials(self) -> ReadOnlyCredentials | None:
        """Return known credentials that never expire, so that no renewal can block; None otherwise."""
        from botocore.credentials import RefreshableCredentials

        if self._cached is None or isinstance(self._cached, RefreshableCredentials):
            return None
        return self._cached.get_frozen_credentials()

    async def _get_credentials_in_thread(self) -> ReadOnlyCredentials:
        """Find or renew the credentials in a thread, for a bounded time. Raises ProviderError and MissingCredential."""
        async with self._lookup_lock:
            try:
                async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                    return await in_daemon_thread(self._get_credentials, "AWS credentials")
            except TimeoutError:
                message = f"AWS gave no credentials within {_LOOKUP_TIMEOUT_S:.0f} s"
                raise ProviderError(message, name="Timeout", is_retryable=True) from None

    def _get_credentials(self) -> ReadOnlyCredentials:
        """Find or renew the credentials. Blocks: it may read files, run a program, or query a server."""
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            self._cached = self._cached or _find_credentials(self._profile, self._env, self._region)
            if self._cached is not None:
                return self._cached.get_frozen_credentials()
        except (BotoCoreError, ClientError, OSError, RuntimeError, ValueError) as error:
            is_retryable = isinstance(error, HTTPClientError)
            name = "ConnectError" if is_retryable else "Authentication"
            message = f"AWS's credentials are not available: {_message_line(error)}"
            raise ProviderError(message, name=name, is_retryable=is_retryable) from None
        raise MissingCredential(
            "provider amazon-bedrock found no credentials, neither in the environment nor in AWS's files: "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`"
        )


def may_have_credentials(profile: str | None, env: Mapping[str, str]) -> bool:
    """Return whether a lookup may succeed: credentials are configured, or this machine belongs to AWS."""
    return (
        profile is not None
        or any(env.get(name, "").strip() for name in _SOURCES)
        or any(path.is_file() for path in _config_files(env).values())
        or _is_ec2(env)
    )


def region_of_profile(profile: str | None, env: Mapping[str, str]) -> str | None:
    """Return the profile's region from AWS's files. Raises UsageError if they cannot be read."""
    if profile is None and not any(path.is_file() for path in _config_files(env).values()):
        return None
    from botocore.exceptions import BotoCoreError

    try:
        region: object = _create_session(profile, env).get_scoped_config().get("region")
    except BotoCoreError as error:
        raise UsageError(f"AWS's configuration cannot be used: {_message_line(error)}") from None
    return region if isinstance(region, str) else None


def _find_credentials(profile: str | None, env: Mapping[str, str], region: str) -> Credentials | None:
    """Find credentials: keys of the environment, which may come from `.env`, then everything that botocore knows."""
    from botocore.credentials import EnvProvider

    if profile is None and (credentials := EnvProvider(environ=env).load()) is not None:
        return credentials
    session = _create_session(profile, env)
    session.set_config_variable("region", region)
    return session.get_credentials()


def _create_session(profile: str | None, env: Mapping[str, str]) -> Session:
    from botocore.session import Session

    session = Session(profile=profile or env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or None)
    files = _config_files(env)
    session.set_config_variable("credentials_file", str(files["AWS_SHARED_CREDENTIALS_FILE"]))
    session.set_config_variable("config_file", str(files["AWS_CONFIG_FILE"]))
    return session


def _config_files(env: Mapping[str, str]) -> dict[str, Path]:
    return {name: Path(env.get(name) or default).expanduser() for name, default in _FILES.items()}


def _is_ec2(env: Mapping[str, str]) -> bool:
    if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    try:
        return _VENDOR_OF_MACHINE.read_text().startswith("Amazon EC2")
    except OSError:
        return False


def _sign_request(
    credentials: ReadOnlyCredentials, region: str, url: str, body: bytes, headers: Mapping[str, str]
) -> dict[str, str]:
    """Sign only headers that proxies do not change and that AWS requires."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest

    lowercased = {name.lower(): value for name, value in headers.items()}
    signed_headers = {
        name: value for name, value in lowercased.items() if name == "content-type" or name.startswith("x-amz")
    }
    request = AWSRequest(
        method="POST", url=url, data=body, headers={"content-type": "application/json", **signed_headers}
    )
    SigV4Auth(credentials, _SERVICE, region).add_auth(request)
    return {str(name): str(value) for name, value in request.headers.items()}


def _message_line(error: Exception) -> str:
    return " ".join(str(error).split())
