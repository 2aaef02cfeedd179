"""Record what a queued Job is driven with on any worker: definition, part of perstack.lock, Agent Skills."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import cast

from pydantic import Field, ValidationError

from perstack.agent_skills.bundles import BundledSkill, bundle_skills, check_bundle, unpack_skills
from perstack.agent_skills.library import library_of
from perstack.core.base.records import falsy
from perstack.core.definitions.recorded_definition import SeriesDefinition, without_shared_limits
from perstack.core.definitions.skills import agent_skills
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events.lifecycle import QueueFields, QueueRun
from perstack.core.runs.state import Phase, Run
from perstack.engine.context.host_setup import HostSetup
from perstack.engine.jobs.queueing_protocol import QueueRequest
from perstack.engine.log.run_session import RunSession
from perstack.engine.runs.beginning import ResumedRun, RunStarter
from perstack.engine.runs.job_drive import JobDrive
from perstack.errors import StorageError
from perstack.lockfile.lock import NO_LOCK, Lock
from perstack.ports.storage import Storage

__all__ = ["QueuedDefinition", "check_bundle", "enqueue", "load_definition", "load_queued_context"]


class QueuedDefinition(SeriesDefinition):
    """The parts of a definition that a queued Job needs, recorded so that its worker needs no perstack.toml."""

    lock: Lock | None = None  # the part of perstack.lock for the Experts and their skills; None without one
    agent_skills: tuple[BundledSkill, ...] = Field(default=(), exclude_if=falsy)


async def enqueue(drive: JobDrive, session: RunSession, queue_request: QueueRequest) -> JobSummary:
    """Record the start of a Job or Run, and that it waits for a worker.

    The definition is on disk before the event that names it. Until all is written job.json says that the Job runs.
    """
    run = session.run
    digest = run.definition
    if digest is None and queue_request.definition is not None:
        definition = await _with_files(queue_request.definition, drive)
        digest = await drive.setup.storage.put_blob(drive.job.id, definition.to_json())
    if run.snapshot_due == "before" and run.phase is Phase.READY and run.step == 0:
        session.add(await drive.snapshots.record(run, session.stamp))
    await drive.summary_file.mark_stale()
    fields = QueueFields(by=queue_request.by, definition=digest, due=queue_request.due, priority=queue_request.priority)
    session.add(QueueRun(**session.stamp(), **fields))
    await session.flush()
    for run_id in drive.runs_with_unrecorded_answer:
        await _record_answer_of(drive, drive.runs[run_id])
    await session.write_checkpoint()
    return await drive.summary_file.write(is_driven=False)


async def _record_answer_of(drive: JobDrive, asking_run: Run) -> None:
    """Record the answer to a delegate's question in its log; the Coordinator's says already that the Job continues."""
    parent = asking_run if asking_run.start.delegated_by is None else drive.runs[asking_run.start.delegated_by.run_id]
    session = RunStarter(drive).resume(ResumedRun(asking_run, "parent", parent_rules=parent.permissions))
    await session.flush()
    await session.write_checkpoint()


async def _with_files(definition: SeriesDefinition, drive: JobDrive) -> QueuedDefinition:
    fields = {name: getattr(definition, name) for name in SeriesDefinition.model_fields}
    bundled: tuple[BundledSkill, ...] = ()
    if any(agent_skills(expert.skills) for expert in definition.experts):
        library = library_of(drive.knowledge)
        fields["experts"] = tuple(map(library.without_skipped, definition.experts))
        bundled = await bundle_skills(drive.setup.storage, drive.job.id, library, definition.experts)
    lock = cast("Lock", drive.lock)  # every lock of a Host is of `perstack.lockfile`
    return QueuedDefinition(**fields, lock=lock.of_team(definition.experts), agent_skills=bundled)


async def load_queued_context(setup: HostSetup, job_id: str, digest: str) -> tuple[HostSetup, Lock]:
    """Return the context and lock of a queued Job; unpack its Agent Skills. Raises StorageError, UsageError."""
    definition = await load_definition(setup.storage, job_id, digest)
    unpacked_skills = await unpack_skills(setup.storage, job_id, definition.agent_skills, setup.env)
    return replace(setup.with_recorded(definition), unpacked_skills=unpacked_skills), definition.lock or NO_LOCK


async def load_definition(storage: Storage, job_id: str, digest: str) -> QueuedDefinition:
    """Return the definition that a Job was queued with. Raises StorageError if it is lost, or was changed."""
    data = await storage.blob(job_id, digest)
    if sha256(data).hexdigest() != digest:
        raise StorageError(
            f"Job {job_id}: the definition that it was queued with was changed: restore the blob {digest}"
        )
    try:
        return without_shared_limits(QueuedDefinition.model_validate_json(data))
    except ValidationError as error:
        message = f"Job {job_id}: the definition that it was queued with cannot be read: a newer version wrote it"
        raise StorageError(message) from error
