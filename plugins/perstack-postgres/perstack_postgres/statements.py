"""SQL statements. Their tables are found by the `search_path` of the session (`connections`).

In guarded writes, `job` is the Job's row, and `ours` is that row unless this process has lost its lease on it.
`fence` is the number of the process's lease, or null without one.
"""

from __future__ import annotations

from typing import LiteralString

_RELAXED: LiteralString = "set_config('synchronous_commit', 'off', true)"
"""Turns off synchronous commit in a single-statement transaction: caches need not be synced."""

_GUARD: LiteralString = (
    "WITH job AS MATERIALIZED (SELECT n, {sync} FROM jobs WHERE space = %(space)s AND job_id = %(job)s{lock}),"
    " ours AS MATERIALIZED (SELECT n FROM job WHERE %(fence)s::bigint IS NULL"
    " OR EXISTS (SELECT FROM leases AS l WHERE l.job = job.n AND l.fence = %(fence)s::bigint)),"
    " {before}done AS ({work} RETURNING 1)"
    " SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM ours), (SELECT count(*) FROM done)"
)

_GRANTED: LiteralString = (
    "EXISTS (SELECT FROM pg_locks AS k WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 2"
    " AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND k.classid::bigint = %(key)s::bigint & 4294967295 AND k.objid::bigint = l.fence & 2147483647)"
)
"""SQL condition: the connection that took a lease still exists."""

_LIVE: LiteralString = f"(l.expires > clock_timestamp() AND {_GRANTED})"

_ADDED: LiteralString = (
    "INSERT INTO records (run, seq, line) SELECT %(run)s::bigint, %(seq)s::bigint + o, line"
    " FROM unnest(%(lines)b::bytea[]) WITH ORDINALITY AS added (line, o)"
    " WHERE coalesce((SELECT max(seq) FROM records WHERE run = %(run)s::bigint), 0) = %(seq)s::bigint"
)

_ENTRY: LiteralString = (
    "INSERT INTO entries (space, job_id, seq, entry) SELECT %(space)s, %(job)s, %(seq)s::bigint, %(data)b FROM ours"
    " WHERE %(run)s::text IS NULL OR EXISTS (SELECT FROM runs AS r JOIN records AS s ON s.run = r.n"
    " WHERE r.job = ours.n AND r.run_id = %(run)s::text AND s.seq = %(at)s::bigint"
    " AND substring(s.line FROM greatest(octet_length(s.line) - octet_length(%(end)b::bytea) + 1, 1)) = %(end)b::bytea)"
    " ON CONFLICT (space, job_id) DO UPDATE SET seq = excluded.seq, entry = excluded.entry"
    " WHERE entries.seq <= excluded.seq"
)


_KEPT: LiteralString = " FOR KEY SHARE"
"""Locks a Job's row against its deletion, which waits, or is waited for: then the row is gone."""


def _guard_write(
    work: LiteralString, *, synced: bool = True, before: LiteralString = "", lock: LiteralString = ""
) -> LiteralString:
    """Return a write that changes nothing after this process has lost its lease on the Job."""
    return _GUARD.format(sync="1" if synced else _RELAXED, work=work, before=before, lock=lock)


