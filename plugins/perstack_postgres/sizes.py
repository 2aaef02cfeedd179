"""How many bytes each Job takes, by what they are."""

from __future__ import annotations

from perstack.ports.storage import JobSize
from perstack_postgres.session import Connection
from perstack_postgres.statements import Statements

_OF = "j.space = %(space)s AND (%(jobs)s::text[] IS NULL OR j.job_id = ANY (%(jobs)s::text[]))"
_SIZES = (
    "SELECT j.job_id,"
    " coalesce((SELECT sum(octet_length(s.line)) FROM $.runs AS r JOIN $.records AS s ON s.run = r.n"
    " WHERE r.job = j.n), 0)::bigint,"
    " (coalesce((SELECT sum(octet_length(b.data)) FROM $.blobs AS b WHERE b.job = j.n), 0)"
    " + coalesce((SELECT sum(octet_length(c.data)) FROM $.shared AS s JOIN $.contents AS c ON c.sha256 = s.sha256"
    " WHERE s.job = j.n), 0))::bigint,"
    " coalesce((SELECT sum(octet_length(c.data)) FROM $.checkpoints AS c WHERE c.job = j.n), 0)::bigint,"
    " (coalesce(octet_length(j.summary), 0)"
    " + coalesce((SELECT sum(octet_length(r.setting)) FROM $.runs AS r WHERE r.job = j.n), 0)"
    " + coalesce((SELECT octet_length(e.entry) FROM $.entries AS e"
    " WHERE e.space = j.space AND e.job_id = j.job_id), 0))::bigint"
    f" FROM $.jobs AS j WHERE {_OF}"
)
_WHOLE = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c"
    " JOIN pg_namespace AS s ON s.oid = c.relnamespace WHERE s.nspname = %s AND c.relkind IN ('r', 'S')"
)


async def sizes_of(
    connection: Connection, statements: Statements, space: str, job_ids: list[str] | None
) -> dict[str, JobSize]:
    """Of these Jobs of a space, or of all. What is long is measured without being read."""
    cursor = await connection.execute(statements.of(_SIZES), {"space": space, "jobs": job_ids})
    return {str(job_id): JobSize(*map(int, sizes)) for job_id, *sizes in await cursor.fetchall()}


async def size_of_schema(connection: Connection, schema: str) -> int:
    """All tables, with their indexes."""
    row = await (await connection.execute(_WHOLE, [schema])).fetchone()
    return 0 if row is None else int(row[0])
