"""What only the SQLite storage promises: its file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.errors import Damaged, NotFound, StorageError, UsageError
from perstack.ports.storage import RunRef
from perstack.testing.storage_fixture import JOB, RUN, new_writer, payload, wait_for
from perstack_sqlite.plugin import SqliteStorages
from perstack_sqlite.storage import ENTRIES_QUERY, JOBS_QUERY, SqliteStorage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "jobs.db"


@pytest.fixture
def storage(path: Path):
    storage = SqliteStorage(path)
    yield storage
    wait_for(storage.close())


def test_looking_at_a_file_that_is_not_there_makes_nothing(path: Path, storage: SqliteStorage) -> None:
    assert wait_for(storage.jobs()).ids == ()
    assert wait_for(storage.read(RUN)) == []
    assert wait_for(storage.lease_info(JOB)) is None
    assert not path.parent.exists()


def test_the_location_is_relative_to_the_workspace(tmp_path: Path) -> None:
    assert SqliteStorages().open("a/b.db", tmp_path).location == str(tmp_path / "a" / "b.db")
    assert SqliteStorages().open("", tmp_path).location == str(tmp_path / "perstack" / "state.db")


@pytest.mark.parametrize("content", [b"this is a text file, and rather a long one" * 40, b"x"])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(
    path: Path, storage: SqliteStorage, content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"jobs\.db: .*not an SQLite database: name another file"):
        wait_for(storage.create_job(JOB))
    assert path.read_bytes() == content


def test_the_database_of_another_program_is_refused_and_left_as_it_is(path: Path, storage: SqliteStorage) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE jobs (x)")
    before = path.read_bytes()
    with pytest.raises(StorageError, match="another program"):
        wait_for(storage.jobs())
    assert path.read_bytes() == before


def test_a_file_whose_schema_is_damaged_is_refused_in_one_line(path: Path, storage: SqliteStorage) -> None:
    wait_for(storage.create_job(JOB))
    wait_for(storage.close())
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = 'CREATE \"INDEX' || char(10) || 'x' WHERE type = 'index'")
    with pytest.raises(StorageError, match="malformed database schema") as refused:
        wait_for(SqliteStorage(path).jobs())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("version", "words"), [(99, "newer perstack"), (4, "before the first release"), (0, "before the first release")]
)
def test_a_file_of_another_version_is_refused_and_left_as_it_is(
    path: Path, storage: SqliteStorage, version: int, words: str
) -> None:
    wait_for(storage.create_job(JOB))
    wait_for(storage.close())
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("DROP TABLE job_blobs")
    before = path.read_bytes()
    for ask in (storage.jobs(), storage.create_job("other"), storage.put_blob(JOB, b"x")):
        with pytest.raises(StorageError, match=rf"jobs\.db: .*{words}.* \(schema {version}\); \w+") as refused:
            wait_for(ask)
        assert "\n" not in str(refused.value)
    assert path.read_bytes() == before


def test_records_are_committed_to_a_synced_write_ahead_log_and_caches_without_a_sync(
    storage: SqliteStorage, path: Path
) -> None:
    def mode() -> int:
        writer = storage._database._writer
        return wait_for(writer.do(lambda: writer.connection().execute("PRAGMA synchronous").fetchone()[0], wholly=True))

    writer = wait_for(new_writer(storage))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    wait_for(storage.put_summary(JOB, b"{}"))
    assert mode() == 1, "a cache was synced"
    wait_for(writer.append("x"))
    assert mode() == 2, "records were not synced"


def test_a_locked_file_is_waited_for_and_then_named(
    storage: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_sqlite.database.BUSY_TIMEOUT_S", 0.01)
    wait_for(storage.create_job(JOB))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="locked"):
            wait_for(storage.create_job("other"))
        other.execute("ROLLBACK")
    wait_for(storage.create_job("other"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program has the file locked for writing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_new_file_that_another_process_reads_in_the_same_moment_is_waited_for(
    path: Path, storage: SqliteStorage
) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM sqlite_master").fetchall()
        leaving = threading.Timer(0.3, other.execute, ["COMMIT"])
        leaving.start()
        wait_for(storage.create_job(JOB))
        leaving.join()
    assert wait_for(storage.has_job(JOB))


def test_while_a_write_waits_for_a_lock_the_loop_runs_and_reading_goes_on(storage: SqliteStorage, path: Path) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        first = await writer.append("a")
        with locked(path):
            waiting = asyncio.create_task(writer.append("b"))
            await asyncio.sleep(0)
            began = time.monotonic()
            for _ in range(20):
                assert await storage.read(RUN) == first
                assert (await storage.jobs()).ids == (JOB,)
            assert time.monotonic() - began < 5, "it waited for the lock"
            assert not waiting.done()
            other = SqliteStorage(path)
            assert await other.read(RUN) == first, "opening the file waits for no lock"
            await other.close()
        await waiting
        assert await storage.read(RUN) == writer.written

    wait_for(work())


def test_a_write_that_is_cancelled_while_it_waits_for_a_lock_is_done_or_not_when_its_caller_hears_of_it(
    storage: SqliteStorage, path: Path
) -> None:
    async def work() -> None:
        writer = await new_writer(storage)
        first = await writer.append("a")
        lines, head = seal(writer.head, [payload("b")])
        with locked(path):
            writing = asyncio.create_task(storage.append(RUN, 1, lines))
            for _ in range(3):  # a cancellation that is repeated does not let go of it either
                await asyncio.sleep(0)
                writing.cancel()
            await asyncio.sleep(0)
            assert not writing.done(), "nobody knows yet what becomes of it"
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await storage.read(RUN) == [*first, *lines]
        await storage.append(RUN, 2, seal(head, [payload("c")])[0])
        assert len(await storage.read(RUN)) == 3

    wait_for(work())


def test_a_write_that_fails_while_it_is_cancelled_says_so(
    storage: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_sqlite.database.BUSY_TIMEOUT_S", 0.3)

    async def work() -> None:
        writer = await new_writer(storage)
        with locked(path):
            writing = asyncio.create_task(writer.append("b"))
            await asyncio.sleep(0)
            writing.cancel()
            with pytest.raises(StorageError, match="locked"):
                await writing
        assert await storage.read(RUN) == []

    wait_for(work())


@pytest.mark.parametrize("query", [JOBS_QUERY, ENTRIES_QUERY])
def test_lists_find_their_jobs_in_the_index_and_sort_nothing(storage: SqliteStorage, path: Path, query: str) -> None:
    wait_for(storage.create_job(JOB))
    with closing(sqlite3.connect(path)) as db:
        values = ("", 1, "", 10)[: query.count("?")]
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert plan[0].startswith("SEARCH jobs USING")
    assert "INDEX jobs_by_space (<expr>=?" in plan[0]
    assert not [step for step in plan if "SCAN" in step or "TEMP B-TREE" in step]


def test_a_cursor_beyond_every_time_is_refused(storage: SqliteStorage) -> None:
    wait_for(storage.create_job(JOB))
    for cursor in (f"{2**63}:a", "9" * 5000 + ":a", "²:a", "1:a/b"):
        with pytest.raises(UsageError, match="not a cursor of the list of Jobs"):
            wait_for(storage.jobs(after=cursor))


def test_a_folder_that_is_made_for_the_file_is_its_users_alone_and_left_out_of_git(
    storage: SqliteStorage, path: Path
) -> None:
    async def work() -> None:
        await (await new_writer(storage)).append("x")
        async with storage.lease(JOB, "me"):
            pass

    wait_for(work())
    modes = {
        one.relative_to(path.parent).as_posix(): stat.S_IMODE(one.stat().st_mode) for one in path.parent.rglob("*")
    }
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert modes.pop("jobs.db-leases") == 0o700
    assert {modes.pop("jobs.db"), modes.pop("jobs.db-wal"), modes.pop(f"jobs.db-leases/{JOB}")} == {0o600}
    assert (path.parent / ".gitignore").read_text() == "*\n"


def test_a_folder_that_is_there_is_left_as_it_is(storage: SqliteStorage, path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o755)
    wait_for(storage.create_job(JOB))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert not (path.parent / ".gitignore").exists()


def test_a_record_missing_in_the_middle_is_damage(storage: SqliteStorage, path: Path) -> None:
    writer = wait_for(new_writer(storage))
    wait_for(writer.append("a", "b", "c"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM records WHERE key % 4294967296 = 2")
    with pytest.raises(Damaged, match="record 2") as raised:
        wait_for(storage.read(RUN))
    assert raised.value.readable == 1


def test_of_an_append_that_fails_at_its_second_record_nothing_is_kept(storage: SqliteStorage, path: Path) -> None:
    writer = wait_for(new_writer(storage))
    wait_for(writer.append("a"))
    with closing(sqlite3.connect(path)) as db, db:
        refuse = "WHEN NEW.key % 4294967296 = 3 BEGIN SELECT RAISE(FAIL, 'no more') ; END"
        db.execute(f"CREATE TRIGGER full BEFORE INSERT ON records {refuse}")
    with pytest.raises(StorageError, match="no more"):
        wait_for(writer.append("b", "c"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TRIGGER full")
    assert len(wait_for(storage.read(RUN))) == 1


def test_a_damaged_last_record_stops_the_next_append(storage: SqliteStorage, path: Path) -> None:
    writer = wait_for(new_writer(storage))
    wait_for(writer.append("a", "b"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE records SET line = 'nothing of the kind' WHERE key % 4294967296 = 2")
    records, _ = seal(EMPTY_LOG, [payload("c")])
    with pytest.raises(Damaged, match="record 2"):
        wait_for(storage.append(RUN, 2, records))


def test_a_child_process_gets_a_connection_of_its_own(storage: SqliteStorage) -> None:
    writer = wait_for(new_writer(storage))
    wait_for(writer.append("a"))
    pid = os.fork()
    if pid == 0:
        try:
            wait_for(writer.append("b"))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(wait_for(storage.read(RUN))) == 2


def test_a_deleted_job_leaves_no_rows_and_no_lease_behind(storage: SqliteStorage, path: Path) -> None:
    writer = wait_for(new_writer(storage))
    wait_for(writer.append("a"))
    wait_for(storage.put_checkpoint(JOB, f"{JOB}-1-1", b"{}"))
    wait_for(storage.put_blob(JOB, b"x"))
    wait_for(storage.delete_job(JOB))
    with closing(sqlite3.connect(path)) as db:
        for table in ("jobs", "runs", "records", "checkpoints", "entries", "blobs", "job_blobs"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    assert list((path.parent / "jobs.db-leases").iterdir()) == []


LOOK = """
import asyncio, sys
from pathlib import Path
from perstack.ports.storage import RunRef
from perstack.testing.storage_fixture import RUN
from perstack_sqlite.storage import SqliteStorage

