"""Jobs are driven on whole files: what a rewind that was killed has left is put right before one begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from perstack.engine.notices import notice
from perstack.engine.rewinding.occupied import Occupied, is_rewound
from perstack.engine.rewinding.place import journal_path, lock_path
from perstack.errors import StorageError
from perstack.ports.storage import Storage

_PATIENCE = 10.0
"""Seconds that a rewind may take which somebody waits for."""
_PAUSE = 0.05

Settle = Callable[[], Awaitable[str | None]]
"""Finishes a rewind of the workspace, or takes it back, and says so."""


@asynccontextmanager
async def on_whole_files(
    storage: Storage, workspace: Path, settle: Settle, lease: Callable[[], AbstractAsyncContextManager[None]]
) -> AsyncGenerator[None]:
    """The lease of a Job that is driven in the workspace, whose files are whole, and are not rewound meanwhile.

    Waits for a rewind that is under way. Raises Occupied if that takes too long, StorageError, and what `lease` does.
    """
    journal, lock = journal_path(storage, workspace), lock_path(storage, workspace)
    until = time.monotonic() + _PATIENCE
    async with AsyncExitStack() as held:
        while True:
            try:
                if journal.exists():
                    await _settle(settle)
                await held.enter_async_context(lease())
                if not journal.exists() and not is_rewound(lock):
                    break
                await held.aclose()
                words = f"{workspace}: its files are being rewound by another process; wait for its end"
                raise Occupied(words)
            except Occupied:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_PAUSE)
        yield


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
