"""Delegates driven by other workers than their Job's: each once, within the limits of the whole tree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from approval_jobs import ASK_WRITE, append, files
from delegate_workers import Fleet, check_whole, until_driven, until_empty, wait_for_end
from engine_workers import AtWork
from hosts import Bench, expert, wait_for

from perstack.core.definitions.settings import Budget
from perstack.testing.scripted import text, tool, turn


def drivers(atwork: list[AtWork]) -> dict[str, str]:
    """Return the name of each driver by the id of the Job or Run."""
    return {str(news.facts.get("run", news.job)): one.worker.name for one in atwork for news in one.of("taken")}


BOSS = [
    turn(*(tool("helper", {"query": f"part {n}"}) for n in range(4)), usage=(100, 10)),
    text("All done.", usage=(200, 20)),
]
TEAM = (expert("boss", delegates=("helper",)), expert("helper", max_repeats=0))


def test_delegates_are_driven_by_whichever_worker_has_a_place(bench: Bench) -> None:
    async def work() -> None:
        helper = [turn(tool("todo", {"newTodos": ["a"]}), usage=(50, 5), delay_ms=150), text("Part.", usage=(60, 6))]
        fleet = Fleet(bench, {"[[boss]]": BOSS, "[[helper]]": helper}, TEAM)
        async with fleet.at_work("one", "two", concurrency=2) as workers:
            host = workers[0].host
            await host.submit("boss", "q", job_id="job")
            job = await wait_for_end(host, "job")
            assert (job.status, job.text, job.total_steps, len(job.runs)) == ("completed", "All done.", 10, 5)
            assert job.usage.total_tokens == 110 + 220 + 4 * (55 + 66)
            await check_whole(host, job)
            who = drivers(workers)
            assert {who[f"job-{n}"] for n in range(2, 6)} == {worker.worker.name for worker in workers}
            tokens = sum(sum(worker.worker.counters.tokens.values()) for worker in workers)
            assert tokens == job.usage.total_tokens
            await until_empty(fleet.engine)

    wait_for(work())


def test_one_worker_with_one_place_does_a_whole_tree(bench: Bench) -> None:
    async def work() -> None:
        script = {
            "[[boss]]": [turn(tool("left", {"query": "L"}), tool("left", {"query": "R"})), text("joined")],
            "[[left]]": [turn(tool("leaf", {"query": "x"}), tool("leaf", {"query": "y"})), text("left done")],
            "[[leaf]]": [text("leaf done")],
        }
        experts = (expert("boss", delegates=("left",)), expert("left", delegates=("leaf",)), expert("leaf"))
        fleet = Fleet(bench, script, experts)
        async with fleet.at_work("one", concurrency=1) as (one,):
            await one.host.submit("boss", "q", job_id="job")
            await one.host.submit("boss", "q", job_id="other")
            for job_id in ("job", "other"):
                job = await wait_for_end(one.host, job_id)
                assert (job.status, job.text, job.total_steps) == ("completed", "joined", 10)
                numbers = {run.id for run in job.runs}
                assert numbers >= {f"{job_id}-{n}" for n in (1, 2, 3, 20_001, 20_002, 30_001, 30_002)}
                await check_whole(one.host, job)

    wait_for(work())


HELPER = [turn(tool("todo", {"newTodos": ["a"]}), usage=(50, 5)), text("Part.", usage=(60, 6))]


@pytest.mark.parametrize("most", [9, 7])
def test_the_steps_of_the_whole_tree_are_bounded_and_all_are_used(bench: Bench, most: int) -> None:
    """Each of three delegates begins with a third of what is left: what one leaves, another gets."""

    async def work() -> None:
        long = [turn(tool("todo", {"newTodos": ["a"]})), turn(tool("todo", {"newTodos": ["b"]})), text("Long.")]
        boss = [
            turn(tool("short", {"query": "s"}), tool("long", {"query": "l"}), tool("long", {"query": "m"})),
            text("E"),
        ]
        script = {"[[boss]]": boss, "[[short]]": [text("Short.")], "[[long]]": long}
        experts = (expert("boss", delegates=("short", "long")), expert("short"), expert("long"))
        fleet = Fleet(bench, script, experts, {"max_steps": most})
        async with fleet.at_work("one", "two", concurrency=2) as workers:
            host = workers[0].host
            await host.submit("boss", "q", job_id="job")
            job = await wait_for_end(host, "job")
            assert (job.status, job.total_steps) == ("completed" if most == 9 else "stoppedByMaxSteps", most)
            await check_whole(host, job)
            if most < 9:
                job = await host.resume("job", max_steps=20)
                assert (job.status, job.total_steps) == ("completed", 9)
                await check_whole(host, job)

    wait_for(work())


def test_the_budget_of_the_whole_tree_is_never_exceeded_and_reached_by_larger_shares(bench: Bench) -> None:
    """Each delegate's share is too small for one generation; one after the other gets what it needs."""

    async def work() -> None:
        script = {"[[boss]]": BOSS, "[[helper]]": HELPER}
        fleet = Fleet(bench, script, TEAM, {"budget": Budget(max_tokens=12_000)})
        async with fleet.at_work("one", "two", concurrency=2) as workers:
            host = workers[0].host
            await host.submit("boss", "q", job_id="job")
            job = await wait_for_end(host, "job")
            assert (job.status, job.text, job.total_steps) == ("completed", "All done.", 10)
            assert job.usage.total_tokens == 110 + 220 + 4 * (55 + 66)
            shares = [
                line.event.limits.budget.max_tokens
                for n in range(2, 6)
                for line in await host.events(f"job-{n}")
                if line.event.type in ("startRun", "resumeRun") and line.event.limits is not None
            ]
            assert max(shares) > min(shares)
            assert max(shares) <= 12_000
            await check_whole(host, job)

    wait_for(work())


