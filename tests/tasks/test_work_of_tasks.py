"""The cost of getting one task does not grow with the number of tasks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType

import pytest

from perstack.memory import ExecutionMemory


async def _filled(folder: Path, storage: str, tasks: int) -> None:
    async with ExecutionMemory.open(workspace=folder, storage=storage) as memory:
        for number in range(tasks):
            await memory.create(f"t{number}", agent_id="agent", start=True)


async def _calls_of_a_get(folder: Path, storage: str) -> int:
    """Return the number of function calls for getting one task in a newly opened storage."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call") and "asyncio" not in frame.f_code.co_filename

    async with ExecutionMemory.open(workspace=folder, storage=storage) as memory:
        sys.setprofile(count)
        try:
            task = await memory.get("t3")
        finally:
            sys.setprofile(None)
    assert (task.task_id, task.status) == ("t3", "running")
    return calls


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:state.db"])
def test_getting_one_task_does_not_look_at_the_others(tmp_path: Path, storage: str) -> None:
    async def work() -> list[int]:
        counts: list[int] = []
        for name, tasks in (("warm", 5), ("few", 5), ("many", 300)):
            folder = tmp_path / name
            folder.mkdir()
            await _filled(folder, storage, tasks)
            counts.append(await _calls_of_a_get(folder, storage))
        return counts

    _, few, many = asyncio.run(work())
    assert many <= few + 10, f"{many} calls for a task among 300, {few} for one among 5"
