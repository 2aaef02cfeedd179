"""The storage contract: caches, namely summaries, entries, Run settings and checkpoints."""

from __future__ import annotations

import pytest

from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.errors import NotFound, UsageError
from perstack.ports.storage import Page, RunRef, Storage
from perstack.testing.storage_fixture import JOB, RUN, ContractBase, Opener, Writer, in_loop, payload, wait_for

# ruff: noqa: S101 - these are tests


class CacheContract(ContractBase):
    """Promise 5, and the listing of thousands of Jobs."""

    @in_loop
    async def test_the_job_written_last_is_found_first(self, opener: Opener) -> None:
        storage = opener()
        for name in ("c", "a", "b"):
            await storage.create_job(name)
            await storage.put_summary(name, b"{}")
        assert (await storage.jobs()).ids == ("b", "a", "c")
        await storage.put_summary("a", b'{"x":1}')
        assert (await opener().jobs()).ids == ("a", "b", "c")

    @in_loop
    async def test_a_reader_sees_the_latest_summary_whole(self, opener: Opener) -> None:
        storage = opener()
        await storage.create_job(JOB)
        assert await storage.summary(JOB) is None
        await storage.put_summary(JOB, b'{"a":"first, and rather long"}')
        await storage.put_summary(JOB, b'{"a":"\xc3\xa9"}')
        assert await opener().summary(JOB) == b'{"a":"\xc3\xa9"}'

    @in_loop
    async def test_no_job_is_missing_from_a_list_before_anything_is_put_for_it(self, opener: Opener) -> None:
        storage = opener()
        assert await storage.entries() == {}
        for name in ("a", "b"):
            await storage.create_job(name)
        assert await storage.entries() == {"a": b"", "b": b""}
        await storage.put_entry("a", 1, b'{"x":1}', synced=True)
        assert await opener().entries() == {"a": b'{"x":1}', "b": b""}
        with pytest.raises(NotFound):
            await storage.put_entry("c", 1, b"{}")

    @in_loop
    async def test_a_writer_that_comes_late_cannot_undo_a_newer_entry(self, opener: Opener) -> None:
        first, second = opener(), opener()
        await first.create_job(JOB)
        await first.put_entry(JOB, 5, b"")
        await first.put_entry(JOB, 5, b"five")
        await second.put_entry(JOB, 4, b"four")
        assert await first.entries() == await second.entries() == {JOB: b"five"}
        await second.put_entry(JOB, 5, b"five again")
        assert await first.entries() == {JOB: b"five again"}

    @in_loop
    async def test_a_new_job_has_no_entry_of_a_deleted_one_of_its_id(self, storage: Storage) -> None:
        await storage.create_job(JOB)
        await storage.put_entry(JOB, 9, b"old")
        await storage.delete_job(JOB)
        assert await storage.entries() == {}
        await storage.create_job(JOB)
        assert await storage.entries() == {JOB: b""}
        await storage.put_entry(JOB, 1, b"new")
        assert await storage.entries() == {JOB: b"new"}

    @in_loop
    async def test_a_writer_that_comes_late_cannot_put_an_entry_of_a_deleted_job_to_a_new_one_of_its_id(
        self, opener: Opener
    ) -> None:
        first, second = opener(), opener()
        await first.create_job(JOB)
        old, head = seal(EMPTY_LOG, [payload(f"old {n}") for n in (1, 2)])
        await first.append(RUN, 0, old)
        await first.put_entry(JOB, 2, b"old", expected=(RUN, head))
        assert await second.entry(JOB) == (2, b"old")
        await second.delete_job(JOB)
        await second.create_job(JOB)
        for length in range(4):
            new, end = seal(EMPTY_LOG, [payload(f"new {n}") for n in range(length)])
            await second.append(RUN, 0, new)
            await first.put_entry(JOB, 3, b"", synced=True, expected=(RUN, head))
            await first.put_entry(JOB, 2, b"old", expected=(RUN, head))
            assert await first.entry(JOB) is await second.entry(JOB) is None
            assert await first.entries() == {JOB: b""}
            if new:
                await first.put_entry(JOB, length, b"new", expected=(RUN, end))
                assert await second.entry(JOB) == (length, b"new")
            await first.delete_job(JOB)
            await first.create_job(JOB)

    @in_loop
    async def test_a_log_that_was_cut_is_known_by_the_place_that_its_entry_names(self, opener: Opener) -> None:
        first, second = opener(), opener()
        for name in ("a", "ab"):
            await first.create_job(name)
        assert await first.entry("a") is await second.entry("nowhere") is None
        await first.put_entry("ab", 7, b'{"x":"3 a y"}')
        assert await second.entry("a") is None
        await first.put_entry("a", 2, b"")
        assert await second.entry("a") == (2, b"")
        await second.put_entry("a", 3, b'{"y":1}', synced=True)
        await second.put_entry("a", 1, b'{"z":1}')
        assert await first.entry("a") == await opener().entry("a") == (3, b'{"y":1}')
        assert await first.entry("ab") == (7, b'{"x":"3 a y"}')
        await first.delete_job("a")
        assert await first.entry("a") is await second.entry("a") is None

    @in_loop
    async def test_no_entry_is_lost_however_often_they_are_put(self, opener: Opener) -> None:
        first, second = opener(), opener()
        for name in ("a", "b"):
            await first.create_job(name)
        for n in range(1, 1500):
            await (first if n % 2 else second).put_entry("a", n, b"%d" % n)
            if n % 500 == 0:
                assert await second.entries() == {"a": b"%d" % n, "b": b""}
        assert await first.entries() == await second.entries() == {"a": b"1499", "b": b""}

    @in_loop
    async def test_reading_all_summaries_at_once_misses_and_mixes_none(self, opener: Opener) -> None:
        storage = opener()
        assert await storage.summaries() == {}
        for name in ("a", "b", "c"):
            await storage.create_job(name)
        await storage.put_summary("a", b'{"a":1}')
        await opener().put_summary("c", b'{"c":1}')
        await storage.delete_job("b")
        await storage.create_job("d")
        assert await storage.summaries() == {"a": b'{"a":1}', "c": b'{"c":1}', "d": b""}

    @in_loop
    async def test_a_job_that_was_deleted_on_purpose_is_never_reported_as_lost(self, opener: Opener) -> None:
        first, second = opener(), opener()
        assert await first.lost_jobs() == ()
        for name in ("a", "b"):
            await first.create_job(name)
            await first.put_entry(name, 2, b"{}")
        assert await first.lost_jobs() == ()
        await first.delete_job("a")
        assert await first.lost_jobs() == await second.lost_jobs() == ()


