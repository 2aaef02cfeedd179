"""Concurrent `run-due`, `answer` and `resume` on one storage: no effect occurs twice, and the loser gets an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import combinations_with_replacement

import pytest
from hosts import Bench, expert, wait_for

from perstack.core.definitions.experts import Expert, Iterate
from perstack.core.definitions.skills import PluginSkill
from perstack.errors import Conflict, NotAllowed, UsageError
from perstack.host import Host
from perstack.testing.scripted import ScriptLike, fail, text, tool
from perstack.toolkit import Toolkit

Work = Callable[[Host], Awaitable[object]]

PAIRS = [
    pytest.param(pair, id=" and ".join(pair))
    for pair in combinations_with_replacement(("run-due", "answer", "resume"), 2)
]
ROUNDS = 4


def in_turn(pair: tuple[str, str], number: int) -> tuple[str, str]:
    """Return the pair in alternating order, by the number of the round."""
    return pair if number % 2 == 0 else (pair[1], pair[0])


class Till:
    """Hosts whose Experts pay, and the payments."""

    def __init__(self, bench: Bench) -> None:
        self.paid: list[str] = []
        """The task of each payment."""
        self._bench = bench
        self._kit = Toolkit("till")

        @self._kit.tool()
        async def pay(task: str) -> str:
            """Pay."""
            self.paid.append(task)
            await asyncio.sleep(0)
            return "paid"

    def host(self, script: ScriptLike) -> Host:
        skill = PluginSkill(name="till", plugin="till")
        payer = expert("payer", ask=True)
        payer = Expert.model_validate({**payer.model_dump(), "skills": (*payer.skills, skill)})
        return self._bench.host(script, payer, plugins=(self._kit,))


def asks_and_pays(task_id: str) -> ScriptLike:
    return [tool("askUser", {"question": "Pay?"}), tool("pay", {"task": task_id}), text("Paid.")]


def on_job(job_id: str, question_id: str | None) -> dict[str, Work]:
    return {
        "run-due": lambda host: host.scheduler.once(),
        "answer": lambda host: host.answer("yes", question_id=question_id),
        "resume": lambda host: host.resume(job_id),
    }


def on_task(task_id: str) -> dict[str, Work]:
    return {
        "run-due": lambda host: host.scheduler.once(),
        "answer": lambda host: host.tasks.answer(task_id, "yes"),
        "resume": lambda host: host.tasks.resume(task_id),
    }


async def at_once(hosts: Sequence[Host], works: Sequence[Work]) -> list[object]:
    """Run the works concurrently and return their outcomes. Errors must be Conflict or UsageError."""
    done = await asyncio.gather(*(work(host) for host, work in zip(hosts, works, strict=True)), return_exceptions=True)
    for outcome in done:
        assert not isinstance(outcome, BaseException) or isinstance(outcome, Conflict | UsageError), repr(outcome)
        if isinstance(outcome, tuple):
            assert all(woken.error is None for woken in outcome), outcome
    return list(done)


def refusals(done: Sequence[object]) -> list[BaseException]:
    return [one for one in done if isinstance(one, BaseException)]


async def begin_task(host: Host, task_id: str) -> None:
    """Create a task of an Expert, which is due."""
    await host.tasks.create(task_id, agent_id="payer", start=True)
    await host.tasks.pause(task_id, "scheduled_wait", resume_at=1)


async def interrupted(till: Till, task_id: str) -> str:
    """Create a task whose Job is interrupted before its first effect, and return the Job's id."""
    host = till.host([text("late", delay_ms=60_000)])
    await begin_task(host, task_id)
    looking = asyncio.ensure_future(host.scheduler.once())
    while (job_id := (await host.tasks.get(task_id)).job_id) is None or not await host.events(f"{job_id}-1"):
        await asyncio.sleep(0.001)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    return job_id


async def asking(till: Till, task_id: str) -> str:
    """Create a task whose Job waits for an answer, and return the Job's id."""
    host = till.host(asks_and_pays(task_id))
    await begin_task(host, task_id)
    await host.scheduler.once()
    job_id = (await host.tasks.get(task_id)).job_id
    assert job_id is not None
    assert (await host.job(job_id)).question == "Pay?"
    return job_id


@pytest.mark.parametrize("pair", PAIRS)
def test_of_a_job(bench: Bench, pair: tuple[str, str]) -> None:
    till = Till(bench)
    asks = "answer" in pair

    async def work() -> None:
        for number in range(ROUNDS):
            task_id = f"t{number}"
            job_id = await (asking if asks else interrupted)(till, task_id)
            script = asks_and_pays(task_id) if asks else [tool("pay", {"task": task_id}), text("Paid.")]
            hosts = [till.host(script) for _ in pair]
            question = (await hosts[0].job(job_id)).asking
            works = on_job(job_id, question.id if question is not None else None)
            done = await at_once(hosts, [works[name] for name in in_turn(pair, number)])
            if asks and len(refusals(done)) == 2:
                # the other process held the lease only to find nothing to resume: a person answers again
                done[0] = await works["answer"](hosts[0])
            assert len(refusals(done)) <= 1, done
            if "run-due" not in pair:
                assert refusals(done), "one of the two had nothing to do"
            await hosts[0].scheduler.once()  # what became of the Job is for its task to know
            assert till.paid.count(task_id) == 1
            assert (await hosts[0].job(job_id)).status == "completed"
            task = await hosts[0].tasks.get(task_id)
            assert (task.status, task.result, task.job_id) == ("completed", "Paid.", job_id)
            kinds = [event.type for event in await hosts[0].tasks.history(task_id)]
            assert (kinds.count("wakeTask"), kinds.count("completeTask")) == (1, 1)
            assert (await hosts[0].audit.verify(job_id)).ok

    wait_for(work(), 60)


