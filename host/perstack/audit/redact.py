"""Redact events: find the copies of a text in a storage, and remove the content of an event from a log for good."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Sequence

from perstack.audit.event_redaction import (
    Redaction,
    check_fields,
    fields_to_blank,
    redaction_of,
    remaining_fields,
    texts_to_blank,
)
from perstack.audit.searched_texts import remove_search_index
from perstack.core.base.chain import BrokenSeal, open_line, read_remains, remove_payload
from perstack.core.base.ids import By, event_id_of, number_of_run, one_plain_line, place_of
from perstack.core.jobs.summary import summarize
from perstack.core.messages.messages import BlobPart
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.generations import StartGeneration
from perstack.core.runs.events.lifecycle import QueueRun, RedactEvent
from perstack.core.runs.request_digest import tools_blob
from perstack.dataclass import dataclass
from perstack.engine.log.delegate_leases_and_stop_requests import DelegateLeases
from perstack.engine.log.event_log import InvalidEvent, job_ids, read_intact, run_ids
from perstack.engine.log.run_log import derive, event_of, run_logs
from perstack.engine.log.storage_access import MAILBOX_SPACES, OWNER_KINDS, space_of
from perstack.errors import NotFound, StorageError, UsageError
from perstack.next_steps import Inspect
from perstack.ports.storage import RunRef, Storage
from perstack.system.clock import SYSTEM, Clock
from perstack.system.user import this_process

_MIN_SEARCHED_CHARACTERS = 4  # minimum characters of a text that is searched for: a shorter one occurs everywhere
_MIN_CONTAINED_CHARACTERS = 8
"""Characters below which a text counts as a copy only if it is the whole text: it occurs in many others."""
_MAX_COPIES = 100
_SNAPSHOT_EVENTS = (b'"type":"recordSnapshot"', b'"type":"startRewind"', b'"type":"finishRewind"')


@dataclass(frozen=True, slots=True)
class Traces:
    """Places in the storage with copies of an event's texts."""

    copies: tuple[str, ...]  # ids of events, or descriptions of places that belong to no Run; at most 100
    blobs: tuple[str, ...]  # blobs of this Job that can be removed too, because no remaining event refers to them


async def traces_of(storage: Storage, event: StoredEvent, fields: Sequence[str] = ()) -> Traces:
    """Search all logs of the storage, and the blobs of the event's Job, for the whole texts of these fields.

    Without `fields`, all texts except settings are searched for. Data that cannot be read is skipped.
    """
    texts = frozenset(text for text in texts_to_blank(event, fields) if len(text) >= _MIN_SEARCHED_CHARACTERS)
    forms = tuple(form for text in texts for form in _json_forms(text))
    copies: list[str] = []
    raw = _search_forms(texts)
    blob_hits: dict[str, bool] = {}
    if forms:
        for job_id in await job_ids(storage):
            copies += await _events_with_copies(storage, job_id, texts, forms, event)
            copies += await _snapshot_copies(storage, job_id, raw, blob_hits)
        for kind in OWNER_KINDS:
            if kind != "job":
                space = space_of(storage, kind)
                for owner_id in await job_ids(space):
                    copies += [f"{kind} {owner_id}, event {seq}" for seq in await _seqs_in_logs(space, owner_id, forms)]
        for name in MAILBOX_SPACES:
            space = storage.space(name)
            copies += [
                f"a text that waits for {mailbox_id}"
                for mailbox_id in await job_ids(space)
                if await _seqs_in_logs(space, mailbox_id, forms)
            ]
    blobs, events_sharing_blobs = await _removable_blobs(storage, event, raw, forms)
    return Traces(tuple(dict.fromkeys((*copies, *events_sharing_blobs)))[:_MAX_COPIES], tuple(blobs))


def _json_forms(text: str) -> tuple[bytes, ...]:
    """Return the bytes of a text in a line of a log: as JSON, and as JSON inside a JSON string."""
    json_text = _json_text(text)
    nested_json_text = _json_text(json_text)
    return (json_text.encode("utf-8", "surrogatepass"), nested_json_text.encode("utf-8", "surrogatepass"))[
        : 1 + (json_text != nested_json_text)
    ]


def _json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


async def _events_with_copies(
    storage: Storage, job_id: str, texts: Iterable[str], forms: Sequence[bytes], event: StoredEvent
) -> list[str]:
    event_ids: list[str] = []
    for run_id in await run_ids(storage, job_id):
        ref = RunRef(job_id, run_id)
        lines, _ = await read_intact(storage, ref)
        for seq in await asyncio.to_thread(_matching_seqs, lines, forms):
            other = _parse_line(ref, seq, lines[seq - 1])
            if other is not None and other.id != event.id and _contains_text(other, texts):
                event_ids.append(event_id_of(run_id, seq))
    return event_ids


