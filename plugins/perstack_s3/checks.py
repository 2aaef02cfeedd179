"""Whether a bucket is there, and can do what a store needs. Makes one object, and removes it."""

from __future__ import annotations

import secrets
import time

from perstack.errors import StorageError
from perstack.ports.storage import StorageCheck
from perstack_s3.layout import PROBE
from perstack_s3.objects import Objects
from perstack_s3.version import check_conditional_writes, check_version

_MOST_APART = 60.0
"""Seconds between two clocks that somebody should know of: times of events are this machine's."""


async def checks_of(objects: Objects) -> tuple[StorageCheck, ...]:
    """The server, the layout, the rights of the keys, conditional writes, and the clock."""
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
