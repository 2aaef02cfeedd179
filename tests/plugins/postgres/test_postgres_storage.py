"""What is PostgreSQL's own about its storage: the schema, rights, notices, what is hostile, and big lists."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from hosts import closing
from postgres_server import PostgresServer

from perstack.core.base.chain import EMPTY_LOG, remove_payload, seal
from perstack.errors import Damaged, StorageError, UsageError
from perstack.ports.storage import RunRef
from perstack.testing.storage_fixture import JOB, RUN, SECONDS, new_writer, payload, wait_for
from perstack_postgres.address import parse
from perstack_postgres.plugin import perstack_storages
from perstack_postgres.statements import JOBS
from perstack_postgres.storage import PostgresStorage, store_at


def open_storage(address: str) -> PostgresStorage:
    return PostgresStorage(store_at(parse(address.partition(":")[2])))


def schema_of(address: str) -> str:
    return address.rpartition("schema=")[2]


def test_processes_that_come_first_at_the_same_moment_make_one_schema(postgres: PostgresServer) -> None:
    address = postgres.address()

    def begin(number: int) -> None:
        storage = open_storage(address)
        with closing(storage):
            wait_for(storage.create_job(f"job-{number}"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(begin, range(6)))
    storage = open_storage(address)
    with closing(storage):
        assert len(wait_for(storage.jobs()).ids) == 6


def test_a_schema_of_a_newer_perstack_is_refused_in_one_line(postgres: PostgresServer) -> None:
    address = postgres.address()
    storage, later = open_storage(address), open_storage(address)
    with closing(storage, later):
        wait_for(storage.create_job(JOB))
        postgres.execute(f"UPDATE {schema_of(address)}.meta SET version = 99")
        for ask in (later.has_job(JOB), later.create_job("other")):
            with pytest.raises(StorageError, match=r"newer perstack \(schema 99\); upgrade perstack"):
                wait_for(ask)
    postgres.execute(f"UPDATE {schema_of(address)}.meta SET application = 'another'")
    other = open_storage(address)
    with closing(other), pytest.raises(StorageError, match="belongs to another program"):
        wait_for(other.has_job(JOB))


@pytest.mark.parametrize("version", [1, 2])
def test_a_schema_from_before_the_first_release_is_refused_in_one_line_and_left_as_it_is(
    postgres: PostgresServer, version: int
) -> None:
    address = postgres.address()
    schema = schema_of(address)
    older, later = open_storage(address), open_storage(address)
    with closing(older):
        wait_for(older.create_job(JOB))
    postgres.execute(f"DROP TABLE {schema}.job_blobs; UPDATE {schema}.meta SET version = {version}")
    with closing(later):
        for ask in (later.has_job(JOB), later.create_job("other"), later.put_blob(JOB, b"x")):
            with pytest.raises(StorageError, match=rf"first release of perstack \(schema {version}\); name") as refused:
                wait_for(ask)
            assert "\n" not in str(refused.value)
        (check,) = wait_for(later.checks())
        assert (check.is_there, "first release" in check.text) == (False, True)
    assert postgres.execute(f"SELECT job_id FROM {schema}.jobs") == [(JOB,)]
    assert postgres.execute(f"SELECT version FROM {schema}.meta") == [(version,)]
    assert postgres.execute(f"SELECT to_regclass('{schema}.job_blobs')") == [(None,)]


def test_what_two_jobs_share_is_given_and_taken_at_once_without_being_lost_or_left(postgres: PostgresServer) -> None:
    address = postgres.address()
    storages = [open_storage(address) for _ in range(2)]
    blobs = [b"%d" % n for n in range(5)]

    async def again_and_again(storage: PostgresStorage, job: str) -> None:
        for _ in range(25):
            await storage.create_job(job)
            names = await storage.put_blobs(job, blobs)
            for name, data in zip(names, blobs, strict=True):
                assert await storage.blob(job, name) == data
            await storage.remove_blob(job, names[0])
            await storage.delete_job(job)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            for number, storage in enumerate(storages):
                group.create_task(again_and_again(storage, f"job-{number}"))

    with closing(*storages):
        wait_for(work())
    assert postgres.execute(f"SELECT count(*) FROM {schema_of(address)}.blobs") == [(0,)]


def test_nothing_is_written_in_order_to_read(postgres: PostgresServer) -> None:
    address = postgres.address()
    storage = open_storage(address)
    with closing(storage):
        assert not wait_for(storage.has_job(JOB))
        assert wait_for(storage.jobs()).ids == ()
        assert wait_for(storage.entries()) == wait_for(storage.sizes()) == {}
        assert wait_for(storage.lease_info(JOB)) is None
        assert wait_for(storage.size()) == 0
        assert wait_for(storage.read(RUN)) == []
    assert postgres.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", schema_of(address)) == []


def test_a_role_that_may_only_read_can_read_and_is_told_what_it_lacks(postgres: PostgresServer) -> None:
    address = postgres.address()
    schema, role = schema_of(address), "reader_of_" + schema_of(address)
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    writer, reader = open_storage(address), open_storage(address.replace("postgres@", f"{role}@"))
    with closing(writer, reader):
        lines = wait_for(wait_for(new_writer(writer)).append("a"))
        with pytest.raises(StorageError, match=r"permission denied.*docs/storages\.md"):
            wait_for(reader.read(RUN))
        postgres.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        postgres.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
        assert wait_for(reader.read(RUN)) == lines
        assert wait_for(reader.lease_info(JOB)) is None
        with pytest.raises(StorageError, match="permission denied"):
            wait_for(reader.put_summary(JOB, b"{}"))
        states = {one.about: one.is_there for one in wait_for(reader.checks())}
        assert states == {"server": True, "rights": False}
        assert all(one.is_there for one in wait_for(writer.checks()))


def test_a_watcher_hears_at_once_of_what_another_process_writes(postgres: PostgresServer) -> None:
    address = postgres.address()
    ours, other = open_storage(address), open_storage(address)

    async def work() -> None:
        writer = await new_writer(other)
        async with ours.watch(JOB) as watch:
            await watch.wait(SECONDS)  # it listens now
            async with asyncio.timeout(SECONDS):
                for n in range(5):
                    began = time.monotonic()
                    await writer.append(f"{n}")
                    await watch.wait(SECONDS)
                    assert len(await ours.read(RUN)) == n + 1
                    assert time.monotonic() - began < 5
            await other.create_job("silent")
            began = time.monotonic()
            await watch.wait(0.1)
            assert time.monotonic() - began < 5

    with closing(ours, other):
        wait_for(work())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE records SET line = 'x'::bytea WHERE seq = 2",
        "DELETE FROM records WHERE seq = 2",
        "UPDATE records SET seq = 9 WHERE seq = 3",
        "UPDATE records SET line = (SELECT line FROM records WHERE seq = 1) WHERE seq = 2",
        "UPDATE records SET line = decode(repeat('00', 300000000), 'hex') WHERE seq = 2",
    ],
)
def test_what_somebody_changed_in_the_database_is_damage_with_its_place(postgres: PostgresServer, change: str) -> None:
    if "repeat" in change and os.environ.get("PERSTACK_STORAGES") != "all":
        change = change.replace("repeat('00', 300000000)", "repeat('00', 30)")
    address = postgres.address()
    storage = open_storage(address)
    with closing(storage):
        writer = wait_for(new_writer(storage))
        lines = wait_for(writer.append("a", "b", "c"))
        postgres.execute(f"SET search_path = {schema_of(address)}; {change}")
        readable = 2 if "seq = 9" in change else 1
        with pytest.raises(Damaged, match=f"record {readable + 1}") as error:
            wait_for(opened_and_read(address))
        assert error.value.readable == readable
        assert wait_for(storage.read(RUN, limit=readable)) == lines[:readable]


async def opened_and_read(address: str) -> list[bytes]:
    storage = open_storage(address)
    try:
        return await storage.read(RUN)
    finally:
        await storage.close()


def test_a_job_that_somebody_removed_is_known_by_its_entry(postgres: PostgresServer) -> None:
    address = postgres.address()
    storage = open_storage(address)
    with closing(storage):
        wait_for(storage.create_job(JOB))
        wait_for(storage.put_entry(JOB, 1, b"\0{}"))
        postgres.execute(f"DELETE FROM {schema_of(address)}.jobs")
        assert wait_for(storage.lost_jobs()) == (JOB,)
        assert wait_for(storage.entry(JOB)) == (1, b"\0{}")


def test_a_page_of_ten_thousand_jobs_takes_an_index(postgres: PostgresServer) -> None:
    address = postgres.address()
    storage = open_storage(address)
    schema = schema_of(address)
    with closing(storage):
        wait_for(storage.create_job("first"))
        postgres.execute(
            f"INSERT INTO {schema}.jobs (space, job_id, made, written, summary)"
            f" SELECT '', 'job-' || n, '', nextval('{schema}.writings'), '{{}}' FROM generate_series(1, 10000) AS n"
        )
        postgres.execute(f"ANALYZE {schema}.jobs")
        page = wait_for(storage.jobs(limit=50))
        assert page.ids[:2] == ("job-10000", "job-9999")
        for _ in range(20):
            page = wait_for(storage.jobs(limit=50, after=page.next))
        query = JOBS.replace(" jobs ", f" {schema}.jobs ").replace("%s", "'{}'").format("", 5000, "x", 51)
        plan = "\n".join(str(line) for (line,) in postgres.execute(f"EXPLAIN {query}"))
        assert "jobs_by_time" in plan
        assert "Sort" not in plan


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("//me:se%40cret@db.example.com:5432/jobs?sslmode=require", "postgresql://db.example.com:5432/jobs"),
        ("//me:secret@a:1,b:2/jobs?target_session_attrs=read-write", "postgresql://a:1,b:2/jobs"),
        ("///jobs?host=/run/pg&password=secret&schema=other", "postgresql:///jobs?host=/run/pg&schema=other"),
        ("//me@[::1]/jobs?sslpassword=secret", "postgresql://[::1]/jobs"),
    ],
)
def test_what_is_shown_of_an_address_has_no_secret(location: str, shown: str) -> None:
    address = parse(location)
    assert address.display_url == shown
    assert "schema=" not in address.conninfo


@pytest.mark.parametrize(
    "location",
    [
        "//me:sec/ret@host/db",
        "//me:sec@ret@host/db",
        "me:secret@host/db",
        "//me:secret@ho st/db",
        "//me:secret@host/db?sslmode",
        "//me:secret@host/db?schema=pg_secret",
        "//me:secret@host/db?schema=a-secret",
        "//me:secret@[::1/db",
        "//me:se%00cret@host/db",
        "//me:secret@host/db#secret",
    ],
)
def test_an_address_that_is_not_understood_is_not_shown(location: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(location)
    for part in ("secret", "ret@", "sec"):
        assert part not in str(error.value).replace("libpq", "")


@pytest.mark.parametrize("end", ["?nonsense=secret", "?sslmode=secret", "?port=secret", "?connect_timeout=secret"])
def test_an_error_of_the_driver_shows_no_secret(postgres: PostgresServer, end: str) -> None:
    storage = open_storage(f"postgresql://me:hush-hush@127.0.0.1:1/db{end}")
    with closing(storage), pytest.raises(StorageError) as error:
        wait_for(storage.has_job(JOB))
    assert "hush" not in str(error.value)
    assert "\n" not in str(error.value)


def test_the_password_of_libpq_is_used(tmp_path: Path) -> None:
    """`PGPASSWORD` and a password file, on a server that asks for one."""
    server = PostgresServer()
    (server.data / "pg_hba.conf").write_text("local all asked scram-sha-256\nlocal all all trust\n")
    server.start()
    try:
        server.execute("CREATE ROLE asked LOGIN SUPERUSER PASSWORD 'hush-hush'")
        address = server.address("s").replace("postgres@", "asked@")
        (tmp_path / "pass").write_text("*:*:*:asked:hush-hush\n")
        (tmp_path / "pass").chmod(0o600)
        code = (
            "import asyncio, sys\nfrom pathlib import Path\nfrom perstack.errors import PerstackError\n"
            "from perstack_postgres.plugin import perstack_storages\n"
            "async def main():\n storage = perstack_storages()[0].open(sys.argv[1], Path())\n"
            " try:\n  print(await storage.has_job('a'))\n except PerstackError as error:\n  print(error)\n"
            " await storage.close()\n"
            "asyncio.run(main())"
        )

        def address_in_process(location: str, **env: str) -> str:
            path = os.pathsep.join(entry for entry in sys.path if entry)
            given = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOME": str(tmp_path), **env}
            command = [sys.executable, "-c", code, location]
            return subprocess.run(command, capture_output=True, text=True, env=given, timeout=SECONDS).stdout.strip()

        location = address.partition(":")[2]
        assert address_in_process(location, PGPASSWORD="hush-hush") == "False"
        assert address_in_process(location, PGPASSFILE=str(tmp_path / "pass")) == "False"
        assert address_in_process(location.replace("asked@", "asked:hush-hush@")) == "False"
        assert "PGPASSWORD or ~/.pgpass" in address_in_process(location)
        wrong = address_in_process(location.replace("asked@", "asked:wrong-word@"))
        assert "password authentication failed" in wrong
        assert "wrong-word" not in wrong
    finally:
        server.close()


def test_a_table_of_another_program_is_left_alone(postgres: PostgresServer) -> None:
    address = postgres.address()
    postgres.execute(f"CREATE SCHEMA {schema_of(address)}")
    postgres.execute(f"CREATE TABLE {schema_of(address)}.jobs (mine text)")
    storage = open_storage(address)
    with closing(storage), pytest.raises(StorageError, match="jobs"):
        wait_for(storage.create_job(JOB))
    assert postgres.execute(f"SELECT * FROM {schema_of(address)}.jobs") == []


def test_a_full_disk_is_said_and_the_job_goes_on_when_there_is_room(postgres: PostgresServer) -> None:
    address = postgres.address()
    schema = schema_of(address)
    storage = open_storage(address)

    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("a")
        postgres.execute(
            f"CREATE FUNCTION {schema}.no_room() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
        )
        postgres.execute(
            f"CREATE TRIGGER no_room BEFORE INSERT ON {schema}.records EXECUTE FUNCTION {schema}.no_room()"
        )
        with pytest.raises(StorageError, match="disk is full: free some space, then resume"):
            await writer.append("b")
        postgres.execute(f"DROP TRIGGER no_room ON {schema}.records")
        await writer.append("c")
        assert await storage.read(RUN) == writer.written

    with closing(storage):
        wait_for(work())


def test_who_finds_no_connection_free_waits_for_one() -> None:
    server = PostgresServer(settings={"max_connections": "5", "superuser_reserved_connections": "0"})
    server.start()
    storage = open_storage(server.address())
    try:
        held = [psycopg.connect(server.dsn()) for _ in range(5)]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: wait_for(storage.has_job(JOB)))
            time.sleep(0.3)  # it has been refused once; nothing tells of that
            assert not waiting.done()
            for one in held:
                one.close()
            assert waiting.result(SECONDS) is False
    finally:
        wait_for(storage.close())
        server.close()


def test_what_was_taken_out_is_in_no_file_of_the_tables() -> None:
    server = PostgresServer().start()
    storage = open_storage(server.address())
    secret = b"hunter2-is-the-password"

    def holding() -> list[str]:
        server.execute("CHECKPOINT")
        files = [path for path in (server.data / "base").rglob("*") if path.is_file()]
        return [path.name for path in files if secret in path.read_bytes()]

    async def work() -> None:
        writer = await new_writer(storage)
        (line,) = await writer.append(secret.decode())
        name = await storage.put_blob(JOB, secret)
        (shared,) = await storage.put_blobs(JOB, [secret + b"!"])
        assert holding()
        await storage.redact(RUN, 1, remove_payload(line, "noted", "job1-1"))
        await storage.remove_blob(JOB, name)
        await storage.remove_blob(JOB, shared)
        await storage.erase_traces(JOB)

    try:
        wait_for(work())
        assert holding() == []
    finally:
        wait_for(storage.close())
        server.close()


def test_ids_are_in_the_order_of_their_bytes_and_kept_as_they_are(postgres: PostgresServer) -> None:
    storage = open_storage(postgres.address())
    names = ["a", "B", "a-1", "A_b", "-9"]

    async def work() -> None:
        for name in names:
            await storage.create_job(name)
            lines, _ = seal(EMPTY_LOG, [payload(f"\0 {name} \ufffe")])
            await storage.append(RunRef(name, f"{name}-1"), 0, lines)
            assert await storage.read(RunRef(name, f"{name}-1")) == lines
        assert set((await storage.jobs()).ids) == set(names)

    with closing(storage):
        wait_for(work())


def test_the_driver_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, perstack_postgres.plugin as p; p.perstack_storages(); print('psycopg' in sys.modules)"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=SECONDS)
    assert done.stdout.strip() == "False"


def test_both_words_for_it_open_the_same_store(postgres: PostgresServer) -> None:
    address = postgres.address()
    one, two = (factory.open(address.partition(":")[2], Path.cwd()) for factory in perstack_storages())
    with closing(one, two):
        wait_for(one.create_job(JOB))
        assert wait_for(two.has_job(JOB))
        assert one.location == two.location
