"""The storage contract: blobs."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import hashlib

import pytest

from perstack.errors import NotFound
from perstack.ports.storage import Erases, Measures, SharesBlobs, Storage
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, Opener, wait_for

NOT_SHARED = "this storage keeps blobs one by one"


class BlobContract(ContractBase):
    """What events refer to by its sha256."""

    def test_no_byte_of_a_blob_changes_and_its_name_is_its_sha256(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            await storage.create_job(JOB)
            for data in (b"", b"abc", bytes(range(256)) * 1000, b"\n\r\n"):
                name = await storage.put_blob(JOB, data)
                assert name == hashlib.sha256(data).hexdigest()
                assert await storage.put_blob(JOB, data) == name
                assert await opener().blob(JOB, name) == data

        wait_for(work())

    def test_many_blobs_are_kept_at_once_and_each_job_has_its_own(self, opener: Opener) -> None:
        async def work() -> None:
            one, two = opener(), opener()
            if not isinstance(one, SharesBlobs) or not isinstance(two, SharesBlobs):
                pytest.skip(NOT_SHARED)
            if not isinstance(one, Erases) or not isinstance(two, Erases):
                pytest.skip("this storage removes no blob alone")
            many = (*(b"%d" % number * 50 for number in range(40)), b"", b"0" * 50)
            await one.create_job(JOB)
            await one.create_job("other")
            first = await one.put_blob(JOB, many[0])
            names = await one.put_blobs(JOB, many)
            assert names == tuple(hashlib.sha256(data).hexdigest() for data in many)
            assert names[0] == first
            assert await two.put_blobs("other", many[:30]) == names[:30]
            assert await two.put_blobs(JOB, many) == names
            assert sorted(await two.blobs(JOB)) == sorted({*names})
            await one.remove_blob(JOB, names[1])
            with pytest.raises(NotFound):
                await two.blob(JOB, names[1])
            assert await two.blob("other", names[1]) == many[1]
            await one.delete_job(JOB)
            for name, data in zip(names[:30], many, strict=False):
                assert await opener().blob("other", name) == data
            with pytest.raises(NotFound):
                await two.blob(JOB, names[2])
            with pytest.raises(NotFound):
                await one.put_blobs("nowhere", many)

        wait_for(work())

    def test_what_jobs_share_takes_room_once_and_goes_with_the_last_of_them(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            if not isinstance(storage, SharesBlobs) or not isinstance(storage, Measures):
                pytest.skip(NOT_SHARED)
            many = tuple(bytes([number]) * 20_000 for number in range(50))
            jobs = ("one", "two", "three")
            for job in jobs:
                await storage.create_job(job)
                await storage.put_blobs(job, many)
            sizes = await storage.sizes()
            assert [sizes[job].blobs for job in jobs] == [1_000_000] * 3
            assert await storage.size() < 2_500_000
            for job in jobs:
                await storage.delete_job(job)
            await storage.create_job("last")
            if isinstance(storage, Erases):
                await storage.erase_traces("last")
            assert await storage.size() < 900_000

        wait_for(work())

    def test_a_missing_blob_is_named_and_never_passes_as_an_empty_one(self, storage: Storage) -> None:
        wait_for(storage.create_job(JOB))
        with pytest.raises(NotFound, match="0000"):
            wait_for(storage.blob(JOB, "0" * 64))
