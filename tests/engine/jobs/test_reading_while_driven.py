"""Reading a Job that another process drives at the same moment."""

from __future__ import annotations

import asyncio

from hosts import Bench, expert, wait_for
from typing_extensions import override

from perstack.ports.provider import Generation, GenerationRequest
from perstack.ports.storage import LeaseInfo
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.scripted import ScriptedProvider, text


class Held(ScriptedProvider):
    """A model that replies when the test says so."""

    def __init__(self) -> None:
        super().__init__([text("Done.")])
        self.is_asked, self.may_reply = asyncio.Event(), asyncio.Event()

    @override
    async def generate(self, request: GenerationRequest, on_delta) -> Generation:
        self.is_asked.set()
        await self.may_reply.wait()
        return await super().generate(request, on_delta)


class EndsMeanwhile(CrashingStorage):
    """A storage in which the Job ends between the reading of its logs and of its lease."""

    model: Held
    drive: asyncio.Task[object]

    @override
    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        self.model.may_reply.set()
        await self.drive
        return await super().lease_info(job_id)


def test_a_job_that_ends_while_it_is_read_is_not_taken_for_interrupted(bench: Bench) -> None:
    async def work() -> None:
        model = Held()
        drive = asyncio.create_task(bench.host(model, expert("a")).run("a", "q", job_id="job"))
        await model.is_asked.wait()
        reader = bench.host([], expert("a"), wrap=EndsMeanwhile)
        assert isinstance(reader.storage, EndsMeanwhile)
        reader.storage.model, reader.storage.drive = model, drive
        assert (await reader.job("job")).status == "completed"

    wait_for(work())
