"""Which layout a store has, and whether its server can do what it takes: asked once, before the first use."""

from __future__ import annotations

import secrets

from perstack.errors import StorageError
from perstack_s3.layout import PROBE, VERSION
from perstack_s3.objects import Objects
from perstack_s3.stored import Version, read

_VERSION = 1


async def check_version(objects: Objects, *, is_for_writing: bool) -> None:
    """Raises StorageError for a newer layout, and before the first write for a server without conditional writes."""
    if objects.is_checked:
        return
    found = await objects.get(VERSION)
    if found is not None:
        version = read(Version, found.data)
        if version is None:
            raise StorageError(f"{objects.place}: {VERSION} cannot be read: is this a store of perstack?")
        if version.version != _VERSION:
            raise StorageError(
                f"{objects.place} was written by a newer perstack (layout {version.version}): use that one"
            )
        objects.is_checked = True
    elif is_for_writing:
        await check_conditional_writes(objects)
        await objects.create(VERSION, Version(version=_VERSION).to_bytes())
        objects.is_checked = True


async def check_conditional_writes(objects: Objects) -> None:
    """Raises StorageError unless the server refuses to write over what is there, and over what has changed."""
    key = f"{PROBE}/{secrets.token_hex(8)}"
    tag = await objects.create(key, b"one")
    try:
        if tag is None or await objects.create(key, b"two") is not None:
            raise _unfit(objects, "writes over an object that is to be created only if absent")
        if await objects.replace(key, b"two", tag) is None or await objects.replace(key, b"three", tag) is not None:
            raise _unfit(objects, "does not hold to the tag under which an object is to be replaced")
    finally:
        await objects.remove([key])


def _unfit(objects: Objects, what: str) -> StorageError:
    return StorageError(
        f"{objects.place}: this server {what}: perstack needs conditional writes (If-None-Match, If-Match)"
    )
