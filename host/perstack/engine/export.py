"""A Job in one piece, for programs that want no log to fold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress

from pydantic import JsonValue

from perstack.core.base import Fact, JsonObject
from perstack.core.checkpoint import checkpoint_file, checkpoint_of
from perstack.core.events import StoredEvent, contents_of
from perstack.core.job import JobSummary
from perstack.core.messages import BlobPart
from perstack.core.runs.state import Run
from perstack.engine.logs.lines import run_ids
from perstack.engine.logs.runs import is_checkpoint, load_job, run_logs
from perstack.errors import NotFound
from perstack.ports.formats import JobFormat
from perstack.ports.storage import RunRef, Storage

DOCUMENT_FORMAT = 1


async def job_document(storage: Storage, job: JobSummary) -> JsonObject:
    """`format`, `job`, `runs`, `checkpoints` and `messages`.

    `messages` holds each Run's whole history once, by Run id, its instruction first; a checkpoint's are the first
    `messages.count` after the instruction. So the document grows with the work done, not with its square.
    """
    checkpoints: list[JsonValue] = []

    def observe(event: StoredEvent, run: Run) -> None:
        checkpoint_id = getattr(event, "checkpoint_id", None)
        if isinstance(checkpoint_id, str) and is_checkpoint(event, checkpoint_id):
            checkpoints.append(_json(checkpoint_file(run).model_copy(update={"id": checkpoint_id})))

    loaded = await load_job(storage, job.id, observe)
    summary = _json(job)
    runs = summary.pop("runs", [])
    messages = {run_id: _json(checkpoint_of(run))["messages"] for run_id, run in loaded.runs.items()}
    return {
        "format": DOCUMENT_FORMAT,
        "job": summary,
        "runs": runs,
        "checkpoints": checkpoints,
        "messages": dict[str, JsonValue](messages),
    }


async def foreign_files(storage: Storage, job_id: str, form: JobFormat) -> Mapping[str, bytes]:
    """The files of a Job in the form of another program, by their relative path."""
    logs: dict[str, list[StoredEvent]] = {}
    for run_id in await run_ids(storage, job_id):
        logs[run_id] = [line.event async for line in run_logs(storage).events(RunRef(job_id, run_id))]
    blobs: dict[str, bytes] = {}
    for name in _blobs_of(logs.values()):
        # one that was lost is named in the text in its place
        with suppress(NotFound):
            blobs[name] = await storage.blob(job_id, name)
    return form.write(logs, blobs)


def _blobs_of(logs: Iterable[Iterable[StoredEvent]]) -> frozenset[str]:
    """The sha256 of every file that the messages of a Job refer to."""
    contents = (part for log in logs for event in log for part in contents_of(event))
    return frozenset(part.sha256 for part in contents if isinstance(part, BlobPart))


def _json(fact: Fact) -> JsonObject:
    found: JsonObject = json.loads(fact.to_json())
    return found
