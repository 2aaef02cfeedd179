"""Taking the content of an event out of a log for good."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.by import By, cleaned
from perstack.core.chain import open_line, taken_out, without_payload
from perstack.core.events import RedactEvent
from perstack.core.ids import event_id_of, number_of_run, place_of
from perstack.core.job import summarize
from perstack.core.redaction import Redaction, check_fields, redaction_of, remains_of
from perstack.engine.clock import SYSTEM
from perstack.engine.derived import derive
from perstack.engine.elsewhere.holding import Holders
from perstack.engine.logs.runs import run_logs
from perstack.engine.traces import traces_of
from perstack.engine.who import this_process
from perstack.errors import NotFound, UsageError
from perstack.next_steps import Look
from perstack.ports.clock import Clock
from perstack.ports.formats import ShowsForeign
from perstack.ports.storage import Erases, KeepsCopies, Redacts, RunRef, Storage


async def redact_event(
    storage: Storage, event_id: str, *, fields: Sequence[str] = (), reason: str, by: By, clock: Clock = SYSTEM
) -> Redaction:
    """Take out what a person, a model or a tool wrote in an event, and record who did it, why, and where else it stood.

    `fields` are those that are meant; all texts of the event go with them. The `redactEvent` is on disk before the
    event's line is replaced; then the blobs go that only this event needs, the caches are written anew, for they hold
    texts of events too, and the storage erases what is left on its medium. If the process ends in between, `verify`
    names it, and the same call again does the rest; one for an event that is redacted only repeats the last two.
    Raises NotFound, Damaged, Conflict while the Job is driven, and UsageError for a field that has no text, an event
    that has none, one that another program wrote, or a storage that cannot do it.
    """
    job_id, run_id, seq = place_of(event_id)
    ref = RunRef(job_id, run_id)
    if not isinstance(storage, Redacts):
        raise UsageError(f"{storage.location}: this storage cannot take anything out of a log")
    if not await storage.has_job(job_id):
        raise NotFound(f"there is no Job {job_id} in {storage.location}")
    if isinstance(storage, ShowsForeign) and run_id in await storage.unsealed_runs(job_id):
        raise UsageError(f"{run_id} was written by another program, in whose files its content would stay")
    holder, apart = f"a redaction ({this_process()})", () if number_of_run(run_id) == 1 else (run_id,)
    async with storage.lease(job_id, holder), Holders(storage).none_driven(job_id, holder, apart):
        log = run_logs(storage)
        found = (await log.readable(ref)).whole()
        if found.loaded is None or not 0 < seq <= len(found.lines):
            raise NotFound(f"there is no event {event_id}", next_steps=(Look("log", job_id),))
        line, events = found.lines[seq - 1], [one.event for one in found.lines]
        sealed = open_line(line.line)
        decided = next((one for one in events if isinstance(one, RedactEvent) and one.event_id == event_id), None)
        if decided is None:
            taken = check_fields(line.event, fields)
            traces = await traces_of(storage, line.event, fields)
            decided = RedactEvent(
                id=event_id_of(run_id, found.loaded.head.seq + 1),
                timestamp=clock.now(),
                job_id=job_id,
                run_id=run_id,
                expert_key=events[-1].expert_key,
                step_number=events[-1].step_number,
                event_id=event_id,
                event_type=line.event.type,
                digest=sealed.digest,
                fields=taken,
                remains=remains_of(line.event),
                blobs=traces.blobs,
                copies=traces.copies,
                by=by,
                reason=cleaned(reason),
            )
            await log.append(ref, found.loaded, [decided])
        if taken_out(sealed.payload) is None:
            await storage.redact(ref, seq, without_payload(line.line, line.event.type, event_id))
        await _clean_up(storage, job_id, decided)
    return redaction_of(decided, seq)


async def _clean_up(storage: Storage, job_id: str, decided: RedactEvent) -> None:
    if isinstance(storage, Erases):
        for name in decided.blobs:
            await storage.remove_blob(job_id, name)
    await _write_caches(storage, job_id)
    if isinstance(storage, Erases):
        await storage.erase_traces(job_id)


async def _write_caches(storage: Storage, job_id: str) -> None:
    derived = await derive(storage, job_id)
    if isinstance(storage, KeepsCopies):
        for run_id, setting in derived.settings.items():
            await storage.put_run_setting(RunRef(job_id, run_id), setting.to_json())
        for checkpoint_id, file in derived.checkpoints.items():
            await storage.put_checkpoint(job_id, checkpoint_id, file.to_json())
    await storage.put_summary(job_id, summarize(derived.job, is_driven=False).to_json())
