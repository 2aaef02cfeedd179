"""Logs of Runs: appending, reading and redaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import psycopg

from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, Head, open_line
from perstack.core.base.ids import check_id, check_job_id
from perstack.errors import NotFound
from perstack.ports.storage import RunRef
from perstack.support.storage import check_redaction, damage_error, head_after, no_job, stale_writer, verify_rows
from perstack_postgres import statements
from perstack_postgres.connections import Connection, Connections
from perstack_postgres.leases import JobKey, PostgresLeases

_MAX_RECORD_BYTES = 1 << 28  # maximum bytes of a record that is read; longer ones were not written by perstack

_TOO_LONG = f"it is longer than {_MAX_RECORD_BYTES >> 20} MiB"
MEDIUM = "the database"  # what a person restores from a copy if data is damaged

_MAX_KNOWN_ENDS = 1000
_MAX_SEQ = (1 << 62) - 1


class _End(NamedTuple):
    run: int
    head: Head


class RunLogs:
    """Logs of one namespace."""

    def __init__(self, connections: Connections, leases: PostgresLeases, space: str) -> None:
        self._connections = connections
        self._leases = leases
        self._space = space
        self._ends: dict[RunRef, _End] = {}
        """Ends of the logs that this process wrote last, to save a query. A re-created Run has another number."""

    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Append records. Raises NotFound, and Conflict unless the log has exactly `expected_seq` records."""
        check_id(ref.run_id, "run")
        key = self._job_key(ref)
        fence = self._leases.fence(key)
        lines = list(records)
        known_end = self._ends.pop(ref, None)

        async def work(connection: Connection, is_again: bool) -> _End:
            try:
                if known_end is not None and known_end.head.seq == expected_seq and not is_again:
                    end = await self._append_after(connection, ref, known_end, lines, fence)
                    if end is not None:
                        return end
                end = await self._read_end(connection, ref)
                if is_again and await self._ends_with(connection, end.run, expected_seq, lines):
                    return end
                if end.head.seq != expected_seq:
                    raise stale_writer(self._describe_log(ref), expected_seq, end.head.seq)
                return await self._append_after(connection, ref, end, lines, fence) or await self._refuse_stale(
                    connection, ref, end
                )
            except psycopg.errors.ForeignKeyViolation:
                raise self.no_job(ref.job_id) from None

        self._remember_end(ref, await self._connections.write(work, sum(map(len, lines))))

    async def read(self, ref: RunRef, after: int, limit: int | None) -> list[bytes]:
        """Return at most `limit` records after sequence number `after`; none for an unknown Run. Raises Damaged."""
        check_id(ref.run_id, "run")
        key = self._job_key(ref)
        last = _MAX_SEQ if limit is None else min(after + limit, _MAX_SEQ)
        values = {"space": key.space, "job": key.job_id, "run": ref.run_id, "longest": _MAX_RECORD_BYTES}
        # Also read the record before `after`: the hash chain continues from it.
        values |= {"first": max(after, 1), "last": last}

        async def work(connection: Connection) -> list[tuple[int, bytes | str]]:
            cursor = await connection.execute(statements.READ, values, binary=True)
            return [(int(seq), _TOO_LONG if line is None else line) for seq, line in await cursor.fetchall()]

        return verify_rows(await self._connections.read(work, []), after, self._describe_log(ref), MEDIUM)

    async def end(self, ref: RunRef, count: int) -> list[bytes]:
        """Return the last `count` records without verifying them."""
        check_id(ref.run_id, "run")
        key = self._job_key(ref)
        values = {"space": key.space, "job": key.job_id, "run": ref.run_id, "count": count}
        values["longest"] = _MAX_RECORD_BYTES

        async def work(connection: Connection) -> list[bytes]:
            cursor = await connection.execute(statements.END, values, binary=True)
            return [bytes(line) for (line,) in reversed(await cursor.fetchall())]

        return await self._connections.read(work, [])

    async def redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        """Replace record `seq` by one without content. Raises NotFound and Conflict."""
        check_id(ref.run_id, "run")
        fence = self._leases.fence(self._job_key(ref))

        async def work(connection: Connection, _: bool) -> None:
            async with connection.transaction():
                number = await self._find_run_number(connection, ref)
                query = statements.LINES
                rows = (
                    [] if number is None else await (await connection.execute(query, [number], binary=True)).fetchall()
                )
                check_redaction([bytes(line) for (line,) in rows], seq, record, self._describe_log(ref))
                values = {"line": record, "run": number, "seq": seq, "fence": fence}
                if not (await connection.execute(statements.REDACT, values)).rowcount:
                    raise self._leases.lost(self._job_key(ref))

        await self._connections.write(work, len(record))

    async def check_length(self, connection: Connection, number: int, ref: RunRef, seq: int) -> None:
        """Raise Conflict unless the log has exactly `seq` records."""
        head = await self._read_head(connection, number, ref)
        if head.seq != seq:
            raise stale_writer(self._describe_log(ref), seq, head.seq)

    def no_job(self, job_id: str) -> NotFound:
        return no_job(job_id, self._connections.address.display_url)

    def _remember_end(self, ref: RunRef, end: _End) -> None:
        self._ends[ref] = end
        if len(self._ends) > _MAX_KNOWN_ENDS:
            del self._ends[next(iter(self._ends))]

    async def _append_after(
        self, connection: Connection, ref: RunRef, end: _End, lines: list[bytes], fence: int | None
    ) -> _End | None:
        """Append records and return the new end of the log; None if its end is not where expected."""
        head = head_after(end.head, lines, self._describe_log(ref))
        values = {"run": end.run, "seq": end.head.seq, "lines": lines, "fence": fence}
        query = statements.APPEND if fence is None else statements.APPEND_FENCED
        try:
            if (await connection.execute(query, values)).rowcount == len(lines):
                return _End(end.run, head)
        except psycopg.errors.UniqueViolation:
            pass
        if fence is not None:
            row = await (await connection.execute(statements.HAS_FENCE, [fence])).fetchone()
            if row is None:
                raise self._leases.lost(self._job_key(ref))
        return None

    async def _refuse_stale(self, connection: Connection, ref: RunRef, end: _End) -> _End:
        raise stale_writer(self._describe_log(ref), end.head.seq, (await self._read_head(connection, end.run, ref)).seq)

    async def _read_end(self, connection: Connection, ref: RunRef) -> _End:
        """Return the end of a log, after adding the Run if it is new. Raises NotFound without its Job."""
        number = await self._find_run_number(connection, ref)
        if number is None:
            ids = {"space": self._space, "job": ref.job_id, "run": ref.run_id}
            await connection.execute(statements.MAKE_RUN, ids)
            number = await self._find_run_number(connection, ref)
        if number is None:
            raise self.no_job(ref.job_id)
        return _End(number, await self._read_head(connection, number, ref))

    async def _find_run_number(self, connection: Connection, ref: RunRef) -> int | None:
        ids = [self._space, ref.job_id, ref.run_id]
        row = await (await connection.execute(statements.FIND_RUN, ids)).fetchone()
        return None if row is None else int(row[0])

    async def _read_head(self, connection: Connection, number: int, ref: RunRef) -> Head:
        row = await (await connection.execute(statements.LAST_RECORD, [number], binary=True)).fetchone()
        if row is None:
            return EMPTY_LOG
        try:
            return Head(int(row[0]), open_line(bytes(row[1])).hash)
        except BrokenSeal as broken:
            raise damage_error(self._describe_log(ref), int(row[0]) - 1, str(broken), MEDIUM) from broken

    async def _ends_with(self, connection: Connection, number: int, seq: int, lines: list[bytes]) -> bool:
        """Return whether the log ends with these records, so that an append whose answer was lost has been done."""
        values = [number, seq]
        cursor = await connection.execute(statements.LINES_AFTER, values, binary=True)
        return [bytes(line) for (line,) in await cursor.fetchall()] == lines

    def _job_key(self, ref: RunRef) -> JobKey:
        return JobKey(self._space, check_job_id(ref.job_id))

    def _describe_log(self, ref: RunRef) -> str:
        return f"{self._connections.address.display_url}, Run {ref.run_id}"
