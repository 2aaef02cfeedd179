"""A Job with distributed delegates that is deleted, stopped or answered while some of its drivers are gone."""

from __future__ import annotations

import asyncio

import pytest
from approval_jobs import ASK_WRITE, append, files
from delegate_workers import Fleet, abandoned, check_whole, leftovers, until_empty, wait_for_end
from hosts import Bench, expert, wait_for
from mortal_workers import Death, Fate, Life

from perstack.errors import Conflict
from perstack.host import Host
from perstack.testing.scripted import text, tool, turn

BOSS = [turn(*(tool("helper", {"query": f"part {n}"}) for n in range(4))), text("All done.")]
TEAM = (expert("boss", delegates=("helper",)), expert("helper", max_repeats=0))
SLOW_TURNS = [text("Part.", delay_ms=60_000)]


async def die_once_it_generates(fleet: Fleet, host: Host, number: int, *, concurrency: int) -> None:
    """Run a worker that dies in its generation of the first delegate, which `number` workers began before."""
    life = Life(f"dies-{number}", Fate())
    async with fleet.mortal(life, concurrency=concurrency) as dies:
        async with asyncio.timeout(15):
            while sum(kind == "startGeneration" for kind in await types_of(host, "job-2")) <= number:
                await asyncio.sleep(0.01)  # a poll, bounded above
        life.die()
        await asyncio.wait({dies.task})