async def _seqs_in_logs(storage: Storage, owner_id: str, forms: Sequence[bytes]) -> list[int]:
    seqs: list[int] = []
    for run_id in await run_ids(storage, owner_id):
        lines, _ = await read_intact(storage, RunRef(owner_id, run_id))
        seqs += await asyncio.to_thread(_matching_seqs, lines, forms)
    return seqs


def _matching_seqs(lines: Sequence[bytes], forms: Sequence[bytes]) -> list[int]:
    return [seq for seq, line in enumerate(lines, 1) if any(form in line for form in forms)]


def _contains_text(event: StoredEvent, texts: Iterable[str]) -> bool:
    event_texts = texts_to_blank(event, fields_to_blank(event))
    short_texts = (text for text in texts if len(text) < _MIN_CONTAINED_CHARACTERS)
    long_texts = [text for text in texts if len(text) >= _MIN_CONTAINED_CHARACTERS]
    return not event_texts.isdisjoint(short_texts) or any(
        text in event_text or _json_text(text) in event_text for text in long_texts for event_text in event_texts
    )


def _parse_line(ref: RunRef, seq: int, line: bytes) -> StoredEvent | None:
    try:
        event = event_of(ref, seq, open_line(line).payload)
    except (InvalidEvent, BrokenSeal):
        return None
    return None if isinstance(event, RedactEvent) else event


async def _snapshot_copies(
    storage: Storage, job_id: str, raw: Sequence[bytes], blob_hits: dict[str, bool]
) -> list[str]:
    locations = await _blobs_in_snapshots(storage, job_id) if raw else {}
    for name in locations:
        if name not in blob_hits:
            blob_hits[name] = await _blob_contains(storage, job_id, name, raw)
    return [
        f"the snapshot of {event_id}"
        for event_id in dict.fromkeys(event_id for name, event_id in locations.items() if blob_hits[name])
    ]


async def _blobs_in_snapshots(storage: Storage, job_id: str) -> dict[str, str]:
    """Return the blobs of a Job's snapshots, each with the id of the first event that names it."""
    events: list[StoredEvent] = []
    for run_id in await run_ids(storage, job_id):
        ref = RunRef(job_id, run_id)
        lines, _ = await read_intact(storage, ref)
        parsed = [
            _parse_line(ref, seq, lines[seq - 1])
            for seq in await asyncio.to_thread(_matching_seqs, lines, _SNAPSHOT_EVENTS)
        ]
        events += filter(None, parsed)
    if not events:
        return {}
    from perstack.snapshots.stored_trees import blobs_of_snapshots  # few Jobs have snapshots

    return await blobs_of_snapshots(storage, job_id, events)


def _search_forms(texts: Iterable[str]) -> tuple[bytes, ...]:
    long = [text for text in texts if len(text) >= _MIN_CONTAINED_CHARACTERS]
    return tuple({form for text in long for form in (*_json_forms(text), text.encode("utf-8", "replace"))})


async def _removable_blobs(
    storage: Storage, event: StoredEvent, raw: Sequence[bytes], forms: Sequence[bytes]
) -> tuple[list[str], list[str]]:
    """Return the blobs with the texts that only this event needs, and the ids of events that need the others."""
    referenced_blobs = _referenced_blobs(event)
    written_forms = b"\n".join(forms)
    names: list[str] = []
    for name in await storage.blobs(event.job_id):
        if (
            name in referenced_blobs
            or b"blob:" + name.encode() in written_forms
            or await _blob_contains(storage, event.job_id, name, raw)
        ):
            names.append(name)
    events_by_blob = await _events_by_blob(storage, event, names)
    # Blobs of snapshots stay: without them a file could not be restored.
    for name, snapshot_event_id in (await _blobs_in_snapshots(storage, event.job_id) if names else {}).items():
        if name in names:
            events_by_blob.setdefault(name, []).append(f"the snapshot of {snapshot_event_id}")
    return [name for name in names if name not in events_by_blob], [
        event_id for ids in events_by_blob.values() for event_id in ids
    ]


async def _blob_contains(storage: Storage, job_id: str, name: str, raw: Sequence[bytes]) -> bool:
    try:
        data = await storage.blob(job_id, name)
    except (NotFound, StorageError):
        return False
    return await asyncio.to_thread(lambda: any(text in data for text in raw))