def test_a_budget_that_the_delegates_use_up_stops_the_job_once_nothing_is_left(bench: Bench) -> None:
    async def work() -> None:
        script = {
            "[[boss]]": BOSS,
            "[[helper]]": [turn(tool("todo", {"newTodos": ["a"]}), usage=(800, 200), repeat=50)],
        }
        fleet = Fleet(bench, script, TEAM, {"budget": Budget(max_tokens=12_000)})
        async with fleet.at_work("one", "two", concurrency=2) as workers:
            host = workers[0].host
            await host.submit("boss", "q", job_id="job")
            job = await wait_for_end(host, "job")
            assert job.status == "stoppedByBudget"
            assert job.exceeded is not None
            assert "12,000" in job.exceeded
            assert 5_000 < job.usage.total_tokens <= 12_000
            await check_whole(host, job)

    wait_for(work())


def test_a_delegate_whose_expert_has_used_its_own_budget_has_failed_and_the_job_continues(bench: Bench) -> None:
    async def work() -> None:
        greedy = [turn(tool("todo", {"newTodos": ["a"]}), usage=(800, 200), repeat=50)]
        boss = [turn(tool("greedy", {"query": "g"}), tool("helper", {"query": "h"})), text("E")]
        script = {"[[boss]]": boss, "[[helper]]": HELPER, "[[greedy]]": greedy}
        experts = (
            expert("boss", delegates=("greedy", "helper")),
            expert("helper"),
            expert("greedy", budget=Budget(max_tokens=6_000)),
        )
        fleet = Fleet(bench, script, experts)
        async with fleet.at_work("one", "two", concurrency=2) as workers:
            host = workers[0].host
            await host.submit("boss", "q", job_id="job")
            job = await wait_for_end(host, "job")
            assert (job.status, job.text) == ("completed", "E")
            assert job.usage_by_expert["greedy"].total_tokens <= 6_000
            results = [line.event for line in await host.events("job-1") if line.event.type == "finishToolCall"]
            (failed,) = [result for result in results if result.is_error]
            assert "Expert greedy may spend 6,000" in failed.contents[0].text
            await check_whole(host, job)

    wait_for(work())


SLOW_TURNS = [text("Part.", delay_ms=60_000)]


def test_who_stops_the_job_stops_its_delegates_and_those_that_wait(bench: Bench) -> None:
    async def work() -> None:
        fleet = Fleet(bench, {"[[boss]]": BOSS, "[[helper]]": SLOW_TURNS}, TEAM)
        async with fleet.at_work("one", "two", concurrency=1) as workers:
            host = workers[0].host
            await host.submit("boss", "q", job_id="job")
            await until_driven(host, "job-2", "job-3")
            async with asyncio.timeout(20):
                await fleet.host().cancel("job")
            runs = (await host.jobs.load("job")).runs
            assert {run.status for run in runs.values()} == {"stoppedByInterrupt"}
            await until_empty(fleet.engine)
            await check_whole(host, await host.job("job"))

    wait_for(work())


