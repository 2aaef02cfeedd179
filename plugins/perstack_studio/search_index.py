"""The full-text index of the events of all Jobs: SQLite FTS5, in the user's cache directory.

The logs are the truth, and the index is a cache: it may be removed at any time, and is made again if it is damaged or
of another version. A search first catches up with what was recorded since, for a bounded time. It drops the Jobs that
were deleted, and indexes a Job with a new redaction again, without the redacted events. `perstack.audit.redact` removes
the file itself, so that a redacted text does not stay in it until the next search.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from perstack.core.base.chain import BrokenSeal, open_line, read_remains
from perstack.core.base.ids import place_of
from perstack.core.messages.messages import ProviderToolPart, TextPart, ThinkingPart, ToolCallPart, text_of
from perstack.core.runs import events
from perstack.core.runs.log_rows import EventContext
from perstack.dataclass import dataclass
from perstack.doors.shared.text import minute
from perstack.engine.log.event_log import read_intact, run_ids
from perstack.errors import PerstackError, StorageError
from perstack.ports.storage import RunRef, Storage
from perstack.system.concurrency import shield_until_done

_SCHEMA = 1
_TABLES = """
CREATE TABLE jobs (job TEXT PRIMARY KEY, summary TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE logs (job TEXT, run TEXT, seq INTEGER NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (job, run)) WITHOUT ROWID;
CREATE TABLE places (id INTEGER PRIMARY KEY, job TEXT, run TEXT, seq INTEGER, step INTEGER, at INTEGER, type TEXT);
CREATE INDEX places_of_jobs ON places (job);
CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2');
"""
CATCH_UP_S = 1.5  # maximum seconds that one search spends on indexing
_EVENTS_PER_READ = 500
_MAX_TEXT_CHARS = 20_000  # maximum indexed characters of one event
_MAX_WORDS = 12
_OPEN, _CLOSE = "\x02", "\x03"  # marks around a match in a snippet
MAX_RESULTS = 50

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoundEvent:
    """An event that a search has found."""

    job_id: str
    run_id: str
    seq: int
    step: int
    at: int  # milliseconds since 1970
    type: str
    snippet: tuple[tuple[bool, str], ...]  # parts of the text; True for a match


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Events that a search has found, and whether the index was complete."""

    events: tuple[FoundEvent, ...]
    missing_jobs: int  # number of Jobs that are not completely indexed yet


@dataclass(slots=True)
class SearchIndex:
    """The index of a storage's Jobs. One search at a time; its SQL runs in a thread."""

    storage: Storage
    path: Path
    catch_up_s: float = CATCH_UP_S
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def search(self, words: str) -> SearchResult:
        """Bring the index up to date, then return the events with all words, best first. Raises StorageError."""
        async with self._lock:
            try:
                try:
                    return await self._search(_fts_query(words))
                except sqlite3.DatabaseError:
                    self.path.unlink(missing_ok=True)  # the index is damaged or of another version
                    return await self._search(_fts_query(words))
            except (sqlite3.Error, OSError) as error:
                raise StorageError(f"{self.path}: the index of the search cannot be used: {error}") from error

    async def _search(self, query: str) -> SearchResult:
        missing = await self._catch_up()
        found = await self._run_sql(lambda connection: _find_events(connection, query)) if query else []
        return SearchResult(tuple(found), missing)

    async def _run_sql(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a thread, in one transaction."""

        def run() -> T:
            with closing(self._open()) as connection, connection:
                return work(connection)

        return await shield_until_done(asyncio.to_thread(run))

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, timeout=10)
        try:
            # Deleted texts must not stay on disk. A crash may damage the index, which is then made again.
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA journal_mode = MEMORY")
            connection.execute("PRAGMA synchronous = OFF")
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
            if schema not in (0, _SCHEMA):
                raise sqlite3.DatabaseError("the index is of another version")
            if schema == 0:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_SCHEMA}; COMMIT;")
        except BaseException:
            connection.close()
            raise
        return connection

    async def _catch_up(self) -> int:
        """Index the events recorded since the last search. Return the number of Jobs that are not complete yet."""
        deadline = time.monotonic() + self.catch_up_s
        summaries = await self.storage.summaries()
        digests = await asyncio.to_thread(_digests, summaries)
        indexed = await self._run_sql(lambda connection: dict(connection.execute("SELECT job, summary FROM jobs")))
        deleted = [job_id for job_id in indexed if job_id not in summaries]
        if deleted:
            await self._run_sql(partial(_remove_jobs, job_ids=deleted))
        changed = [job_id for job_id, digest in digests.items() if indexed.get(job_id) != digest or not digest]
        for number, job_id in enumerate(changed):
            if time.monotonic() >= deadline:
                return len(changed) - number
            with suppress(PerstackError):  # a damaged or deleted Job: its readable part stays indexed
                if not await self._index_job(job_id, digests[job_id], deadline):
                    return len(changed) - number
        return 0

    async def _index_job(self, job_id: str, digest: str, deadline: float) -> bool:
        """Index the new events of a Job until the monotonic time `deadline`. Return whether all are indexed."""
        ends: dict[str, int] = {}
        for run_id in await run_ids(self.storage, job_id):
            ref = RunRef(job_id, run_id)
            seq, last_hash = await self._run_sql(partial(_indexed_end, ref=ref))
            while True:
                if time.monotonic() >= deadline:
                    return False
                lines, _ = await read_intact(self.storage, ref, max(0, seq - 1), _EVENTS_PER_READ)
                is_same = seq == 0 or (bool(lines) and open_line(lines[0]).hash == last_hash)
                new_lines = lines[1:] if seq and is_same else lines
                if not is_same or (seq and any(map(_is_redaction, new_lines))):
                    await self._run_sql(partial(_remove_jobs, job_ids=[job_id]))
                    return await self._index_job(job_id, digest, deadline)
                if not new_lines:
                    break
                redacted = await self._redacted_places(ref) if seq == 0 else frozenset[int]()
                rows = await asyncio.to_thread(_make_rows, ref, seq + 1, new_lines, redacted)
                end = (seq + len(new_lines), open_line(new_lines[-1]).hash)
                if not await self._run_sql(partial(_insert_rows, ref=ref, start=seq, rows=rows, end=end)):
                    return False
                seq, last_hash = end
            ends[run_id] = seq
        return await self._run_sql(partial(_mark_complete, job_id=job_id, digest=digest, ends=ends))

    async def _redacted_places(self, ref: RunRef) -> frozenset[int]:
        """Return the places whose redaction is recorded: the line itself may still have its text for a moment."""
        lines, _ = await read_intact(self.storage, ref)
        return await asyncio.to_thread(_redacted_places_in, lines)


def _digests(summaries: Mapping[str, bytes]) -> dict[str, str]:
    return {job_id: sha256(data).hexdigest() if data else "" for job_id, data in summaries.items()}


def _is_redaction(line: bytes) -> bool:
    return line.startswith(b'{"type":"redactEvent"')


def _redacted_places_in(lines: Iterable[bytes]) -> frozenset[int]:
    redactions = (_parse_event(line) for line in lines if _is_redaction(line))
    return frozenset(place_of(event.event_id)[2] for event in redactions if isinstance(event, events.RedactEvent))


def _parse_event(line: bytes) -> events.StoredEvent | None:
    """Return the event of a line; None for a redacted one, and for one that this version cannot read."""
    with suppress(ValueError, BrokenSeal):
        payload = open_line(line).payload
        return None if read_remains(payload) is not None else events.parse_event(payload)
    return None


_Row = tuple[str, int, int, int, str]  # text, place, step, time, type


def _make_rows(ref: RunRef, first: int, lines: Sequence[bytes], redacted: frozenset[int]) -> list[_Row]:
    rows: list[_Row] = []
    for seq, line in enumerate(lines, first):
        event = None if seq in redacted else _parse_event(line)
        text = "" if event is None else " ".join(filter(None, texts_of(event))).strip()[:_MAX_TEXT_CHARS]
        if event is not None and text:
            clean = text.replace(_OPEN, "").replace(_CLOSE, "")
            rows.append((clean.encode(errors="replace").decode(), seq, event.step_number, event.timestamp, event.type))
    return rows


def texts_of(event: events.StoredEvent) -> Iterable[str]:
    """Yield the searchable texts of an event."""
    match event:
        case events.StartRun():
            yield event.query
        case events.FinishGeneration():
            for part in event.message.contents:
                match part:
                    case ThinkingPart():
                        yield part.thinking
                    case TextPart():
                        yield part.text
                    case ToolCallPart():
                        args = part.raw_args or json.dumps(part.args, ensure_ascii=False)
                        yield f"{part.tool_name} {args}"
                    case ProviderToolPart():
                        yield f"{part.tool_name} {part.result}"
                    case _:
                        pass
        case events.FinishToolCall():
            yield text_of(event.contents)
        case events.FinishRun():
            yield event.text
        case _:
            with suppress(ValueError, LookupError):
                yield from (row.text for row in event.describe(EventContext({}, minute)) if row.item is None)


def _fts_query(words: str) -> str:
    """Return an FTS5 query for all words as they are written; the last word may be the beginning of a longer one."""
    parts = words.replace("\0", " ").split()  # SQLite reads a query up to its first NUL
    quoted = ['"{}"'.format(word.replace('"', '""')) for word in parts[:_MAX_WORDS] if any(map(str.isalnum, word))]
    return " ".join(quoted) + "*" if quoted else ""


# SQL statements; each function runs in a thread.


def _indexed_end(connection: sqlite3.Connection, ref: RunRef) -> tuple[int, str]:
    row = connection.execute("SELECT seq, hash FROM logs WHERE job = ? AND run = ?", ref).fetchone()
    return (0, "") if row is None else (int(row[0]), str(row[1]))


def _insert_rows(
    connection: sqlite3.Connection, ref: RunRef, start: int, rows: Iterable[_Row], end: tuple[int, str]
) -> bool:
    """Add the rows after the place `start`. Return False if the index ends at another place.

    It does if a redaction has removed the file, or another studio has added to it.
    """
    if _indexed_end(connection, ref)[0] != start:
        return False
    for text, *place in rows:
        row_id = connection.execute("INSERT INTO texts (text) VALUES (?)", (text,)).lastrowid
        connection.execute("INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?)", (row_id, *ref, *place))
    connection.execute("INSERT OR REPLACE INTO logs VALUES (?, ?, ?, ?)", (*ref, *end))
    return True


def _mark_complete(connection: sqlite3.Connection, job_id: str, digest: str, ends: Mapping[str, int]) -> bool:
    """Record that a Job is indexed up to `ends`, the last place of each Run. Return False if it is not."""
    if any(_indexed_end(connection, RunRef(job_id, run_id))[0] != seq for run_id, seq in ends.items()):
        return False
    connection.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (job_id, digest))
    return True


def _remove_jobs(connection: sqlite3.Connection, job_ids: Iterable[str]) -> None:
    """Remove Jobs, and merge the segments of the index, which would otherwise keep the removed words."""
    for job_id in job_ids:
        connection.execute("DELETE FROM texts WHERE rowid IN (SELECT id FROM places WHERE job = ?)", (job_id,))
        for table in ("places", "logs", "jobs"):
            connection.execute(f"DELETE FROM {table} WHERE job = ?", (job_id,))  # noqa: S608 - of these three
    connection.execute("INSERT INTO texts (texts) VALUES ('optimize')")


def _find_events(connection: sqlite3.Connection, query: str) -> list[FoundEvent]:
    rows = connection.execute(
        "SELECT job, run, seq, step, at, type, snippet(texts, 0, ?, ?, '…', 24)"
        " FROM texts JOIN places ON id = texts.rowid WHERE texts MATCH ? ORDER BY rank LIMIT ?",
        (_OPEN, _CLOSE, query, MAX_RESULTS),
    )
    return [
        FoundEvent(job_id, run_id, seq, step, at, event_type, _split_snippet(snippet))
        for job_id, run_id, seq, step, at, event_type, snippet in rows
    ]


def _split_snippet(snippet: str) -> tuple[tuple[bool, str], ...]:
    parts: list[tuple[bool, str]] = []
    for piece in snippet.split(_OPEN):
        match, has_match, rest = piece.partition(_CLOSE)
        parts += [(True, match), (False, rest)] if has_match else [(False, match)]
    return tuple((is_match, text) for is_match, text in parts if text)
