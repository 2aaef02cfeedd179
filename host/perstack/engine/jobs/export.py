"""Recording a Job: reading what a recording is made from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from perstack.core.base import JsonObject
from perstack.core.digests import tools_blob
from perstack.core.events import StartGeneration, StoredEvent
from perstack.core.job import summarize
from perstack.core.json_reading import read_json
from perstack.core.recording.hiding import Hiding, known_secrets
from perstack.core.recording.make import Source, blobs_in, recording_of
from perstack.core.recording.model import MOST_BLOB_BYTES, Recording
from perstack.core.runs.state import Run
from perstack.engine.logs.runs import load_job
from perstack.errors import Damaged, NotFound, UsageError
from perstack.ports.storage import Storage
from perstack.version import VERSION


async def record_job(storage: Storage, job_id: str, env: Mapping[str, str]) -> Recording:
    """A Job as far as it got, without the secrets of `env` and what looks like one. Nothing is written.

    Raises NotFound, Damaged, and UsageError for what cannot be recorded.
    """
    logs: dict[str, list[StoredEvent]] = {}
    sent: dict[str, int] = {}

    def observe(event: StoredEvent, run: Run) -> None:
        logs.setdefault(run.id, []).append(event)
        if isinstance(event, StartGeneration):
            sent[event.id] = len(run.messages)

    loaded = await load_job(storage, job_id, observe)
    if not logs:
        raise UsageError(f"Job {job_id} cannot be recorded: nothing of it has begun")
    source = Source(
        job_id=job_id,
        status=summarize(loaded.job, is_driven=False).status,
        logs=logs,
        statuses={run_id: run.status for run_id, run in loaded.runs.items()},
        sent=sent,
        tools=await _tools(storage, job_id, logs.values()),
        blobs=await _blobs(storage, job_id, blobs_in(logs.values())),
    )
    # a long Job has much to look through
    return await asyncio.to_thread(recording_of, source, Hiding(known_secrets(env)), VERSION)


async def _tools(
    storage: Storage, job_id: str, logs: Iterable[Iterable[StoredEvent]]
) -> dict[str, tuple[JsonObject, ...]]:
    """The tools of each digest; none where the blob is gone, so that they are played without a description."""
    digests = {event.tools_digest for log in logs for event in log if isinstance(event, StartGeneration)}
    found: dict[str, tuple[JsonObject, ...]] = {}
    for digest in digests - {None}:
        name = tools_blob(digest or "")
        if name is None:
            continue
        try:
            value = read_json(await storage.blob(job_id, name))
        except (NotFound, ValueError):
            continue
        tools = value if isinstance(value, list) else []
        found[digest or ""] = tuple(tool for tool in tools if isinstance(tool, dict))
    return found


async def _blobs(storage: Storage, job_id: str, names: Iterable[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    size = 0
    for name in sorted(names):
        try:
            found[name] = await storage.blob(job_id, name)
        except NotFound as error:
            words = f"Job {job_id} cannot be recorded: a file of a result, {name[:12]}, is gone"
            raise Damaged(words, readable=0) from error
        size += len(found[name])
        if size > MOST_BLOB_BYTES:
            break  # which is too much already
    return found
