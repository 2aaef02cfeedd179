"""The storage contract: settings of Runs and checkpoints, for storages that keep these copies."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import pytest

from perstack.errors import NotFound, UsageError
from perstack.ports.storage import CheckpointFiles, KeepsCopies, Page, RunRef, Storage
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, RUN, Opener, Writer, wait_for


class CopiesContract(ContractBase):
    """Asked of a storage that is `KeepsCopies`: promise 5."""

    def test_a_reader_sees_the_latest_setting_of_a_run(self, storage: Storage) -> None:
        async def work() -> None:
            copies = _copies(storage)
            await storage.create_job(JOB)
            await copies.put_run_setting(RUN, b"{}")
            await copies.put_run_setting(RUN, b'{"a":1}')
            assert await copies.run_setting(RUN) == b'{"a":1}'
            assert await copies.run_setting(RunRef(JOB, f"{JOB}-9")) is None
            await Writer(storage).append("x")
            await copies.put_run_setting(RUN, b"{}")

        wait_for(work())

    def test_a_setting_alone_makes_no_run(self, storage: Storage) -> None:
        async def work() -> None:
            copies = _copies(storage)
            await storage.create_job(JOB)
            await copies.put_run_setting(RUN, b"{}")
            assert await storage.runs(JOB) == Page(())
            assert await storage.read(RUN) == []

        wait_for(work())

    def test_a_reader_sees_the_latest_checkpoint_of_an_id_and_no_other(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            copies = _copies(storage)
            await storage.create_job(JOB)
            assert await copies.checkpoint(JOB, f"{JOB}-1-1") is None
            await copies.put_checkpoint(JOB, f"{JOB}-1-1", b'{"a":1}')
            await copies.put_checkpoint(JOB, f"{JOB}-1-1", b'{"a":2}')
            assert await _copies(opener()).checkpoint(JOB, f"{JOB}-1-1") == b'{"a":2}'
            assert await copies.checkpoint(JOB, f"{JOB}-1-2") is None

        wait_for(work())

    def test_a_list_of_checkpoints_in_pages_misses_and_repeats_none(self, storage: Storage) -> None:
        async def work() -> None:
            copies = _copies(storage)
            await storage.create_job(JOB)
            assert await copies.checkpoints(JOB) == Page(())
            ids = [f"{JOB}-{run}-{seq}" for run in (1, 2, 10) for seq in (3, 9, 20, 100)]
            for one in reversed(ids):
                await copies.put_checkpoint(JOB, one, b"{}")
            first = await copies.checkpoints(JOB, limit=7)
            second = await copies.checkpoints(JOB, limit=7, after=first.next)
            assert first.ids + second.ids == tuple(ids)
            assert (len(first.ids), second.next) == (7, None)

        wait_for(work())

    def test_a_file_that_is_named_to_a_person_is_the_checkpoint_itself(self, storage: Storage) -> None:
        if not isinstance(storage, CheckpointFiles):
            pytest.skip("this storage keeps no checkpoint files")
        wait_for(storage.create_job(JOB))
        path = storage.checkpoint_path(JOB, f"{JOB}-1-1")
        assert not path.exists()
        wait_for(storage.put_checkpoint(JOB, f"{JOB}-1-1", b'{"a":1}'))
        assert path.read_bytes() == b'{"a":1}'

    def test_no_copy_outlives_its_job(self, opener: Opener) -> None:
        async def work() -> None:
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

        wait_for(work())

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

    def test_no_legal_job_id_is_too_long_for_copies(self, storage: Storage) -> None:
        async def work() -> None:
            copies = _copies(storage)
            job = "j" * 128
            await storage.create_job(job)
            await copies.put_checkpoint(job, f"{job}-1-1", b"{}")
            await copies.put_run_setting(RunRef(job, f"{job}-1"), b"{}")
            assert (await copies.checkpoints(job)).ids == (f"{job}-1-1",)

        wait_for(work())


def _copies(storage: Storage) -> KeepsCopies:
    if not isinstance(storage, KeepsCopies):
        pytest.skip("this storage keeps no copies: the host derives them from the logs")
    return storage
