"""The storage contract: blobs."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import hashlib

import pytest

from perstack.errors import NotFound
from perstack.ports.storage import Storage
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, Opener, wait_for


class BlobContract(ContractBase):
    """What events refer to by its sha256."""

    def test_no_byte_of_a_blob_changes_and_its_name_is_its_sha256(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            await storage.create_job(JOB)
            for data in (b"", b"abc", bytes(range(256)) * 1000, b"\n\r\n"):
                name = await storage.put_blob(JOB, data)
                assert name == hashlib.sha256(data).hexdigest()
                assert await storage.put_blob(JOB, data) == name
                assert await opener().blob(JOB, name) == data

        wait_for(work())

    def test_a_missing_blob_is_named_and_never_passes_as_an_empty_one(self, storage: Storage) -> None:
        wait_for(storage.create_job(JOB))
        with pytest.raises(NotFound, match="0000"):
            wait_for(storage.blob(JOB, "0" * 64))
