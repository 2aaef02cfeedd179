"""Client of one bucket: its calls run in threads, are retried for a while, and raise our errors.

Threads replace the client's own coroutines: those deliver results on threads of the library's runtime, and a process
that exits at that moment is aborted.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

import obstore
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
from perstack.system.concurrency import shield_until_done

T = TypeVar("T")

MAX_CONCURRENT_REQUESTS = 32  # maximum concurrent requests of one process

RETRY_TIMEOUT_S = 30.0  # seconds of retries for a server that has answered before

_FIRST_RETRY_TIMEOUT_S = 2.0  # seconds of retries for a server that has not answered yet: its address may be wrong

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.1, 2.0
_MIN_REQUEST_TIMEOUT_S = 15.0  # minimum timeout of one request

_MIN_BYTES_PER_SECOND = 64_000
"""Bytes per second of the slowest supported network. The timeout doubles until it is long enough for the size."""

_CONNECT_TIMEOUT = timedelta(seconds=5)
_STATUS = re.compile(r"status code: ((\d{3}) [A-Za-z ]{1,40})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_ANSWERS = (AlreadyExistsError, PreconditionError, FileNotFoundError)


def seconds_for(size: int) -> float:
    """Return the timeout in seconds of a request that moves `size` bytes."""
    seconds = _MIN_REQUEST_TIMEOUT_S
    while seconds * _MIN_BYTES_PER_SECOND < size:
        seconds *= 2
    return seconds


@dataclass(frozen=True, slots=True)
class BucketLocation:
    """Bucket, prefix in it, and how to reach it."""

    bucket: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None

    @staticmethod
    def of(location: str, setting: dict[str, str]) -> BucketLocation:
        """Parse a location `//bucket/prefix`, with an optional prefix. Raises UsageError for any other form."""
        match = re.fullmatch(r"//(?P<bucket>[A-Za-z0-9._-]{3,63})(?P<prefix>(/[A-Za-z0-9._=-]+)*)/?", location)
        if match is None or ".." in match["prefix"].split("/"):
            raise UsageError(
                "the address of an S3 storage is not valid: write it as `s3://BUCKET/PREFIX`, with letters, digits and"
                " . _ - = in both; set the keys in the environment"
            )
        endpoint = setting.get("endpoint") or _first_variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        region = setting.get("region") or _first_variable("AWS_REGION", "AWS_DEFAULT_REGION")
        return BucketLocation(match["bucket"], match["prefix"].strip("/"), endpoint, region)

    def __str__(self) -> str:
        return f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


class Client:
    """Connection to a bucket, opened on first use."""

    def __init__(self, location: BucketLocation) -> None:
        self.place = location
        self._stores: dict[float, S3Store] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._has_answered = False

    async def ask(self, call: Callable[[S3Store], T], retry_s: float | None = None, size: int = 0) -> T:
        """Return the result of a call, retried while the server is busy or unreachable, for `retry_s` seconds.

        A call that moves `size` bytes has more time. Raises StorageError. AlreadyExistsError, PreconditionError and
        FileNotFoundError pass through: the first two may be caused by this call's own write, whose answer was lost.
        """
        began, pause, seconds = time.monotonic(), _MIN_PAUSE_S, seconds_for(size)
        while True:
            try:
                return await self._run_in_thread(call, self._store_for(seconds))
            except (BaseError, OSError) as error:
                limit = RETRY_TIMEOUT_S if self._has_answered else _FIRST_RETRY_TIMEOUT_S
                limit = limit if retry_s is None else retry_s
                limit += seconds - seconds_for(0)
                if not _is_transient(error) or time.monotonic() + pause > began + limit:
                    raise self._convert_error(error) from None  # the library's message contains the whole request
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)

    def close(self) -> None:
        """End the idle threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    async def _run_in_thread(self, call: Callable[[S3Store], T], store: S3Store) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, thread_name_prefix="perstack-s3")
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, call, store)
        except _ANSWERS as error:
            if "NoSuchBucket" in str(error):
                raise StorageError(f"{self.place}: there is no such bucket: create it first") from None
            self._has_answered = True
            raise
        self._has_answered = True
        return answer

    def _convert_error(self, error: BaseError | OSError) -> Exception:
        if isinstance(error, _ANSWERS):
            return error
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return StorageError(
                f"{self.place}: access was denied ({_short_message(error)}): check the keys and their rights"
                " in the bucket"
            )
        return StorageError(f"{self.place}: {_short_message(error)}")

    def _store_for(self, seconds: float) -> S3Store:
        """Return the bucket's client with this timeout, since a client has one timeout for all its requests."""
        if seconds not in self._stores:
            place = self.place
            region = place.region or "us-east-1"
            self._stores[seconds] = S3Store(
                place.bucket,
                prefix=place.prefix or None,
                config={"region": region, "aws_endpoint_url_s3": place.endpoint}
                if place.endpoint
                else {"region": region},
                client_options={
                    "timeout": timedelta(seconds=seconds),
                    "connect_timeout": _CONNECT_TIMEOUT,
                    "allow_http": (place.endpoint or "").startswith("http://"),
                },
                retry_config={"max_retries": 0},
            )
        return self._stores[seconds]


