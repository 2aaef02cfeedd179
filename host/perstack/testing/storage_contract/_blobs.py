"""The storage contract: blobs, redaction and erasure."""

from __future__ import annotations

import hashlib

import pytest

from perstack.core.base.chain import format_line, open_line, remove_payload
from perstack.errors import Conflict, NotFound
from perstack.ports.storage import RunRef, Storage
from perstack.testing.storage_fixture import JOB, RUN, ContractBase, Opener, in_loop, new_writer, wait_for

# Blobs.

# ruff: noqa: S101 - these are tests


class BlobContract(ContractBase):
    """Blobs, which events refer to by sha256."""

    @in_loop
    async def test_no_byte_of_a_blob_changes_and_its_name_is_its_sha256(self, opener: Opener) -> None:
        storage = opener()
        await storage.create_job(JOB)
        for data in (b"", b"abc", bytes(range(256)) * 1000, b"\n\r\n"):
            name = await storage.put_blob(JOB, data)
            assert name == hashlib.sha256(data).hexdigest()
            assert await storage.put_blob(JOB, data) == name
            assert await opener().blob(JOB, name) == data

    @in_loop
    async def test_many_blobs_are_kept_at_once_and_each_job_has_its_own(self, opener: Opener) -> None:
        first, second = opener(), opener()
        contents = (*(b"%d" % number * 50 for number in range(40)), b"", b"0" * 50)
        await first.create_job(JOB)
        await first.create_job("other")
        first_name = await first.put_blob(JOB, contents[0])
        names = await first.put_blobs(JOB, contents)
        assert names == tuple(hashlib.sha256(data).hexdigest() for data in contents)
        assert names[0] == first_name
        assert await second.put_blobs("other", contents[:30]) == names[:30]
        assert await second.put_blobs(JOB, contents) == names
        assert sorted(await second.blobs(JOB)) == sorted({*names})
        await first.remove_blob(JOB, names[1])
        with pytest.raises(NotFound):
            await second.blob(JOB, names[1])
        assert await second.blob("other", names[1]) == contents[1]
        await first.delete_job(JOB)
        for name, data in zip(names[:30], contents, strict=False):
            assert await opener().blob("other", name) == data
        with pytest.raises(NotFound):
            await second.blob(JOB, names[2])
        with pytest.raises(NotFound):
            await first.put_blobs("nowhere", contents)

    @in_loop
    async def test_what_jobs_share_takes_room_once_and_goes_with_the_last_of_them(self, opener: Opener) -> None:
        storage = opener()
        if not opener.shares_blobs:
            pytest.skip("this storage keeps the blobs of each Job apart")
        contents = tuple(bytes([number]) * 20_000 for number in range(50))
        jobs = ("one", "two", "three")
        for job in jobs:
            await storage.create_job(job)
            await storage.put_blobs(job, contents)
        sizes = await storage.sizes()
        assert [sizes[job].blobs for job in jobs] == [1_000_000] * 3
        assert await storage.size() < 2_500_000
        for job in jobs:
            await storage.delete_job(job)
        await storage.create_job("last")
        await storage.erase_traces("last")
        assert await storage.size() < 900_000

    def test_a_missing_blob_is_named_and_never_passes_as_an_empty_one(self, storage: Storage) -> None:
        wait_for(storage.create_job(JOB))
        with pytest.raises(NotFound, match="0000"):
            wait_for(storage.blob(JOB, "0" * 64))


# ruff: noqa: S101 - these are tests


class RedactionContract(ContractBase):
    """Redaction of records."""

    @in_loop
    async def test_no_process_reads_what_was_taken_out_and_the_log_continues(self, opener: Opener) -> None:
        first, second = opener(), opener()
        writer = await new_writer(first)
        lines = [*await writer.append("a", "secret"), *await writer.append("c")]
        assert await second.read(RUN) == lines
        redacted = remove_payload(lines[1], "noted", "job-1-2")
        await first.redact(RUN, 2, redacted)
        expected = [lines[0], redacted, lines[2]]
        assert await second.read(RUN) == await opener().read(RUN) == await first.read(RUN) == expected
        expected += await writer.again(second).append("d")
        assert await first.read(RUN) == await opener().read(RUN) == expected
        await first.redact(RUN, 2, redacted)
        assert await second.read(RUN, after=1, limit=2) == expected[1:3]

    @in_loop
    async def test_nothing_but_its_own_redaction_takes_the_place_of_a_record(self, opener: Opener) -> None:
        storage = opener()
        lines = await (await new_writer(storage)).append("a", "b")
        sealed = open_line(lines[0])
        other = remove_payload(lines[1], "noted", "job-1-1")
        forged = format_line(b'{"text":"x","redacted":true}', sealed.digest, sealed.hash, sealed.batch)
        for record in (other, forged, b"", lines[0]):
            with pytest.raises(Conflict):
                await storage.redact(RUN, 1, record)
        for ref, seq in ((RUN, 3), (RUN, 0), (RunRef("nowhere", "nowhere-1"), 1)):
            with pytest.raises(NotFound):
                await storage.redact(ref, seq, remove_payload(lines[0], "noted", "job-1-1"))
        assert await opener().read(RUN) == lines


class ErasureContract(ContractBase):
    """Removal of blobs, and of what remains on the medium."""

    @in_loop
    async def test_a_blob_that_is_removed_is_gone_for_every_process_and_may_be_put_again(self, opener: Opener) -> None:
        first, second = opener(), opener()
        await first.create_job(JOB)
        assert await first.blobs(JOB) == ()
        kept_name, removed_name = await first.put_blob(JOB, b"kept"), await first.put_blob(JOB, b"secret")
        assert sorted(await second.blobs(JOB)) == sorted((kept_name, removed_name))
        await first.remove_blob(JOB, removed_name)
        await first.remove_blob(JOB, removed_name)
        await first.erase_traces(JOB)
        for storage in (first, second, opener()):
            with pytest.raises(NotFound):
                await storage.blob(JOB, removed_name)
            assert await storage.blob(JOB, kept_name) == b"kept"
        assert await second.put_blob(JOB, b"secret") == removed_name
        assert await first.blob(JOB, removed_name) == b"secret"
        with pytest.raises(NotFound):
            await first.blobs("nowhere")

    @in_loop
    async def test_nothing_that_is_kept_is_lost_where_traces_are_erased_and_writing_continues(
        self, opener: Opener
    ) -> None:
        first, second = opener(), opener()
        writer = await new_writer(first)
        lines = await writer.append("a", "b")
        await first.put_summary(JOB, b"{}")
        assert await second.read(RUN) == lines
        await first.erase_traces(JOB)
        lines += await writer.append("c")
        assert await second.read(RUN) == await opener().read(RUN) == lines
        assert await opener().summary(JOB) == b"{}"
