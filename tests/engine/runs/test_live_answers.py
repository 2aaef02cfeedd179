"""Delegates that ask while others of their Job work, and are answered at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from approval_jobs import ASK_WRITE, ME, append, files
from asking_team import Gate, script, team
from hosts import Bench, Seen, crashing, expert, results, sampled, until_it_crashes, wait_for

from perstack.core.runs.open_questions import OpenQuestion
from perstack.errors import Conflict, NotFound, StorageError, UsageError
from perstack.host import Host
from perstack.testing.crashing_storage import CrashingStorage, CrashPoint, crash_points
from perstack.testing.scripted import text, tool, turn


@asynccontextmanager
async def at_work(
    bench: Bench, turns, gate: Gate, seen: Seen | None = None, **more
) -> AsyncGenerator[tuple[Host, asyncio.Task, OpenQuestion]]:
    """Yield a Job in which one delegate asks while the other works: Host, task and question."""
    async with bench.host(turns, *team(), plugins=(gate.kit,), **more) as host:
        host.use(host.project.model_copy(update={"permissions": ASK_WRITE}))
        task = asyncio.create_task(host.run("boss", "q", job_id="job", on_event=seen))
        yield host, task, await wait_for_question(host)


async def wait_for_question(host: Host) -> OpenQuestion:
    while not (asked := host.jobs.live_questions("job")):
        await asyncio.sleep(0.005)
    return asked[0]


async def check_logs(host: Host) -> None:
    assert (await host.audit.replay("job")).ok
    assert (await host.audit.verify("job")).ok


def test_a_call_is_approved_while_another_delegate_is_at_work(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt")
        gate, seen = Gate(), Seen()
        async with at_work(bench, script(append("a.txt")), gate, seen) as (host, task, asking):
            assert (asking.expert_key, asking.tool_name, asking.args["path"]) == ("asker", "appendTextFile", "a.txt")
            assert (await host.job("job")).status == "running"
            await host.jobs.answer_live("yes", asking.id, by=ME)
            assert [event.by for event in seen.of("decideApproval")] == [ME]
            while "asked" not in results(seen):
                await asyncio.sleep(0.005)
            assert (bench.workspace / "a.txt").read_text() == "x\n"
            assert "worked" not in results(seen)
            gate.may_end.set()
            assert (await task).status == "completed"
            await check_logs(host)

    wait_for(work())


def test_a_delegate_may_ask_again(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt", "b.txt")
        gate, seen = Gate(), Seen()
        async with at_work(bench, script(append("a.txt"), append("b.txt")), gate, seen) as (host, task, first):
            await host.jobs.answer_live("no", first.id, by=ME)
            second = await wait_for_question(host)
            assert [one.args["path"] for one in (first, second)] == ["a.txt", "b.txt"]
            await host.jobs.answer_live("yes", second.id, by=ME)
            gate.may_end.set()
            assert (await task).status == "completed"
            assert [(bench.workspace / name).read_text() for name in ("a.txt", "b.txt")] == ["", "x\n"]
            await check_logs(host)

    wait_for(work())


def test_of_two_answers_to_one_question_the_second_is_refused(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt")
        gate, seen = Gate(), Seen()
        async with at_work(bench, script(append("a.txt")), gate, seen) as (host, task, asking):
            said = [host.jobs.answer_live(one, asking.id, by=ME) for one in ("no", "yes")]
            first, second = await asyncio.gather(*said, return_exceptions=True)
            assert not isinstance(first, BaseException)
            assert isinstance(second, Conflict)
            with pytest.raises(Conflict):
                await host.jobs.answer_live("yes", asking.id, by=ME)
            gate.may_end.set()
            await task
            assert [event.decision for event in seen.of("decideApproval")] == ["no"]
            assert (bench.workspace / "a.txt").read_text() == ""

    wait_for(work())


def test_an_answer_that_does_not_fit_leaves_the_question_open(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt")
        gate = Gate()
        async with at_work(bench, script(append("a.txt")), gate) as (host, task, asking):
            with pytest.raises(UsageError):
                await host.jobs.answer_live("perhaps", asking.id, by=ME)
            assert host.jobs.live_questions("job") == (asking,)
            await host.jobs.answer_live("yes", asking.id, by=ME)
            gate.may_end.set()
            assert (await task).status == "completed"

    wait_for(work())


def test_the_job_is_asked_once_the_others_rest(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt")
        gate = Gate()
        async with at_work(bench, script(append("a.txt")), gate) as (host, task, asking):
            gate.may_end.set()
            job = await task
            assert (job.status, job.asking) == ("stoppedByInteractiveTool", asking)
            assert host.jobs.live_questions("job") == ()
            assert (await host.answer("yes", question_id=asking.id, by=ME)).status == "completed"
            await check_logs(host)

    wait_for(work())


def test_a_delegate_of_a_delegate_is_answered_while_another_is_at_work(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt")
        gate = Gate()
        boss = turn(tool("middle", {"query": "go"}), tool("worker", {"query": "go"}))
        async with at_work(bench, script(append("a.txt"), boss=boss), gate) as (host, task, asking):
            assert asking.expert_key == "asker"
            await host.jobs.answer_live("yes", asking.id, by=ME)
            gate.may_end.set()
            assert (await task).status == "completed"
            await check_logs(host)

    wait_for(work())


def test_one_that_asks_alone_within_another_stops_the_job_when_the_last_worker_rests(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt")
        gate = Gate()
        boss = turn(tool("middle", {"query": "go"}), tool("worker", {"query": "go"}), tool("asker", {"query": "go"}))
        async with at_work(bench, script(append("a.txt"), boss=boss), gate) as (host, task, _):
            while len(host.jobs.live_questions("job")) < 2:
                await asyncio.sleep(0.005)
            gate.may_end.set()
            job = await task
            asked = 0
            while job.asking is not None:
                asked += 1
                job = await host.answer("yes", question_id=job.asking.id, by=ME)
            assert (job.status, asked) == ("completed", 3)  # one again, because the other has changed its file
            assert (bench.workspace / "a.txt").read_text() == "x\nx\n"
            await check_logs(host)

    wait_for(work())


def test_an_interrupted_job_asks_the_same_when_it_is_resumed(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt")
        gate = Gate()
        async with at_work(bench, script(append("a.txt")), gate) as (host, task, asking):
            await host.cancel("job")
            assert task.cancelled()
            assert host.jobs.live_questions("job") == ()
            gate.may_end.set()
            job = await host.resume("job")
            assert job.asking is not None
            assert job.asking.tool_call_id == asking.tool_call_id
            assert (await host.answer("yes", question_id=job.asking.id, by=ME)).status == "completed"
            assert (bench.workspace / "a.txt").read_text() == "x\n"
            await check_logs(host)

    wait_for(work())


class FullDisk(CrashingStorage):
    """A storage that has no room for answers while `is_full` is set."""

    is_full = False

    async def append(self, run, expected_seq, records) -> None:
        if self.is_full and b"decideApproval" in b"".join(records):
            raise StorageError("events.jsonl: no space left on device")
        await super().append(run, expected_seq, records)


def test_who_answers_hears_that_it_could_not_be_recorded(bench: Bench) -> None:
    async def work() -> None:
        files(bench, "a.txt")
        gate = Gate()
        async with at_work(bench, script(append("a.txt")), gate, wrap=FullDisk) as (host, task, asking):
            disk = host.storage
            assert isinstance(disk, FullDisk)
            disk.is_full = True
            with pytest.raises(StorageError, match="no space left"):
                await host.jobs.answer_live("yes", asking.id, by=ME)
            with pytest.raises(StorageError, match="no space left"):
                await task
            assert (bench.workspace / "a.txt").read_text() == ""
            disk.is_full = False
            gate.may_end.set()
            job = await host.resume("job")
            assert job.asking is not None
            assert (await host.answer("yes", question_id=job.asking.id, by=ME)).status == "completed"
            assert (bench.workspace / "a.txt").read_text() == "x\n"

    wait_for(work())


async def _live(bench: Bench, point: CrashPoint | None) -> int:
    """Run one process, which starts or continues the Job, answers all questions, and may crash."""
    gate, turns = Gate(), script(append("a.txt"))
    async with bench.host(
        turns, *team(), plugins=(gate.kit,), wrap=crashing(point or CrashPoint("after", 999))
    ) as host:
        host.use(host.project.model_copy(update={"permissions": ASK_WRITE}))
        with until_it_crashes():
            try:
                job = await host.job("job")
            except NotFound:
                work = asyncio.create_task(host.run("boss", "q", job_id="job"))
                while not work.done() and not (asked := host.jobs.live_questions("job")):
                    await asyncio.sleep(0.001)
                if not work.done():
                    await asyncio.gather(work, _answered(host, asked[0], gate))
                job = await work
            else:
                gate.may_end.set()
                if job.asking is None and job.status != "completed":
                    settled = {call.key: "done" for call in await host.jobs.unsettled("job")}
                    job = await host.resume("job", settle=settled)
            while job.asking is not None:
                job = await host.answer("yes", question_id=job.asking.id, by=ME)
            assert job.status == "completed"
        assert isinstance(host.storage, CrashingStorage)
        return host.storage.appends


async def _answered(host: Host, asking: OpenQuestion, gate: Gate) -> None:
    with suppress(Conflict):  # the process dies before the answer is recorded
        await host.jobs.answer_live("yes", asking.id, by=ME)
    gate.may_end.set()


@pytest.mark.sweep
def test_killed_at_any_write_an_answered_call_runs_once_and_is_answered_once(tmp_path: Path) -> None:
    def fresh(name: str) -> Bench:
        (folder := tmp_path / name).mkdir()
        files(bench := Bench(folder, "file:perstack"), "a.txt")
        return bench

    appends = wait_for(_live(fresh("plain"), None))
    assert appends > 8
    for number, point in enumerate(sampled(crash_points(appends))):
        bench = fresh(str(number))
        wait_for(_live(bench, point))
        wait_for(_live(bench, None))
        host = bench.host({})
        events = [line.event for run in wait_for(host.job("job")).runs for line in wait_for(host.events(run.id))]
        began = [event.tool_call_id for event in events if event.type == "startToolCall"]
        assert len([event for event in events if event.type == "decideApproval"]) == 1, point
        assert len(began) == len(set(began)), point
        written = (bench.workspace / "a.txt").read_text().count("x")
        settled = [event for event in events if event.type == "resumeRun" and event.settled]
        assert written == 1 or (settled and written == 0), point  # it began, and died before its effect
        wait_for(check_logs(host))


def _random_team(chance: Random) -> tuple[dict, tuple]:
    """Return a boss with nested delegates, each with some calls that need approval and some that do not."""
    turns: dict = {}
    experts = []

    def plan_expert(key: str, depth: int) -> None:
        below = [f"{key}{number}" for number in range(chance.randint(0, 3) if depth else 0)]
        calls = [append(f"{chance.choice('ab')}.txt") for _ in range(chance.randint(0, 2))]
        calls += [turn(*(tool(name, {"query": "go"}) for name in below))] if below else []
        chance.shuffle(calls)
        turns[f"[[{key}]]"] = [*calls, text(key)]
        experts.append(expert(key, delegates=tuple(below)))
        for name in below:
            plan_expert(name, depth - 1)

    plan_expert("x", 2)
    return turns, tuple(experts)


async def _person(host: Host, chance: Random) -> int:
    """Answer some questions while other Runs work, and all that the Job waits for. Return the number of answers."""
    answers = 0
    work = asyncio.create_task(host.run("x", "q", job_id="job"))
    while True:
        while not work.done():
            await asyncio.sleep(chance.choice((0, 0.002, 0.02)))
            for asking in host.jobs.live_questions("job"):
                if chance.random() < 0.7:
                    with suppress(Conflict):  # the others have come to rest in this moment
                        await host.jobs.answer_live(chance.choice(("yes", "no")), asking.id, by=ME)
                        answers += 1
        job = await work
        if job.asking is None:
            assert job.status == "completed"
            return answers
        work = asyncio.create_task(host.answer("yes", question_id=job.asking.id, by=ME))
        answers += 1


@pytest.mark.parametrize("seed", [0, 1, 7, 11, 12])
def test_whoever_asks_when_a_job_comes_to_its_end_and_each_is_answered_once(tmp_path: Path, seed: int) -> None:
    async def work() -> None:
        chance = Random(seed)
        turns, experts = _random_team(chance)
        files(bench := Bench(tmp_path, "file:perstack"), "a.txt", "b.txt")
        async with bench.host(turns, *experts) as host:
            host.use(host.project.model_copy(update={"permissions": ASK_WRITE}))
            answers = await _person(host, chance)
            events = [line.event for run in (await host.job("job")).runs for line in await host.events(run.id)]
            decided = [event for event in events if event.type == "decideApproval"]
            again = [event for event in events if event.type == "requestApproval" and event.again]
            assert len(decided) - len(again) == len({(one.run_id, one.tool_call_id) for one in decided})
            assert len(decided) == answers
            written = sum((bench.workspace / name).read_text().count("x") for name in ("a.txt", "b.txt"))
            assert written == sum(event.type == "startToolCall" for event in events)
            await check_logs(host)

    wait_for(work())
