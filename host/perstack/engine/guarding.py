"""The programs of a store's Jobs: what an earlier process left running, and what runs now."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from perstack.ports.processes.guard import GUARD
from perstack.ports.processes.left import end_left_programs
from perstack.ports.storage import LocalStorage, Storage


@asynccontextmanager
async def guarded(storage: Storage) -> AsyncGenerator[None]:
    """The block begins when nothing runs any more that an earlier process started here and was killed over.

    In the block all programs have one guard.
    """
    folder = programs_of(storage)
    if folder is not None:
        await end_left_programs(folder)
    with GUARD.kept():
        yield


def programs_of(storage: Storage) -> Path | None:
    """Where the programs of its Jobs are recorded while they run."""
    return storage.programs if isinstance(storage, LocalStorage) else None
