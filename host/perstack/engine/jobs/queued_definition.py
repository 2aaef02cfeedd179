"""Record what a queued Job is driven with on any worker: definition, part of perstack.lock, Agent Skills."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from pydantic import Field, ValidationError

from perstack.config.lock import NO_LOCK, Lock
from perstack.core.base.actor import By
from perstack.core.base.records import falsy
from perstack.core.definitions.recorded_definition import SeriesDefinition, for_queued
from perstack.core.definitions.skills import agent_skills
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import QueueFields, QueueRun
from perstack.core.runs.state import Phase, Run
from perstack.dataclass import dataclass
from perstack.engine.context.host_context import Setup
from perstack.engine.log.run_session import RunSession
from perstack.engine.plugins.skill_bundles import BundledSkill, bundle_skills, unpack_skills
from perstack.engine.runs.job_context import Wiring
from perstack.engine.runs.loop import Driver
from perstack.errors import StorageError
from perstack.ports.storage import Storage


class QueuedDefinition(SeriesDefinition):
    """Everything from the definition that a queued Job is driven with, so that its worker needs none of it."""

    lock: Lock | None = None
    """The part of perstack.lock for the Experts and their skills; None without one."""
    agent_skills: tuple[BundledSkill, ...] = Field(default=(), exclude_if=falsy)


@dataclass(frozen=True, slots=True)
class Queueing:
    """How a Job is queued for a worker instead of being driven."""

    by: By
    definition: SeriesDefinition | None = None
    """The definition to record, unless the Job has one already; None to use the worker's own."""
    due: int = 0
    priority: int = 0


async def leave_to_a_worker(
    driver: Driver, wiring: Wiring, session: RunSession, queueing: Queueing, lock: Lock
) -> JobSummary:
    """Record the start of a Job or Run, and that it waits for a worker.

    The definition, and the Agent Skills that it names, are on disk before the event that names it. Until all is written
    job.json says that the Job runs, so that readers read the logs.
    """
    run = session.run
    digest = run.definition
    if digest is None and queueing.definition is not None:
        definition = await _with_files(queueing.definition, driver.job.id, wiring, lock)
        digest = await wiring.storage.put_blob(driver.job.id, definition.to_json())
    if run.snapshot_due == "before" and run.phase is Phase.READY and run.step == 0:
        session.record(await wiring.snapshots.record(run, session.stamp))
    await driver.kept.write(is_driven=True)
    how = QueueFields(by=queueing.by, definition=digest, due=queueing.due, priority=queueing.priority)
    session.record(QueueRun(**session.stamp(), **how))
    await session.flush()
    for run_id in tuple(driver.answers):
        await _record_answer_of(driver, driver.runs[run_id])
    await session.write_checkpoint()
    return await driver.kept.write(is_driven=False)


async def _record_answer_of(driver: Driver, asks: Run) -> None:
    """Record the answer to a delegate's question in the delegate's log.

    The Coordinator's log says already that the Job continues.
    """
    parent = asks if asks.start.delegated_by is None else driver.runs[asks.start.delegated_by.run_id]
    session = driver.take_up(asks, "parent", above=parent.permissions)
    await session.flush()
    await session.write_checkpoint()


async def _with_files(definition: SeriesDefinition, job_id: str, wiring: Wiring, lock: Lock) -> QueuedDefinition:
    """Add the contents of files beside perstack.toml to the definition: the lock and Agent Skills."""
    known = {name: getattr(definition, name) for name in SeriesDefinition.model_fields}
    carried: tuple[BundledSkill, ...] = ()
    if any(agent_skills(expert.skills) for expert in definition.experts):
        carried = await bundle_skills(wiring.storage, job_id, wiring.knowledge, definition.experts)
    return QueuedDefinition(**known, lock=lock.of_team(definition.experts), agent_skills=carried)


async def as_queued(setup: Setup, job_id: str, digest: str) -> tuple[Setup, Lock]:
    """Return the setup and lock that a Job was queued with, its Agent Skills unpacked on this machine.

    Raises StorageError, and UsageError if the skills cannot be written.
    """
    definition = await definition_kept(setup.storage, job_id, digest)
    laid_out = await unpack_skills(setup.storage, job_id, definition.agent_skills, setup.env)
    return replace(setup.under(definition), laid_out=laid_out), definition.lock or NO_LOCK


async def definition_kept(storage: Storage, job_id: str, digest: str) -> QueuedDefinition:
    """Return the definition that a Job was queued with. Raises StorageError if it is lost, or was changed."""
    data = await storage.blob(job_id, digest)
    if sha256(data).hexdigest() != digest:
        raise StorageError(f"Job {job_id}: the definition that it was queued with was changed: put {digest} back")
    try:
        return for_queued(QueuedDefinition.model_validate_json(data))
    except ValidationError as error:
        words = f"Job {job_id}: the definition that it was queued with does not read: a newer version has written it"
        raise StorageError(words) from error
