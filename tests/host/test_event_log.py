"""One kind of log serves tasks, series and Runs."""

from __future__ import annotations

import pytest
from hosting import wait_for

from perstack.core.tasks.events import CreateTask, StartTask, TaskConfig
from perstack.engine.logs.damage import DoesNotFollow
from perstack.engine.logs.tasks import TaskLog
from perstack.errors import NotFound
from perstack.testing.memory_storage import MemoryStorage, MemoryStore

CREATED = CreateTask(task_id="t", timestamp=1, name="t", state={}, config=TaskConfig())


def test_an_event_that_cannot_follow_is_refused_before_it_is_written() -> None:
    async def work() -> None:
        log = TaskLog(MemoryStorage(MemoryStore()))
        with pytest.raises(DoesNotFollow, match=r"task t, event 1: .*the first is not createTask"):
            await log.create([StartTask(task_id="t", timestamp=1)])
        with pytest.raises(NotFound):
            await log.load("t")
        await log.create([CREATED])
        with pytest.raises(DoesNotFollow, match=r"task t, event 3: .*created twice"):
            await log.change("t", lambda _: [StartTask(task_id="t", timestamp=2), CREATED], None)
        assert await log.events("t") == [CREATED]
        assert (await log.load("t")).state.status == "created"

    wait_for(work())