CREATE_JOB: LiteralString = (
    "INSERT INTO jobs (space, job_id, made, written) VALUES (%s, %s, %b, nextval('writings'::regclass))"
    " ON CONFLICT DO NOTHING RETURNING made"
)
"""Insert a Job; returns no row if the id exists."""
MADE: LiteralString = "SELECT made FROM jobs WHERE space = %s AND job_id = %s"
"""Select the random token with which a Job was created."""
HAS_JOB: LiteralString = "SELECT n FROM jobs WHERE space = %s AND job_id = %s"  # select a Job's number
JOBS: LiteralString = (
    "SELECT written, job_id FROM jobs WHERE space = %s AND (written, job_id) < (%s::bigint, %s)"
    " ORDER BY written DESC, job_id DESC LIMIT %s::bigint"
)
RUNS: LiteralString = (
    "SELECT run_id FROM runs WHERE job = %s::bigint AND EXISTS (SELECT FROM records WHERE records.run = runs.n)"
)
FIND_RUN: LiteralString = (
    "SELECT r.n FROM runs AS r JOIN jobs AS j ON j.n = r.job WHERE j.space = %s AND j.job_id = %s AND r.run_id = %s"
)
MAKE_RUN: LiteralString = (
    "INSERT INTO runs (job, run_id) SELECT n, %(run)s FROM jobs"
    " WHERE space = %(space)s AND job_id = %(job)s ON CONFLICT DO NOTHING"
)
LAST_RECORD: LiteralString = "SELECT seq, line FROM records WHERE run = %s::bigint ORDER BY seq DESC LIMIT 1"
APPEND: LiteralString = _ADDED  # append records, if the log ends at the expected sequence number
APPEND_FENCED: LiteralString = (
    "WITH held AS MATERIALIZED (SELECT 1 FROM leases WHERE job = (SELECT job FROM runs"
    f" WHERE n = %(run)s::bigint) AND fence = %(fence)s::bigint FOR SHARE) {_ADDED}"
    " AND (SELECT count(*) FROM held) = 1"
)
"""Append records like `append`, with the lease's row locked until the commit so that nobody takes it."""
READ: LiteralString = (
    "SELECT s.seq, CASE WHEN octet_length(s.line) <= %(longest)s::bigint THEN s.line END"
    " FROM records AS s JOIN runs AS r ON r.n = s.run JOIN jobs AS j ON j.n = r.job"
    " WHERE j.space = %(space)s AND j.job_id = %(job)s AND r.run_id = %(run)s"
    " AND s.seq BETWEEN %(first)s::bigint AND %(last)s::bigint ORDER BY s.seq"
)
"""Select records in a range; null in place of a line that is too long to be read."""
END: LiteralString = (
    "SELECT s.line FROM records AS s JOIN runs AS r ON r.n = s.run JOIN jobs AS j ON j.n = r.job"
    " WHERE j.space = %(space)s AND j.job_id = %(job)s AND r.run_id = %(run)s"
    " AND octet_length(s.line) <= %(longest)s::bigint ORDER BY s.seq DESC LIMIT %(count)s::bigint"
)
REDACT: LiteralString = (
    "UPDATE records SET line = %(line)b WHERE run = %(run)s::bigint AND seq = %(seq)s::bigint"
    " AND (%(fence)s::bigint IS NULL OR EXISTS (SELECT FROM leases WHERE fence = %(fence)s::bigint))"
)
LINES: LiteralString = "SELECT line FROM records WHERE run = %s::bigint ORDER BY seq"  # select all lines of a log
LINES_AFTER: LiteralString = "SELECT line FROM records WHERE run = %s::bigint AND seq > %s::bigint ORDER BY seq"
HAS_FENCE: LiteralString = "SELECT 1 FROM leases WHERE fence = %s::bigint"
REWRITE: LiteralString = "VACUUM (FULL) records, job_blobs, blobs, checkpoints, runs, jobs, entries"
PUT_SUMMARY: LiteralString = _guard_write(
    "UPDATE jobs SET summary = %(data)b, written = nextval('writings'::regclass) FROM ours WHERE jobs.n = ours.n",
    synced=False,
)
SUMMARY: LiteralString = "SELECT summary FROM jobs WHERE space = %s AND job_id = %s"  # select a Job's summary
SUMMARIES: LiteralString = "SELECT job_id, summary FROM jobs WHERE space = %s"  # select all summaries of a namespace
PUT_ENTRY: LiteralString = _guard_write(_ENTRY, synced=False, lock=_KEPT)  # replace an index entry
PUT_ENTRY_SYNCED: LiteralString = _guard_write(_ENTRY, lock=_KEPT)  # replace an index entry; it survives power loss
ENTRY: LiteralString = "SELECT seq, entry FROM entries WHERE space = %s AND job_id = %s"
ENTRIES: LiteralString = (
    "SELECT j.job_id, e.entry FROM jobs AS j LEFT JOIN entries AS e"
    " ON e.space = j.space AND e.job_id = j.job_id WHERE j.space = %s"
)
LOST_JOBS: LiteralString = (
    "SELECT job_id FROM entries AS e WHERE space = %s AND NOT EXISTS (SELECT FROM jobs AS j"
    " WHERE j.space = e.space AND j.job_id = e.job_id) ORDER BY job_id"
)
PUT_SETTING: LiteralString = _guard_write(
    "INSERT INTO runs (job, run_id, setting) SELECT n, %(run)s, %(data)b FROM ours"
    " ON CONFLICT (job, run_id) DO UPDATE SET setting = excluded.setting",
    synced=False,
)
SETTING: LiteralString = (
    "SELECT r.setting FROM runs AS r JOIN jobs AS j ON j.n = r.job"
    " WHERE j.space = %s AND j.job_id = %s AND r.run_id = %s"
)
PUT_CHECKPOINT: LiteralString = _guard_write(
    "INSERT INTO checkpoints (job, checkpoint_id, data) SELECT n, %(id)s, %(data)b FROM ours"
    " ON CONFLICT (job, checkpoint_id) DO UPDATE SET data = excluded.data",
    synced=False,
)
CHECKPOINT: LiteralString = (
    "SELECT c.data FROM checkpoints AS c JOIN jobs AS j ON j.n = c.job"
    " WHERE j.space = %s AND j.job_id = %s AND c.checkpoint_id = %s"
)
CHECKPOINTS: LiteralString = "SELECT checkpoint_id FROM checkpoints WHERE job = %s::bigint"
BLOB: LiteralString = (
    "SELECT b.data FROM blobs AS b JOIN job_blobs AS o USING (sha256) JOIN jobs AS j ON j.n = o.job"
    " WHERE j.space = %s AND j.job_id = %s AND sha256 = %s"
)
PUT_BLOBS: LiteralString = _guard_write(
    "INSERT INTO job_blobs (job, sha256) SELECT ours.n, id FROM ours, unnest(%(ids)s::text[]) AS id"
    " ON CONFLICT DO NOTHING",
    before="kept AS (INSERT INTO blobs (sha256, data) SELECT id, data"
    " FROM ours, unnest(%(ids)s::text[], %(texts)b::bytea[]) AS given (id, data) ON CONFLICT DO NOTHING), ",
)
"""Insert blobs, each once for all Jobs, and give them to a Job."""
LOCK_BLOBS: LiteralString = (
    "SELECT b.sha256 FROM blobs AS b WHERE b.sha256 IN (SELECT sha256 FROM job_blobs"
    " WHERE job = %(n)s::bigint AND (%(id)s::text IS NULL OR sha256 = %(id)s)) ORDER BY b.sha256 FOR UPDATE"
)
"""Lock blobs of a Job. A transaction that gives one of them to another Job waits for this one."""
TAKE_BLOBS: LiteralString = (
    "DELETE FROM job_blobs WHERE job = %(n)s::bigint AND (%(id)s::text IS NULL OR sha256 = %(id)s)"
)
DROP_BLOBS: LiteralString = (
    "DELETE FROM blobs AS b WHERE b.sha256 = ANY (%s)"
    " AND NOT EXISTS (SELECT FROM job_blobs AS o WHERE o.sha256 = b.sha256)"
)
BLOBS: LiteralString = "SELECT sha256 FROM job_blobs WHERE job = %s::bigint"  # select the names of a Job's blobs
LOCK_JOB: LiteralString = "SELECT n FROM jobs WHERE space = %s AND job_id = %s FOR UPDATE"  # lock a Job's row
LOCK_RUNS: LiteralString = "SELECT n, run_id FROM runs WHERE job = %s::bigint FOR UPDATE"
"""Lock a Job's Runs. A transaction that appends to one of them waits for this one."""
DELETE_JOB: LiteralString = (
    "WITH gone AS (DELETE FROM entries WHERE space = %(space)s AND job_id = %(job)s)"
    " DELETE FROM jobs WHERE space = %(space)s AND job_id = %(job)s"
)
JOB_TO_LEASE: LiteralString = "SELECT n FROM jobs WHERE space = %(space)s AND job_id = %(job)s FOR NO KEY UPDATE"
"""Lock a Job's row so that other takers of its lease wait for this transaction."""
LEASE: LiteralString = f"SELECT l.holder, l.fence, {_LIVE} FROM leases AS l WHERE l.job = %(n)s::bigint"
"""Select a Job's lease and whether it is held.

Must be a separate statement: the statement that waited for the row lock does not see the other's lease.
"""
TAKE_LEASE: LiteralString = (
    "INSERT INTO leases (job, fence, holder, expires) VALUES (%(n)s::bigint, nextval('fences'::regclass),"
    " %(holder)b, clock_timestamp() + %(seconds)s * interval '1 s') ON CONFLICT (job) DO UPDATE"
    " SET fence = excluded.fence, holder = excluded.holder, expires = excluded.expires RETURNING fence"
)
KEEP_LEASES: LiteralString = (
    "UPDATE leases SET expires = clock_timestamp() + %(seconds)s * interval '1 s'"
    f" FROM (SELECT {_RELAXED}) AS relaxed WHERE fence = ANY (%(fences)s::bigint[]) RETURNING fence"
)
FREE_LEASE: LiteralString = (
    "WITH gone AS (DELETE FROM leases WHERE fence = %(fence)s::bigint)"
    " SELECT pg_advisory_unlock_shared(%(key)s::int, (%(fence)s::bigint & 2147483647)::int)"
)
LOCK_LEASE: LiteralString = "SELECT pg_advisory_lock_shared(%(key)s::int, (%(fence)s::bigint & 2147483647)::int)"
HOLDER: LiteralString = (
    "SELECT l.holder FROM leases AS l JOIN jobs AS j ON j.n = l.job"
    f" WHERE j.space = %(space)s AND j.job_id = %(job)s AND {_LIVE}"
)