def _is_transient(error: BaseError | OSError) -> bool:
    if isinstance(error, (*_ANSWERS, PermissionDeniedError, UnauthenticatedError)):
        return False
    status = _STATUS.search(str(error))
    return status is None or status[2] in ("408", "429") or status[2] >= "500"


def _short_message(error: Exception) -> str:
    text = str(error)
    texts = [match[1].strip() for pattern in (_STATUS, _CODE) if (match := pattern.search(text))]
    return ", ".join(texts) or "the server cannot be reached: check the endpoint and the network"


def _first_variable(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


# Conditional writes. After a lost answer a write may or may not have happened. Writers therefore include a random
# number in the bytes: on a conflict the object is read, and if it has our bytes, the write has succeeded.


class ReadObject(NamedTuple):
    """An object that was read."""

    data: bytes
    tag: str  # ETag, which changes with the bytes
    written: datetime  # modification time by the server's clock, in whole seconds


class Listed(NamedTuple):
    """An object in a listing."""

    key: str
    size: int
    tag: str
    written: datetime


async def gather_limited(works: Iterable[Awaitable[T]], limit: int = MAX_CONCURRENT_REQUESTS) -> list[T]:
    """Await the works with at most `limit` of them active, and return their results in order."""
    free = asyncio.Semaphore(limit)

    async def run_one(work: Awaitable[T]) -> T:
        async with free:
            return await work

    return await asyncio.gather(*(run_one(work) for work in works))


class Objects:
    """Objects below a prefix of a bucket. Every call raises StorageError if the server cannot be reached.

    A write whose caller is cancelled is finished, or will never happen, when the caller sees the cancellation.
    """

    def __init__(self, location: BucketLocation) -> None:
        self.place = location
        self._client = Client(location)
        self.is_checked = False  # True if `check_version` has accepted this store

    async def get(self, key: str, *, retry_s: float | None = None) -> ReadObject | None:
        """Return an object; None if it does not exist."""

        def call(store: S3Store) -> ReadObject | int:
            answer = obstore.get(store, key)
            if seconds_for(size := answer.meta["size"]) > seconds_for(expected):
                return size
            return ReadObject(bytes(answer.bytes()), answer.meta["e_tag"] or "", answer.meta["last_modified"])

        expected = 0
        try:
            # The size is known when the download starts. A larger object is requested again with a longer timeout.
            while isinstance(result := await self._client.ask(call, retry_s, expected), int):
                expected = result
        except FileNotFoundError:
            return None
        return result

    async def head(self, key: str) -> Listed | None:
        """Return an object's size, tag and time; None if it does not exist."""
        try:
            meta = await self._client.ask(lambda store: obstore.head(store, key))
        except FileNotFoundError:
            return None
        return Listed(key, meta["size"], meta["e_tag"] or "", meta["last_modified"])

    async def create(self, key: str, data: bytes) -> str | None:
        """Create an object and return its tag; None if it exists with other bytes, which are kept."""
        return await shield_until_done(self._write(key, data, None, None))

    async def replace(self, key: str, data: bytes, tag: str, *, retry_s: float | None = None) -> str | None:
        """Replace an object that still has `tag` and return its new tag; None if it has changed or is gone."""
        return await shield_until_done(self._write(key, data, tag, retry_s))

    async def put(self, key: str, data: bytes) -> None:
        """Write an object unconditionally."""
        await shield_until_done(self._client.ask(lambda store: obstore.put(store, key, data), size=len(data)))

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove objects. Missing ones are ignored."""
        if keys:
            await shield_until_done(self._client.ask(lambda store: obstore.delete(store, list(keys))))

    async def list(self, prefix: str) -> list[Listed]:
        """Return every object below a prefix, by name."""

        def call(store: S3Store) -> list[Listed]:
            return [
                Listed(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"])
                for page in obstore.list(store, prefix=prefix)  # pyright: ignore[reportUnknownMemberType]
                for meta in page
            ]

        return await self._client.ask(call)

    def close(self) -> None:
        """End the idle threads."""
        self._client.close()

    async def _write(self, key: str, data: bytes, tag: str | None, retry_s: float | None) -> str | None:
        """Create an object, or replace it if it has `tag`, and return its tag; None on a conflict."""
        try:
            answer = await self._client.ask(
                lambda store: obstore.put(store, key, data, mode="create" if tag is None else {"e_tag": tag}),
                retry_s,
                len(data),
            )
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            existing = await self.get(key, retry_s=retry_s)
            return existing.tag if existing is not None and existing.data == data else None
        return answer["e_tag"] or ""
