"""Objects of a bucket: read, written only if absent, written only if unchanged, listed, removed.

After a lost answer nobody knows whether a write was done. Whoever writes here puts bytes that nobody else would write
(a number of its own is in them), so the object itself tells: on a conflict it is read, and if the bytes are ours the
write has succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store

from perstack.ports.uninterrupted import uninterrupted
from perstack_s3.client import AT_ONCE, Client, Place, seconds_for

T = TypeVar("T")


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


async def at_once(works: Iterable[Awaitable[T]], limit: int = AT_ONCE) -> list[T]:
    """The results of works, in their order, of which at most so many are under way at a time."""
    free = asyncio.Semaphore(limit)

    async def one(work: Awaitable[T]) -> T:
        async with free:
            return await work

    return await asyncio.gather(*(one(work) for work in works))


class Objects:
    """The objects below a prefix of a bucket. Every call raises StorageError if the server cannot be asked.

    A write whose caller is cancelled has been done, or never will be, when the caller hears of it. `patience` is for
    how many seconds a server that is gone is waited for, where that is not the usual time.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._client = Client(place)
        self.is_checked = False
        """Whether `version` has looked at this store."""

    async def get(self, key: str, *, patience: float | None = None) -> Found | None:
        """An object; None if there is none of that name."""

        def call(store: S3Store) -> Found | int:
            answer = obstore.get(store, key)
            if seconds_for(size := answer.meta["size"]) > seconds_for(expected):
                return size
            return Found(bytes(answer.bytes()), answer.meta["e_tag"] or "", answer.meta["last_modified"])

        expected = 0
        try:
            # how much there is to come is known when it begins: what takes longer is asked for once more
            while isinstance(found := await self._client.ask(call, patience, expected), int):
                expected = found
        except FileNotFoundError:
            return None
        return found

    async def head(self, key: str) -> Listed | None:
        """What is known of an object; None if there is none of that name."""
        try:
            meta = await self._client.ask(lambda store: obstore.head(store, key))
        except FileNotFoundError:
            return None
        return Listed(key, meta["size"], meta["e_tag"] or "", meta["last_modified"])

    async def create(self, key: str, data: bytes) -> str | None:
        """Write an object that is not there yet: its tag. None if there is one of other bytes, which stays."""
        return await uninterrupted(self._written(key, data, None, None))

    async def replace(self, key: str, data: bytes, tag: str, *, patience: float | None = None) -> str | None:
        """Write an object if it still has that tag: its new tag. None if it has changed, or is gone."""
        return await uninterrupted(self._written(key, data, tag, patience))

    async def put(self, key: str, data: bytes) -> None:
        """Write an object, whatever was there."""
        await uninterrupted(self._client.ask(lambda store: obstore.put(store, key, data), size=len(data)))

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, in no order; those that are not there do not matter."""
        if keys:
            await uninterrupted(self._client.ask(lambda store: obstore.delete(store, list(keys))))

    async def list(self, prefix: str) -> list[Listed]:
        """Every object below a prefix, by name."""

        def call(store: S3Store) -> list[Listed]:
            return [
                Listed(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"])
                for page in obstore.list(store, prefix=prefix)  # pyright: ignore[reportUnknownMemberType]
                for meta in page
            ]

        return await self._client.ask(call)

    def close(self) -> None:
        """Give back what is not in use."""
        self._client.close()

    async def _written(self, key: str, data: bytes, tag: str | None, patience: float | None) -> str | None:
        """Write an object that is not there yet, or that still has a tag: its tag now; None if it is another's."""
        try:
            answer = await self._client.ask(
                lambda store: obstore.put(store, key, data, mode="create" if tag is None else {"e_tag": tag}),
                patience,
                len(data),
            )
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            found = await self.get(key, patience=patience)
            return found.tag if found is not None and found.data == data else None
        return answer["e_tag"] or ""