async def look():
    storage = SqliteStorage(Path(sys.argv[1]))
    print(len(await storage.read(RUN)))
    await storage.close()

asyncio.run(look())
"""


def test_a_process_that_looks_and_leaves_takes_nothing_from_one_that_writes(path: Path, storage: SqliteStorage) -> None:
    def seen_by_another() -> int:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return int(subprocess.run([sys.executable, "-c", LOOK, path], check=True, capture_output=True, env=env).stdout)

    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("one")
        assert len(await storage.read(RUN)) == 1
        assert seen_by_another() == 1
        await writer.append("two")
        assert seen_by_another() == 2

    wait_for(work())


def test_a_step_on_a_quick_disk_changes_no_threads(storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perstack.system.concurrency._SLOW_FROM_S", 60.0)  # whatever else this machine does

    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("a")
        assert len(await storage.read(RUN)) == 1
        statements: list[str] = []
        storage._database._writer.connection().set_trace_callback(statements.append)
        for record in "bcd":
            coroutine = writer.append(record)
            with pytest.raises(StopIteration):
                coroutine.send(None)  # done without waiting for anything
        assert [one for one in statements if "PRAGMA" in one] == [], "it was told again what it knows"

    wait_for(work())


def test_a_database_that_keeps_no_row_for_a_run_is_an_error_and_mixes_no_logs(
    path: Path, storage: SqliteStorage
) -> None:
    """Somebody else's trigger, added later, drops it: every such Run once was number 0, and their logs were one."""
    wait_for(storage.create_job(JOB))
    assert wait_for(storage.jobs()).ids == (JOB,)  # both connections are open now
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TRIGGER t BEFORE INSERT ON runs BEGIN SELECT RAISE(IGNORE); END")
    (line,), _ = seal(EMPTY_LOG, [payload(1)])
    for run in (RUN, RunRef(JOB, "run-2")):
        with pytest.raises(StorageError, match="the database did not keep a row for it"):
            wait_for(storage.append(run, 0, [line]))
        assert wait_for(storage.read(run)) == []
        with pytest.raises(NotFound, match="has no records"):
            wait_for(storage.redact(run, 1, line))


