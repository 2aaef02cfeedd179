"""Blobs that Jobs share: each content once, and which Jobs have it. What no Job has any more goes in the same
transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import sha256 as new_sha256

_SINCE = 4
"""The version of the file that has these tables first; an older one may be there to be read only."""


def put_shared(db: sqlite3.Connection, job: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
    """Keep them for a Job; returns their names."""
    names = tuple(new_sha256(data).hexdigest() for data in blobs)
    db.executemany("INSERT OR IGNORE INTO contents VALUES (?, ?)", zip(names, blobs, strict=True))
    db.executemany("INSERT OR IGNORE INTO shared VALUES (?, ?)", ((job, name) for name in names))
    return names


def shared_blob(db: sqlite3.Connection | None, job: str, name: str) -> bytes | None:
    """What a Job has of that name; None if it has none."""
    if db is None or not _has_tables(db):
        return None
    query = "SELECT data FROM shared JOIN contents USING (sha256) WHERE job_id = ? AND sha256 = ?"
    row = db.execute(query, (job, name)).fetchone()
    return None if row is None else bytes(row[0])


def shared_names(db: sqlite3.Connection, job: str) -> tuple[str, ...]:
    """The names of a Job's."""
    if not _has_tables(db):
        return ()
    return tuple(str(name) for (name,) in db.execute("SELECT sha256 FROM shared WHERE job_id = ?", (job,)))


def drop_shared(db: sqlite3.Connection, job: str, names: Iterable[str]) -> None:
    """A Job has those no more, and nobody what only it had."""
    for name in names:
        db.execute("DELETE FROM shared WHERE job_id = ? AND sha256 = ?", (job, name))
        db.execute(
            "DELETE FROM contents WHERE sha256 = ?1 AND NOT EXISTS (SELECT 1 FROM shared WHERE sha256 = ?1)", (name,)
        )


def shared_sizes(db: sqlite3.Connection, in_space: str, space: str) -> Iterable[tuple[str, int]]:
    """How many bytes those of each Job have."""
    if not _has_tables(db):
        return ()
    query = "SELECT job_id, sum(length(data)) FROM shared JOIN contents USING (sha256)"
    query = f"{query} WHERE {in_space} GROUP BY job_id"
    return [(str(job), int(size)) for job, size in db.execute(query, (space,))]


def _has_tables(db: sqlite3.Connection) -> bool:
    return int(db.execute("PRAGMA user_version").fetchone()[0]) >= _SINCE
