"""Jobs are driven on whole files: what a rewind that was killed has left is put right before one begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from perstack.engine.notices import notice
from perstack.engine.rewinding.occupied import Occupied, driven_in
from perstack.engine.rewinding.place import journal_path
from perstack.errors import StorageError
from perstack.ports.storage import Storage

_PATIENCE = 10.0
"""Seconds that a rewind may take which somebody waits for."""
_PAUSE = 0.05

Settle = Callable[[], Awaitable[str | None]]
"""Finishes a rewind of the workspace, or takes it back, and says so."""


@asynccontextmanager
async def on_whole_files(storage: Storage, workspace: Path, settle: Settle) -> AsyncGenerator[None]:
    """A Job is driven in the workspace, and its files are not rewound meanwhile. Waits for a rewind that is under way.

    Raises Occupied if that takes too long, and StorageError.
    """
    until = time.monotonic() + _PATIENCE
    with ExitStack() as held:
        while True:
            try:
                if await _held(storage, workspace, settle, held):
                    break
            except Occupied:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_PAUSE)
        yield


async def _held(storage: Storage, workspace: Path, settle: Settle, held: ExitStack) -> bool:
    """Whether the workspace is held now, with whole files."""
    journal = journal_path(storage, workspace)
    if journal.exists():
        await _settle(settle)
    held.enter_context(driven_in(workspace))
    if journal.exists():
        held.close()
        return False
    return True


async def put_right(storage: Storage, workspace: Path, settle: Settle) -> None:
    """The same for whoever drives nothing: what is wrong with it is said, and keeps nobody from looking at Jobs."""
    if not journal_path(storage, workspace).exists():
        return
    try:
        await _settle(settle)
    except Occupied:
        pass  # it is under way
    except StorageError as error:
        notice(str(error))


async def _settle(settle: Settle) -> None:
    done = await settle()
    if done is not None:
        notice(done)
