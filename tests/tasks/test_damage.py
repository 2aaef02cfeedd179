"""A task or a series with an unreadable log has its own row, and ends no list."""

from __future__ import annotations

import json

import pytest
from hosts import Bench, expert, wait_for
from stored_damage import edit
from terminal import ASKING, Terminal, reply

from perstack.core.definitions.experts import Iterate
from perstack.errors import Damaged, NotFound
from perstack.host import Host
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.scripted import text, tool

MEASURED_EXPERT = expert("a", iterate=Iterate(evaluator="echo '{\"score\": 1}'", max_iterations=1))


async def damaged_task(bench: Bench, host: Host, task_id: str = "broken", edited: bytes = b"scheduled_wait") -> None:
    """Create a task between two intact ones, and damage its log and its entry."""
    for key in ("before", task_id, "after"):
        await host.tasks.create(key, name=f"the {key}", agent_id="me", start=True)
        if key == task_id:
            await host.tasks.pause(key, "scheduled_wait", resume_at=1)
        else:
            await host.tasks.pause(key, "human_input")
    edit(bench.workspace, bench.storage, edited, b"x" * len(edited))
    await host.storage.space("tasks").put_entry(task_id, 99, b"")


def test_a_damaged_task_is_listed_as_far_as_it_reads_beside_the_others(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        await damaged_task(bench, host)
        listed = {task.task_id: task for task in (await host.tasks.list()).tasks}
        assert {name: one.damaged for name, one in listed.items()} == {"before": False, "broken": True, "after": False}
        broken = listed["broken"]
        assert (broken.status, broken.name, broken.agent_id, broken.version) == ("failed", "the broken", "me", 2)
        assert "broken" in (broken.error or "")
        with pytest.raises(Damaged):
            await host.tasks.get("broken")
        assert [task.task_id for task in (await host.tasks.list(status="failed")).tasks] == ["broken"]
        assert [task.task_id for task in (await host.tasks.list(status="paused")).tasks] == ["after", "before"]

    wait_for(work())


def test_a_task_of_which_nothing_reads_is_listed_and_can_be_deleted(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        await damaged_task(bench, host, edited=b"the broken")
        (broken,) = [task for task in (await host.tasks.list()).tasks if task.damaged]
        assert (broken.task_id, broken.name, broken.version, broken.updated_at) == ("broken", "", 0, 0)
        with pytest.raises(Damaged):
            await host.tasks.delete("broken", expected_version=1)
        await host.tasks.delete("broken")
        with pytest.raises(NotFound):
            await host.tasks.get("broken")
        assert len((await host.tasks.list()).tasks) == 2

    wait_for(work())


def test_a_damaged_task_stands_in_the_inbox_beside_the_questions(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        await damaged_task(bench, host)
        found = {item.id: item for item in await host.inbox()}
        assert {name: item.damaged for name, item in found.items()} == {"before": False, "broken": True, "after": False}
        assert "broken" in found["broken"].text

    wait_for(work())


@pytest.mark.parametrize("quick", [True, False], ids=["summaries", "one by one"])
def test_a_damaged_job_stands_in_the_inbox_beside_the_questions(bench: Bench, quick: bool) -> None:
    async def work() -> None:
        host = bench.host([tool("askUser", {"question": "Tea?"})], expert("a", ask=True))
        for job in ("broken", "well"):
            await host.run("a", f"the {job}", job_id=job)
        edit(bench.workspace, bench.storage, b"the broken", b"xxxxxxxxxx")
        for job in ("broken", "well"):
            await host.storage.put_summary(job, b"{}")
        wrap = None if quick else CrashingStorage
        found = {item.job_id: item for item in await bench.host([], wrap=wrap).inbox()}
        assert {name: item.damaged for name, item in found.items()} == {"broken": True, "well": False}
        assert "broken-1" in found["broken"].text
        assert "verify" in (found["broken"].next or "")

    wait_for(work())


def test_a_person_sees_a_damaged_job_in_the_inbox_and_why_no_answer_to_it_is_taken(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"}))])
    assert terminal.call("run", "guest", "Serve", "--provider", "scripted", "--job-id", "job").code == 3
    path = terminal.log_of("job-1")
    path.write_bytes(path.read_bytes().replace(b"Serve", b"Steal"))
    (path.parents[2] / "job.json").unlink()
    result = terminal.call("inbox")
    assert result.out.splitlines()[0].split()[:2] == ["job", "Job"]
    assert "repair" in result.out
    assert "`perstack verify job` says why" in result.out
    (item,) = map(json.loads, terminal.call("inbox", "--json").out.splitlines())
    assert (item["id"], item["jobId"], item["damaged"]) == ("job", "job", True)
    answered = terminal.call("answer", "job", "Tea", "--provider", "scripted")
    assert (answered.code, answered.err.count("\n"), "job-1" in answered.err) == (1, 1, True)


def test_run_due_tells_of_a_damaged_task_and_wakes_the_others(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([])
        await damaged_task(bench, host)
        await host.tasks.answer("after", "go on")
        woken = {one.task_id: one for one in await host.scheduler.once()}
        assert {name: one.did for name, one in woken.items()} == {"after": "resumed", "broken": "failed"}
        assert "broken" in (woken["broken"].error or "")

    wait_for(work())


@pytest.mark.parametrize("entry", [b"7", b'{"taskId":"t"}', b'"x"', b"{", b'{"taskId":1},{"taskId":2}'])
def test_an_entry_that_is_none_is_made_anew_from_the_log(bench: Bench, entry: bytes) -> None:
    async def work() -> None:
        host = bench.host([])
        await host.tasks.create("t", name="the task", start=True)
        await host.storage.space("tasks").put_entry("t", 99, entry)
        (task,) = (await host.tasks.list()).tasks
        assert (task.task_id, task.name, task.status) == ("t", "the task", "running")

    wait_for(work())


async def damaged_series(bench: Bench, host: Host, edited: bytes) -> None:
    """Create a series between two intact ones, edit its log, and remove its summary."""
    for name in ("before", "broken", "after"):
        await host.iterations.begin("a", f"query of {name}", series_id=name)
    edit(bench.workspace, bench.storage, edited, b"x" * len(edited))
    await host.storage.space("iterations").put_summary("broken", b"")


@pytest.mark.parametrize(
    ("edited", "key", "done"),
    [(b'"seriesId":"broken","timestamp"', "", 0), (b'"number":1,"jobId":"broken-i1"', "a", 0)],
    ids=["from the first fact on", "from the second on"],
)
def test_damaged_iterations_are_listed_as_far_as_they_read_beside_the_others(
    bench: Bench, edited: bytes, key: str, done: int
) -> None:
    async def work() -> None:
        host = bench.host([text("made")], MEASURED_EXPERT)
        await damaged_series(bench, host, edited)
        listed = {one.id: one for one in (await host.iterations.list()).series}
        assert {name: one.damaged for name, one in listed.items()} == {"before": False, "broken": True, "after": False}
        broken = listed["broken"]
        assert (broken.status, broken.expert_key, broken.done) == ("failed", key, done)
        assert "broken" in (broken.message or "")
        (woken,) = await host.scheduler.once()
        assert (woken.did, woken.series_id, woken.error) == ("failed", "broken", broken.message)

    wait_for(work())


def test_a_person_and_a_program_see_damage_in_lists(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "You work."\n')
    for one in ("before", "broken", "after"):
        assert terminal.call("task", "create", one, "--start").code == 0
    edit(terminal.workspace, "file:perstack", b'"taskId":"broken"', b'"taskId":"brokem"')
    (terminal.workspace / "perstack/tasks/entries.jsonl").unlink()
    result = terminal.call("task", "list")
    assert result.code == 0, result.err
    (row,) = [line for line in result.lines if line.startswith("broken")]
    assert "damaged" in row
    page = json.loads(terminal.call("task", "list", "--json").out)
    assert {task["taskId"]: task.get("damaged", False) for task in page["tasks"]} == {
        "before": False,
        "broken": True,
        "after": False,
    }
    inbox = terminal.call("inbox")
    assert "repair" in inbox.lines[0]
    (item,) = terminal.call("inbox", "--json").events
    assert (item["taskId"], item["damaged"]) == ("broken", True)
    due = terminal.call("task", "run-due", "--provider", "scripted")
    assert (due.code, due.out, due.err.count("\n")) == (1, "", 1)
    assert due.err.startswith("broken: failed: ")
    told = terminal.call("task", "run-due", "--provider", "scripted", "--json")
    assert json.loads(told.out)["taskId"] == "broken"
    assert told.err == due.err
