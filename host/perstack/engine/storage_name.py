"""What a storage calls itself, whatever its address: so an order says whose Job it asks for.

It is made at the first order, and kept beside the Jobs. A copy of a storage, Job by Job, has another one; a backup of
the whole has the same.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from pydantic import BaseModel, ValidationError

from perstack.core.chain import open_line
from perstack.engine.logs.kept import log_of
from perstack.engine.logs.lines import add_payload
from perstack.errors import Conflict, NotFound
from perstack.ports.storage import Storage

_SPACE = "identity"
_LOG = log_of("storage")


class _Named(BaseModel):
    """What is recorded."""

    name: str


async def name_of(storage: Storage) -> str | None:
    """Its name; None if it has none yet. Raises StorageError."""
    try:
        lines = await storage.space(_SPACE).read(_LOG, limit=1)
        return _Named.model_validate_json(open_line(lines[0]).payload).name if lines else None
    except (NotFound, ValidationError):
        return None


async def named(storage: Storage) -> str | None:
    """Its name, which is made if it has none: of two processes that make one, the first is right. Raises
    StorageError."""
    if (found := await name_of(storage)) is not None:
        return found
    space = storage.space(_SPACE)
    with suppress(Conflict):
        await space.create_job(_LOG.job_id)
    with suppress(Conflict):
        await add_payload(space, _LOG, _Named(name=secrets.token_hex(16)).model_dump_json().encode())
    return await name_of(storage)