# Run settings and checkpoints, for storages that keep these copies.

# ruff: noqa: S101 - these are tests


class CopiesContract(ContractBase):
    """Run settings and checkpoints (promise 5)."""

    @in_loop
    async def test_a_reader_sees_the_latest_setting_of_a_run(self, storage: Storage) -> None:
        copies = _copies(storage)
        await storage.create_job(JOB)
        await copies.put_run_setting(RUN, b"{}")
        await copies.put_run_setting(RUN, b'{"a":1}')
        assert await copies.run_setting(RUN) == b'{"a":1}'
        assert await copies.run_setting(RunRef(JOB, f"{JOB}-9")) is None
        await Writer(storage).append("x")
        await copies.put_run_setting(RUN, b"{}")

    @in_loop
    async def test_a_setting_alone_makes_no_run(self, storage: Storage) -> None:
        copies = _copies(storage)
        await storage.create_job(JOB)
        await copies.put_run_setting(RUN, b"{}")
        assert await storage.runs(JOB) == Page(())
        assert await storage.read(RUN) == []

    @in_loop
    async def test_a_reader_sees_the_latest_checkpoint_of_an_id_and_no_other(self, opener: Opener) -> None:
        storage = opener()
        copies = _copies(storage)
        await storage.create_job(JOB)
        assert await copies.checkpoint(JOB, f"{JOB}-1-1") is None
        await copies.put_checkpoint(JOB, f"{JOB}-1-1", b'{"a":1}')
        await copies.put_checkpoint(JOB, f"{JOB}-1-1", b'{"a":2}')
        assert await _copies(opener()).checkpoint(JOB, f"{JOB}-1-1") == b'{"a":2}'
        assert await copies.checkpoint(JOB, f"{JOB}-1-2") is None

    @in_loop
    async def test_a_list_of_checkpoints_in_pages_misses_and_repeats_none(self, storage: Storage) -> None:
        copies = _copies(storage)
        await storage.create_job(JOB)
        assert await copies.checkpoints(JOB) == Page(())
        ids = [f"{JOB}-{run}-{seq}" for run in (1, 2, 10) for seq in (3, 9, 20, 100)]
        for checkpoint_id in reversed(ids):
            await copies.put_checkpoint(JOB, checkpoint_id, b"{}")
        first = await copies.checkpoints(JOB, limit=7)
        second = await copies.checkpoints(JOB, limit=7, after=first.next)
        assert first.ids + second.ids == tuple(ids)
        assert (len(first.ids), second.next) == (7, None)

    def test_a_file_that_is_named_to_a_person_is_the_checkpoint_itself(self, storage: Storage) -> None:
        path = storage.checkpoint_path(JOB, f"{JOB}-1-1")
        if path is None:
            pytest.skip("this storage keeps no checkpoint files")
        wait_for(storage.create_job(JOB))
        assert not path.exists()
        wait_for(storage.put_checkpoint(JOB, f"{JOB}-1-1", b'{"a":1}'))
        assert path.read_bytes() == b'{"a":1}'

    @in_loop
    async def test_no_copy_outlives_its_job(self, opener: Opener) -> None:
        storage = opener()
        copies = _copies(storage)
        await storage.create_job(JOB)
        await copies.put_checkpoint(JOB, f"{JOB}-1-1", b"{}")
        await copies.put_run_setting(RUN, b"{}")
        await opener().delete_job(JOB)
        await storage.create_job(JOB)
        for view in (copies, _copies(opener())):
            assert await view.checkpoint(JOB, f"{JOB}-1-1") is None
            assert await view.checkpoints(JOB) == Page(())
            assert await view.run_setting(RUN) is None

    def test_no_copy_makes_a_job_by_itself(self, storage: Storage) -> None:
        copies = _copies(storage)
        for ask in (
            copies.checkpoints("nope"),
            copies.put_checkpoint("nope", "nope-1-1", b"{}"),
            copies.put_run_setting(RunRef("nope", "nope-1"), b"{}"),
        ):
            with pytest.raises(NotFound):
                wait_for(ask)
        assert wait_for(copies.checkpoint("nope", "nope-1-1")) is None
        assert not wait_for(storage.has_job("nope"))

    @pytest.mark.parametrize("bad", ["..", "a/b", "", "\0", "a" * 200])
    def test_no_id_of_a_copy_leads_out_of_the_store(self, storage: Storage, bad: str) -> None:
        copies = _copies(storage)
        wait_for(storage.create_job(JOB))
        for ask in (
            copies.put_checkpoint(JOB, bad, b"{}"),
            copies.checkpoint(JOB, bad),
            copies.put_run_setting(RunRef(JOB, bad), b"{}"),
            copies.run_setting(RunRef(JOB, bad)),
        ):
            with pytest.raises(UsageError):
                wait_for(ask)

    @in_loop
    async def test_no_legal_job_id_is_too_long_for_copies(self, storage: Storage) -> None:
        copies = _copies(storage)
        job = "j" * 128
        await storage.create_job(job)
        await copies.put_checkpoint(job, f"{job}-1-1", b"{}")
        await copies.put_run_setting(RunRef(job, f"{job}-1"), b"{}")
        assert (await copies.checkpoints(job)).ids == (f"{job}-1-1",)


def _copies(storage: Storage) -> Storage:
    if not storage.keeps_copies:
        pytest.skip("this storage keeps no copies: the host derives them from the logs")
    return storage
