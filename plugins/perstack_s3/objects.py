"""Objects of a bucket: read, written only if absent, written only if unchanged, listed, removed.

After a lost answer nobody knows whether a write was done. Whoever writes here puts bytes that nobody else would write
(a number of its own is in them), so the object itself tells: on a conflict, and after an error, it is read, and if
the bytes are ours the write has succeeded.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
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

T = TypeVar("T")

_TIMEOUT = timedelta(seconds=15)
_CONNECT = timedelta(seconds=5)
_RETRYING = timedelta(seconds=20)
_TRIES = 3
_STATUS = re.compile(r"status code: (\d{3} [A-Za-z ]{1,40})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")


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


class Found(NamedTuple):
    """An object that was read."""

    data: bytes
    tag: str
    """Changes with its bytes."""
    written: datetime
    """By the server's clock, in whole seconds."""


class Listed(NamedTuple):
    """An object in a list."""

    key: str
    size: int
    tag: str
    written: datetime


async def at_once(works: Iterable[Awaitable[T]], limit: int = 32) -> list[T]:
    """The results of works, in their order, of which at most so many are under way at a time."""
    free = asyncio.Semaphore(limit)

    async def one(work: Awaitable[T]) -> T:
        async with free:
            return await work

    return await asyncio.gather(*(one(work) for work in works))


class Objects:
    """The objects below a prefix of a bucket. Every call raises StorageError if the server cannot be asked."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._opened: S3Store | None = None
        self.is_checked = False
        """Whether `version` has looked at this store."""

    async def get(self, key: str) -> Found | None:
        """An object; None if there is none of that name."""
        try:
            answer = await self._asked(obstore.get_async(self._store, key))
            data = bytes(await self._asked(answer.bytes_async()))
        except FileNotFoundError:
            return None
        return Found(data, answer.meta["e_tag"] or "", answer.meta["last_modified"])

    async def head(self, key: str) -> Listed | None:
        """What is known of an object; None if there is none of that name."""
        try:
            meta = await self._asked(obstore.head_async(self._store, key))
        except FileNotFoundError:
            return None
        return Listed(key, meta["size"], meta["e_tag"] or "", meta["last_modified"])

    async def create(self, key: str, data: bytes) -> str | None:
        """Write an object that is not there yet: its tag. None if there is one of other bytes, which stays."""
        return await self._written(key, data)

    async def replace(self, key: str, data: bytes, tag: str) -> str | None:
        """Write an object if it still has that tag: its new tag. None if it has changed, or is gone."""
        return await self._written(key, data, tag)

    async def put(self, key: str, data: bytes) -> None:
        """Write an object, whatever was there."""
        await self._asked(obstore.put_async(self._store, key, data))

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, in no order; those that are not there do not matter."""
        if keys:
            await self._asked(obstore.delete_async(self._store, list(keys)))

    async def list(self, prefix: str) -> AsyncIterator[Listed]:
        """Every object below a prefix, by name."""
        pages = obstore.list(self._store, prefix=prefix, return_arrow=False).__aiter__()  # pyright: ignore[reportUnknownMemberType]
        while True:
            try:
                page = await self._asked(pages.__anext__())
            except StopAsyncIteration:
                return
            for meta in page:
                yield Listed(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"])

    async def _written(self, key: str, data: bytes, tag: str | None = None) -> str | None:
        """Write an object that is not there yet, or that still has a tag: its tag now; None if it is another's."""
        error: StorageError | None = None
        for _ in range(_TRIES):
            try:
                answer = await self._asked(
                    obstore.put_async(self._store, key, data, mode="create" if tag is None else {"e_tag": tag})
                )
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                found = await self.get(key)
                return found.tag if found is not None and found.data == data else None
            except StorageError as failed:
                error = failed
                if (found := await self.get(key)) is not None and found.data == data:
                    return found.tag
            else:
                return answer["e_tag"] or ""
        raise error or StorageError(f"{self.place}: {key} could not be written")

    async def _asked(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except (AlreadyExistsError, PreconditionError, StopAsyncIteration):
            raise
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise StorageError(f"{self.place}: there is no such bucket: create it first") from None
            raise
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise StorageError(
                f"{self.place}: access was denied ({_short(error)}): check the keys, and what they allow in the bucket"
            ) from None
        except (BaseError, OSError) as error:
            # from None: the library's words have the whole request in them
            raise StorageError(f"{self.place}: {_short(error)}") from None

    @property
    def _store(self) -> S3Store:
        if self._opened is None:
            place = self.place
            region = place.region or "us-east-1"
            self._opened = S3Store(
                place.bucket,
                prefix=place.prefix or None,
                config={"region": region, "aws_endpoint_url_s3": place.endpoint}
                if place.endpoint
                else {"region": region},
                client_options={
                    "timeout": _TIMEOUT,
                    "connect_timeout": _CONNECT,
                    "allow_http": (place.endpoint or "").startswith("http://"),
                },
                retry_config={
                    "max_retries": 4,
                    "retry_timeout": _RETRYING,
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=100),
                        "max_backoff": timedelta(seconds=2),
                        "base": 2,
                    },
                },
            )
        return self._opened


def _short(error: Exception) -> str:
    text = str(error)
    found = [match[1].strip() for pattern in (_STATUS, _CODE) if (match := pattern.search(text))]
    return ", ".join(found) or "the server cannot be reached: check the endpoint and the network"


def _variable(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
