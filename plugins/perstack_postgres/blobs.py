"""What events refer to by its sha256: of one Job, or with the bytes kept once for all Jobs that have them.

Who takes such bytes from a Job locks them first, so that of two who do so at once the second sees what the first left;
who gives them to a Job meanwhile waits, finds them gone, and brings them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256 as new_sha256

import psycopg

from perstack.core.ids import check_id
from perstack_postgres.session import Connection
from perstack_postgres.statements import Statements

_AT_ONCE = 1 << 25
"""Bytes that are sent in one statement."""


def named(blobs: Sequence[bytes]) -> tuple[tuple[str, bytes], ...]:
    """Each with its name, each once."""
    return tuple({new_sha256(data).hexdigest(): data for data in blobs}.items())


def in_parts(blobs: Sequence[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """As many as are sent at once."""
    part, size = list[tuple[str, bytes]](), 0
    for name, data in blobs:
        if part and size + len(data) > _AT_ONCE:
            yield part
            part, size = [], 0
        part.append((name, data))
        size += len(data)
    if part:
        yield part


async def put_part(
    statements: Statements, given: Mapping[str, object], connection: Connection, _: bool
) -> tuple[int, int]:
    """How many Jobs there are of that id, and how many of them are ours; both 0 or 1."""
    while True:
        try:
            row = await (await connection.execute(statements.put_blobs, given)).fetchone()
        except psycopg.errors.ForeignKeyViolation as error:
            if "sha256" in (error.diag.constraint_name or ""):
                continue  # its last Job was deleted in that moment
            return 0, 0
        return (0, 0) if row is None else (int(row[0]), int(row[1]))


async def drop(connection: Connection, statements: Statements, number: int, name: str | None) -> None:
    """Take one blob, or every shared one, from the Job of that number. Within a transaction."""
    wanted = {"n": number, "id": None if name is None else check_id(name, "blob")}
    if name is not None:
        await connection.execute(statements.remove_blob, wanted)
    locked = [row[0] for row in await (await connection.execute(statements.lock_contents, wanted)).fetchall()]
    if locked:
        await connection.execute(statements.drop_shared, wanted)
        await connection.execute(statements.drop_contents, [locked])
