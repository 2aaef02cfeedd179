"""The storage contract: how much room what is kept takes."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

from collections.abc import Mapping

import pytest

from perstack.ports.storage import JobSize, Measures, Storage
from perstack.testing.contract_base import ContractBase
from perstack.testing.opener import JOB, Opener, new_writer, wait_for


class SizeContract(ContractBase):
    """Asked of a storage that is `Measures`."""

    def test_sizes_are_of_what_is_kept_and_of_its_own_space(self, opener: Opener) -> None:
        async def work() -> None:
            storage = opener()
            tasks = storage.space("tasks")
            if not isinstance(storage, Measures) or not isinstance(tasks, Measures):
                pytest.skip("this storage does not measure")
            assert await storage.sizes() == {}
            lines = await (await new_writer(storage)).append("a", "b" * 5_000)
            for _ in range(2):
                await storage.put_blob(JOB, b"x" * 1_000)
            await storage.put_summary(JOB, b"y" * 100)
            await storage.create_job("other")
            await (await new_writer(tasks)).append("a")
            sizes = await opener_sizes(opener())
            assert set(sizes) == {JOB, "other"}
            text = sum(map(len, lines))
            assert text <= sizes[JOB].logs <= text + 250  # what a storage may add to an append and its list
            assert (sizes[JOB].blobs, sizes["other"].logs, sizes["other"].blobs) == (1_000, 0, 0)
            assert sizes[JOB].caches >= 100
            assert await storage.sizes([JOB, "nowhere"]) == {JOB: sizes[JOB]}
            assert 0 < (await tasks.sizes())[JOB].logs < 1_000
            assert await storage.size() >= sizes[JOB].total

        wait_for(work())


async def opener_sizes(storage: Storage) -> Mapping[str, JobSize]:
    """As a new process sees them."""
    assert isinstance(storage, Measures)
    return await storage.sizes()
