"""SQL statements, each for one schema.

In guarded writes, `job` is the Job's row, and `ours` is the same row unless this process has lost its lease on it.
`fence` is the number of the process's lease, or null without one.
"""

from __future__ import annotations

from functools import cached_property

_RELAXED = "set_config('synchronous_commit', 'off', true)"
"""Turns off synchronous commit in a single-statement transaction: caches need not be synced."""

_GUARD = (
    "WITH job AS MATERIALIZED (SELECT n, {sync} FROM $.jobs WHERE space = %(space)s AND job_id = %(job)s),"
    " ours AS MATERIALIZED (SELECT n FROM job WHERE %(fence)s::bigint IS NULL"
    " OR EXISTS (SELECT FROM $.leases AS l WHERE l.job = job.n AND l.fence = %(fence)s::bigint)),"
    " {before}done AS ({work} RETURNING 1)"
    " SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM ours), (SELECT count(*) FROM done)"
)

_GRANTED = (
    "EXISTS (SELECT FROM pg_locks AS k WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 2"
    " AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND k.classid::bigint = %(key)s::bigint & 4294967295 AND k.objid::bigint = l.fence & 2147483647)"
)
"""SQL condition: the connection that took a lease still exists."""

_LIVE = f"(l.expires > clock_timestamp() AND {_GRANTED})"

_ADDED = (
    "INSERT INTO $.records (run, seq, line) SELECT %(run)s::bigint, %(seq)s::bigint + o, line"
    " FROM unnest(%(lines)b::bytea[]) WITH ORDINALITY AS added (line, o)"
    " WHERE coalesce((SELECT max(seq) FROM $.records WHERE run = %(run)s::bigint), 0) = %(seq)s::bigint"
)


