"""Checks of a store's layout version and of its server, made once before the first use."""

from __future__ import annotations

import secrets
import time

from perstack.errors import StorageError
from perstack.ports.storage import StorageCheck
from perstack_s3.layout import PROBE, VERSION, Version, read
from perstack_s3.objects import Objects

_VERSION = 1


async def check_version(objects: Objects, *, is_for_writing: bool) -> None:
    """Check the store's layout, and before the first write also the server, whose result is remembered.

    Raises StorageError for an unreadable or newer layout, or for a server without conditional writes.
    """
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
    """Raise StorageError unless the server refuses to overwrite an existing, or a changed, object."""
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


_MOST_APART = 60.0
"""Seconds between the server's clock and ours that are reported; events have this machine's time."""


async def checks_of(objects: Objects) -> tuple[StorageCheck, ...]:
    """Check the server, the layout, the keys' rights, conditional writes and the clock.

    Creates an object and removes it again.
    """
    try:
        await check_version(objects, is_for_writing=False)
    except StorageError as error:
        return (StorageCheck("server", False, error.message),)
    state = "a store is there" if objects.is_checked else "no store there yet"
    found = [StorageCheck("server", True, f"{objects.place}, {state}")]
    key = f"{PROBE}/{secrets.token_hex(8)}"
    try:
        await objects.put(key, b"perstack")
        seen = await objects.head(key)
        await objects.remove([key])
    except StorageError as error:
        return (*found, StorageCheck("rights", False, error.message, "allow Get-, Put-, DeleteObject and ListBucket"))
    found.append(StorageCheck("rights", True, "the keys may write there"))
    try:
        await check_conditional_writes(objects)
    except StorageError as error:
        found.append(StorageCheck("conditional writes", False, error.message))
    else:
        found.append(StorageCheck("conditional writes", True, "the server holds to them"))
    apart = 0.0 if seen is None else seen.written.timestamp() - time.time()
    if abs(apart) > _MOST_APART:
        found.append(StorageCheck("clock", False, f"{apart:+.0f} s from this machine's", "set this machine's by NTP"))
    return tuple(found)
