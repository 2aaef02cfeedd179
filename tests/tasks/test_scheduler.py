"""Due tasks continue once; tasks of Experts get a Job."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from hosts import Bench, expert, wait_for

from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.skills import PluginSkill
from perstack.errors import Conflict, NotFound, UsageError
from perstack.ports.provider import GenerationRequest
from perstack.schedules.scheduler import DueWorkResult
from perstack.tasks.events import TaskConfig, WaitingFor, WakeTask
from perstack.testing.scripted import ScriptedProvider, Turn, fail, text, tool, turn


def did(woken: tuple[DueWorkResult, ...]) -> list[tuple[str, str]]:
    return [(one.task_id, one.did) for one in woken]


def test_a_scheduled_wait_is_resumed_when_it_is_over_and_not_before(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        for task, moment in (("over", 1), ("long", 1 << 47)):
            await host.tasks.create(task, start=True)
            await host.tasks.pause(task, "scheduled_wait", resume_at=moment)
        assert did(await host.scheduler.once()) == [("over", "resumed")]
        assert (await host.tasks.get("over")).status == "running"
        assert (await host.tasks.get("long")).status == "paused"
        assert await host.scheduler.once() == ()

    wait_for(work())


def test_a_watch_resumes_what_becomes_due_until_it_is_cancelled(bench: Bench) -> None:
    async def work() -> None:
        host, woken = bench.host([]), asyncio.Queue[DueWorkResult]()
        watching = asyncio.ensure_future(host.scheduler.watch(1, woken.put_nowait))
        for task in ("one", "two"):
            await host.tasks.create(task, start=True)
            await host.tasks.pause(task, "scheduled_wait", resume_at=1)
            assert (await woken.get()).task_id == task
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        assert woken.empty()

    wait_for(work())


def test_an_experts_task_gets_a_job_that_is_told_its_state(bench: Bench) -> None:
    provider = ScriptedProvider([text("Refactored.")])

    async def work() -> None:
        host = bench.host(provider, expert("fixer"))
        config = TaskConfig(checkpoint_interval=90_000)
        left = {"left": ["b.py"]}
        await host.tasks.create("fix", agent_id="fixer", description="Fix all.", state=left, config=config, start=True)
        await host.tasks.pause("fix", "human_approval", "May I?")
        assert await host.scheduler.once() == ()
        await host.tasks.answer("fix", {"approved": True})
        assert did(await host.scheduler.once()) == [("fix", "worked")]
        task = await host.tasks.get("fix")
        assert (task.status, task.result) == ("completed", "Refactored.")
        assert task.job_id is not None
        job = await host.job(task.job_id)
        assert (job.status, job.expert_key) == ("completed", "fixer")
        assert all(part in job.query for part in ("Fix all.", '"b.py"', '"approved": true', "every 90 s"))

    wait_for(work())


def test_a_job_that_fails_fails_its_task_or_is_tried_again_as_its_config_says(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([fail(401, "no key")], expert("fixer"))
        for task, wish in (("once", "fail"), ("twice", "retry")):
            config = TaskConfig(on_failure=wish, max_retries=1)
            await host.tasks.create(task, agent_id="fixer", config=config, start=True)
            await host.tasks.pause(task, "scheduled_wait", resume_at=1)
        await host.scheduler.once()
        tasks = [await host.tasks.get(task) for task in ("once", "twice")]
        assert [(task.status, task.retry_count) for task in tasks] == [("failed", 0), ("failed", 1)]
        assert tasks[0].error == "no key"

    wait_for(work())


def test_of_two_that_look_at_the_same_time_one_wakes_a_task(bench: Bench) -> None:
    async def work() -> None:
        hosts = [bench.host([text("Done.")], expert("fixer")) for _ in range(2)]
        for number in range(5):
            await hosts[0].tasks.create(f"t{number}", agent_id="fixer", start=True)
            await hosts[0].tasks.pause(f"t{number}", "scheduled_wait", resume_at=1)
        both = await asyncio.gather(*(host.scheduler.once() for host in hosts))
        assert sorted(one.task_id for woken in both for one in woken) == [f"t{number}" for number in range(5)]
        assert len((await hosts[0].jobs.list()).jobs) == 5
        for number in range(5):
            kinds = [event.type for event in await hosts[0].tasks.history(f"t{number}")]
            assert kinds.count("wakeTask") == kinds.count("completeTask") == 1

    wait_for(work())


def test_a_command_is_asked_whether_what_is_waited_for_has_come(bench: Bench, tmp_path: Path) -> None:
    async def work() -> None:
        host = bench.host([])
        code = "import pathlib, sys; p = pathlib.Path('built'); p.exists() or sys.exit(1); print(p.read_text())"
        await host.tasks.create("deploy", start=True)
        waits = WaitingFor(what="the build", command=(sys.executable, "-c", code))
        await host.tasks.pause("deploy", "external_dependency", waiting_for=waits)
        assert await host.scheduler.once() == ()
        (tmp_path / "built").write_text('{"build": 7}')
        assert did(await host.scheduler.once()) == [("deploy", "resumed")]
        assert (await host.tasks.get("deploy")).input == {"build": 7}

    wait_for(work())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("nosuch-program",), "command `nosuch-program` could not be started"),
        (("sh", "-c", "kill -9 $$"), "was ended by signal 9"),
        ((sys.executable, "-c", "print('x' * (1 << 20))"), "wrote 1,048,577 bytes to stdout"),
    ],
)
def test_a_command_that_cannot_say_anything_is_told_and_its_task_goes_on_waiting(
    bench: Bench, command: tuple[str, ...], words: str
) -> None:
    async def work() -> None:
        host = bench.host([])
        await host.tasks.create("deploy", start=True)
        await host.tasks.pause("deploy", "external_dependency", waiting_for=WaitingFor(command=command))
        (woken,) = await host.scheduler.once()
        assert woken.did == "failed"
        assert words in (woken.error or "")
        assert (await host.tasks.get("deploy")).status == "paused"

    wait_for(work())


def test_a_webhook_that_comes_while_nothing_runs_resumes_its_task_at_the_next_start(bench: Bench) -> None:
    async def work() -> None:
        first = bench.host([])
        await first.tasks.create("deploy", start=True)
        token = (await first.tasks.pause("deploy", "external_dependency", "the build")).token
        assert token is not None
        assert (await first.tasks.get("deploy")).token is None
        for wrong in (token[:-1], "deploy.x", "nosuch.x", "", "../x.y"):
            with pytest.raises(NotFound, match="no task waits for this token"):
                await bench.host([]).tasks.signal(wrong)
        door = bench.host([]).tasks
        await door.signal(token, {"build": 7}, event_id="ci#1")
        await door.signal(token, {"build": 7}, event_id="ci#1")
        with pytest.raises(Conflict, match="already"):
            await door.signal(token, {"build": 8}, event_id="ci#2")
        third = bench.host([])
        assert did(await third.scheduler.once()) == [("deploy", "resumed")]
        task = await third.tasks.get("deploy")
        assert (task.status, task.input) == ("running", {"build": 7})
        assert (await door.signal(token, {"build": 7}, event_id="ci#1")).version == task.version
        with pytest.raises(Conflict):
            await door.signal(token, {"build": 9}, event_id="ci#3")

    wait_for(work())


def test_a_task_that_is_silent_for_too_long_has_failed(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        await host.tasks.create("silent", config=TaskConfig(timeout=1), start=True)
        await host.tasks.create("busy", config=TaskConfig(timeout=600_000), start=True)
        while not (woken := await host.scheduler.once()):
            await asyncio.sleep(0)
        assert did(woken) == [("silent", "timedOut")]
        assert "timed out" in ((await host.tasks.get("silent")).error or "")
        assert (await host.tasks.get("busy")).status == "running"

    wait_for(work())


def test_a_job_whose_process_died_goes_on_at_the_next_look(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([text("Done.", delay_ms=60_000)], expert("fixer"))
        await host.tasks.create("fix", agent_id="fixer", start=True)
        await host.tasks.pause("fix", "scheduled_wait", resume_at=1)
        looking = asyncio.ensure_future(host.scheduler.once())
        while (job_id := (await host.tasks.get("fix")).job_id) is None or not await host.events(f"{job_id}-1"):
            await asyncio.sleep(0.01)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        assert (await host.tasks.get("fix")).status == "running"
        assert did(await bench.host([text("Done.")], expert("fixer")).scheduler.once()) == [("fix", "worked")]
        task = await host.tasks.get("fix")
        assert (task.status, task.result, task.job_id) == ("completed", "Done.", job_id)

    wait_for(work())


def test_a_job_that_was_never_begun_is_replaced_after_a_while(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([text("Done.")], expert("fixer"))
        await host.tasks.create("fix", agent_id="fixer", start=True)
        # the process that woke it has died before its Job was there
        woken = WakeTask(task_id="fix", timestamp=bench.clock.now(), job_id="stillborn")
        await host.tasks.log.change("fix", lambda _: [woken], None)
        assert await host.scheduler.once() == ()
        bench.clock.move(31_000)
        assert did(await host.scheduler.once()) == [("fix", "worked")]
        task = await host.tasks.get("fix")
        assert (task.status, task.result) == ("completed", "Done.")
        assert [job.id for job in (await host.jobs.list()).jobs] == [task.job_id] != ["stillborn"]

    wait_for(work())


def test_a_watch_tells_once_what_goes_wrong_again_and_again(bench: Bench) -> None:
    async def work() -> None:
        host, woken = bench.host([]), asyncio.Queue[DueWorkResult]()
        for task, command in (("bad", "nosuch-program"), ("marks", "echo >> marks; false")):
            await host.tasks.create(task, start=True)
            waits = WaitingFor(command=("sh", "-c", command) if task == "marks" else (command,))
            await host.tasks.pause(task, "external_dependency", waiting_for=waits)
        watching = asyncio.ensure_future(host.scheduler.watch(1, woken.put_nowait))
        marks = bench.workspace / "marks"
        while not (marks.exists() and marks.read_text().count("\n") > 4):
            await asyncio.sleep(0.01)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        assert did((woken.get_nowait(),)) == [("bad", "failed")]
        assert woken.empty()

    wait_for(work())


def test_an_expert_keeps_its_own_task_with_the_skill(bench: Bench) -> None:
    skill = PluginSkill(name="memory", plugin="@perstack/execution-memory")
    keeper = expert("keeper").model_copy(update={"skills": (skill,)})
    script = [
        tool("createTask", {"task_id": "tidy", "name": "Tidy up", "state": {"left": ["a", "b"]}}),
        tool("checkpointTask", {"task_id": "tidy", "state": {"left": ["b"]}}),
        tool("pauseTask", {"task_id": "tidy", "reason": "human_approval", "message": "Remove b?"}),
        tool("createTask", {"task_id": "tidy", "name": "Again"}),
        tool("listTasks", {"status": "paused", "older_than": 0}),
        text("I wait."),
    ]
    provider = ScriptedProvider(script)

    async def work() -> None:
        host = bench.host(provider, keeper)
        assert (await host.run("keeper", "Tidy up.")).text == "I wait."
        task = await host.tasks.get("tidy")
        assert (task.agent_id, task.status, task.pause_reason) == ("keeper", "paused", "human_approval")
        assert task.state == {"left": ["b"]}
        said = str(list(provider.requests[-1].messages))
        assert "task tidy exists already, and is paused" in said
        assert "Remove b?" in said
        await host.tasks.answer("tidy", "yes")
        last = bench.host([tool("completeTask", {"task_id": "tidy", "result": {"removed": 2}}), text("Gone.")], keeper)
        await last.scheduler.once()
        task = await last.tasks.get("tidy")
        assert (task.status, task.result) == ("completed", {"removed": 2})

    wait_for(work())


def test_an_expert_says_things_in_the_words_that_every_other_door_takes(bench: Bench) -> None:
    skill = PluginSkill(name="memory", plugin="@perstack/execution-memory")
    keeper = expert("keeper").model_copy(update={"skills": (skill,)})
    config = {"max_retries": 1, "on_failure": "pause"}
    script = [
        tool("createTask", {"task_id": "first", "name": "First", "status": "running", "checkpoint_data": {"at": 0}}),
        tool("createTask", {"task_id": "then", "name": "Then", "depends_on": ["first"], "config": config}),
        tool("checkpointTask", {"taskId": "first", "checkpointData": {"at": 1}}),
        tool("pauseTask", {"task_id": "first", "reason": "Waiting for the review", "checkpoint_data": {"at": 2}}),
        tool("failTask", {"task_id": "first", "error": {"code": 7, "message": "the disk is full"}}),
        text("Done."),
    ]
    provider = ScriptedProvider(script)

    async def work() -> None:
        host = bench.host(provider, keeper)
        assert (await host.run("keeper", "Tidy up.")).text == "Done."
        kinds = [event.type for event in await host.tasks.history("first")]
        assert kinds == [
            "createTask", "checkpointTask", "startTask", "checkpointTask", "checkpointTask", "pauseTask", "failTask",
        ]  # fmt: skip
        first = await host.tasks.get("first")
        assert (first.error, first.error_details) == ("the disk is full", {"code": 7, "message": "the disk is full"})
        assert first.checkpoint_data == {"at": 2}
        paused = (await host.tasks.history("first"))[5]
        assert (paused.reason, paused.message) == ("human_input", "Waiting for the review")
        then = await host.tasks.get("then")
        assert (then.status, then.config.on_failure) == ("paused", "pause")
        assert [one.in_words() for one in then.blocked_by] == ["first (failed: the disk is full)"]

    wait_for(work())


@pytest.mark.parametrize("reason", ["human_approval", "human_input", "Waiting for the review"])
@pytest.mark.parametrize(
    ("detour", "revivals"),
    [
        ([], ["resumeTask"]),
        ([("failTask", {"error": "no time"})], ["resumeTask", "retryTask"]),
        ([("cancelTask", {})], ["resumeTask", "retryTask"]),
    ],
)
def test_an_expert_does_not_decide_for_the_person_its_task_waits_for(
    bench: Bench, reason: str, detour: list[tuple[str, dict[str, str]]], revivals: list[str]
) -> None:
    skill = PluginSkill(name="memory", plugin="@perstack/execution-memory")
    keeper = expert("keeper").model_copy(update={"skills": (skill,)})
    calls: list[tuple[str, JsonObject]] = [
        ("pauseTask", {"reason": reason, "message": "Remove b?"}),
        *((name, {**args}) for name, args in detour),
        *((name, {}) for name in revivals),
        ("resumeTask", {"state": {}}),
    ]
    script = [
        tool("createTask", {"task_id": "tidy"}),
        *(tool(name, {"task_id": "tidy", **args}) for name, args in calls),
        text("I wait."),
    ]
    provider = ScriptedProvider(script)

    async def work() -> None:
        host = bench.host(provider, keeper)
        assert (await host.run("keeper", "Tidy up.")).text == "I wait."
        assert (await host.tasks.get("tidy")).status == ("failed" if detour else "paused")
        kinds = {event.type for event in await host.tasks.history("tidy")}
        assert kinds.isdisjoint({"resumeTask", "retryTask", "answerTask"})
        said = str(list(provider.requests[-1].messages))
        assert said.count("only a person can decide this, and an Expert cannot: ") == len(revivals) + 1
        assert "a person may resume task tidy" in said

    wait_for(work())


def test_an_expert_continues_its_own_task_where_nobody_decides(bench: Bench) -> None:
    skill = PluginSkill(name="memory", plugin="@perstack/execution-memory")
    keeper = expert("keeper").model_copy(update={"skills": (skill,)})
    calls: list[tuple[str, JsonObject]] = [
        ("createTask", {"config": {"max_retries": 1}}),
        ("pauseTask", {"reason": "checkpoint"}),
        ("resumeTask", {}),
        ("failTask", {"error": "full"}),
        ("retryTask", {}),
        ("failTask", {"error": "full"}),
        ("resumeTask", {}),
    ]
    provider = ScriptedProvider([*(tool(name, {"task_id": "own", **args}) for name, args in calls), text("Done.")])

    async def work() -> None:
        host = bench.host(provider, keeper)
        await host.run("keeper", "Tidy up.")
        kinds = [event.type for event in await host.tasks.history("own")]
        assert (kinds.count("resumeTask"), kinds.count("retryTask"), kinds[-1]) == (1, 1, "failTask")
        assert "beyond its limit of 1 retries" in str(list(provider.requests[-1].messages))

    wait_for(work())


def test_an_expert_spells_arguments_either_way_and_rules_hold_for_both(bench: Bench) -> None:
    skill = PluginSkill(name="memory", plugin="@perstack/execution-memory")
    rules = Permissions(deny=("createTask(task_id=secret)",))
    keeper = expert("keeper").model_copy(update={"skills": (skill,), "permissions": rules})
    script = [
        tool("createTask", {"taskId": "one", "checkpointData": {"at": 0}, "config": {"maxRetries": 1}}),
        tool("createTask", {"taskId": "secret"}),
        tool("createTask", {"taskId": "two", "task_id": "secret"}),
        tool("createTask", {"taskid": "three"}),
        text("Done."),
    ]
    provider = ScriptedProvider(script)

    async def work() -> None:
        host = bench.host(provider, keeper)
        assert (await host.run("keeper", "Tidy up.")).text == "Done."
        assert [task.task_id for task in (await host.tasks.list()).tasks] == ["one"]
        assert (await host.tasks.get("one")).checkpoint_data == {"at": 0}
        said = str(list(provider.requests[-1].messages))
        assert said.count("Wrong arguments") == 2
        assert "createTask(task_id=secret)" in said

    wait_for(work())


def test_the_skill_offers_one_tool_for_each_operation_and_no_way_to_start_a_command(bench: Bench) -> None:
    skill = PluginSkill(name="memory", plugin="@perstack/execution-memory")
    host = bench.host([], expert("keeper").model_copy(update={"skills": (skill,)}))
    offered = wait_for(host.experts.tools("keeper"))
    specs = {spec.name: spec for spec in offered.shown + offered.deferred if spec.skill_name == "memory"}
    assert len(specs) == 14
    assert "command" not in str(specs["pauseTask"].input_schema)


def test_a_job_that_pauses_for_a_rate_goes_on_when_that_is_over(bench: Bench) -> None:
    async def work() -> None:
        limited = bench.host([fail(429, "come back", retry_after=3600)], expert("a"))
        job = await limited.run("a", "q")
        assert job.pause_reason == "rate_limit"
        assert await limited.scheduler.once() == (), "it is not due yet"
        bench.clock.move(3_700_000)
        host = bench.host([text("done")], expert("a"))
        (woken,) = await host.scheduler.once()
        assert (woken.did, woken.summary.id, woken.summary.status) == ("resumed", job.id, "completed")
        assert await host.scheduler.once() == ()

    wait_for(work())


def test_iterations_that_pause_for_a_rate_go_on_when_that_is_over(bench: Bench) -> None:
    async def work() -> None:
        measured = expert("a", iterate=Iterate(evaluator="echo '{\"score\": 1}'", max_iterations=2))
        limited = bench.host([fail(429, "come back", retry_after=3600)], measured)
        series = await limited.iterations.begin("a", "q", series_id="it")
        assert (series.status, series.pause_reason) == ("paused", "rate_limit")
        assert await limited.scheduler.once() == (), "it is not due yet"
        bench.clock.move(3_700_000)
        host = bench.host([text("done")], measured)
        (woken,) = await host.scheduler.once()
        assert (woken.did, woken.summary, woken.series.id, woken.series.status) == ("resumed", None, "it", "completed")
        assert [iteration.job_id for iteration in woken.series.iterations] == ["it-i1", "it-i2"]
        assert await host.scheduler.once() == ()

    wait_for(work())


def test_a_tasks_job_that_pauses_for_a_rate_goes_on_as_the_same_job(bench: Bench) -> None:
    async def work() -> None:
        limited = bench.host([fail(429, "come back", retry_after=3600)], expert("fixer"))
        await limited.tasks.create("fix", agent_id="fixer", start=True)
        await limited.tasks.pause("fix", "scheduled_wait", resume_at=1)
        await limited.scheduler.once()
        paused = await limited.tasks.get("fix")
        assert (paused.status, paused.pause_reason) == ("paused", "rate_limit")
        bench.clock.move(3_700_000)
        host = bench.host([text("Fixed.")], expert("fixer"))
        assert did(await host.scheduler.once()) == [("fix", "worked")]
        task = await host.tasks.get("fix")
        assert (task.status, task.result, task.job_id) == ("completed", "Fixed.", paused.job_id)
        assert len((await host.jobs.list()).jobs) == 1

    wait_for(work())


@pytest.mark.parametrize(
    ("said", "meant", "words"),
    [
        ("Yes.", True, ""),
        ("ok", True, ""),
        ("no", False, ""),
        ("decline", False, ""),
        ("deny", False, ""),
        ("cancel", False, ""),
        ("no: b.py is in use", False, "b.py is in use"),
        (False, False, ""),
        ({"approved": True, "until": 5}, {"approved": True, "until": 5}, ""),
        ('{"approved": "no"}', {"approved": False}, ""),
    ],
)
def test_an_approval_is_true_or_false_and_its_words_stand_beside_it(bench: Bench, said, meant, words) -> None:
    async def work() -> None:
        memory = bench.host([]).tasks
        for reason, expected in (("human_approval", (meant, words)), ("human_input", (said, ""))):
            await memory.create(reason, start=True)
            await memory.pause(reason, reason)
            answered = await memory.answer(reason, said)
            resumed = await memory.resume(reason, value=said)
            assert {(repr(task.input), task.input_text) for task in (answered, resumed)} == {
                (repr(expected[0]), expected[1])
            }

    wait_for(work())


@pytest.mark.parametrize("said", ["only b", "maybe", "ok, not yet", "", 1, None, ["yes"], {"ok": 1}])
def test_an_approval_takes_nothing_but_a_yes_or_a_no(bench: Bench, said) -> None:
    async def work() -> None:
        memory = bench.host([]).tasks
        await memory.create("deploy", start=True)
        await memory.pause("deploy", "human_approval")
        with pytest.raises(UsageError, match="answer yes or no; a text may follow a colon"):
            await memory.answer("deploy", said)
        if said is not None:
            with pytest.raises(UsageError, match="answer yes or no"):
                await memory.resume("deploy", value=said)
        assert (await memory.get("deploy")).input is None

    wait_for(work())


def test_the_words_beside_an_approval_reach_the_expert_that_goes_on(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([text("Left it.")], expert("fixer"))
        await host.tasks.create("fix", agent_id="fixer", start=True)
        await host.tasks.pause("fix", "human_approval", "Remove b.py?")
        await host.tasks.answer("fix", "no: b.py is in use")
        assert did(await host.scheduler.once()) == [("fix", "worked")]
        (job,) = (await host.jobs.list()).jobs
        assert all(words in job.query for words in ("has come:\nfalse", "b.py is in use"))
        await host.tasks.create("ship", start=True)
        await host.tasks.pause("ship", "human_approval")
        await host.tasks.resume("ship", value="yes: for now")
        paused = await host.tasks.pause("ship", "human_approval")
        assert (paused.input, paused.input_text, paused.input_by) == (None, "", None)

    wait_for(work())


def test_a_command_that_is_one_line_is_asked_by_sh(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        await host.tasks.create("deploy", start=True)
        waits = WaitingFor(command="test -f built && cat built | tr a-z A-Z")
        await host.tasks.pause("deploy", "external_dependency", waiting_for=waits)
        assert await host.scheduler.once() == ()
        (bench.workspace / "built").write_text("seven")
        assert did(await host.scheduler.once()) == [("deploy", "resumed")]
        assert (await host.tasks.get("deploy")).input == "SEVEN"

    wait_for(work())


def test_an_answer_is_of_the_pause_that_it_was_given_to(bench: Bench) -> None:
    provider = ScriptedProvider([text("Deployed.")])

    async def work() -> None:
        host = bench.host(provider, expert("fixer"))
        await host.tasks.create("deploy", agent_id="fixer", start=True)
        await host.tasks.pause("deploy", "human_approval", "Staging?")
        await host.tasks.answer("deploy", "yes")
        assert (await host.tasks.resume("deploy")).input is True
        paused = await host.tasks.pause("deploy", "human_approval", "PRODUCTION?")
        assert (paused.answered, paused.input) == (False, None)
        assert (await host.tasks.resume("deploy")).input is None, "nobody has answered that"
        await host.tasks.pause("deploy", "scheduled_wait", resume_at=1)
        assert did(await host.scheduler.once()) == [("deploy", "worked")]
        (job,) = (await host.jobs.list()).jobs
        assert "has come" not in job.query

    wait_for(work())


def test_a_job_that_is_cancelled_ends_no_look_at_the_others(bench: Bench) -> None:
    async def work() -> None:
        begun = asyncio.Event()

        def script(request: GenerationRequest) -> Turn:
            if request.expert_key == "slow":
                begun.set()
                return turn(text="late", delay_ms=60_000)
            return turn(text="quick")

        async with bench.host(script, expert("slow"), expert("quick")) as host:
            for name in ("slow", "quick"):
                await host.tasks.create(name, agent_id=name, start=True)
                await host.tasks.pause(name, "scheduled_wait", resume_at=1)
            looking = asyncio.create_task(host.scheduler.once())
            await begun.wait()
            job_id = (await host.tasks.get("slow")).job_id
            assert job_id is not None
            await host.cancel(job_id)
            woken = {one.task_id: one for one in await looking}
            assert woken["quick"].task is not None
            assert woken["quick"].task.status == "completed"
            assert woken["slow"].error == "its Job was cancelled"
            assert (await host.job(job_id)).status == "stoppedByInterrupt"

    wait_for(work())
