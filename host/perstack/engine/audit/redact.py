"""Where in a storage a text stands that is to be taken out: in which events, and in which blobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence

from perstack.core.chain import BrokenSeal, open_line
from perstack.core.digests import tools_blob
from perstack.core.events import QueueRun, RedactEvent, StartGeneration, StoredEvent, contents_of
from perstack.core.ids import event_id_of
from perstack.core.messages import BlobPart
from perstack.core.redaction import fields_taken, texts_taken
from perstack.dataclass import dataclass
from perstack.engine.logs.damage import BadEvent
from perstack.engine.logs.lines import readable, run_ids
from perstack.engine.logs.runs import event_of
from perstack.engine.pages import every_id
from perstack.engine.spaces import SCHEDULE_SPACE, SERIES_SPACE, TASK_SPACE
from perstack.errors import NotFound, StorageError
from perstack.ports.storage import Erases, RunRef, Storage

_PAGE = 1000
_SHORTEST = 4
"""A text of fewer characters stands everywhere."""
_SHORT = 8
"""One of fewer stands in many others: only where it is all of a text it is a copy."""
_MOST = 100
"""How many places are named."""
_SNAPSHOTS = (b'"type":"recordSnapshot"', b'"type":"startRewind"', b'"type":"finishRewind"')
"""What is in the lines of events that name a tree."""
_WORDS = {TASK_SPACE: "task", SERIES_SPACE: "iterations", SCHEDULE_SPACE: "schedule"}


@dataclass(frozen=True, slots=True)
class Traces:
    """Where the texts of an event stand besides."""

    copies: tuple[str, ...]
    """The ids of events, or words for what is none of a Run: 100 at most."""
    blobs: tuple[str, ...]
    """The blobs of the same Job that can go with it: nothing that stays refers to them."""


async def traces_of(storage: Storage, event: StoredEvent, fields: Sequence[str] = ()) -> Traces:
    """Look through all logs of the storage, and the blobs of the event's Job, for the texts of these fields; of all but
    settings if none is named. Whole texts are looked for: one that was quoted in part is not found. What does not read
    is passed over."""
    texts = frozenset(text for text in texts_taken(event, fields) if len(text) >= _SHORTEST)
    forms = tuple(form for text in texts for form in _forms(text))
    found: list[str] = []
    raw = _raw(texts)
    looked: dict[str, bool] = {}
    if forms:
        for job_id in await _every_job(storage):
            found += await _in_job(storage, job_id, texts, forms, event)
            found += await _in_snapshots(storage, job_id, raw, looked)
        for name, word in _WORDS.items():
            space = storage.space(name)
            for of in await _every_job(space):
                found += [f"{word} {of}, event {seq}" for seq in await _places(space, of, forms)]
    blobs, shared = await _blobs(storage, event, raw, forms)
    return Traces(tuple(dict.fromkeys((*found, *shared)))[:_MOST], tuple(blobs))


def _forms(text: str) -> tuple[bytes, ...]:
    """As it may stand in a line: as JSON, and as JSON in a text of JSON."""
    once = _quoted(text)
    twice = _quoted(once)
    return (once.encode("utf-8", "surrogatepass"), twice.encode("utf-8", "surrogatepass"))[: 1 + (once != twice)]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


async def _every_job(storage: Storage) -> list[str]:
    return await every_id(lambda after: storage.jobs(limit=_PAGE, after=after))


async def _in_job(
    storage: Storage, job_id: str, texts: Iterable[str], forms: Sequence[bytes], event: StoredEvent
) -> list[str]:
    found: list[str] = []
    for run_id in await run_ids(storage, job_id):
        ref = RunRef(job_id, run_id)
        lines, _ = await readable(storage, ref)
        for seq in await asyncio.to_thread(_having, lines, forms):
            other = _parsed(ref, seq, lines[seq - 1])
            if other is not None and other.id != event.id and _repeats(other, texts):
                found.append(event_id_of(run_id, seq))
    return found


async def _places(space: Storage, of: str, forms: Sequence[bytes]) -> list[int]:
    found: list[int] = []
    for run_id in await run_ids(space, of):
        lines, _ = await readable(space, RunRef(of, run_id))
        found += await asyncio.to_thread(_having, lines, forms)
    return found


def _having(lines: Sequence[bytes], forms: Sequence[bytes]) -> list[int]:
    return [seq for seq, line in enumerate(lines, 1) if any(form in line for form in forms)]


def _repeats(event: StoredEvent, texts: Iterable[str]) -> bool:
    """Whether a text stands where it could be taken out of this event, and is not a name only."""
    own = texts_taken(event, fields_taken(event))
    whole = (text for text in texts if len(text) < _SHORT)
    within = [text for text in texts if len(text) >= _SHORT]
    return not own.isdisjoint(whole) or any(text in one or _quoted(text) in one for text in within for one in own)


def _parsed(ref: RunRef, seq: int, line: bytes) -> StoredEvent | None:
    try:
        event = event_of(ref, seq, open_line(line).payload)
    except (BadEvent, BrokenSeal):
        return None
    return None if isinstance(event, RedactEvent) else event


async def _in_snapshots(storage: Storage, job_id: str, raw: Sequence[bytes], looked: dict[str, bool]) -> list[str]:
    """The snapshots of a Job that have files, or names of files, with a text in them. `looked` is what is known of
    blobs: Jobs share them."""
    held = await _held(storage, job_id) if raw else {}
    for name in held:
        if name not in looked:
            looked[name] = await _has(storage, job_id, name, raw)
    return [f"the snapshot of {at}" for at in dict.fromkeys(at for name, at in held.items() if looked[name])]


async def _held(storage: Storage, job_id: str) -> dict[str, str]:
    """The blobs that a Job's snapshots are made of, each with the event of the first that has it."""
    events: list[StoredEvent] = []
    for run_id in await run_ids(storage, job_id):
        ref = RunRef(job_id, run_id)
        lines, _ = await readable(storage, ref)
        parsed = [_parsed(ref, seq, lines[seq - 1]) for seq in await asyncio.to_thread(_having, lines, _SNAPSHOTS)]
        events += filter(None, parsed)
    if not events:
        return {}
    from perstack.engine.snapshots.held import held_by_snapshots  # few Jobs have snapshots

    return await held_by_snapshots(storage, job_id, events)


