"""Taking the content of an event out of a log for good."""

from __future__ import annotations

from perstack.core.by import By, cleaned
from perstack.core.chain import Head, open_line, taken_out, without_payload
from perstack.core.events import RedactEvent, StoredEvent
from perstack.core.ids import event_id_of, place_of
from perstack.core.job import summarize
from perstack.core.redaction import Redaction, fields_taken, redaction_of, remains_of
from perstack.engine.clock import SYSTEM
from perstack.engine.derived import derive
from perstack.engine.logs.runs import run_logs
from perstack.engine.who import this_process
from perstack.errors import NotFound, UsageError
from perstack.next_steps import Look
from perstack.ports.clock import Clock
from perstack.ports.storage import KeepsCopies, Redacts, RunRef, Storage


async def redact_event(storage: Storage, event_id: str, *, reason: str, by: By, clock: Clock = SYSTEM) -> Redaction:
    """Take out what a person, a model or a tool wrote in an event, and record who did it and why.

    The `redactEvent` is on disk before the event's line is replaced. If the process ends in between, `verify` names it,
    and the same call again does the rest; one for an event that is redacted only writes the caches anew. They hold
    texts of events too. Blobs stay. Raises NotFound, Damaged, Conflict while the Job is driven, and UsageError for an
    event that has nothing to be taken out, or a storage that cannot do it.
    """
    job_id, run_id, seq = place_of(event_id)
    ref = RunRef(job_id, run_id)
    if not isinstance(storage, Redacts):
        raise UsageError(f"{storage.location}: this storage cannot take anything out of a log")
    if not await storage.has_job(job_id):
        raise NotFound(f"there is no Job {job_id} in {storage.location}")
    async with storage.lease(job_id, f"a redaction ({this_process()})"):
        log = run_logs(storage)
        found = (await log.readable(ref)).whole()
        if found.loaded is None or not 0 < seq <= len(found.lines):
            raise NotFound(f"there is no event {event_id}", next_steps=(Look("log", job_id),))
        line, events = found.lines[seq - 1], [one.event for one in found.lines]
        sealed = open_line(line.line)
        decided = next((one for one in events if isinstance(one, RedactEvent) and one.event_id == event_id), None)
        if decided is None:
            decided = _decision(
                line.event, sealed.digest, events[-1], found.loaded.head, cleaned(reason), by, clock.now()
            )
            await log.append(ref, found.loaded, [decided])
        if taken_out(sealed.payload) is None:
            await storage.redact(ref, seq, without_payload(line.line, line.event.type, event_id))
        await _write_caches(storage, job_id)
    return redaction_of(decided, seq)


def _decision(
    event: StoredEvent, digest: str, last: StoredEvent, head: Head, reason: str, by: By, now: int
) -> RedactEvent:
    """Raises UsageError if there is nothing to take out."""
    fields = fields_taken(event)
    if not fields:
        raise UsageError(f"event {event.id} ({event.type}) has no text that could be taken out")
    return RedactEvent(
        id=event_id_of(event.run_id, head.seq + 1),
        timestamp=now,
        job_id=event.job_id,
        run_id=event.run_id,
        expert_key=last.expert_key,
        step_number=last.step_number,
        event_id=event.id,
        event_type=event.type,
        digest=digest,
        fields=fields,
        remains=remains_of(event),
        by=by,
        reason=reason,
    )


async def _write_caches(storage: Storage, job_id: str) -> None:
    derived = await derive(storage, job_id)
    if isinstance(storage, KeepsCopies):
        for run_id, setting in derived.settings.items():
            await storage.put_run_setting(RunRef(job_id, run_id), setting.to_json())
        for checkpoint_id, file in derived.checkpoints.items():
            await storage.put_checkpoint(job_id, checkpoint_id, file.to_json())
    await storage.put_summary(job_id, summarize(derived.job, is_driven=False).to_json())
