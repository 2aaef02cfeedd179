"""Following a Job from outside the process that drives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from perstack.core.chain import open_line
from perstack.engine.load import stored_event
from perstack.engine.logs.lines import run_ids
from perstack.engine.read import StoredLine
from perstack.ports.storage import RunRef, Storage

_LOOK_AGAIN = 0.1
"""Seconds between two looks at the logs."""


async def watch_job(storage: Storage, job_id: str) -> AsyncGenerator[StoredLine]:
    """Every stored event of a Job, each Run's in order, until nobody drives the Job and all was shown."""
    seen: dict[str, int] = {}
    while True:
        is_driven = await storage.lease_info(job_id) is not None
        for run_id in await run_ids(storage, job_id):
            ref = RunRef(job_id, run_id)
            for line in await storage.read(ref, after=seen.get(run_id, 0)):
                seen[run_id] = seq = seen.get(run_id, 0) + 1
                yield StoredLine(seq, await stored_event(storage, ref, seq, open_line(line)), line)
        if not is_driven:
            return
        await asyncio.sleep(_LOOK_AGAIN)