class Statements:
    """Statements for one schema."""

    def __init__(self, schema: str) -> None:
        """Format statements for `schema` on first use."""
        self._schema = schema

    def of(self, text: str) -> bytes:
        """Return a statement with `$.` replaced by the quoted schema."""
        return text.replace("$.", f'"{self._schema}".').encode()

    def _guarded(self, work: str, *, synced: bool = True, before: str = "") -> bytes:
        return self.of(_GUARD.format(sync="1" if synced else _RELAXED, work=work, before=before))

    @cached_property
    def create_job(self) -> bytes:
        """Insert a Job; returns no row if the id exists."""
        return self.of(
            "INSERT INTO $.jobs (space, job_id, made, written) VALUES (%s, %s, %b, nextval('$.writings'::regclass))"
            " ON CONFLICT DO NOTHING RETURNING made"
        )

    @cached_property
    def made(self) -> bytes:
        """Select the random token with which a Job was created."""
        return self.of("SELECT made FROM $.jobs WHERE space = %s AND job_id = %s")

    @cached_property
    def has_job(self) -> bytes:
        """Select a Job's number."""
        return self.of("SELECT n FROM $.jobs WHERE space = %s AND job_id = %s")

    @cached_property
    def jobs(self) -> bytes:
        """Select a page of Jobs, most recently written first."""
        return self.of(
            "SELECT written, job_id FROM $.jobs WHERE space = %s AND (written, job_id) < (%s::bigint, %s)"
            " ORDER BY written DESC, job_id DESC LIMIT %s::bigint"
        )

    @cached_property
    def runs(self) -> bytes:
        """Select the Runs of a Job that have records."""
        return self.of(
            "SELECT run_id FROM $.runs WHERE job = %s::bigint"
            " AND EXISTS (SELECT FROM $.records WHERE records.run = runs.n)"
        )

    @cached_property
    def find_run(self) -> bytes:
        """Select a Run's number."""
        return self.of(
            "SELECT r.n FROM $.runs AS r JOIN $.jobs AS j ON j.n = r.job"
            " WHERE j.space = %s AND j.job_id = %s AND r.run_id = %s"
        )

    @cached_property
    def make_run(self) -> bytes:
        """Insert a Run, unless it exists."""
        return self.of(
            "INSERT INTO $.runs (job, run_id) SELECT n, %(run)s FROM $.jobs"
            " WHERE space = %(space)s AND job_id = %(job)s ON CONFLICT DO NOTHING"
        )

    @cached_property
    def last_record(self) -> bytes:
        """Select a log's last record."""
        return self.of("SELECT seq, line FROM $.records WHERE run = %s::bigint ORDER BY seq DESC LIMIT 1")

    @cached_property
    def append(self) -> bytes:
        """Append records, if the log ends at the expected sequence number."""
        return self.of(_ADDED)

    @cached_property
    def append_fenced(self) -> bytes:
        """Append records like `append`, with the lease's row locked until the commit so that nobody takes it."""
        return self.of(
            "WITH held AS MATERIALIZED (SELECT 1 FROM $.leases WHERE job = (SELECT job FROM $.runs"
            f" WHERE n = %(run)s::bigint) AND fence = %(fence)s::bigint FOR SHARE) {_ADDED}"
            " AND (SELECT count(*) FROM held) = 1"
        )

    @cached_property
    def read(self) -> bytes:
        """Select records in a range; null in place of a line that is too long to be read."""
        return self.of(
            "SELECT s.seq, CASE WHEN octet_length(s.line) <= %(longest)s::bigint THEN s.line END"
            " FROM $.records AS s JOIN $.runs AS r ON r.n = s.run JOIN $.jobs AS j ON j.n = r.job"
            " WHERE j.space = %(space)s AND j.job_id = %(job)s AND r.run_id = %(run)s"
            " AND s.seq BETWEEN %(first)s::bigint AND %(last)s::bigint ORDER BY s.seq"
        )

    @cached_property
    def end(self) -> bytes:
        """Select the last records, latest first."""
        return self.of(
            "SELECT s.line FROM $.records AS s JOIN $.runs AS r ON r.n = s.run JOIN $.jobs AS j ON j.n = r.job"
            " WHERE j.space = %(space)s AND j.job_id = %(job)s AND r.run_id = %(run)s"
            " AND octet_length(s.line) <= %(longest)s::bigint ORDER BY s.seq DESC LIMIT %(count)s::bigint"
        )

    @cached_property
    def redact(self) -> bytes:
        """Replace one record, if the lease is still ours."""
        return self.of(
            "UPDATE $.records SET line = %(line)b WHERE run = %(run)s::bigint AND seq = %(seq)s::bigint"
            " AND (%(fence)s::bigint IS NULL OR EXISTS (SELECT FROM $.leases WHERE fence = %(fence)s::bigint))"
        )

    @cached_property
    def lines(self) -> bytes:
        """Select all lines of a log."""
        return self.of("SELECT line FROM $.records WHERE run = %s::bigint ORDER BY seq")

    @cached_property
    def lines_after(self) -> bytes:
        """Select the lines after a sequence number."""
        return self.of("SELECT line FROM $.records WHERE run = %s::bigint AND seq > %s::bigint ORDER BY seq")

    @cached_property
    def has_fence(self) -> bytes:
        """Select a row if a lease with this fence exists."""
        return self.of("SELECT 1 FROM $.leases WHERE fence = %s::bigint")

    @cached_property
    def rewrite(self) -> bytes:
        """Rewrite all tables without dead rows."""
        tables = ("records", "job_blobs", "blobs", "checkpoints", "runs", "jobs", "entries")
        return self.of("VACUUM (FULL) " + ", ".join(f"$.{table}" for table in tables))

    @cached_property
    def put_summary(self) -> bytes:
        """Replace a Job's summary."""
        return self._guarded(
            "UPDATE $.jobs SET summary = %(data)b, written = nextval('$.writings'::regclass) FROM ours"
            " WHERE jobs.n = ours.n",
            synced=False,
        )

    @cached_property
    def summary(self) -> bytes:
        """Select a Job's summary."""
        return self.of("SELECT summary FROM $.jobs WHERE space = %s AND job_id = %s")

    @cached_property
    def summaries(self) -> bytes:
        """Select all summaries of a namespace."""
        return self.of("SELECT job_id, summary FROM $.jobs WHERE space = %s")

    def put_entry(self, *, synced: bool) -> bytes:
        """Return the statement that replaces an index entry."""
        return self._put_entry_synced if synced else self._put_entry

    @cached_property
    def _put_entry(self) -> bytes:
        return self._guarded(_ENTRY, synced=False)

    @cached_property
    def _put_entry_synced(self) -> bytes:
        return self._guarded(_ENTRY)

    @cached_property
    def entry(self) -> bytes:
        """Select a Job's index entry with its sequence number."""
        return self.of("SELECT seq, entry FROM $.entries WHERE space = %s AND job_id = %s")

    @cached_property
    def entries(self) -> bytes:
        """Select the index entries of all Jobs in a namespace."""
        return self.of(
            "SELECT j.job_id, e.entry FROM $.jobs AS j LEFT JOIN $.entries AS e"
            " ON e.space = j.space AND e.job_id = j.job_id WHERE j.space = %s"
        )

    @cached_property
    def lost_jobs(self) -> bytes:
        """Select the ids that have an index entry but no Job."""
        return self.of(
            "SELECT job_id FROM $.entries AS e WHERE space = %s AND NOT EXISTS (SELECT FROM $.jobs AS j"
            " WHERE j.space = e.space AND j.job_id = e.job_id) ORDER BY job_id"
        )

    @cached_property
    def put_setting(self) -> bytes:
        """Replace a Run's settings."""
        return self._guarded(
            "INSERT INTO $.runs (job, run_id, setting) SELECT n, %(run)s, %(data)b FROM ours"
            " ON CONFLICT (job, run_id) DO UPDATE SET setting = excluded.setting",
            synced=False,
        )

    @cached_property
    def setting(self) -> bytes:
        """Select a Run's settings."""
        return self.of(
            "SELECT r.setting FROM $.runs AS r JOIN $.jobs AS j ON j.n = r.job"
            " WHERE j.space = %s AND j.job_id = %s AND r.run_id = %s"
        )

    @cached_property
    def put_checkpoint(self) -> bytes:
        """Replace a checkpoint."""
        return self._guarded(
            "INSERT INTO $.checkpoints (job, checkpoint_id, data) SELECT n, %(id)s, %(data)b FROM ours"
            " ON CONFLICT (job, checkpoint_id) DO UPDATE SET data = excluded.data",
            synced=False,
        )

    @cached_property
    def checkpoint(self) -> bytes:
        """Select a checkpoint."""
        return self.of(
            "SELECT c.data FROM $.checkpoints AS c JOIN $.jobs AS j ON j.n = c.job"
            " WHERE j.space = %s AND j.job_id = %s AND c.checkpoint_id = %s"
        )

    @cached_property
    def checkpoints(self) -> bytes:
        """Select the checkpoint ids of a Job."""
        return self.of("SELECT checkpoint_id FROM $.checkpoints WHERE job = %s::bigint")

    @cached_property
    def blob(self) -> bytes:
        """Select a blob of a Job."""
        return self.of(
            "SELECT b.data FROM $.blobs AS b JOIN $.job_blobs AS o USING (sha256) JOIN $.jobs AS j ON j.n = o.job"
            " WHERE j.space = %s AND j.job_id = %s AND sha256 = %s"
        )

    @cached_property
    def put_blobs(self) -> bytes:
        """Insert blobs, each once for all Jobs, and give them to a Job."""
        return self._guarded(
            "INSERT INTO $.job_blobs (job, sha256) SELECT ours.n, id FROM ours, unnest(%(ids)s::text[]) AS id"
            " ON CONFLICT DO NOTHING",
            before="kept AS (INSERT INTO $.blobs (sha256, data) SELECT id, data"
            " FROM ours, unnest(%(ids)s::text[], %(texts)b::bytea[]) AS given (id, data) ON CONFLICT DO NOTHING), ",
        )

    @cached_property
    def lock_blobs(self) -> bytes:
        """Lock blobs of a Job. A transaction that gives one of them to another Job waits for this one."""
        return self.of(
            "SELECT b.sha256 FROM $.blobs AS b WHERE b.sha256 IN (SELECT sha256 FROM $.job_blobs"
            " WHERE job = %(n)s::bigint AND (%(id)s::text IS NULL OR sha256 = %(id)s)) ORDER BY b.sha256 FOR UPDATE"
        )

    @cached_property
    def take_blobs(self) -> bytes:
        """Take blobs from a Job."""
        return self.of(
            "DELETE FROM $.job_blobs WHERE job = %(n)s::bigint AND (%(id)s::text IS NULL OR sha256 = %(id)s)"
        )

    @cached_property
    def drop_blobs(self) -> bytes:
        """Delete blobs that no Job has any more."""
        return self.of(
            "DELETE FROM $.blobs AS b WHERE b.sha256 = ANY (%s)"
            " AND NOT EXISTS (SELECT FROM $.job_blobs AS o WHERE o.sha256 = b.sha256)"
        )

    @cached_property
    def blobs(self) -> bytes:
        """Select the names of a Job's blobs."""
        return self.of("SELECT sha256 FROM $.job_blobs WHERE job = %s::bigint")

    @cached_property
    def lock_job(self) -> bytes:
        """Lock a Job's row."""
        return self.of("SELECT n FROM $.jobs WHERE space = %s AND job_id = %s FOR UPDATE")

    @cached_property
    def lock_runs(self) -> bytes:
        """Lock a Job's Runs. A transaction that appends to one of them waits for this one."""
        return self.of("SELECT n, run_id FROM $.runs WHERE job = %s::bigint FOR UPDATE")

    @cached_property
    def delete_job(self) -> bytes:
        """Delete a Job and its index entry."""
        return self.of(
            "WITH gone AS (DELETE FROM $.entries WHERE space = %(space)s AND job_id = %(job)s)"
            " DELETE FROM $.jobs WHERE space = %(space)s AND job_id = %(job)s"
        )

    @cached_property
    def job_to_lease(self) -> bytes:
        """Lock a Job's row so that other takers of its lease wait for this transaction."""
        return self.of("SELECT n FROM $.jobs WHERE space = %(space)s AND job_id = %(job)s FOR NO KEY UPDATE")

    @cached_property
    def lease(self) -> bytes:
        """Select a Job's lease and whether it is held.

        Must be a statement of its own: the statement that waited for the row lock does not see the other's lease.
        """
        return self.of(f"SELECT l.holder, l.fence, {_LIVE} FROM $.leases AS l WHERE l.job = %(n)s::bigint")

    @cached_property
    def take_lease(self) -> bytes:
        """Take a Job's lease with a new fence."""
        return self.of(
            "INSERT INTO $.leases (job, fence, holder, expires) VALUES (%(n)s::bigint, nextval('$.fences'::regclass),"
            " %(holder)b, clock_timestamp() + %(seconds)s * interval '1 s') ON CONFLICT (job) DO UPDATE"
            " SET fence = excluded.fence, holder = excluded.holder, expires = excluded.expires RETURNING fence"
        )

    @cached_property
    def keep_leases(self) -> bytes:
        """Renew leases and return those that still exist."""
        return self.of(
            "UPDATE $.leases SET expires = clock_timestamp() + %(seconds)s * interval '1 s'"
            f" FROM (SELECT {_RELAXED}) AS relaxed WHERE fence = ANY (%(fences)s::bigint[]) RETURNING fence"
        )

    @cached_property
    def free_lease(self) -> bytes:
        """Delete a lease and release its advisory lock."""
        return self.of(
            "WITH gone AS (DELETE FROM $.leases WHERE fence = %(fence)s::bigint)"
            " SELECT pg_advisory_unlock_shared(%(key)s::int, (%(fence)s::bigint & 2147483647)::int)"
        )

    @cached_property
    def lock_lease(self) -> bytes:
        """Take the advisory lock of a lease, shared."""
        return self.of("SELECT pg_advisory_lock_shared(%(key)s::int, (%(fence)s::bigint & 2147483647)::int)")

    @cached_property
    def holder(self) -> bytes:
        """Select the holder of a Job's lease, if it is held."""
        return self.of(
            "SELECT l.holder FROM $.leases AS l JOIN $.jobs AS j ON j.n = l.job"
            f" WHERE j.space = %(space)s AND j.job_id = %(job)s AND {_LIVE}"
        )


_ENTRY = (
    "INSERT INTO $.entries (space, job_id, seq, entry) SELECT %(space)s, %(job)s, %(seq)s::bigint, %(data)b FROM ours"
    " WHERE %(run)s::text IS NULL OR EXISTS (SELECT FROM $.runs AS r JOIN $.records AS s ON s.run = r.n"
    " WHERE r.job = ours.n AND r.run_id = %(run)s::text AND s.seq = %(at)s::bigint"
    " AND substring(s.line FROM greatest(octet_length(s.line) - octet_length(%(end)b::bytea) + 1, 1)) = %(end)b::bytea)"
    " ON CONFLICT (space, job_id) DO UPDATE SET seq = excluded.seq, entry = excluded.entry"
    " WHERE entries.seq <= excluded.seq"
)
