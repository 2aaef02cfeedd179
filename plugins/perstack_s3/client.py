"""One bucket's client: its calls run in threads, are tried again for a while, and fail with errors of ours.

In threads, and not as the client's own coroutines: those hand over their results on threads of its runtime, and a
process that ends in that moment is aborted.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from perstack.dataclass import dataclass
from perstack.errors import StorageError, UsageError

T = TypeVar("T")

AT_ONCE = 32
"""Requests of one process that are under way at a time."""

PATIENCE = 30.0
"""Seconds that a server which was there is waited for."""

_FIRST_PATIENCE = 2.0
"""Seconds for one that has not answered yet: its address may be wrong."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_SECONDS = 15.0
"""For one request, at least."""

_SLOWEST = 64_000
"""Bytes a second of the slowest line: a request with more than it brings in that time has twice as long, and so on."""

_CONNECT = timedelta(seconds=5)
_STATUS = re.compile(r"status code: ((\d{3}) [A-Za-z ]{1,40})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_ANSWERS = (AlreadyExistsError, PreconditionError, FileNotFoundError)


def seconds_for(size: int) -> float:
    """How long one request may take that moves so many bytes."""
    seconds = _SECONDS
    while seconds * _SLOWEST < size:
        seconds *= 2
    return seconds


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket, and where in it."""

    bucket: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None

    @staticmethod
    def of(location: str, setting: dict[str, str]) -> Place:
        """Raises UsageError unless a location is `//bucket/prefix`, the prefix may be left out."""
        match = re.fullmatch(r"//(?P<bucket>[A-Za-z0-9._-]{3,63})(?P<prefix>(/[A-Za-z0-9._=-]+)*)/?", location)
        if match is None or ".." in match["prefix"].split("/"):
            raise UsageError(
                "the place of an s3 storage is not valid: write it as `s3://BUCKET/PREFIX`, with letters, digits and"
                " . _ - = in both; keys belong into the environment"
            )
        endpoint = setting.get("endpoint") or _variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        region = setting.get("region") or _variable("AWS_REGION", "AWS_DEFAULT_REGION")
        return Place(match["bucket"], match["prefix"].strip("/"), endpoint, region)

    def __str__(self) -> str:
        return f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


class Client:
    """Opens the bucket when it is first needed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._opened: dict[float, S3Store] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._was_there = False

    async def ask(self, call: Callable[[S3Store], T], patience: float | None = None, size: int = 0) -> T:
        """What a call returns, tried again while the server is busy or gone, for so many seconds at most.

        A call that moves `size` bytes has time for them, and to be tried again after them.
        Raises StorageError, and as they are AlreadyExistsError, PreconditionError and FileNotFoundError: after a lost
        answer the first two may be about what this very call has written.
        """
        began, pause, seconds = time.monotonic(), _FIRST_PAUSE, seconds_for(size)
        while True:
            try:
                return await self._call(call, self._store(seconds))
            except (BaseError, OSError) as error:
                limit = patience if patience is not None else PATIENCE if self._was_there else _FIRST_PATIENCE
                limit += seconds - seconds_for(0)
                if not _is_passing(error) or time.monotonic() + pause > began + limit:
                    raise self._error(error) from None  # the library's words have the whole request in them
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self) -> None:
        """End the threads that wait for work."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    async def _call(self, call: Callable[[S3Store], T], store: S3Store) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="perstack-s3")
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, call, store)
        except _ANSWERS as error:
            if "NoSuchBucket" in str(error):
                raise StorageError(f"{self.place}: there is no such bucket: create it first") from None
            self._was_there = True
            raise
        self._was_there = True
        return answer

    def _error(self, error: BaseError | OSError) -> Exception:
        if isinstance(error, _ANSWERS):
            return error
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return StorageError(
                f"{self.place}: access was denied ({_short(error)}): check the keys, and what they allow in the bucket"
            )
        return StorageError(f"{self.place}: {_short(error)}")

    def _store(self, seconds: float) -> S3Store:
        """The bucket, for requests that take so long at most: a client has one time for all of its."""
        if seconds not in self._opened:
            place = self.place
            region = place.region or "us-east-1"
            self._opened[seconds] = S3Store(
                place.bucket,
                prefix=place.prefix or None,
                config={"region": region, "aws_endpoint_url_s3": place.endpoint}
                if place.endpoint
                else {"region": region},
                client_options={
                    "timeout": timedelta(seconds=seconds),
                    "connect_timeout": _CONNECT,
                    "allow_http": (place.endpoint or "").startswith("http://"),
                },
                retry_config={"max_retries": 0},
            )
        return self._opened[seconds]


def _is_passing(error: BaseError | OSError) -> bool:
    """Whether the same may work in a moment: no answer came, or one that says so."""
    if isinstance(error, (*_ANSWERS, PermissionDeniedError, UnauthenticatedError)):
        return False
    status = _STATUS.search(str(error))
    return status is None or status[2] in ("408", "429") or status[2] >= "500"


def _short(error: Exception) -> str:
    text = str(error)
    found = [match[1].strip() for pattern in (_STATUS, _CODE) if (match := pattern.search(text))]
    return ", ".join(found) or "the server cannot be reached: check the endpoint and the network"


def _variable(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
