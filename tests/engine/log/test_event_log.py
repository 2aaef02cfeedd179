"""Tasks, series and Runs use the same kind of log."""

from __future__ import annotations

import pytest
from hosts import wait_for

from perstack.core.base.chain import Head, open_line, seal
from perstack.engine.context.audit_trail import NO_AUDIT
from perstack.engine.log.event_log import InvalidTransition
from perstack.errors import Damaged, NotFound
from perstack.memory import ExecutionMemory
from perstack.ports.storage import RunRef
from perstack.tasks.events import CreateTask, PauseTask, StartTask, TaskConfig
from perstack.tasks.task_log import TaskLog
from perstack.testing.in_memory_storage import InMemoryStorage, InMemoryStore

CREATED = CreateTask(task_id="t", timestamp=1, name="t", state={}, config=TaskConfig())


def test_an_event_that_cannot_follow_is_refused_before_it_is_written() -> None:
    async def work() -> None:
        storage = InMemoryStorage(InMemoryStore())
        log = TaskLog(storage, NO_AUDIT)
        with pytest.raises(InvalidTransition, match=r"task t, event 1: .*the first event is not createTask"):
            await log.create([StartTask(task_id="t", timestamp=1)])
        with pytest.raises(NotFound):
            await log.load("t")
        await log.create([CREATED])
        with pytest.raises(InvalidTransition, match=r"task t, event 3: .*a second createTask"):
            await log.change("t", lambda _: [StartTask(task_id="t", timestamp=2), CREATED], None)
        assert await log.events("t") == [CREATED]
        assert (await log.load("t")).state.status == "created"

    wait_for(work())


def test_a_pause_of_a_completed_task_that_somebody_wrote_into_its_log_is_named_with_its_place() -> None:
    async def work() -> None:
        storage = InMemoryStorage(InMemoryStore())
        memory = ExecutionMemory(storage)
        await memory.create("t", start=True)
        await memory.complete("t")
        space, ref = storage.space("tasks"), RunRef("t", "t-1")
        ended = Head(3, open_line((await space.read(ref))[-1]).hash)
        forged = PauseTask(task_id="t", timestamp=2, reason="human_input")
        await space.append(ref, 3, seal(ended, [forged.to_json()])[0])
        with pytest.raises(Damaged, match=r"task t, event 4: .*pauseTask cannot follow where task t is completed"):
            await memory.get("t")

    wait_for(work())
