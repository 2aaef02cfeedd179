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

    def test_a_run_setting_can_be_put_and_replaced(self, storage: Storage) -> None:
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

    def test_a_run_that_has_only_a_setting_is_not_listed(self, storage: Storage) -> None:
        async def work() -> None:
            copies = _copies(storage)
            await storage.create_job(JOB)
            await copies.put_run_setting(RUN, b"{}")
            assert await storage.runs(JOB) == Page(())
            assert await storage.read(RUN) == []

        wait_for(work())

    def test_a_checkpoint_is_had_by_its_id(self, opener: Opener) -> None:
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

    def test_checkpoints_come_in_the_order_of_their_run_and_place_by_pages(self, storage: Storage) -> None:
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

    def test_where_checkpoints_are_files_the_path_follows_from_the_id(self, storage: Storage) -> None:
        if not isinstance(storage, CheckpointFiles):
            pytest.skip("this storage keeps no checkpoint files")
        wait_for(storage.create_job(JOB))
        path = storage.checkpoint_path(JOB, f"{JOB}-1-1")
        assert not path.exists()
        wait_for(storage.put_checkpoint(JOB, f"{JOB}-1-1", b'{"a":1}'))
        assert path.read_bytes() == b'{"a":1}'

    def test_copies_go_with_their_job(self, opener: Opener) -> None:
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

    def test_copies_of_an_unknown_job_are_neither_kept_nor_found(self, storage: Storage) -> None:
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
    def test_an_id_of_a_copy_that_could_be_a_path_is_refused(self, storage: Storage, bad: str) -> None:
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

    def test_the_longest_legal_job_id_has_copies(self, storage: Storage) -> None:
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
