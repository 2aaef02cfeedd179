"""SQL statements for which procrastinate has no call: changes that only a claim's holder may make, and statistics.

The tables are procrastinate's and ours in one schema, the search path of each connection.
"""

from __future__ import annotations

from typing import LiteralString

_NEWS: LiteralString = (
    "pg_notify('procrastinate_any_queue_v1', json_build_object('type', 'job_inserted', 'job_id', id)::text)"
)
"""Notification that procrastinate's trigger sends for a new job; it wakes the waiting workers."""

_HELD: LiteralString = "id = %(id)s AND attempts = %(attempts)s AND worker_id = %(seat)s AND status = 'doing'"

KEEP_QUEUE: LiteralString = (
    "INSERT INTO queues (name, labels, refused, used) VALUES (%(name)s, %(labels)s, %(refused)s, now())"
    " ON CONFLICT (name) DO UPDATE SET used = excluded.used"
)
"""Records that a queue is used. The row stays locked until the order is queued, so the queue is not swept."""

MERGE: LiteralString = (
    "WITH merged AS (UPDATE procrastinate_jobs SET"
    " priority = greatest(priority, %(priority)s),"
    " scheduled_at = CASE WHEN (args->>'due')::bigint > %(due)s THEN %(time)s ELSE scheduled_at END,"
    " args = args || jsonb_build_object('due', least((args->>'due')::bigint, %(due)s),"
    " 'priority', greatest(priority, %(priority)s))"
    " WHERE queueing_lock = %(key)s AND status = 'todo' RETURNING id)"
    f" SELECT {_NEWS} FROM merged"
)

TAKE_OVER: LiteralString = (
    "WITH silent AS (SELECT j.id FROM procrastinate_jobs AS j"
    " LEFT JOIN procrastinate_workers AS w ON w.id = j.worker_id"
    " WHERE j.status = 'doing' AND j.worker_id IS DISTINCT FROM %(seat)s"
    # After a server restart every worker gets the full timeout again, since nobody could send heartbeats.
    " AND (w.id IS NULL OR greatest(w.last_heartbeat, pg_postmaster_start_time())"
    " < clock_timestamp() - make_interval(secs => %(silent_after)s))"
    " AND (%(queues)s::text[] IS NULL OR j.queue_name = ANY (%(queues)s::text[]))"
    " ORDER BY j.priority DESC, j.id LIMIT 1 FOR UPDATE OF j SKIP LOCKED)"
    " UPDATE procrastinate_jobs AS j SET worker_id = %(seat)s, attempts = j.attempts + 1"
    " FROM silent WHERE j.id = silent.id RETURNING j.id, j.attempts, j.args"
)

CHANGE: LiteralString = f"UPDATE procrastinate_jobs SET args = %(args)s WHERE {_HELD} RETURNING id"

RELEASE: LiteralString = f"DELETE FROM procrastinate_jobs WHERE {_HELD} RETURNING lock"

NOTIFY: LiteralString = f"SELECT {_NEWS} FROM procrastinate_jobs WHERE queueing_lock = %(key)s AND status = 'todo'"

NOTIFY_ALL: LiteralString = f"SELECT {_NEWS} FROM (SELECT 0 AS id) AS any_job"

BEAT: LiteralString = (
    "UPDATE procrastinate_workers SET last_heartbeat = clock_timestamp() WHERE id = %(seat)s RETURNING ARRAY("
    "SELECT id || '.' || attempts FROM procrastinate_jobs WHERE worker_id = %(seat)s AND status = 'doing')"
)

REGISTER_WORKER: LiteralString = (
    "INSERT INTO seats (id, name, since, labels, concurrency, engine)"
    " SELECT id, %(name)s, last_heartbeat, %(labels)s, %(concurrency)s, %(engine)s FROM procrastinate_workers"
    " WHERE id = %(seat)s"
)

QUEUES: LiteralString = (
    "SELECT CASE WHEN %(labels)s::text[] = '{}' AND NOT EXISTS (SELECT FROM queues WHERE refused @> ARRAY[%(name)s])"
    " THEN NULL ELSE ARRAY(SELECT name FROM queues WHERE (%(labels)s::text[] = '{}' OR labels && %(labels)s::text[])"
    " AND NOT refused @> ARRAY[%(name)s]) END"
)
"""Selects the queues that fit a worker; null for all queues."""

SWEEP: LiteralString = (
    "DELETE FROM queues AS q WHERE name <> %(plain)s AND used < now() - interval '1 day'"
    " AND NOT EXISTS (SELECT FROM procrastinate_jobs AS j WHERE j.queue_name = q.name)"
)

NEXT_DUE: LiteralString = (
    "SELECT extract(epoch FROM min(scheduled_at) - clock_timestamp())::float8 FROM procrastinate_jobs"
    " WHERE status = 'todo' AND scheduled_at > clock_timestamp()"
)

_MS: LiteralString = "* 1000)::bigint"

WORKERS: LiteralString = (
    f"SELECT s.name, (extract(epoch FROM s.since) {_MS}, (extract(epoch FROM w.last_heartbeat) {_MS}, s.labels,"
    " s.concurrency, ARRAY(SELECT coalesce(j.args->>'run_id', j.lock) FROM procrastinate_jobs AS j"
    " WHERE j.worker_id = s.id AND j.status = 'doing' ORDER BY j.id)"
    " FROM seats AS s JOIN procrastinate_workers AS w ON w.id = s.id"
    " WHERE w.last_heartbeat >= clock_timestamp() - make_interval(secs => %(silent_after)s) ORDER BY s.name, s.id"
)

LOAD: LiteralString = (
    "SELECT count(*) FILTER (WHERE is_due), count(*) FILTER (WHERE status = 'todo' AND NOT is_due),"
    " count(*) FILTER (WHERE status = 'doing'),"
    " min(coalesce(nullif((args->>'due')::bigint, 0), (args->>'submitted_at')::bigint)) FILTER (WHERE is_due)"
    " FROM (SELECT status, args, status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= clock_timestamp())"
    " AS is_due FROM procrastinate_jobs WHERE status IN ('todo', 'doing')) AS orders"
)
