"""The storage in memory passes the whole contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from perstack.ports.storage import RunRef
from perstack.testing.memory_storage import MemoryStorages
from perstack.testing.storage_contract import Opener, StorageContract


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def make_opener(self):
        def make() -> Opener:
            storages = MemoryStorages()

            def damage(run: RunRef, index: int) -> None:
                log = storages.stores["test"].jobs[run.job_id].logs[run.run_id]
                log[index] = log[index].replace(b'"text":"', b'"text":"X', 1)

            return Opener(lambda: storages.open("test", Path.cwd()), damage=damage)

        return make