def open_files(path: Path) -> list[str]:
    """Return what this process has open of a database: the file, its log and the index of that."""
    return [place for fd in Path("/proc/self/fd").iterdir() if (place := os.path.realpath(fd)).startswith(str(path))]


@pytest.mark.linux
def test_a_close_that_is_cancelled_closes_both_connections(tmp_path: Path) -> None:
    async def cancelled(storage: SqliteStorage) -> None:
        await storage.create_job(JOB)
        await storage.jobs()
        assert len(open_files(tmp_path)) > 3
        closing = asyncio.create_task(storage.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    wait_for(cancelled(SqliteStorage(tmp_path / "state.db")))
    assert open_files(tmp_path) == []


class ClosedMeanwhile:
    """A lock that, once `is_closing`, is given to who will not wait for it only after the thread that closes had it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_closing = False
        self.reached, self._wanted, self._closed = threading.Event(), threading.Event(), threading.Event()

    def closes(self) -> None:
        """Let the next to wait for the lock be the thread that closes."""
        self._closed.clear()
        self.is_closing = True

    def acquire(self, *, blocking: bool = True) -> bool:
        if self.is_closing:
            self._wanted.set()
            assert self._closed.wait(10)
        return self._lock.acquire(blocking=blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        if self.is_closing and self.reached.is_set():  # a read in a thread, which follows one that took long
            self._wanted.set()
            assert self._closed.wait(10)
        elif self.is_closing:
            self.reached.set()
            assert self._wanted.wait(10)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.is_closing = False
        self._lock.release()
        self._closed.set()


@pytest.mark.linux
def test_what_opens_the_file_again_while_it_is_closed_is_closed_by_the_next_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks: list[ClosedMeanwhile] = []

    def new_lock() -> ClosedMeanwhile:
        locks.append(ClosedMeanwhile())
        return locks[-1]

    async def work() -> None:
        monkeypatch.setattr("perstack_sqlite.database.Lock", new_lock)
        storage = SqliteStorage(tmp_path / "state.db")
        await storage.create_job(JOB)
        assert (await storage.jobs()).ids == (JOB,)
        _, of_reader, _ = locks
        of_reader.closes()
        closing = asyncio.create_task(storage.close())
        assert await asyncio.to_thread(of_reader.reached.wait, 10)
        assert (await storage.jobs()).ids == (JOB,)
        await closing
        await storage.close()

    wait_for(work())
    assert open_files(tmp_path) == []


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS job_id, x AS written FROM n"


@pytest.mark.parametrize(
    "planted",
    [
        f"ALTER TABLE jobs RENAME TO j; CREATE VIEW jobs AS {ENDLESS}",
        "CREATE TRIGGER more AFTER INSERT ON records BEGIN UPDATE records SET line = 'x'; END",
        "CREATE TABLE more (x)",
        "CREATE INDEX more ON records (length(line))",
        "DROP INDEX jobs_by_space",
    ],
    ids=["view", "trigger", "table", "index", "dropped"],
)
@pytest.mark.parametrize("is_evidence", [False, True])
def test_a_file_with_other_tables_views_or_triggers_is_refused(
    path: Path, storage: SqliteStorage, planted: str, is_evidence: bool
) -> None:
    wait_for(storage.create_job(JOB))
    wait_for(storage.close())
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(planted)
    again = SqliteStorage(path)
    try:
        with pytest.raises(StorageError, match="its tables are not those of perstack"):
            wait_for((again.as_evidence() if is_evidence else again).jobs())
    finally:
        wait_for(again.close())


def test_statistics_of_sqlite_are_no_other_table(path: Path, storage: SqliteStorage) -> None:
    wait_for(storage.create_job(JOB))
    wait_for(storage.close())
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("ANALYZE; VACUUM")
    again = SqliteStorage(path)
    assert wait_for(again.jobs()).ids == (JOB,)
    wait_for(again.close())