async def _approve_both(bench: Bench, fleet: Fleet, *, runs: int) -> None:
    """Submit the Job of the boss and approve its two calls. It must complete with so many Runs."""
    async with fleet.at_work("one", "two", concurrency=1) as workers:
        host = workers[0].host
        await host.submit("boss", "q", job_id="job")
        for _ in range(2):
            job = await wait_for_end(host, "job")
            assert (job.status, job.pause_reason) == ("stoppedByInteractiveTool", "human_approval")
            assert job.asking is not None
            await host.answer("yes", question_id=job.asking.id)
        job = await wait_for_end(host, "job")
        assert (job.status, job.text, len(job.runs)) == ("completed", "E", runs)
        assert [(bench.workspace / name).read_text() for name in ("a.txt", "b.txt")] == ["x\n", "x\n"]
        await check_whole(host, job)


def test_a_delegate_that_asks_stops_the_job_and_continues_with_the_answer(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt", "b.txt")
        script = {
            "[[boss]]": [turn(*(tool(name, {"query": "x"}) for name in ("left", "right", "helper"))), text("E")],
            "[[left]]": [append("a.txt"), text("Left.")],
            "[[right]]": [append("b.txt"), text("Right.")],
            "[[helper]]": HELPER,
        }
        boss = expert("boss", delegates=("left", "right", "helper"), permissions=ASK_WRITE)
        fleet = Fleet(bench, script, (boss, expert("left"), expert("right"), expert("helper")))
        await _approve_both(bench, fleet, runs=4)

    wait_for(work())


def test_what_is_asked_further_below_is_answered_and_all_above_it_continue(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt", "b.txt")
        script = {
            "[[boss]]": [turn(tool("middle", {"query": "x"}), tool("helper", {"query": "x"})), text("E")],
            "[[middle]]": [turn(tool("lower", {"query": "x"})), text("Middle.")],
            "[[lower]]": [turn(*(tool(name, {"query": "x"}) for name in ("left", "right"))), text("Lower.")],
            "[[left]]": [append("a.txt"), text("Left.")],
            "[[right]]": [append("b.txt"), text("Right.")],
            "[[helper]]": HELPER,
        }
        boss = expert("boss", delegates=("middle", "helper"), permissions=ASK_WRITE)
        middle, lower = expert("middle", delegates=("lower",)), expert("lower", delegates=("left", "right"))
        others = (expert(name) for name in ("left", "right", "helper"))
        fleet = Fleet(bench, script, (boss, middle, lower, *others))
        await _approve_both(bench, fleet, runs=6)

    wait_for(work())


def test_a_worker_that_leaves_leaves_job_and_delegates_to_others(bench: Bench) -> None:
    async def work() -> None:
        helper = [turn(tool("todo", {"newTodos": ["a"]}), delay_ms=50, repeat=20), text("Part.")]
        fleet = Fleet(bench, {"[[boss]]": BOSS, "[[helper]]": helper}, TEAM)
        async with fleet.at_work("rest", concurrency=1) as (rest,):
            async with fleet.at_work("leaves", concurrency=3) as (leaves,):
                await rest.host.submit("boss", "q", job_id="job")
                await until_driven(rest.host, "job-2", "job-3", "job-4")
                leaves.worker.leave()
                async with asyncio.timeout(10):
                    await leaves.task
            job = await wait_for_end(rest.host, "job")
            assert (job.status, job.total_steps, len(job.runs)) == ("completed", 2 + 4 * 21, 5)
            assert not rest.of("lost", "poison")
            await check_whole(rest.host, job)

    wait_for(work(), 60)


def test_an_order_that_is_lost_is_given_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr("perstack.workers.remote_delegates._ORDER_CHECK_INTERVAL_S", 0.3)
        fleet = Fleet(bench, {"[[boss]]": BOSS, "[[helper]]": HELPER}, TEAM)
        submit = fleet.engine.dispatcher.submit
        lost: list[str] = []

        async def losing(self: object, order: Any) -> None:
            if order.run_id is not None and order.run_id not in lost:
                lost.append(order.run_id)
            else:
                await submit(order)

        monkeypatch.setattr("perstack.testing.in_memory_dispatcher.InMemoryDispatcher.submit", losing)
        async with fleet.at_work("one", concurrency=2) as (one,):
            await one.host.submit("boss", "q", job_id="job")
            job = await wait_for_end(one.host, "job")
            assert (job.status, len(lost)) == ("completed", 4)
            await check_whole(one.host, job)

    wait_for(work())