async def types_of(host: Host, run_id: str) -> list[str]:
    """Return the types of a Run's events; empty if it has not begun."""
    if run_id not in (await host.storage.runs("job")).ids:
        return []
    return [line.event.type for line in await host.events(run_id)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause before another try to begin a Job."""
    monkeypatch.setattr("perstack.workers.orders._MAX_PAUSE_MS", 100)


def test_of_a_deleted_job_nothing_is_left_though_a_delegate_of_it_is_driven(bench: Bench) -> None:
    async def work() -> None:
        fleet = Fleet(bench, {"[[boss]]": BOSS, "[[helper]]": SLOW_TURNS}, TEAM)
        async with abandoned(fleet) as rest:
            assert len(fleet.engine.orders.waiting) == 4  # the Job's, and of three delegates
            async with asyncio.timeout(10):
                await fleet.host().jobs.delete("job")
            assert not fleet.engine.orders.waiting
            await until_empty(fleet.engine)
            assert await leftovers(rest.host) == []
            assert not await rest.host.storage.has_job("job")
            (said,) = rest.of("ended")
            assert (said.level, said.facts["came"]) == ("warning", "deleted")
            assert said.text.startswith(f"delegate {said.facts['run']} stopped after")
            assert said.text.endswith("has no such Job any more")
            await rest.host.submit("boss", "q", job_id="other")  # the worker is as before
            await rest.wait_for_report("taken", 2)
            await fleet.host().cancel("other")

    wait_for(work(), 60)


def test_a_deletion_withdraws_the_orders_of_delegates_that_no_summary_knows(bench: Bench) -> None:
    """The worker of the Job died as it ordered them."""

    async def work() -> None:
        fleet = Fleet(bench, {"[[boss]]": BOSS, "[[helper]]": SLOW_TURNS}, TEAM)
        life = Life("dies", Fate(Death("job-5", 1, "after")))
        async with fleet.host() as host, fleet.mortal(life, concurrency=1) as dies:
            await host.submit("boss", "q", job_id="job")
            async with asyncio.timeout(10):
                await asyncio.wait({dies.task})
            assert {order.run_id for order in fleet.engine.orders.waiting.values()} >= {"job-3", "job-4"}
            await host.jobs.delete("job")
            assert not fleet.engine.orders.waiting
            assert await leftovers(host) == []

    wait_for(work())


def test_a_delegate_that_ends_every_worker_fails_and_nothing_else_does(bench: Bench) -> None:
    """Who drives it beside others dies, three times, whenever its model is asked."""

    async def work() -> None:
        boss = [turn(tool("bad", {"query": "b"}), tool("helper", {"query": "h"})), text("All done.")]
        calm = [turn(tool("helper", {"query": "h"})), text("Calm.")]
        helper = [turn(tool("todo", {"newTodos": ["a"]}), delay_ms=20, repeat=12), text("Part.")]
        script = {"[[boss]]": boss, "[[calm]]": calm, "[[helper]]": helper, "[[bad]]": SLOW_TURNS}
        team = (
            *(expert(one, delegates=("helper", "bad")) for one in ("boss", "calm")),
            expert("helper", max_repeats=0),
            expert("bad"),
        )
        fleet = Fleet(bench, script, team)
        async with fleet.host() as host:
            await host.submit("boss", "q", job_id="job")
            await host.submit("calm", "q", job_id="other")
            for number in range(3):
                await die_once_it_generates(fleet, host, number, concurrency=4)
            async with fleet.at_work("last", concurrency=4) as (last,):
                poison = await last.wait_for_report("poison", seconds=60)
                assert (poison.level, poison.facts["run"]) == ("error", "job-2")
                for job_id, said in (("job", "All done."), ("other", "Calm.")):
                    job = await wait_for_end(host, job_id, 60)
                    assert (job.status, job.text) == ("completed", said)
                    await check_whole(host, job)
                assert len(last.of("poison")) == 1, last.news
                results = [line.event for line in await host.events("job-1") if line.event.type == "finishToolCall"]
                (failed,) = [result for result in results if result.is_error]
                assert failed.contents[0].text.startswith("Delegation failed: 3 workers in a row ended or fell silent")
                await until_empty(fleet.engine)
            assert await leftovers(host) == []

    wait_for(work(), 200)  # on S3 each lease takes its time


def test_of_a_job_and_the_delegate_that_it_waits_for_only_the_one_that_ends_workers_fails(bench: Bench) -> None:
    """Each has both."""

    async def work() -> None:
        boss = [turn(tool("bad", {"query": "b"})), text("All done.")]
        fleet = Fleet(
            bench, {"[[boss]]": boss, "[[bad]]": SLOW_TURNS}, (expert("boss", delegates=("bad",)), expert("bad"))
        )
        async with fleet.host() as host:
            await host.submit("boss", "q", job_id="job")
            for number in range(3):
                await die_once_it_generates(fleet, host, number, concurrency=1)
            async with fleet.at_work("last", concurrency=1) as (last,):
                job = await wait_for_end(host, "job")
                assert (job.status, job.text) == ("completed", "All done.")
                assert [report.facts["run"] for report in last.of("poison")] == ["job-2"]
                await check_whole(host, job)

    wait_for(work(), 60)


def test_of_two_that_have_the_order_of_one_delegate_one_drives_it(bench: Bench) -> None:
    """As where a worker was frozen: the other is refused, and tries again later."""

    async def work() -> None:
        fleet = Fleet(bench, {"[[boss]]": BOSS, "[[helper]]": SLOW_TURNS}, TEAM)
        async with abandoned(fleet) as rest:
            run_id = str(rest.of("taken")[0].facts["run"])
            other = fleet.host()
            before = [line.line for line in await other.events(run_id)]
            with pytest.raises(Conflict, match="is being driven by"):
                await other.job_server.serve("job", worker="other", run_id=run_id)
            assert [line.line for line in await other.events(run_id)] == before
            await other.jobs.delete("job")

    wait_for(work(), 60)


def test_a_person_stops_a_job_whose_worker_has_left_and_its_delegates_with_it(bench: Bench) -> None:
    async def work() -> None:
        fleet = Fleet(bench, {"[[boss]]": BOSS, "[[helper]]": SLOW_TURNS}, TEAM)
        async with abandoned(fleet) as rest:
            async with asyncio.timeout(20):
                await fleet.host().cancel("job")
            runs = (await rest.host.jobs.load("job")).runs
            assert {run.status for run in runs.values()} == {"stoppedByInterrupt"}
            assert not fleet.engine.orders.waiting
            await until_empty(fleet.engine)
            assert rest.of("ended")
            assert not rest.of("failed", "lost")
        fleet.script = {"[[boss]]": BOSS, "[[helper]]": [text("Part.")]}
        job = await fleet.host().resume("job")
        assert (job.status, job.text, len(job.runs)) == ("completed", "All done.", 5)
        await check_whole(fleet.host(), job)

    wait_for(work(), 60)


def test_an_answer_that_comes_while_no_worker_is_there_is_taken_up_by_the_next(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt")
        script = {
            "[[boss]]": [turn(tool("asks", {"query": "x"}), tool("helper", {"query": "y"})), text("E")],
            "[[asks]]": [append("a.txt"), text("Asked.")],
            "[[helper]]": [text("Part.")],
        }
        boss = expert("boss", delegates=("asks", "helper"), permissions=ASK_WRITE)
        fleet = Fleet(bench, script, (boss, expert("asks"), expert("helper")))
        host = fleet.host()
        async with fleet.at_work("first", concurrency=2):
            await host.submit("boss", "q", job_id="job")
            job = await wait_for_end(host, "job")
            assert job.asking is not None
        answered = await host.answer("yes", question_id=job.asking.id)
        assert answered.status == "queued"
        with pytest.raises(Conflict):
            await host.answer("no", question_id=job.asking.id)
        assert not await host.jobs.queue.requeue_lost()
        async with fleet.at_work("next", concurrency=1):
            job = await wait_for_end(host, "job")
            assert (job.status, job.text, len(job.runs)) == ("completed", "E", 3)
            assert (bench.workspace / "a.txt").read_text() == "x\n"
            await check_whole(host, job)
            await until_empty(fleet.engine)
        assert await leftovers(host) == []

    wait_for(work(), 60)
