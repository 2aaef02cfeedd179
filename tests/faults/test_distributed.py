"""Wherever a worker of a Job with distributed delegates dies, others bring the whole tree to the same end."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hosts import Bench, expert, wait_for
from mortal_workers import Fate, Life, Mortal, MortalDispatcher, MortalStorage, mortal_at_work
from workload import spread

from perstack.core.definitions.project import Workers
from perstack.core.definitions.settings import Budget
from perstack.core.messages.messages import text_of
from perstack.host import Host
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher, InMemoryOrders
from perstack.testing.in_memory_storage import InMemoryStorage, InMemoryStore
from perstack.testing.scripted import text, tool, turn


def effect(path: str) -> dict[str, object]:
    return tool("appendTextFile", {"path": path, "text": "once\n"})


SCRIPT = {
    "[[boss]]": [
        turn(effect("boss.txt"), usage=(10, 1)),
        turn(tool("left", {"query": "L"}), tool("right", {"query": "R"}), usage=(10, 1)),
        text("all is done", usage=(10, 1)),
    ],
    "[[left]]": [
        turn(effect("left.txt"), usage=(10, 1)),
        turn(tool("leaf", {"query": "deep"}), usage=(10, 1)),
        text("left is done", usage=(10, 1)),
    ],
    "[[right]]": [turn(effect("right.txt"), usage=(10, 1)), text("right is done", usage=(10, 1))],
    "[[leaf]]": [turn(effect("leaf.txt"), usage=(10, 1)), text("leaf is done", usage=(10, 1))],
}
EXPERTS = (
    expert("boss", delegates=("left", "right")),
    expert("left", delegates=("leaf",)),
    expert("right"),
    expert("leaf"),
)
STEPS, CALLS, FILES = 3 + 3 + 2 + 2, 4 + 3, ("boss.txt", "left.txt", "right.txt", "leaf.txt")
BUDGET = Budget(max_tokens=60_000, max_tool_calls=40)
SETTINGS = {"workers": Workers(delegates="distributed"), "max_steps": STEPS, "budget": BUDGET}
"""No step more than the tree needs: what one delegate leaves of its share another has to get."""

DEATHS = 5


class Scene:
    """One Job, its workers, and a store of its own."""

    def __init__(self, bench: Bench, *, in_memory: bool) -> None:
        self.bench = bench
        self.orders = InMemoryOrders()
        self.store = InMemoryStore() if in_memory else None
        for name in FILES:
            (bench.workspace / name).touch()

    def host(self, life: Life | None = None, dispatcher: MortalDispatcher | None = None) -> Host:
        def wrap(opened: object) -> object:
            storage = opened if self.store is None else InMemoryStorage(self.store)
            return storage if life is None else MortalStorage(storage, life)

        orders = dispatcher or InMemoryDispatcher(self.orders)
        host = self.bench.host(SCRIPT, *EXPERTS, wrap=wrap, dispatcher=orders)
        host.use(host.project.model_copy(update=SETTINGS))
        return host

    async def lived(self, fate: Fate, workers: int) -> None:
        """Have the Job driven to its end by so many workers with one place each; for one that dies another begins."""
        async with self.host() as host, AsyncExitStack() as stack:
            await host.submit("boss", "go", job_id="job")
            fleet = [await self._start_worker(stack, fate, f"w{n}") for n in range(workers)]
            async with asyncio.timeout(20):
                while self.orders.waiting or self.orders.held or (await host.job("job")).status != "completed":
                    if fate.died and len(fleet) == workers:
                        fleet.append(await self._start_worker(stack, fate, "next"))
                    await asyncio.sleep(0.005)  # a poll, bounded above

    async def _start_worker(self, stack: AsyncExitStack, fate: Fate, name: str) -> Mortal:
        worker = mortal_at_work(Life(name, fate), self.orders, self.host, concurrency=1)
        return await stack.enter_async_context(worker)

    async def check(self) -> None:
        async with self.host() as host:
            job = await host.job("job")
            assert (job.status, job.text) == ("completed", "all is done")
            assert (job.total_steps, len(job.runs)) == (STEPS, 4)
            assert {run.id for run in job.runs} == {"job-1", "job-2", "job-3", "job-20001"}
            for report in (await host.audit.verify("job"), await host.audit.replay("job")):
                assert report.ok, report
            generations = 0
            for run in job.runs:
                events = [line.event for line in await host.events(run.id)]
                generations += sum(event.type == "finishGeneration" for event in events)
                (done,) = [e for e in events if e.type == "finishToolCall" and e.tool_name == "appendTextFile"]
                lines = (self.bench.workspace / f"{run.expert_key}.txt").read_text().splitlines()
                if done.is_error:
                    assert "interrupted" in text_of(done.contents)
                    assert len(lines) <= 1
                else:
                    assert lines == ["once"]
                results = Counter(event.tool_call_id for event in events if event.type == "finishToolCall")
                assert set(results.values()) == {1}
            assert generations == STEPS
            assert job.usage.total_tokens == generations * 11
            for space in (host.storage, host.storage.space("delegates"), host.storage.space("delegatestops")):
                for job_id in (await space.jobs()).ids:
                    assert job_id == "job", (space.location, job_id)
                    assert await space.lease_info(job_id) is None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look often."""
    monkeypatch.setattr("perstack.workers.remote_delegates._READ_INTERVAL_S", 0.005)
    monkeypatch.setattr("perstack.workers.remote_delegates._ORDER_CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr("perstack.engine.log.run_log._POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr("perstack.workers.worker.CLAIM_POLL_INTERVAL_S", 0.02)


@pytest.mark.parametrize("workers", [1, 2], ids=["one-worker", "two-workers"])
@pytest.mark.parametrize("kept", ["memory", "sqlite"])
@pytest.mark.timeout(600)
def test_whichever_append_a_worker_dies_at_the_tree_ends_the_same(
    tmp_path: Path, kept: str, workers: int, thorough: bool
) -> None:
    def scene(name: str) -> Scene:
        (tmp_path / name).mkdir()
        return Scene(Bench(tmp_path / name, "sqlite:perstack/state.db"), in_memory=kept == "memory")

    plain, one = Fate(), scene("plain")
    wait_for(one.lived(plain, workers))
    wait_for(one.check())
    deaths = plain.deaths()
    assert len(deaths) > 60
    tally = Counter[str]()
    for place in spread(len(deaths), len(deaths) if thorough else DEATHS):
        fate, one = Fate(deaths[place - 1]), scene(str(place))
        try:
            wait_for(one.lived(fate, workers))
            wait_for(one.check())
        except (AssertionError, TimeoutError) as error:
            pytest.fail(f"{deaths[place - 1]}: {error!r}")
        if fate.died:
            tally["of the Job" if deaths[place - 1].run_id == "job-1" else "of a delegate"] += 1
    print(f"{kept}, workers at once: {workers}: deaths at appends to the log {dict(tally)}")
    least = 0.9 * len(deaths) if thorough else DEATHS - 1  # who appends what differs a little
    assert sum(tally.values()) >= least
