"""How many bytes each Job takes, by what they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from perstack.ports.storage import JobSize
from perstack_sqlite.database import SPACE
from perstack_sqlite.shared import shared_sizes

_OF_SPACE = f"{SPACE} = ?"
_QUERIES = {
    "caches": (
        f"SELECT job_id, coalesce(length(summary), 0) FROM jobs WHERE {_OF_SPACE}",  # noqa: S608 - no input
        f"SELECT job_id, sum(coalesce(length(setting), 0)) FROM runs WHERE {_OF_SPACE} GROUP BY job_id",  # noqa: S608
        f"SELECT job_id, length(entry) FROM entries WHERE {_OF_SPACE}",  # noqa: S608
    ),
    "blobs": (f"SELECT job_id, sum(length(data)) FROM blobs WHERE {_OF_SPACE} GROUP BY job_id",),  # noqa: S608
    "checkpoints": (f"SELECT job_id, sum(length(data)) FROM checkpoints WHERE {_OF_SPACE} GROUP BY job_id",),  # noqa: S608
}
_LOGS = (
    "SELECT job_id, sum(length(line))"  # noqa: S608
    " FROM runs JOIN records ON records.key BETWEEN runs.n * ? AND (runs.n + 1) * ? - 1"
    f" WHERE {_OF_SPACE} GROUP BY job_id"
)


def sizes_of(db: sqlite3.Connection | None, space: str, places: int) -> dict[str, JobSize]:
    """Of each Job of a space by its key. `places` is how many keys a Run has in the table of records."""
    found: dict[str, dict[str, int]] = {}
    if db is None:
        return {}

    def add(kind: str, query: str, values: tuple[object, ...]) -> None:
        for key, size in db.execute(query, values):
            of = found.setdefault(str(key), {})
            of[kind] = of.get(kind, 0) + int(size)

    _each(lambda kind, query: add(kind, query, (space,)))
    for key, size in shared_sizes(db, _OF_SPACE, space):
        of = found.setdefault(key, {})
        of["blobs"] = of.get("blobs", 0) + size
    add("logs", _LOGS, (places, places, space))
    jobs = {str(key) for (key,) in db.execute(f"SELECT job_id FROM jobs WHERE {_OF_SPACE}", (space,))}  # noqa: S608
    return {key: JobSize(**of) for key, of in found.items() if key in jobs}


def _each(do: Callable[[str, str], None]) -> None:
    for kind, queries in _QUERIES.items():
        for query in queries:
            do(kind, query)
