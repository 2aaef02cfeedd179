"""Processes that are killed, frozen, or lose their server: a Job ends as if nothing was, one at a time drives it."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import obstore
import pytest
from crash_team import Team
from cutting_proxy import Kill, cutting
from frozen_driver import check_frozen, driver
from obstore.exceptions import AlreadyExistsError
from s3_server import BUCKET, KEYS
from server_restart import Jobs

from perstack.errors import Conflict
from perstack.ports.storage import RunRef, Storage
from perstack.testing.storage_fixture import JOB, RUN, SECONDS, new_writer, wait_for
from perstack_s3.leases import EXPIRY_S
from perstack_s3.plugin import S3Storages

THOROUGH = os.environ.get("PERSTACK_FAULTS") == "all"
WAITS = pytest.mark.skipif(not THOROUGH, reason="waits for a lease to expire: PERSTACK_FAULTS=all")
AT_ONCE = 6
"""Teams: for most of their time they wait for the lease of a process that was killed."""
JOBS, SECONDS_GONE = (50, EXPIRY_S / 2) if THOROUGH else (10, 1.0)
HOST_JOBS = 50 if THOROUGH else 4


def open_storage(location: str, endpoint: str | None = None) -> Storage:
    return S3Storages().open(location, Path.cwd(), setting={"endpoint": endpoint} if endpoint else {})


@pytest.fixture
def location() -> str:
    """A new store."""
    return f"//{BUCKET}/{secrets.token_hex(4)}"


def team_at(folder: Path, endpoint: str) -> Team:
    place = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    return Team(folder, place, place, {**KEYS, "AWS_ENDPOINT_URL_S3": endpoint})


@WAITS
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", get_args(Kill))
def test_a_job_ends_the_same_whichever_write_its_process_dies_at(tmp_path: Path, s3: str, way: Kill) -> None:
    def count_of_writes(at: int) -> tuple[int, int]:
        """How many writes there were in all, and how many processes it took."""
        with cutting(s3) as (endpoint, state):
            team = team_at(tmp_path / f"{at}", endpoint)
            state.kill = team.kill
            state.fail(at, way)
            lives = team.lives()
            team.check_end()
            return state.requests, lives

    writes, lives = count_of_writes(0)
    assert (writes > 40, lives) == (True, 2)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        done = list(threads.map(count_of_writes, range(1, writes + 1)))
    killed = sum(lives > 2 for _, lives in done)
    print(f"{way}: {len(done)} of {writes} writes, {killed} Jobs took one process more: 0 lost, 0 repeated")
    assert killed


def test_of_two_processes_on_one_job_the_second_is_refused(tmp_path: Path, s3: str) -> None:
    team = team_at(tmp_path / "two", s3)
    team.two_at_once()
    assert team.lives() >= 1
    team.check_end()


@WAITS
def test_a_driver_that_was_frozen_writes_nothing_once_another_took_over(s3: str, location: str) -> None:
    storage = open_storage(location)
    wait_for(storage.create_job(JOB))
    with driver(("perstack_s3.plugin", location)) as frozen:
        assert check_frozen(frozen, storage) <= EXPIRY_S + 4


def test_a_write_that_was_held_up_until_another_took_over_is_none(
    s3: str, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up, goes_on, was_reached = threading.Event(), threading.Event(), threading.Event()
    refused, real = list[str](), obstore.put

    def put(store: object, path: str, data: bytes, **more: object) -> object:
        if held_up.is_set() and "/a000" in path and b"late" in data:
            was_reached.set()
            assert goes_on.wait(SECONDS)
            try:
                real(store, path, data, **more)  # type: ignore[arg-type]
            except AlreadyExistsError:
                refused.append(path)
        return real(store, path, data, **more)  # type: ignore[arg-type]

    async def work() -> None:
        frozen, other = open_storage(location), open_storage(location)
        writer, delegate = await new_writer(frozen), RunRef(JOB, f"{JOB}-2")
        await writer.append("one")
        async with frozen.lease(JOB, "the frozen one"):
            held_up.set()
            late = asyncio.create_task(writer.append("late"))
            assert await asyncio.to_thread(was_reached.wait, SECONDS)
            monkeypatch.setattr("perstack_s3.leases.EXPIRY_S", -1.0)
            monkeypatch.setattr("perstack_s3.leases._SURE_FOR_S", -1.0)
            async with other.lease(JOB, "the next"):
                before = await other.read(RUN)
                goes_on.set()
                with pytest.raises(Conflict):
                    await late
                with pytest.raises(Conflict):
                    await (await new_writer(frozen, delegate)).append("late too")
                await writer.again(other).append("two")
                assert (await other.read(RUN))[:1] == before
                assert len(await other.read(RUN)) == 2
                assert await other.read(delegate) == []
        assert (await other.runs(JOB)).ids == (RUN.run_id,)

    monkeypatch.setattr("perstack_s3.objects.obstore.put", put)
    wait_for(work())
    assert len(refused) == 1


def test_a_server_that_is_restarted_costs_no_running_job_anything(s3: str, location: str) -> None:
    written: dict[str, list[bytes]] = {}

    async def drive(storage: Storage, job: str, is_back: asyncio.Event) -> None:
        await storage.create_job(job)
        async with storage.lease(job, f"driver of {job}"):
            writer = await new_writer(storage, RunRef(job, f"{job}-1"))
            await writer.append("before")
            begun.append(job)
            while not is_back.is_set():
                await writer.append("meanwhile")
                await storage.put_summary(job, b"{}")
            await writer.append("after")
        written[job] = writer.written

    async def work(endpoint: str) -> None:
        storage, is_back = open_storage(location, endpoint), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(JOBS):
                group.create_task(drive(storage, f"job-{number}", is_back))
            while len(begun) < JOBS:
                await asyncio.sleep(0.05)
            with state.gone():
                await asyncio.sleep(SECONDS_GONE)
            is_back.set()
        plain = open_storage(location)
        for job, lines in written.items():
            assert await plain.read(RunRef(job, f"{job}-1")) == lines
            assert await plain.lease_info(job) is None
        assert len(written) == JOBS
        print(f"{JOBS} Jobs of {sum(map(len, written.values()))} appends, the server gone for {SECONDS_GONE} s: 0 lost")

    begun: list[str] = []
    with cutting(s3) as (endpoint, state):
        asyncio.run(asyncio.wait_for(work(endpoint), 100))


def test_jobs_of_a_host_continue_when_the_server_was_gone(
    tmp_path: Path, s3: str, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cutting(s3) as (endpoint, state):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        jobs = Jobs(tmp_path, f"s3:{location}", HOST_JOBS)

        async def gone() -> None:
            with state.gone():
                await asyncio.sleep(SECONDS_GONE)

        print(f"the server gone for {SECONDS_GONE} s:", asyncio.run(jobs.pass_through(gone)))
    assert jobs.said == []
