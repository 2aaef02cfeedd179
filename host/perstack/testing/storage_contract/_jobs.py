"""The storage contract: Jobs and Runs, spaces, sizes and local files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path

import pytest

from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.errors import Conflict, NotFound, UsageError
from perstack.ports.storage import Page, RunRef, Storage
from perstack.testing.storage_fixture import (
    JOB,
    RUN,
    ContractBase,
    Opener,
    Writer,
    in_loop,
    new_writer,
    payload,
    wait_for,
)

# ruff: noqa: S101 - these are tests


class JobContract(ContractBase):
    """Listing and deletion of Jobs and Runs, and calls for missing ones."""

    def test_a_new_store_is_empty_and_can_be_looked_at(self, storage: Storage) -> None:
        assert wait_for(storage.jobs()) == Page(())
        assert not wait_for(storage.has_job(JOB))
        assert storage.location

    def test_no_job_is_lost_before_its_first_event(self, opener: Opener) -> None:
        wait_for(opener().create_job(JOB))
        reopened = opener()
        assert wait_for(reopened.has_job(JOB))
        assert wait_for(reopened.jobs()).ids == (JOB,)
        assert wait_for(reopened.runs(JOB)) == Page(())

    def test_no_job_takes_the_id_of_another(self, opener: Opener) -> None:
        wait_for(opener().create_job(JOB))
        with pytest.raises(Conflict, match=JOB):
            wait_for(opener().create_job(JOB))

    @in_loop
    async def test_no_legal_job_id_is_too_long_for_the_store(self, storage: Storage) -> None:
        job = "j" * 128
        writer = await new_writer(storage, RunRef(job, f"{job}-1"))
        await writer.append("x")
        async with storage.lease(job, "me"):
            assert await storage.read(writer.ref) == writer.written

    @in_loop
    async def test_a_list_of_jobs_in_pages_misses_and_repeats_none(self, storage: Storage) -> None:
        names = [f"job-{n}" for n in range(25)]
        for name in names:
            await storage.create_job(name)
            await storage.put_summary(name, b"{}")
        ids: list[str] = []
        after: str | None = None
        for _ in range(4):
            page = await storage.jobs(limit=7, after=after)
            ids += page.ids
            after = page.next
        assert ids == names[::-1]
        assert after is None
        assert (await storage.jobs(limit=25)).next is None

    @in_loop
    async def test_a_list_repeats_no_job_when_one_is_made_between_its_pages(self, storage: Storage) -> None:
        for name in ("a", "b", "c", "d"):
            await storage.create_job(name)
            await storage.put_summary(name, b"{}")
        page = await storage.jobs(limit=2)
        await storage.create_job("e")
        await storage.put_summary("e", b"{}")
        assert page.ids + (await storage.jobs(limit=2, after=page.next)).ids == ("d", "c", "b", "a")

    def test_no_cursor_that_was_made_up_is_obeyed(self, storage: Storage) -> None:
        wait_for(storage.create_job(JOB))
        with pytest.raises(UsageError):
            wait_for(storage.jobs(after="nonsense"))

    @in_loop
    async def test_every_run_with_a_log_is_found_and_in_the_order_of_the_numbers(self, storage: Storage) -> None:
        await storage.create_job(JOB)
        for number in (10, 2, 1, 33):
            await Writer(storage, RunRef(JOB, f"{JOB}-{number}")).append("x")
        assert (await storage.runs(JOB)).ids == tuple(f"{JOB}-{n}" for n in (1, 2, 10, 33))

    @in_loop
    async def test_a_list_of_runs_in_pages_misses_and_repeats_none(self, storage: Storage) -> None:
        await storage.create_job(JOB)
        for number in range(1, 13):
            await Writer(storage, RunRef(JOB, f"{JOB}-{number}")).append("x")
        first = await storage.runs(JOB, limit=5)
        second = await storage.runs(JOB, limit=5, after=first.next)
        third = await storage.runs(JOB, limit=5, after=second.next)
        assert [len(page.ids) for page in (first, second, third)] == [5, 5, 2]
        assert first.ids + second.ids + third.ids == tuple(f"{JOB}-{n}" for n in range(1, 13))
        assert third.next is None

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

    @in_loop
    async def test_nothing_of_a_deleted_job_is_left_or_can_be_added(self, opener: Opener) -> None:
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

    @in_loop
    async def test_a_new_job_has_no_record_of_a_deleted_one_of_its_id(self, storage: Storage) -> None:
        await (await new_writer(storage)).append("old")
        await storage.delete_job(JOB)
        writer = await new_writer(storage)
        await writer.append("new")
        assert await storage.read(RUN) == writer.written

    @in_loop
    async def test_a_driver_writes_to_the_new_job_of_an_id_whose_job_another_process_deleted(
        self, opener: Opener
    ) -> None:
        storage = opener()
        for text in ("first", "second", "third"):
            writer = await new_writer(storage)
            async with storage.lease(JOB, "its driver"):
                await writer.append(text)
                await writer.append(f"{text} again")
            other = opener()
            assert await other.read(RUN) == writer.written
            await other.delete_job(JOB)

    def test_deleting_a_job_in_use_harms_no_other(self, opener: Opener) -> None:
        async def ignore_loss(work: Awaitable[object]) -> None:
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
                    for call in (
                        writer.append("y"),
                        storage.delete_job(JOB),
                        storage.read(RUN),
                        other.append("a", "b"),
                    ):
                        group.create_task(ignore_loss(call))
                assert not await storage.has_job(JOB)
                assert await storage.read(RUN) == []
            for other in others:
                assert await storage.read(other.ref) == other.written

        wait_for(work())


# Spaces: separate sets of Jobs.

# ruff: noqa: S101 - these are tests


class SpaceContract(ContractBase):
    """Isolation of spaces from each other."""

    @in_loop
    async def test_no_space_sees_or_harms_what_is_in_another(self, opener: Opener) -> None:
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

    def test_what_is_in_a_space_outlives_its_process(self, opener: Opener) -> None:
        written = wait_for(wait_for(new_writer(opener().space("tasks"))).append("x"))
        reopened = opener()
        assert reopened.space("tasks") is reopened.space("tasks")
        assert wait_for(reopened.space("tasks").read(RUN)) == written
        assert wait_for(reopened.space("tasks").jobs()).ids == (JOB,)

    @pytest.mark.parametrize("name", ["", "jobs", "..", "a/b", "Tasks", "x" * 21])
    def test_no_name_of_a_space_leads_out_of_the_store(self, storage: Storage, name: str) -> None:
        with pytest.raises(UsageError):
            storage.space(name)

    @in_loop
    async def test_two_writers_in_a_space_never_mix_their_histories(self, opener: Opener) -> None:
        tasks, other_tasks = opener().space("tasks"), opener().space("tasks")
        first = await new_writer(tasks, RunRef("t", "t-1"))
        await first.append("begin")
        second: Writer = first.again(other_tasks)
        await second.append("second")
        with pytest.raises(Exception, match="another process"):
            await first.append("first")


# Sizes.

# ruff: noqa: S101 - these are tests


class SizeContract(ContractBase):
    """Sizes of Jobs and of the store."""

    @in_loop
    async def test_sizes_are_of_what_is_kept_and_of_its_own_space(self, opener: Opener) -> None:
        storage = opener()
        tasks = storage.space("tasks")
        assert await storage.sizes() == {}
        lines = await (await new_writer(storage)).append("a", "b" * 5_000)
        for _ in range(2):
            await storage.put_blob(JOB, b"x" * 1_000)
        await storage.put_summary(JOB, b"y" * 100)
        await storage.create_job("other")
        await (await new_writer(tasks)).append("a")
        sizes = await opener().sizes()
        assert set(sizes) == {JOB, "other"}
        text = sum(map(len, lines))
        assert text <= sizes[JOB].logs <= text + 250  # bytes that a storage may add to an append and its list
        assert (sizes[JOB].blobs, sizes["other"].logs, sizes["other"].blobs) == (1_000, 0, 0)
        assert sizes[JOB].caches >= 100
        assert await storage.sizes([JOB, "nowhere"]) == {JOB: sizes[JOB]}
        assert 0 < (await tasks.sizes())[JOB].logs < 1_000
        assert await storage.size() >= sizes[JOB].total


# Local files.

# ruff: noqa: S101 - these are tests


class LocalContract(ContractBase):
    """Files on this machine."""

    def test_asking_where_a_store_is_makes_nothing(self, storage: Storage) -> None:
        programs = _programs_of(storage)
        assert all(place.is_absolute() for place in storage.places)
        assert not any(place.exists() for place in (*storage.places, programs))

    def test_no_file_of_a_store_is_left_open_to_tools(self, storage: Storage) -> None:
        async def work() -> None:
            await (await new_writer(storage)).append("x")
            await storage.put_blob(JOB, b"x")
            await storage.put_entry(JOB, 1, b"{}")
            async with storage.lease(JOB, "me"):
                # `places` must name every file and folder that the store has created
                names = {path for place in storage.places for path in place.parent.iterdir()}
                assert names <= set(storage.places)

        programs = _programs_of(storage)
        folders = {place.parent for place in storage.places}
        if any(path for folder in folders if folder.is_dir() for path in folder.iterdir()):
            pytest.skip("other files stand beside this store")
        wait_for(work())
        assert any(place == programs or place in programs.parents for place in storage.places)


def _programs_of(storage: Storage) -> Path:
    if storage.programs is None:
        pytest.skip("this storage keeps no files on this machine")
    return storage.programs