async def _events_by_blob(storage: Storage, event: StoredEvent, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the ids of the Job's other events that refer to these blobs, by blob."""
    event_ids: dict[str, list[str]] = {}
    forms = [name.encode() for name in names]
    for run_id in await run_ids(storage, event.job_id) if names else ():
        ref = RunRef(event.job_id, run_id)
        lines, _ = await read_intact(storage, ref)
        for seq in await asyncio.to_thread(_matching_seqs, lines, forms):
            other = _parse_line(ref, seq, lines[seq - 1])
            if other is not None and other.id != event.id:
                for name in _referenced_blobs(other).intersection(names):
                    event_ids.setdefault(name, []).append(other.id)
    return event_ids


def _referenced_blobs(event: StoredEvent) -> frozenset[str]:
    match event:
        case QueueRun() if event.definition is not None:
            return frozenset((event.definition,))
        case StartGeneration() if event.tools_digest is not None:
            return frozenset(filter(None, (tools_blob(event.tools_digest),)))
        case _:
            return frozenset(part.sha256 for part in event.media if isinstance(part, BlobPart))


# Redaction.


async def redact_event(
    storage: Storage, event_id: str, *, fields: Sequence[str] = (), reason: str, by: By, clock: Clock = SYSTEM
) -> Redaction:
    """Remove what a person, a model or a tool wrote in an event; record who did it, why, and where copies are.

    The order is: append `redactEvent`, replace the event's line, remove the blobs that only this event needs, rewrite
    the caches, and let the storage erase remains. If the process dies in between, `verify` reports it, and repeating
    the call completes it.

    Raises NotFound, Damaged, Conflict while the Job is driven, and UsageError for an event or field without text, or an
    event that another program wrote.
    """
    job_id, run_id, seq = place_of(event_id)
    ref = RunRef(job_id, run_id)
    if not await storage.has_job(job_id):
        raise NotFound(f"there is no Job {job_id} in {storage.location}")
    if run_id in await storage.unsealed_runs(job_id):
        raise UsageError(f"{run_id} was written by another program, in whose files its content would stay")
    holder, delegate_ids = f"a redaction ({this_process()})", () if number_of_run(run_id) == 1 else (run_id,)
    async with storage.lease(job_id, holder), DelegateLeases(storage).lease_all_idle(job_id, holder, delegate_ids):
        log = run_logs(storage)
        readable_log = (await log.read_intact(ref)).or_raise()
        if readable_log.loaded is None or not 0 < seq <= len(readable_log.lines):
            raise NotFound(f"there is no event {event_id}", next_steps=(Inspect("log", job_id),))
        line, events = readable_log.lines[seq - 1], [stored.event for stored in readable_log.lines]
        sealed = open_line(line.line)
        redactions = (event for event in events if isinstance(event, RedactEvent) and event.event_id == event_id)
        if (redaction_event := next(redactions, None)) is None:
            checked_fields = check_fields(line.event, fields)
            traces = await traces_of(storage, line.event, fields)
            redaction_event = RedactEvent(
                id=event_id_of(run_id, readable_log.loaded.head.seq + 1),
                timestamp=clock.now(),
                job_id=job_id,
                run_id=run_id,
                expert_key=events[-1].expert_key,
                step_number=events[-1].step_number,
                event_id=event_id,
                event_type=line.event.type,
                digest=sealed.digest,
                fields=checked_fields,
                remains=remaining_fields(line.event),
                blobs=traces.blobs,
                copies=traces.copies,
                by=by,
                reason=one_plain_line(reason),
            )
            await log.append(ref, readable_log.loaded, [redaction_event])
        if read_remains(sealed.payload) is None:
            await storage.redact(ref, seq, remove_payload(line.line, line.event.type, event_id))
        await _clean_up(storage, job_id, redaction_event)
    return redaction_of(redaction_event, seq)


async def _clean_up(storage: Storage, job_id: str, redaction_event: RedactEvent) -> None:
    """Remove the redacted content outside of the log: blobs, caches, the search index, remains in the storage."""
    for name in redaction_event.blobs:
        await storage.remove_blob(job_id, name)
    await _rewrite_caches(storage, job_id)
    remove_search_index(storage.location, os.environ)
    await storage.erase_traces(job_id)


async def _rewrite_caches(storage: Storage, job_id: str) -> None:
    derived = await derive(storage, job_id)
    if storage.keeps_copies:
        for run_id, setting in derived.settings.items():
            await storage.put_run_setting(RunRef(job_id, run_id), setting.to_json())
        for checkpoint_id, file in derived.checkpoints.items():
            await storage.put_checkpoint(job_id, checkpoint_id, file.to_json())
    await storage.put_summary(job_id, summarize(derived.job, is_driven=False).to_json())
