"""A wrong argument of any operation on tasks is the caller's error, reported in one line that names it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hosts import wait_for

from perstack.errors import PerstackError, UsageError
from perstack.memory import ExecutionMemory
from perstack.tasks.memory import TaskMemory
from perstack.testing.in_memory_storage import InMemoryStorages

DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]
CIRCULAR: dict[str, Any] = {}
CIRCULAR["it"] = CIRCULAR

WRONG_VALUES = [object(), 3.5, b"\xff", "\ud800", ["x"] * 3, {"x": {1, 2}}, {1: 2}, DEEP, CIRCULAR, -1]

OPERATIONS = [
    *(
        name
        for name, one in vars(TaskMemory).items()
        if inspect.iscoroutinefunction(one) and name not in {"do", "subject_of"}
    ),
    "signal",
    "history",
]


@pytest.fixture
def memory(tmp_path: Path) -> ExecutionMemory:
    return ExecutionMemory(InMemoryStorages().open("tasks", tmp_path))


def parameters() -> list[tuple[str, str]]:
    return [
        (name, parameter)
        for name in OPERATIONS
        for parameter in inspect.signature(getattr(ExecutionMemory, name)).parameters
        if parameter != "self"
    ]


@pytest.mark.parametrize(("operation", "argument"), parameters())
def test_no_argument_of_an_operation_lets_anything_out_but_our_own_error(
    memory: ExecutionMemory, operation: str, argument: str
) -> None:
    method = getattr(memory, operation)
    needed = {
        name: "t" if name != "reason" else "checkpoint"
        for name, one in inspect.signature(method).parameters.items()
        if one.default is inspect.Parameter.empty
    }
    refused: list[PerstackError] = []

    async def work() -> None:
        for value in WRONG_VALUES:
            await memory.create("t", start=True)
            try:
                await method(**{**needed, argument: value})
            except PerstackError as error:
                refused.append(error)
            try:
                await memory.get("t")
            except UsageError:
                await memory.create("t")
            await memory.delete("t")

    wait_for(work())
    assert len(refused) >= 4
    assert not any("\n" in str(error) for error in refused)


def test_what_is_wrong_is_named_with_what_it_must_be(memory: ExecutionMemory) -> None:
    async def work() -> None:
        for call, words in (
            (lambda: memory.create(5), "create: `task_id` must be text"),
            (lambda: memory.create("a", state={"x": (1, 2)}), "create: `state.x` is not a JSON value"),
            (lambda: memory.create("a", state={"x": float("nan")}), "create: `state`: is not JSON: "),
            (lambda: memory.create("a", state={"x": 10**5000}), "create: `state`: is not JSON: "),
            (
                lambda: memory.create("a", config={"maxRetires": 1}),
                "create: `config`: has no 'maxRetires'; there are: ",
            ),
            (lambda: memory.create("a", status="paused"), "create: `status` must be one of created, running"),
            (lambda: memory.create("a", status="created", start=True), "create: `start` is True, and `status` is"),
            (lambda: memory.create("a", stat={}), "create: there is no argument `stat`; did you mean `state`?"),
            (lambda: memory.pause("a"), "pause: `reason` is missing: give one of human_approval, "),
            (lambda: memory.pause("a", "human_aproval"), "did you mean 'human_approval'?"),
            (lambda: memory.checkpoint("a", data={}, checkpoint_data={}), "`data` is an old name of `checkpoint_data`"),
            (lambda: memory.list(limit="many"), "list: `limit` must be a whole number"),
        ):
            with pytest.raises(UsageError) as refused:
                await call()
            assert words in str(refused.value)
        assert (await memory.list()).tasks == ()

    wait_for(work())


@pytest.mark.parametrize("said", ["human_approval", "Human approval", "humanApproval", " HUMAN-APPROVAL "])
def test_a_reason_is_known_however_it_is_written(memory: ExecutionMemory, said: str) -> None:
    async def work() -> None:
        await memory.create("t", start=True)
        task = await memory.pause("t", said, "May I?")
        assert (task.pause_reason, task.pause_message) == ("human_approval", "May I?")

    wait_for(work())


def test_a_task_is_found_by_its_whole_id_or_is_none(memory: ExecutionMemory) -> None:
    created = wait_for(memory.create("report"))
    assert wait_for(memory.find(created.task_id)) == created
    assert wait_for(memory.find("report-of-nobody")) is None
    assert wait_for(memory.resolve_id(created.task_id[:12])) == created.task_id
