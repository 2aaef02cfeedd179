"""The storage contract: Jobs and Runs, and what is asked of those that are not there."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import pytest

from perstack.core.chain import EMPTY_LOG, seal
from perstack.errors import Conflict, NotFound, UsageError
from perstack.ports.storage import Page, RunRef, Storage
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, RUN, Opener, Writer, new_writer, payload, wait_for


class JobContract(ContractBase):
    """Which there are, and the end of them."""

    def test_a_new_store_is_empty_and_can_be_looked_at(self, storage: Storage) -> None:
        assert wait_for(storage.jobs()) == Page(())
        assert not wait_for(storage.has_job(JOB))
        assert storage.location

    def test_no_job_is_lost_before_its_first_event(self, opener: Opener) -> None:
        wait_for(opener().create_job(JOB))
        later = opener()
        assert wait_for(later.has_job(JOB))
        assert wait_for(later.jobs()).ids == (JOB,)
        assert wait_for(later.runs(JOB)) == Page(())

    def test_no_job_takes_the_id_of_another(self, opener: Opener) -> None:
        wait_for(opener().create_job(JOB))
        with pytest.raises(Conflict, match=JOB):
            wait_for(opener().create_job(JOB))

    def test_no_legal_job_id_is_too_long_for_the_store(self, storage: Storage) -> None:
        async def work() -> None:
            job = "j" * 128
            writer = await new_writer(storage, RunRef(job, f"{job}-1"))
            await writer.append("x")
            async with storage.lease(job, "me"):
                assert await storage.read(writer.run) == writer.written

        wait_for(work())

    def test_a_list_of_jobs_in_pages_misses_and_repeats_none(self, storage: Storage) -> None:
        async def work() -> None:
            names = [f"job-{n}" for n in range(25)]
            for name in names:
                await storage.create_job(name)
                await storage.put_summary(name, b"{}")
            seen: list[str] = []
            after: str | None = None
            for _ in range(4):
                page = await storage.jobs(limit=7, after=after)
                seen += page.ids
                after = page.next
            assert seen == names[::-1]
            assert after is None
            assert (await storage.jobs(limit=25)).next is None

        wait_for(work())

    def test_a_list_repeats_no_job_when_one_is_made_between_its_pages(self, storage: Storage) -> None:
        async def work() -> None:
            for name in ("a", "b", "c", "d"):
                await storage.create_job(name)
                await storage.put_summary(name, b"{}")
            page = await storage.jobs(limit=2)
            await storage.create_job("e")
            await storage.put_summary("e", b"{}")
            assert page.ids + (await storage.jobs(limit=2, after=page.next)).ids == ("d", "c", "b", "a")

        wait_for(work())

    def test_no_cursor_that_was_made_up_is_obeyed(self, storage: Storage) -> None:
        wait_for(storage.create_job(JOB))
        with pytest.raises(UsageError):
            wait_for(storage.jobs(after="nonsense"))

    def test_every_run_with_a_log_is_found_and_in_the_order_of_the_numbers(self, storage: Storage) -> None:
        async def work() -> None:
            await storage.create_job(JOB)
            for number in (10, 2, 1, 33):
                await Writer(storage, RunRef(JOB, f"{JOB}-{number}")).append("x")
            assert (await storage.runs(JOB)).ids == tuple(f"{JOB}-{n}" for n in (1, 2, 10, 33))

        wait_for(work())

    def test_a_list_of_runs_in_pages_misses_and_repeats_none(self, storage: Storage) -> None:
        async def work() -> None:
            await storage.create_job(JOB)
            for number in range(1, 13):
                await Writer(storage, RunRef(JOB, f"{JOB}-{number}")).append("x")
            first = await storage.runs(JOB, limit=5)
            second = await storage.runs(JOB, limit=5, after=first.next)
            third = await storage.runs(JOB, limit=5, after=second.next)
            assert [len(page.ids) for page in (first, second, third)] == [5, 5, 2]
            assert first.ids + second.ids + third.ids == tuple(f"{JOB}-{n}" for n in range(1, 13))
            assert third.next is None

        wait_for(work())

    def test_no_run_is_listed_that_never_began(self, storage: Storage) -> None:
        wait_for(storage.create_job(JOB))
        records, _ = seal(EMPTY_LOG, [payload("x")])
        with pytest.raises(Conflict):
            wait_for(storage.append(RUN, 4, records))
        assert wait_for(storage.runs(JOB)).ids == ()

    def test_asking_for_an_unknown_job_makes_none_and_says_so(self, storage: Storage) -> None:
        for ask in (
            storage.runs("nope"),
            storage.blob("nope", "0" * 64),
            storage.delete_job("nope"),
            storage.put_summary("nope", b"{}"),
            storage.put_blob("nope", b"x"),
        ):
            with pytest.raises(NotFound):
                wait_for(ask)
        assert wait_for(storage.summary("nope")) is None
        assert wait_for(storage.lease_info("nope")) is None
        assert not wait_for(storage.has_job("nope"))

    def test_nothing_of_a_deleted_job_is_left_or_can_be_added(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            writer = await new_writer(storage)
            await writer.append("x")
            await storage.put_summary(JOB, b"{}")
            blob = await storage.put_blob(JOB, b"data")
            await storage.create_job("other")
            await opener().delete_job(JOB)
            for view in (storage, opener()):
                assert not await view.has_job(JOB)
                assert (await view.jobs()).ids == ("other",)
                assert await view.read(RUN) == []
                assert await view.summary(JOB) is None
                with pytest.raises(NotFound):
                    await view.blob(JOB, blob)
            with pytest.raises(NotFound):
                await writer.append("after the end")

        wait_for(work())

    def test_a_new_job_has_no_record_of_a_deleted_one_of_its_id(self, storage: Storage) -> None:
        async def work() -> None:
            await (await new_writer(storage)).append("old")
            await storage.delete_job(JOB)
            writer = await new_writer(storage)
            await writer.append("new")
            assert await storage.read(RUN) == writer.written

        wait_for(work())

    def test_deleting_a_job_in_use_harms_no_other(self, opener: Opener) -> None:
        async def ends(work: Awaitable[object]) -> None:
            with suppress(Conflict, NotFound):
                await work

        async def work() -> None:
            storage = opener()
            others: list[Writer] = []
            for number in range(20):
                writer = await new_writer(storage)
                await writer.append("x")
                other = await new_writer(storage, RunRef(f"other-{number}", f"other-{number}-1"))
                others.append(other)
                async with asyncio.TaskGroup() as group:
                    for doing in (
                        writer.append("y"),
                        storage.delete_job(JOB),
                        storage.read(RUN),
                        other.append("a", "b"),
                    ):
                        group.create_task(ends(doing))
                assert not await storage.has_job(JOB)
                assert await storage.read(RUN) == []
            for other in others:
                assert await storage.read(other.run) == other.written

        wait_for(work())
