"""Export a Job: as one JSON document, in the format of another program, or as a recording."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from pydantic import JsonValue

from perstack.core.base.records import JsonObject, Record, read_json
from perstack.core.jobs.checkpoints import checkpoint_file, checkpoint_of
from perstack.core.jobs.summary import JobSummary, summarize
from perstack.core.messages.messages import BlobPart
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.generations import StartGeneration
from perstack.core.runs.request_digest import tools_blob
from perstack.core.runs.state import Run
from perstack.core.secrets.masking import SecretMasker, known_secrets
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.reader import JobReader
from perstack.engine.log.run_log import is_checkpoint, load_job
from perstack.errors import Damaged, NotFound, StorageError, UsageError
from perstack.ports.formats import JobFormat
from perstack.ports.storage import Storage
from perstack.recordings.make import RecordingSource, blobs_in, recording_of
from perstack.recordings.model import MAX_BLOB_BYTES, Recording
from perstack.version import VERSION

# One JSON document of a Job, for programs that do not fold logs.

DOCUMENT_FORMAT = 1


async def job_document(storage: Storage, job_summary: JobSummary) -> JsonObject:
    """Return a document with `format`, `job`, `runs`, `checkpoints` and `messages`."""
    checkpoints: list[JsonValue] = []

    def observe(event: StoredEvent, run: Run) -> None:
        checkpoint_id = getattr(event, "checkpoint_id", None)
        if isinstance(checkpoint_id, str) and is_checkpoint(event, checkpoint_id):
            checkpoints.append(_document_of(checkpoint_file(run).model_copy(update={"id": checkpoint_id})))

    loaded_job = await load_job(storage, job_summary.id, observe)
    summary = _document_of(job_summary)
    runs = summary.pop("runs", [])
    messages = {run_id: _document_of(checkpoint_of(run))["messages"] for run_id, run in loaded_job.runs.items()}
    return {
        "format": DOCUMENT_FORMAT,
        "job": summary,
        "runs": runs,
        "checkpoints": checkpoints,
        "messages": dict[str, JsonValue](messages),
    }


async def foreign_files(storage: Storage, job_id: str, job_format: JobFormat) -> Mapping[str, bytes]:
    """Return the files of a Job in the format of another program, by relative path."""
    logs: dict[str, list[StoredEvent]] = {}

    def observe(event: StoredEvent, run: Run) -> None:
        logs.setdefault(run.id, []).append(event)

    # fold first, so that an event that cannot follow is reported with its place
    await load_job(storage, job_id, observe)
    blobs: dict[str, bytes] = {}
    for name in _result_blobs(logs.values()):
        # a lost file is replaced by a text that names it
        with suppress(NotFound):
            blobs[name] = await storage.blob(job_id, name)
    try:
        return job_format.write(logs, blobs)
    except (ValueError, LookupError, ArithmeticError) as error:
        raise StorageError(f"Job {job_id} cannot be written in the format {job_format.name}: {error}") from error


def _result_blobs(logs: Iterable[Iterable[StoredEvent]]) -> frozenset[str]:
    contents = (part for log in logs for event in log for part in event.media)
    return frozenset(part.sha256 for part in contents if isinstance(part, BlobPart))


def _document_of(record: Record) -> JsonObject:
    document: JsonObject = json.loads(record.to_json())
    return document


async def record_job(storage: Storage, job_id: str, env: Mapping[str, str]) -> Recording:
    """Record a Job up to its latest event, without secrets of `env` and texts that look like one. Writes nothing."""
    logs: dict[str, list[StoredEvent]] = {}
    message_counts: dict[str, int] = {}

    def observe(event: StoredEvent, run: Run) -> None:
        logs.setdefault(run.id, []).append(event)
        if isinstance(event, StartGeneration):
            message_counts[event.id] = len(run.messages)

    job = await load_job(storage, job_id, observe)
    if not logs:
        raise UsageError(f"Job {job_id} cannot be recorded: it has not begun")
    source = RecordingSource(
        job_id=job_id,
        status=summarize(job, is_driven=False).status,
        logs=logs,
        statuses={run_id: run.status for run_id, run in job.runs.items()},
        sent=message_counts,
        tools=await _load_tools(storage, job_id, logs.values()),
        blobs=await _load_blobs(storage, job_id, blobs_in(logs.values())),
    )
    # searching a long Job for secrets would block the event loop
    return await asyncio.to_thread(recording_of, source, SecretMasker(known_secrets(env)), VERSION)


async def _load_tools(
    storage: Storage, job_id: str, logs: Iterable[Iterable[StoredEvent]]
) -> dict[str, tuple[JsonObject, ...]]:
    """Return the tools by digest. Tools whose blob is lost are missing, and are played without a description."""
    digests = {event.tools_digest for log in logs for event in log if isinstance(event, StartGeneration)}
    tools_by_digest: dict[str, tuple[JsonObject, ...]] = {}
    for digest in digests - {None}:
        name = tools_blob(digest or "")
        if name is None:
            continue
        try:
            value = read_json(await storage.blob(job_id, name))
        except (NotFound, ValueError):
            continue
        tools = value if isinstance(value, list) else []
        tools_by_digest[digest or ""] = tuple(tool for tool in tools if isinstance(tool, dict))
    return tools_by_digest


async def _load_blobs(storage: Storage, job_id: str, names: Iterable[str]) -> dict[str, bytes]:
    blobs: dict[str, bytes] = {}
    size = 0
    for name in sorted(names):
        try:
            blobs[name] = await storage.blob(job_id, name)
        except NotFound as error:
            message = f"Job {job_id} cannot be recorded: a file of a result, {name[:12]}, is missing"
            raise Damaged(message, readable=0) from error
        size += len(blobs[name])
        if size > MAX_BLOB_BYTES:
            break  # too large already: `recording_of` refuses it
    return blobs


# Operations of a Host that export Jobs.


class JobExports:
    """Exports of Jobs. They change nothing."""

    def __init__(self, source: SetupSource, reader: JobReader) -> None:
        """Export Jobs of the reader's storage, without the secret variables of the context in force."""
        self._source = source
        self._reader = reader

    @property
    def formats(self) -> Collection[str]:
        """The names that plugins give the formats of `export`."""
        return self._source.setup.plugins.formats.keys()

    async def record(self, job_id: str | None = None) -> Recording:
        """Record a Job up to its latest event for the provider `recorded`, without texts that look like secrets.

        Raises NotFound, Damaged, and UsageError for a Job that is too large or has a redacted event.
        """
        return await record_job(self._reader.storage, await self._reader.id_or_latest(job_id), self._source.setup.env)

    async def document(self, job_id: str | None = None) -> JsonObject:
        """Return a Job as one JSON document: `job`, `runs`, `checkpoints`, and each Run's `messages` once."""
        return await job_document(self._reader.storage, await self._reader.job(job_id))

    async def export(self, form: str, job_id: str | None = None) -> Mapping[str, bytes]:
        """Return a Job's files, by relative path, in the format `form` of another program. Raises UsageError."""
        return await foreign_files(
            self._reader.storage, await self._reader.id_or_latest(job_id), self._source.setup.plugins.format(form)
        )
