"""The S3 storage passes the whole contract, on a server."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

import obstore
import pytest
from s3_server import BUCKET, bucket

from perstack.core.base.chain import open_line, seal
from perstack.ports.storage import RunRef
from perstack.testing.storage_contract import Opener, StorageContract
from perstack.testing.storage_fixture import new_writer, wait_for
from perstack_s3.layout import Layout
from perstack_s3.leases import EXPIRY_S
from perstack_s3.log import S3Log
from perstack_s3.objects import BucketLocation, Objects
from perstack_s3.plugin import perstack_storages


def opener_at(endpoint: str) -> Opener:
    """A store below a new prefix."""
    location = f"//{BUCKET}/{secrets.token_hex(4)}"
    factory = perstack_storages()[0]

    def damage(run: RunRef, index: int) -> None:
        store = bucket(endpoint)
        appends = sorted(
            meta["path"]
            for page in obstore.list(store, prefix=f"{location.removeprefix(f'//{BUCKET}/')}/jobs/logs/{run.job_id}")
            for meta in page
            if f"/{run.run_id}/a" in meta["path"]
        )
        seq = 0
        for path in appends:
            lines = bytes(obstore.get(store, path).bytes()).split(b"\n")
            for at in range(1, len(lines) - 1):
                if seq == index:
                    assert open_line(lines[at])
                    lines[at] = lines[at].replace(b'"text":"', b'"text":"X', 1)
                    obstore.put(store, path, b"\n".join(lines))
                    return
                seq += 1
        raise AssertionError("no such record")

    return Opener(
        lambda: factory.open(location, Path.cwd()),
        ("perstack_s3.plugin", location),
        damage=damage,
        expiry=EXPIRY_S + 3,  # whole seconds of the server, and a busy machine
    )


ALL = "all" in (os.environ.get("PERSTACK_FAULTS"), os.environ.get("PERSTACK_STORAGES"))
LONG = (
    "test_no_entry_is_lost_however_often_they_are_put",
    "test_nothing_is_lost_with_more_runs_than_files_may_be_open",
    "test_a_page_of_a_log_misses_and_repeats_nothing_wherever_it_ends",
)
"""Tests of hundreds of operations one after another, each of which is requests."""


class TestS3Storage(StorageContract):
    sequences = StorageContract.sequences if ALL else 8

    @pytest.fixture(autouse=True)
    def leave_out_long_tests(self, request: pytest.FixtureRequest) -> None:
        if request.function.__name__ in LONG and not ALL:
            pytest.skip("takes thousands of requests: PERSTACK_STORAGES=all")

    @pytest.fixture
    def make_opener(self, s3):
        return lambda: opener_at(s3)


def test_a_log_of_many_appends_is_merged_and_reads_the_same(s3):
    async def work() -> None:
        opener = opener_at(s3)
        storage = opener()
        writer = await new_writer(storage)
        for n in range(150):
            await writer.append(f"{n}")
        for view in (storage, opener()):
            assert await view.read(writer.ref) == writer.written
            assert await view.read(writer.ref, 63, 3) == writer.written[63:66]

    asyncio.run(work())


def test_a_log_is_read_to_its_end_though_an_append_is_taken_back_meanwhile(s3):
    run = RunRef("job", "job-1")

    class TakenBack(Objects):
        log: S3Log | None = None

        async def get(self, key, *, retry_s=None):
            found = await super().get(key, retry_s=retry_s)
            if self.log is not None and key == Layout("jobs").append(run, "one", 1):
                await self.log.take_back(1)
            return found

    async def work() -> None:
        objects = TakenBack(BucketLocation(BUCKET, secrets.token_hex(4), s3))
        writer = S3Log(objects, Layout("jobs"), run, "one")
        records: list[bytes] = []
        for n in range(2):
            sealed, _ = seal(writer.end, [b'{"n":"%d"}' % n])
            await writer.append(n, sealed, 0)
            records += sealed
        objects.log = reader = S3Log(objects, Layout("jobs"), run, "one")
        assert await reader.read(0, None) == records

    wait_for(work())


def test_of_many_who_replace_an_object_at_once_one_does(s3):
    """What S3 promises, and the server of the tests has to keep: else what one of them wrote is lost."""

    async def work() -> None:
        objects = [Objects(BucketLocation(BUCKET, "at-once", s3)) for _ in range(2)]
        for _ in range(40):
            tag = await objects[0].create(key := secrets.token_hex(4), b"")
            tries = [objects[n % 2].replace(key, b"%d" % n, tag or "") for n in range(8)]
            assert sum(new is not None for new in await asyncio.gather(*tries)) == 1

    asyncio.run(work())
