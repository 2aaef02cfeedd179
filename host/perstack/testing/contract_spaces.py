"""The storage contract: spaces, which are sets of Jobs of their own."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import pytest

from perstack.errors import NotFound, UsageError
from perstack.ports.storage import RunRef, Storage
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, RUN, Opener, Writer, new_writer, wait_for


class SpaceContract(ContractBase):
    """What is kept beside Jobs."""

    def test_no_space_sees_or_harms_what_is_in_another(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            tasks = storage.space("tasks")
            await (await new_writer(tasks)).append("a task")
            await tasks.put_summary(JOB, b"{}")
            await tasks.put_entry(JOB, 1, b"{}")
            assert not await storage.has_job(JOB)
            assert (await storage.jobs()).ids == (await storage.space("others").jobs()).ids == ()
            assert await storage.entries() == {}
            await (await new_writer(storage)).append("a job")
            await storage.put_blob(JOB, b"blob")
            assert len(await tasks.read(RUN)) == len(await storage.read(RUN)) == 1
            assert await tasks.read(RUN) != await storage.read(RUN)
            with pytest.raises(NotFound):
                await tasks.blob(JOB, "0" * 64)
            async with storage.lease(JOB, "me"):
                assert await tasks.lease_info(JOB) is None
                await tasks.delete_job(JOB)
            assert await storage.has_job(JOB)
            assert (await storage.jobs()).ids == (JOB,)

        wait_for(work())

    def test_what_is_in_a_space_outlives_its_process(self, opener: Opener) -> None:
        written = wait_for(wait_for(new_writer(opener().space("tasks"))).append("x"))
        later = opener()
        assert later.space("tasks") is later.space("tasks")
        assert wait_for(later.space("tasks").read(RUN)) == written
        assert wait_for(later.space("tasks").jobs()).ids == (JOB,)

    @pytest.mark.parametrize("name", ["", "jobs", "..", "a/b", "Tasks", "x" * 21])
    def test_no_name_of_a_space_leads_out_of_the_store(self, storage: Storage, name: str) -> None:
        with pytest.raises(UsageError):
            storage.space(name)

    def test_two_writers_in_a_space_never_mix_their_histories(self, opener: Opener) -> None:
        async def work() -> None:
            one, two = opener().space("tasks"), opener().space("tasks")
            first = await new_writer(one, RunRef("t", "t-1"))
            await first.append("begin")
            second: Writer = first.again(two)
            await second.append("second")
            with pytest.raises(Exception, match="another process"):
                await first.append("first")

        wait_for(work())