def _raw(texts: Iterable[str]) -> tuple[bytes, ...]:
    """Long texts as they may stand in a file."""
    long = [text for text in texts if len(text) >= _SHORT]
    return tuple({form for text in long for form in (*_forms(text), text.encode("utf-8", "replace"))})


async def _blobs(
    storage: Storage, event: StoredEvent, raw: Sequence[bytes], forms: Sequence[bytes]
) -> tuple[list[str], list[str]]:
    """The blobs that can go, and the ids of the events that keep others which have the same in them."""
    if not isinstance(storage, Erases):
        return [], []
    named = _refers_to(event)
    mentioned = b"\n".join(forms)
    names: list[str] = []
    for name in await storage.blobs(event.job_id):
        if name in named or b"blob:" + name.encode() in mentioned or await _has(storage, event.job_id, name, raw):
            names.append(name)
    users = await _users(storage, event, names)
    # what a snapshot is made of stays: without it nothing of that file could be taken back
    for name, at in (await _held(storage, event.job_id) if names else {}).items():
        if name in names:
            users.setdefault(name, []).append(f"the snapshot of {at}")
    return [name for name in names if name not in users], [one for ids in users.values() for one in ids]


async def _has(storage: Storage, job_id: str, name: str, raw: Sequence[bytes]) -> bool:
    try:
        data = await storage.blob(job_id, name)
    except (NotFound, StorageError):
        return False
    return await asyncio.to_thread(lambda: any(text in data for text in raw))


async def _users(storage: Storage, event: StoredEvent, names: Sequence[str]) -> dict[str, list[str]]:
    """Of each blob the other events of the Job whose own content it is; a result that shrank only names its own."""
    found: dict[str, list[str]] = {}
    forms = [name.encode() for name in names]
    for run_id in await run_ids(storage, event.job_id) if names else ():
        ref = RunRef(event.job_id, run_id)
        lines, _ = await readable(storage, ref)
        for seq in await asyncio.to_thread(_having, lines, forms):
            other = _parsed(ref, seq, lines[seq - 1])
            if other is not None and other.id != event.id:
                for name in _refers_to(other).intersection(names):
                    found.setdefault(name, []).append(other.id)
    return found


def _refers_to(event: StoredEvent) -> frozenset[str]:
    """The blobs that are content of an event, or the tools that a model was offered."""
    match event:
        case QueueRun() if event.definition is not None:
            return frozenset((event.definition,))
        case StartGeneration() if event.tools_digest is not None:
            return frozenset(filter(None, (tools_blob(event.tools_digest),)))
        case _:
            return frozenset(part.sha256 for part in contents_of(event) if isinstance(part, BlobPart))
