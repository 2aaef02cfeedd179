"""Many Jobs of one Host while their storage server restarts: none may be lost, and nothing done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from hosts import Bench, expert

from perstack.core.base.ids import job_of_run
from perstack.errors import StorageError
from perstack.host import Host
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import Turn, text, tool, turn

_BEFORE = 3
"""Steps of each Job before the server stops."""

_SECONDS = 400.0
"""Maximum seconds for 50 Jobs on a loaded machine."""
_TOLD = b"interrupted before its result was recorded"


class Jobs:
    """Jobs that each append a line per step to their own file until the server is back for good."""

    def __init__(self, workspace: Path, storage: str, number: int) -> None:
        self._bench = Bench(workspace, storage)
        self._names = [f"job-{n}" for n in range(number)]
        self._workspace = workspace
        self._steps = dict.fromkeys(self._names, 0)
        self._has_come_on = asyncio.Event()
        self._is_back = asyncio.Event()
        self.said: list[str] = []
        """Reasons of Jobs that ended early."""

    async def pass_through(self, restart: Callable[[], Awaitable[None]]) -> str:
        """Run all Jobs while `restart` runs. Return a report."""
        for name in self._names:
            (self._workspace / f"{name}.txt").touch()
        async with asyncio.timeout(_SECONDS), self._bench.host(self._next_turn, expert("boss")) as host:
            async with asyncio.TaskGroup() as group:
                for name in self._names:
                    group.create_task(self._drive(host, name))
                await self.steps_of_all(_BEFORE)
                await restart()
                self._is_back.set()
            lines = [await self._check_job(host, name) for name in self._names]
        return f"{len(lines)} Jobs of {sum(lines)} steps, {len(self.said)} ended meanwhile and were resumed"

    async def steps_of_all(self, number: int) -> None:
        """Wait until each Job has made `number` more steps."""
        wanted = {name: step + number for name, step in self._steps.items()}
        while any(self._steps.get(name, step) < step for name, step in wanted.items()):
            self._has_come_on.clear()
            await self._has_come_on.wait()

    async def _drive(self, host: Host, name: str) -> None:
        try:
            await host.run("boss", name, job_id=name)
        except StorageError as error:
            self.said.append(str(error))
            self._steps.pop(name)
            self._has_come_on.set()
            await self._is_back.wait()
            await host.resume(name)

    def _next_turn(self, request: GenerationRequest) -> Turn:
        name = job_of_run(request.run_id)
        self._steps[name] = request.step
        self._has_come_on.set()
        if self._is_back.is_set():
            return text("done")
        return turn(tool("appendTextFile", {"path": f"{name}.txt", "text": f"{request.step}\n"}))

    async def _check_job(self, host: Host, name: str) -> int:
        job = await host.job(name)
        assert job.status == "completed", (name, job.status, job.error, self.said)
        assert (await host.audit.verify(name)).findings == ()
        assert await host.storage.lease_info(name) is None
        lines = [int(line) for line in (self._workspace / f"{name}.txt").read_text().splitlines()]
        missing = set(range(1, job.total_steps)) - set(lines)
        # the model was told about interrupted calls
        told = sum(_TOLD in line for log in await host.jobs.logs(name) for line in log.lines)
        assert lines == sorted(set(lines)), (name, lines)
        assert len(missing) <= told, (name, missing, told, self.said)
        return job.total_steps
