"""The storage contract: taking the content of a record out, for storages that can."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import pytest

from perstack.core.chain import line_of, open_line, without_payload
from perstack.errors import Conflict, NotFound
from perstack.ports.storage import Erases, Redacts, RunRef
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, RUN, Opener, new_writer, wait_for

NOTHING_TAKEN_OUT = "this storage takes nothing out of a log"
NOTHING_ERASED = "this storage erases nothing"


class RedactionContract(ContractBase):
    """Asked of a storage that is `Redacts`."""

    def test_no_process_reads_what_was_taken_out_and_the_log_continues(self, opener: Opener) -> None:
        async def work() -> None:
            one, two = opener(), opener()
            if not isinstance(one, Redacts):
                pytest.skip(NOTHING_TAKEN_OUT)
            writer = await new_writer(one)
            lines = [*await writer.append("a", "secret"), *await writer.append("c")]
            assert await two.read(RUN) == lines
            left = without_payload(lines[1], "noted", "job-1-2")
            await one.redact(RUN, 2, left)
            expected = [lines[0], left, lines[2]]
            assert await two.read(RUN) == await opener().read(RUN) == await one.read(RUN) == expected
            expected += await writer.again(two).append("d")
            assert await one.read(RUN) == await opener().read(RUN) == expected
            await one.redact(RUN, 2, left)
            assert await two.read(RUN, after=1, limit=2) == expected[1:3]

        wait_for(work())

    def test_nothing_but_its_own_redaction_takes_the_place_of_a_record(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            if not isinstance(storage, Redacts):
                pytest.skip(NOTHING_TAKEN_OUT)
            lines = await (await new_writer(storage)).append("a", "b")
            sealed = open_line(lines[0])
            other = without_payload(lines[1], "noted", "job-1-1")
            forged = line_of(b'{"text":"x","redacted":true}', sealed.digest, sealed.hash, sealed.batch)
            for record in (other, forged, b"", lines[0]):
                with pytest.raises(Conflict):
                    await storage.redact(RUN, 1, record)
            for run, seq in ((RUN, 3), (RUN, 0), (RunRef("nowhere", "nowhere-1"), 1)):
                with pytest.raises(NotFound):
                    await storage.redact(run, seq, without_payload(lines[0], "noted", "job-1-1"))
            assert await opener().read(RUN) == lines

        wait_for(work())


class ErasureContract(ContractBase):
    """Asked of a storage that is `Erases`."""

    def test_a_blob_that_is_removed_is_gone_for_every_process_and_may_be_put_again(self, opener: Opener) -> None:
        async def work() -> None:
            one, two = opener(), opener()
            if not isinstance(one, Erases) or not isinstance(two, Erases):
                pytest.skip(NOTHING_ERASED)
            await one.create_job(JOB)
            assert await one.blobs(JOB) == ()
            kept, gone = await one.put_blob(JOB, b"kept"), await one.put_blob(JOB, b"secret")
            assert sorted(await two.blobs(JOB)) == sorted((kept, gone))
            await one.remove_blob(JOB, gone)
            await one.remove_blob(JOB, gone)
            await one.erase_traces(JOB)
            for storage in (one, two, opener()):
                with pytest.raises(NotFound):
                    await storage.blob(JOB, gone)
                assert await storage.blob(JOB, kept) == b"kept"
            assert await two.put_blob(JOB, b"secret") == gone
            assert await one.blob(JOB, gone) == b"secret"
            with pytest.raises(NotFound):
                await one.blobs("nowhere")

        wait_for(work())

    def test_nothing_that_is_kept_is_lost_where_traces_are_erased_and_writing_continues(self, opener: Opener) -> None:
        async def work() -> None:
            one, two = opener(), opener()
            if not isinstance(one, Erases):
                pytest.skip(NOTHING_ERASED)
            writer = await new_writer(one)
            lines = await writer.append("a", "b")
            await one.put_summary(JOB, b"{}")
            assert await two.read(RUN) == lines
            await one.erase_traces(JOB)
            lines += await writer.append("c")
            assert await two.read(RUN) == await opener().read(RUN) == lines
            assert await opener().summary(JOB) == b"{}"

        wait_for(work())
