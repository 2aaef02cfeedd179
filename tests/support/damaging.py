"""Logs that were edited behind perstack's back, on each real storage."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from perstack.core.chain import EMPTY_LOG, open_line, seal
from perstack.ports.storage import RunRef


def edit(workspace: Path, storage: str, old: bytes, new: bytes) -> None:
    """Replace a text in every log of a storage that holds it; there must be one."""
    scheme, _, place = storage.partition(":")
    if scheme == "postgresql":
        assert _edit_on_server(storage, "", (old, new)), old
        return
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


def replace_line(workspace: Path, storage: str, run: RunRef, seq: int, line: bytes) -> None:
    """Put another line in the place `seq` of a Run's log."""
    scheme, _, place = storage.partition(":")
    if scheme == "sqlite":
        with closing(sqlite3.connect(workspace / place)) as database, database:
            query = (
                "UPDATE records SET line = ? WHERE key = (SELECT n FROM runs WHERE job_id = ? AND run_id = ?) * ? + ?"
            )
            changed = database.execute(query, (line, run.job_id, run.run_id, 1 << 32, seq)).rowcount
        assert changed == 1
        return
    if scheme == "postgresql":
        where = (
            " WHERE run = (SELECT r.n FROM runs AS r JOIN jobs AS j ON j.n = r.job"
            " WHERE j.job_id = %s AND r.run_id = %s) AND seq = %s"
        )
        assert _edit_on_server(storage, where, None, line, *run, seq) == 1
        return
    path = workspace / place / "jobs" / run.job_id / "runs" / run.run_id / "events.jsonl"
    lines = path.read_bytes().splitlines()
    lines[seq - 1] = line
    path.write_bytes(b"\n".join((*lines, b"")))


def _edit_on_server(address: str, where: str, texts: tuple[bytes, bytes] | None, *values: object) -> int:
    import psycopg  # takes time, and few tests need it

    server, _, schema = address.partition("&schema=")
    with psycopg.connect(server, autocommit=True) as database:
        database.execute(f"SET search_path = {schema}")
        if texts is None:
            return database.execute(f"UPDATE records SET line = %s{where}", values).rowcount
        rows = [
            (bytes(line).replace(*texts), *key) for line, *key in database.execute("SELECT line, run, seq FROM records")
        ]
        changed = 0
        for line, run, seq in rows:
            query = "UPDATE records SET line = %s WHERE run = %s AND seq = %s AND line <> %s"
            changed += database.execute(query, (line, run, seq, line)).rowcount
    return changed


def reseal(log: Path, change: Callable[[bytes], bytes]) -> None:
    """Change what a log says and make its chain whole again, as somebody might who knows how."""
    head, lines = EMPTY_LOG, list[bytes]()
    for line in log.read_bytes().splitlines():
        sealed, head = seal(head, [change(open_line(line).payload)])
        lines += sealed
    log.write_bytes(b"\n".join((*lines, b"")))
