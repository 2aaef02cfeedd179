"""The storage in memory passes the whole contract, and is enough for a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import Bench, expert, wait_for

from perstack.ports.hooks import hookimpl
from perstack.ports.storage import RunRef, Storage, StorageFactory
from perstack.testing.in_memory_storage import InMemoryStorage, InMemoryStorages
from perstack.testing.scripted import text, tool
from perstack.testing.storage_contract import Opener, StorageContract


class TestInMemoryStorage(StorageContract):
    @pytest.fixture
    def make_opener(self):
        def make() -> Opener:
            storages = InMemoryStorages()

            def damage(run: RunRef, index: int) -> None:
                log = storages.stores["test"].jobs[run.job_id].logs[run.run_id]
                log[index] = log[index].replace(b'"text":"', b'"text":"X', 1)

            return Opener(lambda: storages.open("test", Path.cwd()), damage=damage, shares_blobs=True)

        return make


def test_a_host_needs_no_more_of_a_storage_than_log_blobs_lease_and_cache(tmp_path: Path) -> None:
    storages = InMemoryStorages()
    written = {name for name in vars(InMemoryStorage) if not name.startswith("_") and hasattr(Storage, name)}
    assert written == Storage.__abstractmethods__

    class Plugin:
        @hookimpl
        def perstack_storages(self) -> list[StorageFactory]:
            return [storages]

    async def work() -> None:
        script = {
            "[[a]]": [tool("b", {"query": "x"}), tool("askUser", {"question": "sure?"}), text("done")],
            "[[b]]": [text("b")],
        }
        experts = (expert("a", delegates=("b",), ask=True), expert("b"))
        host = Bench(tmp_path, "memory:one").host(script, *experts, plugins=(Plugin(),))
        job = await host.run("a", "q", job_id="job")
        assert job.status == "stoppedByInteractiveTool"
        assert [asked.job_id for asked in await host.inbox()] == ["job"]
        job = await host.answer("yes", job_id="job")
        assert job.status == "completed"
        report = await host.audit.verify("job")
        assert report.findings == ()
        checkpoint = f"{job.runs[0].id}-1"
        assert (await host.jobs.checkpoint(checkpoint)).id == checkpoint
        assert await host.jobs.checkpoint_path(checkpoint) is None
        await host.tasks.create("t")
        assert (await host.audit.verify("t")).findings == ()
        await host.close()

    wait_for(work())
