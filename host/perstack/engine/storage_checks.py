"""Whether a storage can be used: what it says of itself, or whether it can be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perstack.engine.state import places_of
from perstack.errors import StorageError
from perstack.ports.storage import ChecksItself, Storage, StorageCheck


async def storage_checks(storage: Storage) -> Sequence[StorageCheck]:
    """What is there, and what is not. Makes nothing that stays."""
    if isinstance(storage, ChecksItself):
        return await storage.checks()
    try:
        await storage.jobs(limit=1)
    except StorageError as error:
        return (StorageCheck("state", False, error.message),)
    found = [StorageCheck("state", True, storage.location)]
    for place in places_of(storage)[:1]:
        there = _nearest(place)
        if os.access(there, os.W_OK):
            found.append(StorageCheck("rights", True, "this user may write there"))
        else:
            found.append(StorageCheck("rights", False, f"{there} may not be written", f"chown or chmod {there}"))
    return tuple(found)


def _nearest(path: Path) -> Path:
    """The path, or what it would be made in."""
    return next(one for one in (path, *path.parents) if one.exists())
