"""Budgets count generations in progress at a kill or a timeout: the endpoint never charges more than was counted."""

from __future__ import annotations

import asyncio

import pytest
from hosts import Bench, Seen, crashing, expert, wait_for
from sampling_skill import SAMPLING, TURNS, Summing

from perstack.core.base.ids import number_of_run
from perstack.core.jobs.budget_ledger import Ledger
from perstack.host import Host
from perstack.ports.provider import Generation, GenerationRequest
from perstack.testing.crashing_storage import Crash, CrashPoint
from perstack.testing.scripted import ScriptedProvider, TurnLike, text


class Charging(ScriptedProvider):
    """A provider that counts what it charged, whether or not its reply was received."""

    charged = 0

    async def generate(self, request: GenerationRequest, on_delta) -> Generation:
        reply = await super().generate(request, on_delta)
        self.charged += reply.usage.total_tokens
        return reply


def used(host: Host, job_id: str = "j") -> int:
    ledger = Ledger(None)
    for _, run in sorted(wait_for(host.jobs.load(job_id)).runs.items(), key=lambda item: number_of_run(item[0])):
        ledger.update(run, at_rest=True)
    return ledger.used().tokens


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 9))
def test_generations_of_a_tool_count_wherever_its_process_is_killed(bench: Bench, when: str, number: int) -> None:
    provider = Charging(TURNS)
    limits = {"max_tokens": 60_000, "plugins": (Summing(),)}
    dying = bench.host(provider, SAMPLING, wrap=crashing(CrashPoint(when, number)), **limits)

    async def die() -> None:
        async with dying:
            try:
                await dying.run("a", "q", job_id="j")
            except* Crash:
                pass

    wait_for(die())
    host = bench.host(provider, SAMPLING, **limits)
    if (number, when) == (1, "before"):
        return  # nothing was begun
    assert provider.charged <= used(host)
    job = wait_for(host.job("j"))
    if job.status != "completed":
        job = wait_for(host.resume("j"))
    assert job.status == "completed"
    assert provider.charged <= used(host)
    assert wait_for(host.audit.replay("j")).findings == ()
    assert wait_for(host.audit.verify("j")).findings == ()


def test_what_a_tools_generations_have_used_is_counted_once_when_its_call_is_done(bench: Bench) -> None:
    seen, provider = Seen(), Charging(TURNS)
    host = bench.host(provider, SAMPLING, plugins=(Summing(),), max_tokens=60_000)
    job = wait_for(host.run("a", "q", job_id="j", on_event=seen))
    assert job.status == "completed"
    assert provider.charged == used(host) == 1_520
    samples = seen.of("startSample")
    assert len(samples) == 3
    assert all(event.reserved.tokens >= 500 for event in samples)
    assert job.assumed is None


def test_without_a_budget_a_tools_generations_are_not_recorded_beforehand(bench: Bench) -> None:
    seen = Seen()
    wait_for(bench.host(TURNS, SAMPLING, plugins=(Summing(),)).run("a", "q", on_event=seen))
    assert not seen.of("startSample")


class Late(Charging):
    """A provider that completes its first reply after it was cancelled, and charges for it."""

    def __init__(self, script) -> None:
        super().__init__(script)
        self.replied = asyncio.Event()
        self.begun = 0

    async def generate(self, request: GenerationRequest, on_delta) -> Generation:
        self.begun += 1
        if self.begun > 1:
            return await super().generate(request, on_delta)
        task = asyncio.create_task(self._in_the_end(request, on_delta))
        await asyncio.sleep(60)
        return await task

    async def _in_the_end(self, request: GenerationRequest, on_delta) -> Generation:
        await asyncio.sleep(0.4)
        reply = await super().generate(request, on_delta)
        self.replied.set()
        return reply


def test_usage_that_comes_after_its_try_was_given_up_is_within_what_was_counted_for_it(bench: Bench) -> None:
    def reply(request: GenerationRequest) -> TurnLike:
        return text("whole", usage=(500, request.max_tokens or 0))

    provider, seen = Late(reply), Seen()
    one = expert("a", timeout=200, max_retries=3)

    async def both() -> None:
        async with bench.host(provider, one, max_tokens=100_000) as host:
            job = await host.run("a", "q", job_id="j", on_event=seen)
            assert job.status == "completed"
            async with asyncio.timeout(10):
                await provider.replied.wait()

    wait_for(both())
    (retried,) = seen.of("retry")
    assert (retried.error.name, retried.uncharged) == ("Timeout", False)
    host = bench.host(provider, one)
    reserved = seen.of("startGeneration")[0].reserved
    assert reserved is not None
    assert provider.begun == 2
    assert provider.charged <= used(host) <= 100_000
    assert used(host) >= reserved.tokens
    assert wait_for(host.job("j")).usage.total_tokens < provider.charged
