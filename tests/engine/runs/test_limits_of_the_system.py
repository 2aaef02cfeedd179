"""Limits of the system, open files and disk space: nothing is lost when one is reached."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Bench, expert, wait_for

from perstack.engine.context.job_limit import Slots, slots_for
from perstack.errors import StorageError
from perstack.testing.scripted import ScriptedProvider, text, tool

ITS_OWN_DISK = "a server has a disk of its own"
SUPPORT = Path(__file__).parents[2] / "support"

START = f"""
import asyncio, json, resource, sys
sys.path.insert(0, {str(SUPPORT)!r})
from pathlib import Path
from hosts import Bench, expert
from perstack.testing.scripted import ScriptedProvider, text, tool
bench = Bench(Path.cwd(), sys.argv[1])
"""

MANY = (
    START
    + """
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

async def main():
    host = bench.host([tool("think", {"thought": "x"}), text("done")], expert("a"))
    jobs = await asyncio.gather(*(host.run("a", "q") for _ in range(400)), return_exceptions=True)
    await host.close()
    print(json.dumps([getattr(job, "status", repr(job)) for job in jobs]))

asyncio.run(main())
"""
)

FULL = (
    START
    + """
script = [tool("think", {"thought": "x" * 2000})] * 60 + [text("done")]

async def main():
    host = bench.host(ScriptedProvider(script), expert("a", max_repeats=0))
    try:
        await host.run("a", "q", job_id="job")
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
asyncio.run(main())
"""
)

FULL_FOR_A_TASK = (
    START
    + """
async def main():
    kept = 0
    host = bench.host([])
    await host.tasks.create("t", start=True)
    try:
        for kept in range(1, 200):
            await host.tasks.checkpoint("t", {"at": kept, "text": "x" * 2000})
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error), kept - 1]))

resource.setrlimit(resource.RLIMIT_FSIZE, (160_000, 160_000))
asyncio.run(main())
"""
)

PICTURE = """
from perstack.core.definitions.skills import PluginSkill
from perstack.toolkit import Blob, Toolkit
kit = Toolkit("kit")

@kit.tool(effect="readOnly")
async def draw() -> Blob:
    "Draw."
    return Blob(b"\\x89PNG" * 100_000, "image/png")

artist = expert("a").model_copy(update={"skills": (PluginSkill(name="kit", plugin="kit"),)})
"""
FULL_FOR_A_BLOB = (
    START
    + PICTURE
    + """
from hosts import Seen, results

async def main():
    seen = Seen()
    host = bench.host([tool("draw"), text("done")], artist, plugins=(kit,))
    job = await host.run("a", "q", job_id="job", on_event=seen)
    print(json.dumps([job.status, len((await host.audit.verify("job")).findings), *results(seen)]))

resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
asyncio.run(main())
"""
)


def in_a_process(bench: Bench, code: str) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-c", code, bench.storage], cwd=bench.workspace, capture_output=True, text=True, timeout=110
    )
    assert found.stderr == ""
    return json.loads(found.stdout)


def test_four_hundred_jobs_at_once_keep_to_the_usual_limit_of_open_files(bench: Bench) -> None:
    assert in_a_process(bench, MANY) == ["completed"] * 400


def test_a_disk_without_room_stops_a_job_in_a_line_and_it_goes_on_when_there_is_some(bench: Bench) -> None:
    bench.needs_files(ITS_OWN_DISK)
    kind, message = in_a_process(bench, FULL)
    assert kind == "StorageError"
    assert "\n" not in message
    assert str(bench.workspace) in message

    async def go_on() -> tuple[str, int, tuple[object, ...]]:
        script = [tool("think", {"thought": "x" * 2000})] * 60 + [text("done")]
        host = bench.host(ScriptedProvider(script), expert("a", max_repeats=0))
        job = await host.resume("job")
        return job.status, job.total_steps, (await host.audit.verify("job")).findings

    assert wait_for(go_on(), 60) == ("completed", 61, ())


def test_a_disk_without_room_stops_a_task_in_a_line_and_what_was_kept_stays(bench: Bench) -> None:
    bench.needs_files(ITS_OWN_DISK)
    kind, message, kept = in_a_process(bench, FULL_FOR_A_TASK)
    assert kind == "StorageError"
    assert "\n" not in message
    assert str(bench.workspace) in message

    async def look() -> tuple[object, ...]:
        host = bench.host([])
        before = (await host.tasks.get("t")).state["at"]
        after = (await host.tasks.checkpoint("t", {"at": "more"})).state["at"]
        return before, after, (await host.audit.verify("t")).findings

    assert wait_for(look(), 60) == (kept, "more", ())


def test_a_file_of_a_tool_that_has_no_room_is_an_error_that_the_model_sees(bench: Bench) -> None:
    bench.needs_files(ITS_OWN_DISK)
    status, findings, told = in_a_process(bench, FULL_FOR_A_BLOB)
    assert (status, findings) == ("completed", 0)
    assert "\n" not in told
    assert str(bench.workspace) in told


def test_a_job_whose_first_log_was_emptied_is_named_and_hides_no_other(bench: Bench) -> None:
    async def run() -> tuple[list[str], str]:
        script = {"[[a]]": [tool("b", {"query": "x"}), text("done")], "[[b]]": [text("b")]}
        host = bench.host(script, expert("a", delegates=("b",)), expert("b"))
        await host.run("a", "q", job_id="well")
        await host.run("a", "q", job_id="emptied")
        folder = bench.workspace / "perstack/jobs/emptied"
        (folder / "runs/emptied-1/events.jsonl").write_bytes(b"")
        (folder / "job.json").unlink()
        fresh = bench.host(script, expert("a", delegates=("b",)), expert("b"))
        assert [(item.job_id, item.damaged) for item in await fresh.inbox()] == [("emptied", True)]
        with pytest.raises(StorageError, match="the log of the Run that began it is empty or gone"):
            await fresh.resume("emptied")
        jobs = {job.id: job for job in (await fresh.jobs.list()).jobs}
        return sorted(jobs), jobs["emptied"].error or ""

    if bench.storage.startswith("file:"):
        ids, error = wait_for(run())
        assert ids == ["emptied", "well"]
        assert "is empty or gone; put it back from a copy" in error


def test_a_slot_is_given_on_in_order_and_lost_by_no_cancellation() -> None:
    async def run() -> list[int]:
        slots, order = Slots(2), list[int]()
        begun = asyncio.Event()

        async def work(number: int) -> None:
            async with slots.hold():
                order.append(number)
                async with slots.hold(), slots.hold():  # what it does itself does not wait for it
                    await begun.wait()

        tasks = [asyncio.create_task(work(number)) for number in range(8)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        await asyncio.wait({tasks[3]})
        begun.set()
        # given a slot and cancelled in the same moment
        await asyncio.sleep(0)
        tasks[5].cancel()
        await asyncio.wait(tasks)
        async with slots.hold():
            pass
        return order

    order = wait_for(run())
    assert order[:3] == [0, 1, 2]
    assert set(order) >= {0, 1, 2, 4, 6, 7}


def test_slots_leave_room_for_everything_else() -> None:
    assert [slots_for(files) for files in (64, 256, 1024, 1 << 20)] == [4, 16, 64, 5_000]
