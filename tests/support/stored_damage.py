"""Read and edit stored data behind perstack's back, on each real storage."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.core.base.chain import EMPTY_LOG, open_line, seal
from perstack.ports.storage import RunRef

if TYPE_CHECKING:
    from obstore.store import S3Store


def edit(workspace: Path, storage: str, old: bytes, new: bytes) -> None:
    """Replace a text in every log of a storage that contains it; at least one must."""
    scheme, _, place = storage.partition(":")
    if scheme == "postgresql":
        assert _edit_on_server(storage, "", (old, new)), old
        return
    if scheme == "s3":
        assert _edit_objects(place, "logs/", lambda _, data: data.replace(old, new)), old
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
    """Replace the line at place `seq` of a Run's log."""
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
    if scheme == "s3":
        assert _edit_objects(place, f"jobs/logs/{run.job_id}/", _replacing_line(run, seq, line)) == 1
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


def _edit_objects(place: str, part: str, change: Callable[[str, bytes], bytes]) -> int:
    """Apply a change to each object with `part` in its name. Return the number of changed objects."""
    import obstore  # takes time, and few tests need it

    store, changed = _object_store(place), 0
    for name, data in _all_objects(place):
        if part in name and (other := change(name, data)) != data:
            obstore.put(store, name, other)
            changed += 1
    return changed


def _replacing_line(run: RunRef, seq: int, line: bytes) -> Callable[[str, bytes], bytes]:
    """Return a change that replaces a line in a Run's append objects. Each has a header line before its records."""
    past = 0

    def change(name: str, data: bytes) -> bytes:
        nonlocal past
        if f"/{run.run_id}/a" not in name:
            return data
        lines = data.split(b"\n")
        at, past = seq - past, past + len(lines) - 2
        if 0 < at < len(lines) - 1:
            lines[at] = line
        return b"\n".join(lines)

    return change


def _all_objects(place: str) -> Iterator[tuple[str, bytes]]:
    """Yield the objects of a store, sorted by name."""
    import obstore  # takes time, and few tests need it

    store = _object_store(place)
    names = sorted(meta["path"] for page in obstore.list(store) for meta in page)
    for name in names:
        yield name, bytes(obstore.get(store, name).bytes())


def _object_store(place: str) -> S3Store:
    from s3_server import bucket

    return bucket(os.environ["AWS_ENDPOINT_URL_S3"], place.removeprefix("//").partition("/")[2])


def kept_in(workspace: Path, storage: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of everything below a workspace and on the server of its storage."""
    for path in workspace.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes()
    scheme, _, place = storage.partition(":")
    if scheme == "postgresql":
        yield from _all_rows(storage)
    if scheme == "s3":
        yield from _all_objects(place)


def _all_rows(address: str) -> Iterator[tuple[str, bytes]]:
    import psycopg  # takes time, and few tests need it

    server, _, schema = address.partition("&schema=")
    with psycopg.connect(server, autocommit=True) as database:
        tables = database.execute("SELECT tablename::text FROM pg_tables WHERE schemaname = %s", [schema]).fetchall()
        for (table,) in tables:
            for row in database.execute(f"SELECT * FROM {schema}.{table}"):
                yield table, b"\n".join(one if isinstance(one, bytes) else str(one).encode() for one in row)


def reseal(log: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a log's content and recompute its hash chain, as a skilled attacker could."""
    head, lines = EMPTY_LOG, list[bytes]()
    for line in log.read_bytes().splitlines():
        sealed, head = seal(head, [change(open_line(line).payload)])
        lines += sealed
    log.write_bytes(b"\n".join((*lines, b"")))
