"""The storage contract: the places on this machine of storages that keep files here."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import pytest

from perstack.ports.storage import LocalStorage, Storage
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, Opener, new_writer, wait_for


class LocalContract(ContractBase):
    """Asked of a storage that is `LocalStorage`."""

    def test_asking_where_a_store_is_makes_nothing(self, storage: Storage) -> None:
        local = _local(storage)
        assert all(place.is_absolute() for place in local.places)
        assert not local.is_there()
        assert not any(place.exists() for place in (*local.places, local.programs))

    def test_no_state_is_overlooked_once_anything_is_kept(self, opener: Opener) -> None:
        local = _local(opener())
        wait_for(local.space("tasks").create_job(JOB))
        assert local.is_there()
        assert _local(opener()).is_there()

    def test_no_file_of_a_store_is_left_open_to_tools(self, storage: Storage) -> None:
        async def work() -> None:
            await (await new_writer(storage)).append("x")
            await storage.put_blob(JOB, b"x")
            await storage.put_entry(JOB, 1, b"{}")
            async with storage.lease(JOB, "me"):
                # of all that stands beside the store, nothing is its own and is not named
                around = {found for place in local.places for found in place.parent.iterdir()}
                assert around <= set(local.places)

        local = _local(storage)
        folders = {place.parent for place in local.places}
        if any(found for folder in folders if folder.is_dir() for found in folder.iterdir()):
            pytest.skip("other files stand beside this store")
        wait_for(work())
        assert any(place == local.programs or place in local.programs.parents for place in local.places)


def _local(storage: Storage) -> LocalStorage:
    if not isinstance(storage, LocalStorage):
        pytest.skip("this storage keeps no files on this machine")
    return storage
