"""Any sequence of operations on tasks agrees with a model of a few fields, on every storage."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest
from hosts import wait_for
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from perstack.core.definitions.job_status import PauseReason
from perstack.errors import Conflict, NotAllowed, NotFound, UsageError
from perstack.memory import ExecutionMemory
from perstack.tasks.events import TaskConfig
from perstack.testing.in_memory_storage import InMemoryStorages

IDS = st.sampled_from(["a", "b"])
STATES = st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=5), max_size=3)
CONFIGS = st.sampled_from([TaskConfig(max_retries=1, on_failure=one) for one in ("pause", "fail", "retry")])

ALLOWED = {
    "created": {"start", "cancel", "delete"},
    "running": {"checkpoint", "pause", "complete", "fail", "cancel", "delete"},
    "paused": {"answer", "resume", "fail", "cancel", "delete"},
    "completed": {"archive", "delete"},
    "failed": {"resume", "retry", "archive", "delete"},
}


@dataclass
class Model:
    """The expected state of a task."""

    config: TaskConfig
    state: dict
    status: str = "created"
    version: int = 1
    retries: int = 0
    reason: str | None = None
    answered: bool = False
    archived: bool = False
    saved: dict[str, dict] = field(default_factory=dict)

    def go(self, status: str, events: int = 1) -> None:
        self.status, self.version = status, self.version + events
        self.reason, self.answered = None, False


class TaskMachine(RuleBasedStateMachine):
    """Two processes that work on the tasks of one store."""

    make: Callable[[], Callable[[], ExecutionMemory]]

    def __init__(self) -> None:
        super().__init__()
        self.open = self.make()
        self.views = [self.open(), self.open()]
        self.turn = 0
        self.tasks: dict[str, Model] = {}

    def teardown(self) -> None:
        for view in self.views:
            wait_for(view.close())

    @property
    def memory(self) -> ExecutionMemory:
        """Return the view of each process in turn."""
        self.turn += 1
        return self.views[self.turn % 2]

    def may(self, task_id: str, operation: str, work) -> Model | None:
        """Perform the operation and compare the outcome with the table. Return the task's model if it was allowed."""
        model = self.tasks.get(task_id)
        if model is None:
            with pytest.raises(NotFound):
                wait_for(work)
        elif operation not in ({"delete"} if model.archived else ALLOWED[model.status]):
            with pytest.raises(NotAllowed, match="allowed now: ") as refused:
                wait_for(work)
            assert set(refused.value.allowed) == ({"delete"} if model.archived else ALLOWED[model.status])
        else:
            wait_for(work)
            return model
        return None

    @rule(task=IDS, state=STATES, config=CONFIGS, start=st.booleans())
    def create(self, task: str, state: dict, config: TaskConfig, start: bool) -> None:
        work = self.memory.create(task, state=state, config=config, start=start, agent_id=task)
        if task in self.tasks:
            with pytest.raises(NotAllowed, match=f"task {task} exists already, and is {self.tasks[task].status}"):
                wait_for(work)
            return
        wait_for(work)
        self.tasks[task] = Model(config, state, *(("running", 2) if start else ("created", 1)))

    @rule(task=IDS)
    def start(self, task: str) -> None:
        if model := self.may(task, "start", self.memory.start(task)):
            model.go("running")

    @rule(task=IDS, state=STATES | st.none(), name=st.sampled_from([None, "one", "two"]))
    def checkpoint(self, task: str, state: dict | None, name: str | None) -> None:
        if model := self.may(task, "checkpoint", self.memory.checkpoint(task, state, name=name)):
            model.version += 1
            model.state = model.state if state is None else state
            model.saved[f"{task}-{model.version}"] = model.state
            if name is not None:
                model.saved[name] = model.state

    @rule(task=IDS, reason=st.sampled_from(get_args(PauseReason)))
    def pause(self, task: str, reason: PauseReason) -> None:
        moment = 1 << 47 if reason == "scheduled_wait" else None
        if model := self.may(task, "pause", self.memory.pause(task, reason, resume_at=moment)):
            model.go("paused")
            model.reason = reason

    @rule(task=IDS, value=st.sampled_from([None, "yes", "n", "1", "maybe"]))
    def answer(self, task: str, value: str | None) -> None:
        model = self.tasks.get(task)
        if model is not None and model.status == "paused" and not model.archived:
            waits = model.reason in ("human_approval", "human_input", "external_dependency")
            fits = waits and (model.reason != "human_approval" or value in ("yes", "n"))
            wrong = Conflict if model.answered else None if fits else UsageError
            if wrong is not None:
                with pytest.raises(wrong):
                    wait_for(self.memory.answer(task, value))
                return
        if model := self.may(task, "answer", self.memory.answer(task, value)):
            model.version, model.answered = model.version + 1, True

    @rule(task=IDS, state=STATES | st.none(), data=st.data())
    def resume(self, task: str, state: dict | None, data) -> None:
        model = self.tasks.get(task)
        saved = st.sampled_from([None, *sorted(model.saved)]) if model is not None else st.none()
        checkpoint = data.draw(saved)
        if model := self.may(task, "resume", self.memory.resume(task, checkpoint=checkpoint, state=state)):
            model.go("running")
            model.state = state if state is not None else model.saved[checkpoint] if checkpoint else model.state

    @rule(task=IDS)
    def complete(self, task: str) -> None:
        if model := self.may(task, "complete", self.memory.complete(task, "done")):
            model.go("completed")

    @rule(task=IDS)
    def fail(self, task: str) -> None:
        if model := self.may(task, "fail", self.memory.fail(task, "broken")):
            wish = model.config.on_failure if model.status == "running" else "fail"
            if wish == "retry" and model.retries < model.config.max_retries:
                model.retries += 1
                model.go("running")
            else:
                model.go("paused" if wish == "pause" else "failed")
                model.reason = "human_input" if wish == "pause" else None

    @rule(task=IDS)
    def retry(self, task: str) -> None:
        model = self.tasks.get(task)
        if model is not None and model.status == "failed" and model.retries >= 1 and not model.archived:
            with pytest.raises(NotAllowed, match="as often as it may be"):
                wait_for(self.memory.retry(task))
        elif model := self.may(task, "retry", self.memory.retry(task)):
            model.retries += 1
            model.go("running")

    @rule(task=IDS)
    def cancel(self, task: str) -> None:
        if model := self.may(task, "cancel", self.memory.cancel(task, "no need")):
            model.go("failed")

    @rule(task=IDS)
    def archive(self, task: str) -> None:
        if model := self.may(task, "archive", self.memory.archive(task)):
            model.version, model.archived = model.version + 1, True

    @rule(task=IDS)
    def delete(self, task: str) -> None:
        if self.may(task, "delete", self.memory.delete(task)):
            del self.tasks[task]

    @rule(task=IDS, off=st.integers(1, 3), operation=st.sampled_from(["cancel", "delete", "start", "archive"]))
    def write_at_another_version(self, task: str, off: int, operation: str) -> None:
        if task in self.tasks:
            with pytest.raises(Conflict, match="version"):
                wait_for(getattr(self.memory, operation)(task, expected_version=self.tasks[task].version + off))

    @rule(view=st.integers(0, 1))
    def reopen(self, view: int) -> None:
        """End one process and start another."""
        wait_for(self.views[view].close())
        self.views[view] = self.open()

    @invariant()
    def every_process_sees_what_the_model_says(self) -> None:
        for view in self.views:
            listed = {
                task.task_id: (task.status, task.pause_reason, task.version, task.answered, task.retry_count)
                for archived in (False, True)
                for task in wait_for(view.list(archived=archived)).tasks
            }
            assert listed == {
                task_id: (one.status, one.reason, one.version, one.answered, one.retries)
                for task_id, one in self.tasks.items()
            }
            for task_id, one in self.tasks.items():
                task = wait_for(view.get(task_id))
                assert (task.status, task.version, task.state) == (one.status, one.version, one.state)
                named = {check.id: check.state for check in wait_for(view.list_checkpoints(task_id))}
                assert named == {key: state for key, state in one.saved.items() if key.startswith(f"{task_id}-")}


@pytest.mark.parametrize("scheme", ["file", "sqlite", "memory"])
def test_any_sequence_of_operations_agrees_with_the_model(scheme: str, tmp_path: Path) -> None:
    def make() -> Callable[[], ExecutionMemory]:
        name, stores = secrets.token_hex(4), InMemoryStorages()
        if scheme == "memory":
            return lambda: ExecutionMemory(stores.open(name, tmp_path))
        return lambda: ExecutionMemory.open(workspace=tmp_path, storage=f"{scheme}:{name}")

    run_state_machine_as_test(
        type("Machine", (TaskMachine,), {"make": staticmethod(make)}),
        settings=settings(
            max_examples=15,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
            derandomize=True,
        ),
    )