@pytest.mark.parametrize("pair", PAIRS)
def test_of_a_task(bench: Bench, pair: tuple[str, str]) -> None:
    till = Till(bench)

    async def work() -> None:
        for number in range(ROUNDS):
            task_id = f"t{number}"
            hosts = [till.host([tool("pay", {"task": task_id}), text("Paid.")]) for _ in pair]
            await hosts[0].tasks.create(task_id, agent_id="payer", start=True)
            await hosts[0].tasks.pause(task_id, "human_approval", "Pay?")
            if "answer" not in pair:
                await hosts[0].tasks.answer(task_id, "yes")
            works = on_task(task_id)
            done = await at_once(hosts, [works[name] for name in in_turn(pair, number)])
            for error in refusals(done):
                assert isinstance(error, Conflict | NotAllowed), error
            if pair[0] == pair[1] != "run-due":
                assert len(refusals(done)) == 1
            await hosts[0].scheduler.once()  # an answer alone makes it due
            kinds = [event.type for event in await hosts[0].tasks.history(task_id)]
            assert kinds.count("resumeTask") == 1
            assert kinds.count("answerTask") <= 1
            task = await hosts[0].tasks.get(task_id)
            if "wakeTask" in kinds:
                assert (kinds.count("wakeTask"), kinds.count("completeTask")) == (1, 1)
                assert (task.status, till.paid.count(task_id)) == ("completed", 1)
            else:  # resumed by hand, an Expert's task is its caller's
                assert (task.status, till.paid.count(task_id)) == ("running", 0)

    wait_for(work(), 60)


@pytest.mark.parametrize("pair", [("run-due", "run-due"), ("run-due", "resume"), ("resume", "resume")])
def test_of_iterations_and_jobs_that_waited_for_a_rate(bench: Bench, pair: tuple[str, str]) -> None:
    measured = expert("a", iterate=Iterate(evaluator="echo >> measured; echo '{\"score\": 1}'", max_iterations=1))

    async def work() -> None:
        limited = bench.host([fail(429, "come back", retry_after=3600)], measured)
        job = await limited.run("a", "q")
        await limited.iterations.begin("a", "q", series_id="it")
        bench.clock.move(3_700_000)
        hosts = [bench.host([text("done")], measured) for _ in pair]

        async def resume(host: Host) -> None:
            done = await asyncio.gather(host.resume(job.id), host.iterations.resume("it"), return_exceptions=True)
            assert all(not isinstance(one, BaseException) or isinstance(one, Conflict | UsageError) for one in done)

        works: dict[str, Work] = {"run-due": lambda host: host.scheduler.once(), "resume": resume}
        assert not refusals(await at_once(hosts, [works[name] for name in pair]))
        assert (await hosts[0].job(job.id)).status == "completed"
        kinds = [line.event.type for line in await hosts[0].events(f"{job.id}-1")]
        assert (kinds.count("resumeRun"), kinds.count("finishGeneration")) == (1, 1)
        series = await hosts[0].iterations.get("it")
        assert (series.status, len(series.iterations)) == ("completed", 1)
        assert (bench.workspace / "measured").read_text() == "\n"

    wait_for(work(), 60)


@pytest.mark.parametrize("kind", ["task", "job", "iterations"])
def test_a_look_that_comes_too_late_finds_no_fault(bench: Bench, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    payer = expert("payer", iterate=Iterate(evaluator="echo '{\"score\": 1}'", max_iterations=1))

    async def work() -> None:
        till = Till(bench)
        if kind == "task":
            job_id, quick, late = await interrupted(till, "t"), till.host([text("Paid.")]), till.host([text("Paid.")])
        else:
            limited = bench.host([fail(429, "come back", retry_after=3600)], payer)
            job_id = "it-i1" if kind == "iterations" else "job"
            if kind == "job":
                await limited.run("payer", "q", job_id=job_id)
            else:
                await limited.iterations.begin("payer", "q", series_id="it")
            bench.clock.move(3_700_000)
            quick, late = (bench.host([text("Paid.")], payer) for _ in range(2))
        on = late.iterations if kind == "iterations" else late
        resume = on.resume

        async def overtaken(one: str) -> object:
            await (quick.iterations if kind == "iterations" else quick).resume(one)
            return await resume(one)

        monkeypatch.setattr(on, "resume", overtaken)
        woken = await late.scheduler.once()
        assert all(one.error is None for one in woken), woken
        assert (await quick.job(job_id)).status == "completed"
        if kind == "task":
            assert (await quick.tasks.get("t")).status == "completed"

    wait_for(work())
