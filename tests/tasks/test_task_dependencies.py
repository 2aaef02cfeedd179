"""Tasks that wait for other tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hosts import Bench, expert, wait_for

from perstack.errors import NotAllowed, UsageError
from perstack.memory import ExecutionMemory
from perstack.next_steps import ResumeWithoutDependencies, TryAgain
from perstack.system.user import this_user
from perstack.tasks.events import WaitingFor
from perstack.tasks.operations import DecisionInput, PauseCommand
from perstack.tasks.task_log import find_cycle, tasks_on_cycles
from perstack.testing.scripted import ScriptedProvider, text


async def blocked(memory: ExecutionMemory, task: str) -> list[tuple[str, str]]:
    """Return ids and statuses of what blocks a task, after checking that the list shows the same."""
    by_get = (await memory.get(task)).blocked_by
    (in_list,) = [one for one in (await memory.list()).tasks if one.task_id == task]
    assert in_list.blocked_by == by_get
    return [(one.task_id, one.status) for one in by_get]


def test_a_task_waits_until_all_that_it_depends_on_are_completed_whatever_start_says(bench: Bench) -> None:
    provider = ScriptedProvider([text("Deployed.")])

    async def work() -> None:
        host = bench.host(provider, expert("deployer"))
        memory = host.tasks
        await memory.create("build", start=True)
        await memory.create("test")
        both = ["build", "test", "build"]
        task = await memory.create("deploy", agent_id="deployer", state={"n": 1}, depends_on=both, start=True)
        assert (task.status, task.pause_reason, task.depends_on) == ("paused", "external_dependency", ("build", "test"))
        assert task.token is None, "nothing outside can say that it may go on"
        assert await blocked(memory, "deploy") == [("build", "running"), ("test", "created")]
        await memory.complete("build")
        assert await blocked(memory, "deploy") == [("test", "created")]
        assert await host.scheduler.once() == ()
        await memory.start("test")
        await memory.complete("test")
        assert await blocked(memory, "deploy") == []
        (woken,) = await host.scheduler.once()
        assert (woken.task_id, woken.did) == ("deploy", "worked")
        done = await memory.get("deploy")
        assert (done.status, done.result, done.depends_on) == ("completed", "Deployed.", ())
        assert done.started_at is not None

    wait_for(work())


def test_a_pause_may_wait_for_tasks_and_for_what_its_reason_says(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        memory = host.tasks
        await memory.create("other", start=True)
        for task in ("asks", "sleeps", "polls", "later", "hook"):
            await memory.create(task, start=True)
        await memory.pause("asks", "human_approval", "May I?", depends_on=["other"])
        await memory.answer("asks", "yes")
        await memory.pause("sleeps", "scheduled_wait", resume_at=1, depends_on="other")
        await memory.pause(
            "polls", "external_dependency", waiting_for=WaitingFor(command=("touch", "asked")), depends_on=["other"]
        )
        await memory.pause("later", depends_on=["other"], message="The other goes first.")
        hook = await memory.pause("hook", "external_dependency", waiting_for="the build", depends_on=["other"])
        assert hook.token is not None
        assert await host.scheduler.once() == ()
        assert not (bench.workspace / "asked").exists()
        await memory.complete("other")
        assert sorted(one.task_id or "" for one in await host.scheduler.once()) == ["asks", "later", "polls", "sleeps"]
        await memory.signal(hook.token, {"build": 7})
        assert [one.task_id for one in await host.scheduler.once()] == ["hook"]
        assert (await memory.get("asks")).input is True

    wait_for(work())


def test_what_a_task_waits_for_in_vain_is_said_in_the_inbox_and_it_goes_on_once_that_is_mended(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        memory = host.tasks
        await memory.create("build", start=True)
        await memory.create("deploy", depends_on=["build"])
        assert await host.inbox() == ()
        await memory.fail("build", "the disk is full")
        (task,) = (await memory.list(status="paused")).tasks
        assert (task.task_id, task.due_at) == ("deploy", None)
        (on,) = task.blocked_by
        assert (on.task_id, on.status, on.error) == ("build", "failed", "the disk is full")
        (item,) = await host.inbox()
        assert (item.id, item.text) == ("deploy", "waits for build (failed: the disk is full)")
        assert item.next_steps == (TryAgain("build"), ResumeWithoutDependencies("deploy"))
        with pytest.raises(UsageError, match="needs no answer, but waits for build: resume it"):
            await memory.answer("deploy", "yes")
        await memory.retry("build")
        assert await host.inbox() == ()
        await memory.complete("build")
        assert [one.task_id for one in await host.scheduler.once()] == ["deploy"]

    wait_for(work())


def test_a_person_may_let_a_task_go_on_without_what_it_waits_for(bench: Bench) -> None:
    async def work() -> None:
        memory = bench.host([]).tasks
        await memory.create("build", start=True)
        await memory.cancel("build", "not today")
        await memory.create("deploy", depends_on=["build"])
        resumed = await memory.resume("deploy")
        assert (resumed.status, resumed.depends_on, resumed.blocked_by) == ("running", (), ())

    wait_for(work())


def test_a_task_that_another_waits_for_is_not_deleted_and_archiving_it_changes_nothing(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        memory = host.tasks
        for task in ("done", "failed"):
            await memory.create(task, start=True)
        await memory.complete("done")
        await memory.fail("failed", "no")
        await memory.create("waits", depends_on=["done", "failed"])
        for task in ("done", "failed"):
            with pytest.raises(NotAllowed, match=f"task {task} cannot be deleted, since task waits waits for it"):
                await memory.delete(task)
            await memory.archive(task)
        assert await blocked(memory, "waits") == [("failed", "failed")]
        assert (await host.inbox())[0].text == "waits for failed (failed, archived: no)"
        await memory.resume("waits")
        await memory.delete("done")

    wait_for(work())


def test_a_task_that_vanished_all_the_same_is_named(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        await host.tasks.create("gone", start=True)
        await host.tasks.create("waits", depends_on=["gone"])
        await host.tasks.log.delete("gone", None)  # as by another version, or in the moment between look and write
        assert await blocked(host.tasks, "waits") == [("gone", "deleted")]
        assert await host.scheduler.once() == ()
        assert (await host.inbox())[0].text == "waits for gone (deleted)"

    wait_for(work())


def test_a_circle_and_an_unknown_task_are_refused_and_nothing_is_written(bench: Bench) -> None:
    async def work() -> None:
        memory = bench.host([]).tasks
        with pytest.raises(UsageError, match="cannot wait for task nosuch: it does not exist in"):
            await memory.create("a", depends_on=["nosuch"])
        with pytest.raises(UsageError, match="that would be a cycle, a -> a"):
            await memory.create("a", depends_on=["a"])
        assert (await memory.list()).tasks == ()
        await memory.create("a", start=True)
        await memory.create("b", depends_on=["a"])
        await memory.create("c", depends_on=["b"])
        with pytest.raises(UsageError, match="that would be a cycle, a -> c -> b -> a"):
            await memory.pause("a", depends_on=["c"])
        assert (await memory.get("a")).status == "running"
        await memory.resume("b")
        assert (await memory.pause("a", depends_on=["c"])).status == "paused", "b waits no more"
        with pytest.raises(UsageError, match="may wait for 100 tasks, not 101"):
            await memory.create("d", depends_on=[f"t{n}" for n in range(101)])

    wait_for(work())


def test_two_that_begin_to_wait_for_each_other_in_one_moment_are_named_in_lists_and_the_inbox(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        memory, clock = host.tasks, host.scheduler
        for one in ("a", "b", "behind"):
            await memory.create(one, start=True)
        given = DecisionInput(1, this_user())
        # neither dependency existed yet when the other one was checked for a circle
        for one, other in (("a", "b"), ("b", "a"), ("behind", "a")):
            command, waits = PauseCommand(task_id=one, depends_on=(other,)), replace(given, depends_on=(other,))
            await memory.log.change(one, lambda task, c=command, w=waits: c.decide(task, w), None)
        assert await clock.once() == ()
        blocked_by = {task.task_id: task.blocked_by[0].circle for task in (await memory.list()).tasks}
        assert blocked_by == {"a": ("a", "b", "a"), "b": ("b", "a", "b"), "behind": ()}
        found = {item.id: item for item in await host.inbox()}
        assert found["a"].text == "waits for b (paused, in a circle: a -> b -> a)"
        assert found["b"].next_steps == (ResumeWithoutDependencies("b"),)
        await memory.resume("a")
        assert await host.inbox() == ()

    wait_for(work())


def test_what_waits_without_an_end_is_what_is_on_a_circle_or_behind_one() -> None:
    assert tasks_on_cycles({"a": ("b",), "b": ("a",), "c": ("b",), "d": ("e",), "f": ("d",)}) == {"a", "b", "c"}
    assert tasks_on_cycles({"a": ("b",), "b": ("c", "gone"), "c": ()}) == frozenset()
    assert tasks_on_cycles({"a": ("a",)}) == {"a"}


def test_the_way_of_a_circle_is_the_whole_way() -> None:
    waits = {"b": ("x", "c"), "c": ("d",), "d": ("a",), "x": ("y",)}
    assert find_cycle("a", ["b"], waits) == ("a", "b", "c", "d", "a")
    assert find_cycle("a", ["x"], waits) is None
    assert find_cycle("a", ["a"], {}) == ("a", "a")
    assert find_cycle("n", ["b"], {**waits, "y": ("b",)}) is None, "a circle of others is not this task's"
