"""What only the S3 storage promises, and whole Jobs on it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import obstore
import pytest
from cutting_proxy import Cutting, cutting
from hosts import Bench, expert
from s3_server import BUCKET, KEYS, bucket
from terminal import Terminal, reply

from perstack.core.jobs.summary import JobSummary
from perstack.errors import Conflict, Damaged, StorageError, UsageError
from perstack.ports.storage import RunRef, Storage
from perstack.testing.storage_fixture import JOB, RUN, SECONDS, new_writer, wait_for
from perstack_s3.plugin import S3Storages

EXPERT = """
[experts.writer]
instruction = "[[writer]]"
"""


@pytest.fixture
def place(s3: str) -> str:
    """The address of a new store."""
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


def open_storage(place: str) -> Storage:
    return S3Storages().open(place.removeprefix("s3:"), Path.cwd())


def test_a_job_is_run_asked_about_continued_and_verified(terminal: Terminal, s3: str, place: str) -> None:
    terminal.env |= {**KEYS, "AWS_ENDPOINT_URL_S3": s3}
    turns = [reply("", ("writeTextFile", {"path": "a.txt", "text": "one"})), reply("Written."), reply("And so on.")]
    terminal.project(EXPERT, writer=turns)
    first = terminal.run("run", "writer", "write", "--job-id", "j", "--storage", place)
    assert first.code == 0, first.err
    assert '"j"' in terminal.run("jobs", "--storage", place, "--json").out
    again = terminal.run("run", "writer", "more", "--continue", "--storage", place)
    assert again.code == 0, again.err
    assert terminal.run("verify", "j", "--storage", place).code == 0
    assert "And so on." in terminal.run("log", "j", "--storage", place).out
    assert terminal.run("delete", "j", "--yes", "--storage", place).code == 0
    assert not [path for path in _keys(s3, place) if "/j/" in path]


def test_the_server_may_stand_in_perstack_toml_and_is_checked(terminal: Terminal, s3: str, place: str) -> None:
    terminal.env |= KEYS
    table = f'storage = "{place}"\n[storageSetting]\nendpoint = "{s3}"\nregion = "us-east-1"\n'
    terminal.project(table + EXPERT, writer=[reply("Done.")])
    assert terminal.run("run", "writer", "x", "--job-id", "j").code == 0
    assert f"{place.removeprefix(f's3://{BUCKET}/')}/jobs/markers/j" in _keys(s3, place)
    checked = terminal.run("storage", "check", place)
    assert (checked.code, checked.err) == (0, "")
    assert "conditional writes" in checked.out
    gone = terminal.run("storage", "check", "s3://another-bucket/x")
    assert gone.code == 1
    assert "no such bucket" in gone.out
    terminal.project(table.replace("region", "regoin") + EXPERT)
    wrong = terminal.run("jobs")
    assert (wrong.code, len(wrong.err.splitlines())) == (2, 1)
    assert "regoin" in wrong.err


def test_no_key_is_in_what_is_printed_or_stored(terminal: Terminal, s3: str, place: str) -> None:
    terminal.env |= {**KEYS, "AWS_SECRET_ACCESS_KEY": "a-very-secret-key", "AWS_ENDPOINT_URL_S3": s3}
    terminal.project(EXPERT, writer=[reply("Done.")])
    done = terminal.run("run", "writer", "x", "--job-id", "j", "--storage", place)
    terminal.env["AWS_ENDPOINT_URL_S3"] = "http://127.0.0.1:9"
    failed = terminal.run("jobs", "--storage", place)
    assert failed.code != 0
    assert place in failed.err
    assert len(failed.err.splitlines()) == 1
    stored = b"".join(bytes(obstore.get(bucket(s3), path).bytes()) for path in _keys(s3, place))
    assert "a-very-secret-key" not in done.out + done.err + failed.out + failed.err + stored.decode()


@pytest.mark.parametrize("location", ["bucket/prefix", "//b", "//bucket/a//b", "//bucket/../x", "//user:pw@bucket/x"])
def test_a_place_that_is_none_is_refused_with_the_form_of_one(location: str) -> None:
    with pytest.raises(UsageError, match="s3://BUCKET/PREFIX") as raised:
        S3Storages().open(location, Path.cwd())
    assert "pw" not in str(raised.value)


def test_a_bucket_that_is_not_there_is_named(s3: str) -> None:
    with pytest.raises(StorageError, match="no such bucket"):
        wait_for(S3Storages().open("//another-bucket/x", Path.cwd()).create_job(JOB))


def test_looking_at_a_store_that_is_not_there_makes_nothing(s3: str, place: str) -> None:
    storage = open_storage(place)
    assert wait_for(storage.jobs()).ids == ()
    assert wait_for(storage.read(RUN)) == []
    assert wait_for(storage.lease_info(JOB)) is None
    assert _keys(s3, place) == []


def test_a_store_of_a_newer_version_is_refused(s3: str, place: str) -> None:
    prefix = place.removeprefix(f"s3://{BUCKET}/")
    obstore.put(bucket(s3), f"{prefix}/perstack.json", b'{"version":2}')
    for work in (lambda: open_storage(place).has_job(JOB), lambda: open_storage(place).create_job(JOB)):
        with pytest.raises(StorageError, match="newer perstack"):
            wait_for(work())


def test_an_append_whose_answer_is_lost_has_succeeded_once(s3: str, place: str, monkeypatch) -> None:
    def put(store: object, path: str, data: bytes, **more: object) -> object:
        answer = real(store, path, data, **more)
        if "/a000000" in path and path not in lost:
            lost.add(path)
            raise TimeoutError
        return answer

    lost: set[str] = set()
    real = obstore.put
    monkeypatch.setattr("perstack_s3.objects.obstore.put", put)

    async def work() -> None:
        writer = await new_writer(open_storage(place))
        for n in range(3):
            await writer.append(f"{n}", "and more")
        assert await open_storage(place).read(RUN) == writer.written
        assert len(lost) == 3

    wait_for(work())


def test_a_missing_append_is_damage_and_all_before_it_stays_readable(s3: str, place: str) -> None:
    async def work() -> None:
        writer = await new_writer(open_storage(place))
        for n in range(8):
            await writer.append(f"{n}")
        [gone] = [path for path in _keys(s3, place) if path.endswith("a0000000003")]
        obstore.delete(bucket(s3), gone)
        with pytest.raises(Damaged, match="record 4: append 3 is missing") as raised:
            await open_storage(place).read(RUN)
        assert raised.value.readable == 3
        assert await open_storage(place).read(RUN, limit=3) == writer.written[:3]

    wait_for(work())


def test_a_holder_that_was_frozen_writes_nothing_once_another_has_the_job(s3: str, place: str, monkeypatch) -> None:
    async def work() -> None:
        frozen, other = open_storage(place), open_storage(place)
        writer = await new_writer(frozen)
        async with frozen.lease(JOB, "the frozen one"):
            await writer.append("one")
            # as if seconds had passed, and no beat had come through
            monkeypatch.setattr("perstack_s3.leases.EXPIRY_S", -1.0)
            monkeypatch.setattr("perstack_s3.leases._SURE_FOR_S", -1.0)
            async with other.lease(JOB, "the next"):
                with pytest.raises(Conflict, match="lease was lost"):
                    await writer.append("late")
        assert await other.read(RUN) == writer.written

    wait_for(work())


def test_who_drives_a_delegate_without_the_jobs_lease_writes_on_when_the_job_is_taken_over(
    s3: str, place: str, monkeypatch
) -> None:
    """Its log has a place less, and nothing else in it; who had the Job before writes nothing to it."""

    async def work() -> None:
        frozen, apart, other = open_storage(place), open_storage(place), open_storage(place)
        await (await new_writer(frozen)).append("of the job")
        delegate = await new_writer(apart, RunRef(JOB, f"{JOB}-2"))
        await delegate.append("one")
        late = delegate.again(frozen)
        async with frozen.lease(JOB, "the frozen one"):
            monkeypatch.setattr("perstack_s3.leases.EXPIRY_S", -1.0)
            monkeypatch.setattr("perstack_s3.leases._SURE_FOR_S", -1.0)
            async with other.lease(JOB, "the next"):
                await delegate.append("two")
                with pytest.raises(Conflict):
                    await late.append("instead of two")
                await delegate.append("three")
                assert (
                    await other.read(delegate.ref) == await open_storage(place).read(delegate.ref) == delegate.written
                )

    wait_for(work())


def test_a_watcher_asks_for_one_object_and_looks_when_it_has_changed(s3: str, place: str) -> None:
    async def work(endpoint: str, state: Cutting) -> None:
        storage = open_storage(place)
        watching = S3Storages().open(place.removeprefix("s3:"), Path.cwd(), setting={"endpoint": endpoint})
        await storage.create_job(JOB)
        async with watching.watch(JOB) as watch:  # type: ignore[attr-defined]
            before = state.requests
            await watch.wait(1.0)
            assert 0 < state.requests - before <= 4
            await storage.put_summary(JOB, b"{}")
            began = asyncio.get_running_loop().time()
            await watch.wait(SECONDS)
            assert asyncio.get_running_loop().time() - began < SECONDS / 2

    with cutting(s3) as (endpoint, state):
        wait_for(work(endpoint, state))


@pytest.mark.parametrize("appends", [63, 64, 65, 300])
def test_the_end_of_a_long_log_is_found_without_reading_it(s3: str, place: str, appends: int) -> None:
    async def work(endpoint: str, state: Cutting) -> None:
        writer = await new_writer(open_storage(place))
        for number in range(appends):
            await writer.append(f"{number}")
        looking = S3Storages().open(place.removeprefix("s3:"), Path.cwd(), setting={"endpoint": endpoint})
        for count in (1, 70, 1000):
            assert await looking.end(RUN, count) == writer.written[-count:]
        state.fail(0, "lost")
        await looking.end(RUN, 3)
        assert state.requests <= 1 + 64 + 24  # the last block's own, and a few looks for where it is
        assert await looking.end(RunRef(JOB, f"{JOB}-9"), 3) == []

    with cutting(s3) as (endpoint, state):
        wait_for(work(endpoint, state))


def test_a_large_object_has_time_by_its_size_on_a_slow_line(s3: str, place: str, monkeypatch) -> None:
    monkeypatch.setattr("perstack_s3.objects._MIN_REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr("perstack_s3.objects._MIN_BYTES_PER_SECOND", 1_000_000)
    large = secrets.token_bytes(6_000_000)

    async def work(endpoint: str, state: Cutting) -> None:
        storage = S3Storages().open(place.removeprefix("s3:"), Path.cwd(), setting={"endpoint": endpoint})
        await storage.create_job(JOB)
        state.line = 4_000_000
        before = state.requests
        name = await storage.put_blob(JOB, large)
        assert await storage.blob(JOB, name) == large
        assert state.requests - before <= 6
        state.line = 500_000  # slower than promised, and than what follows promises, so that it is given up in seconds
        monkeypatch.setattr("perstack_s3.objects._MIN_BYTES_PER_SECOND", 4_000_000)
        with pytest.raises(StorageError, match="cannot be reached"):
            await storage.blob(JOB, name)

    monkeypatch.setattr("perstack_s3.objects.RETRY_TIMEOUT_S", 0.0)
    with cutting(s3) as (endpoint, state):
        wait_for(work(endpoint, state))


def test_a_page_reads_only_what_was_written_in_its_own_seconds_and_that_once(s3: str, place: str) -> None:
    async def work(endpoint: str, state: Cutting) -> None:
        storage = open_storage(place)
        every = [f"job-{number}" for number in range(9)]
        for number, name in enumerate(every):
            await storage.create_job(name)
            await storage.put_summary(name, b"{}")
            if number in (2, 5):
                await asyncio.sleep(1.1)  # the server's times are whole seconds
        looking = S3Storages().open(place.removeprefix("s3:"), Path.cwd(), setting={"endpoint": endpoint})
        state.fail(0, "lost")
        first = await looking.jobs(limit=2)
        assert first.ids == ("job-8", "job-7")
        lists = 2 + 2  # and the version of the store
        assert state.requests <= lists + 3
        found, after = list(first.ids), first.next
        while after is not None:
            page = await looking.jobs(limit=2, after=after)
            found, after = [*found, *page.ids], page.next
        assert found == every[::-1]
        state.fail(0, "lost")
        await looking.jobs(limit=9)
        assert state.requests == 2

    with cutting(s3) as (endpoint, state):
        wait_for(work(endpoint, state))


def test_the_summaries_of_a_page_are_asked_for_several_at_a_time(
    s3: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(state: Cutting) -> None:
        storage = open_storage(place)
        for name in every:
            one = JobSummary(
                id=name,
                expert_key="a",
                query="q",
                status="completed",
                lifecycle="completed",
                coordinator_run_id=f"{name}-1",
                runs=(),
            )
            await storage.create_job(name)
            await storage.put_summary(name, one.to_json())
        async with Bench(tmp_path, place).host([], expert("a")) as host:
            page = await host.jobs.list()
            assert {job.id for job in page.jobs} == every
            assert state.most_at_once > 4

    every = {f"job-{number}" for number in range(12)}
    with cutting(s3) as (endpoint, state):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        wait_for(work(state))


@pytest.mark.parametrize("rubbish", [b"", b"{}", b"[" * 100_000, b"\xff\xfe", b'{"writer":"x","records":9}\n'])
def test_rubbish_in_the_place_of_any_object_is_an_error_of_one_line(s3: str, place: str, rubbish: bytes) -> None:
    async def work() -> None:
        storage = open_storage(place)
        writer = await new_writer(storage)
        await writer.append("one")
        await storage.put_summary(JOB, b"{}")
        await storage.put_entry(JOB, 1, b"{}")
        async with storage.lease(JOB, "me"):
            pass
        for path in _keys(s3, place):
            kept = bytes(obstore.get(bucket(s3), path).bytes())
            obstore.put(bucket(s3), path, rubbish)
            async for error in _all_of(open_storage(place)):
                assert "\n" not in str(error)
            obstore.put(bucket(s3), path, kept)
        assert await open_storage(place).read(RUN) == writer.written

    asyncio.run(work())


async def _all_of(storage: Storage) -> AsyncIterator[StorageError]:
    """What goes wrong when all is asked for."""
    for ask in (
        storage.jobs,
        storage.entries,
        lambda: storage.read(RUN),
        lambda: storage.runs(JOB),
        lambda: storage.summary(JOB),
        lambda: storage.entry(JOB),
        lambda: storage.lease_info(JOB),
    ):
        try:
            await ask()
        except StorageError as error:
            yield error


def _keys(endpoint: str, place: str) -> list[str]:
    prefix = place.removeprefix(f"s3://{BUCKET}/")
    return [meta["path"] for page in obstore.list(bucket(endpoint), prefix=prefix) for meta in page]
