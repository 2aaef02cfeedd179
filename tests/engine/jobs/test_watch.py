"""Following a Job that another process drives."""

from __future__ import annotations

import asyncio

from hosts import Bench, Seen, expert, wait_for

from perstack.testing.scripted import text, tool, turn


def test_a_watcher_sees_every_stored_event_of_every_run_and_ends_with_the_job(bench: Bench) -> None:
    script = {
        "[[a]]": [tool("b", {"query": "x"}), turn(text="end", delay_ms=150)],
        "[[b]]": [turn(tool("todo", {}), delay_ms=150), text("B")],
    }
    experts = (expert("a", delegates=("b",)), expert("b"))
    seen = Seen()

    async def both() -> list[bytes]:
        async with bench.host(script, *experts) as driving, bench.host(script, *experts) as watching:
            started = asyncio.Event()

            def on_event(event, line: bytes) -> None:
                seen(event, line)
                if event.type == "startGeneration":
                    started.set()

            task = asyncio.ensure_future(driving.run("a", "q", job_id="job", on_event=on_event))
            async with asyncio.timeout(10):
                await started.wait()
            lines = [line.line async for line in watching.jobs.watch("job")]
            await task
            return lines

    lines = wait_for(both())
    stored = [line for event, line in zip(seen.events, seen.lines, strict=True) if b'"digest"' in line]
    assert sorted(lines) == sorted(stored)
    for run_id in (b"job-1-", b"job-2-"):
        assert [one for one in lines if run_id in one] == [one for one in stored if run_id in one]
