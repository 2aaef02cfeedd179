"""The storage contract: spaces, which are sets of Jobs of their own, and entries, which lists are made of."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import pytest

from perstack.errors import NotFound, UsageError
from perstack.ports.storage import RunRef, Storage
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, RUN, Opener, Writer, new_writer, wait_for


class SpaceContract(ContractBase):
    """What is kept beside Jobs, and how thousands are listed."""

    def test_what_is_in_one_space_is_in_no_other(self, opener: Opener) -> None:
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

    def test_a_space_is_there_for_every_process(self, opener: Opener) -> None:
        written = wait_for(wait_for(new_writer(opener().space("tasks"))).append("x"))
        later = opener()
        assert later.space("tasks") is later.space("tasks")
        assert wait_for(later.space("tasks").read(RUN)) == written
        assert wait_for(later.space("tasks").jobs()).ids == (JOB,)

    @pytest.mark.parametrize("name", ["", "jobs", "..", "a/b", "Tasks", "x" * 21])
    def test_what_is_no_name_of_a_space_is_refused(self, storage: Storage, name: str) -> None:
        with pytest.raises(UsageError):
            storage.space(name)

    def test_every_job_has_an_entry_and_an_empty_one_until_it_is_put(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            assert await storage.entries() == {}
            for name in ("a", "b"):
                await storage.create_job(name)
            assert await storage.entries() == {"a": b"", "b": b""}
            await storage.put_entry("a", 1, b'{"x":1}', synced=True)
            assert await opener().entries() == {"a": b'{"x":1}', "b": b""}
            with pytest.raises(NotFound):
                await storage.put_entry("c", 1, b"{}")

        wait_for(work())

    def test_an_entry_of_an_earlier_place_is_ignored(self, opener: Opener) -> None:
        async def work() -> None:
            one, two = opener(), opener()
            await one.create_job(JOB)
            await one.put_entry(JOB, 5, b"")
            await one.put_entry(JOB, 5, b"five")
            await two.put_entry(JOB, 4, b"four")
            assert await one.entries() == await two.entries() == {JOB: b"five"}
            await two.put_entry(JOB, 5, b"five again")
            assert await one.entries() == {JOB: b"five again"}

        wait_for(work())

    def test_a_deleted_job_has_no_entry_and_a_new_one_of_its_name_begins_anew(self, storage: Storage) -> None:
        async def work() -> None:
            await storage.create_job(JOB)
            await storage.put_entry(JOB, 9, b"old")
            await storage.delete_job(JOB)
            assert await storage.entries() == {}
            await storage.create_job(JOB)
            assert await storage.entries() == {JOB: b""}
            await storage.put_entry(JOB, 1, b"new")
            assert await storage.entries() == {JOB: b"new"}

        wait_for(work())

    def test_an_entry_of_one_job_is_read_with_its_place(self, opener: Opener) -> None:
        async def work() -> None:
            one, two = opener(), opener()
            for name in ("a", "ab"):
                await one.create_job(name)
            assert await one.entry("a") is await two.entry("nowhere") is None
            await one.put_entry("ab", 7, b'{"x":"3 a y"}')
            assert await two.entry("a") is None
            await one.put_entry("a", 2, b"")
            assert await two.entry("a") == (2, b"")
            await two.put_entry("a", 3, b'{"y":1}', synced=True)
            await two.put_entry("a", 1, b'{"z":1}')
            assert await one.entry("a") == await opener().entry("a") == (3, b'{"y":1}')
            assert await one.entry("ab") == (7, b'{"x":"3 a y"}')
            assert await one.lost_jobs() == ()
            await one.delete_job("a")
            assert await one.entry("a") is await two.entry("a") is None
            assert await two.lost_jobs() == ()

        wait_for(work())

    def test_entries_stay_right_however_often_they_are_put(self, opener: Opener) -> None:
        async def work() -> None:
            one, two = opener(), opener()
            for name in ("a", "b"):
                await one.create_job(name)
            for n in range(1, 1500):
                await (one if n % 2 else two).put_entry("a", n, b"%d" % n)
                if n % 500 == 0:
                    assert await two.entries() == {"a": b"%d" % n, "b": b""}
            assert await one.entries() == await two.entries() == {"a": b"1499", "b": b""}

        wait_for(work())

    def test_a_log_in_a_space_is_fenced_like_any(self, opener: Opener) -> None:
        async def work() -> None:
            one, two = opener().space("tasks"), opener().space("tasks")
            first = await new_writer(one, RunRef("t", "t-1"))
            await first.append("begin")
            second: Writer = first.again(two)
            await second.append("second")
            with pytest.raises(Exception, match="another process"):
                await first.append("first")

        wait_for(work())
