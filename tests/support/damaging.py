"""Logs that were edited behind perstack's back, on each real storage."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def edit(workspace: Path, storage: str, old: bytes, new: bytes) -> None:
    """Replace a text in every log of a storage that holds it; there must be one."""
    scheme, _, place = storage.partition(":")
    edited = _edit_rows if scheme == "sqlite" else _edit_files
    assert edited(workspace / place, old, new), old


def _edit_rows(path: Path, old: bytes, new: bytes) -> int:
    with closing(sqlite3.connect(path)) as database, database:
        rows = [(key, line) for key, line in database.execute("SELECT key, line FROM records") if old in line]
        for key, line in rows:
            database.execute("UPDATE records SET line = ? WHERE key = ?", (line.replace(old, new), key))
    return len(rows)


def _edit_files(path: Path, old: bytes, new: bytes) -> int:
    logs = [log for log in path.rglob("events.jsonl") if old in log.read_bytes()]
    for log in logs:
        log.write_bytes(log.read_bytes().replace(old, new))
    return len(logs)
