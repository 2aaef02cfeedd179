"""Jobs that workers drive, in the terminal program and line by line: queued, followed, answered, not driven here."""

from __future__ import annotations

import asyncio

from delegate_workers import Fleet, until_driven
from engine_workers import Engine
from hosts import Bench, expert, wait_for
from plain_person import begin_person
from terminal_app import run_app

from perstack.host import Host
from perstack.testing.scripted import text, tool, turn

GUEST = expert("guest", description="Asks first", ask=True)
ASKS = [tool("askUser", {"question": "Tea?", "options": ["Yes", "No"]}), text("Served.")]


def with_workers(bench: Bench, engine: Engine) -> tuple[Host, Host]:
    """Return the Host of a user, whose own model has no turns, and the Host of a worker."""
    return bench.host([], GUEST, dispatcher=engine.dispatcher), bench.host(ASKS, GUEST)


def test_an_answer_leaves_the_job_to_a_worker_and_its_tab_follows_it(bench: Bench) -> None:
    async def person() -> None:
        engine = Engine()
        host, of_worker = with_workers(bench, engine)
        job = await host.submit("guest", "Serve", job_id="tea")
        async with run_app(host, job_id=job.id) as screen:
            await screen.sees("❯ Serve", "queued", "for a worker", "… waits for a worker", "Esc stops watching")
            async with engine.at_work(of_worker):
                await screen.sees("guest asks: Tea?", "2. No", "? waits for you")
                await screen.type("2")
                await screen.press("enter")
                seen = await screen.sees("result askUser: No", "Served.", "✓ completed")
                assert seen.count("❯ Serve") == 1
        events = [line.event for line in await host.events("tea-1")]
        kinds = [event.type for event in events if event.type in ("queueRun", "resumeRun", "finishRun")]
        assert kinds == ["queueRun", "resumeRun", "resumeRun", "queueRun", "resumeRun", "finishRun"]

    wait_for(person(), 60)


def test_without_a_worker_it_waits_escape_stops_looking_and_enter_follows_it_again(bench: Bench) -> None:
    async def person() -> None:
        engine = Engine()
        host, of_worker = with_workers(bench, engine)
        await of_worker.run("guest", "Serve", job_id="tea")
        async with run_app(host, job_id="tea") as screen:
            await screen.sees("guest asks: Tea?")
            await screen.type("1")
            await screen.press("enter")
            await screen.sees("… waits for a worker", "waits for a worker; Esc stops watching")
            await screen.press("escape")
            await screen.sees("… waits for a worker", "waits for a worker; Enter follows it")
            await screen.type("More")
            await screen.press("enter")
            await screen.sees("│ More")
            await screen.press(*["backspace"] * 4, "enter")
            await screen.sees("waits for a worker; Esc stops watching")
            async with engine.at_work(of_worker):
                await screen.sees("Served.", "✓ completed")

    wait_for(person(), 60)


def test_with_drive_an_answer_is_driven_here(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host(ASKS, GUEST, dispatcher=Engine().dispatcher)
        await host.run("guest", "Serve", job_id="tea")
        await host.submit("guest", "Serve me too", job_id="late")
        async with run_app(host, job_id="tea", drives=True) as screen:
            await screen.sees("guest asks: Tea?")
            await screen.type("1")
            await screen.press("enter")
            await screen.sees("Served.", "✓ completed")
            screen.app.open_job("late")
            await screen.sees("waits for a worker; Enter drives it here")
            await screen.press("enter")
            await screen.sees("resumes from the queue", "guest asks: Tea?")

    wait_for(person(), 60)


def test_a_queued_job_is_seen_as_such_in_the_history(bench: Bench) -> None:
    async def person() -> None:
        host, _ = with_workers(bench, Engine())
        await host.submit("guest", "Serve", job_id="tea")
        async with run_app(host) as screen:
            await screen.press("f2")
            await screen.sees("guest - 0 steps (tea) (", "queued")
            await screen.press("tab")
            await screen.sees("There is no checkpoint yet.")
            await screen.press("tab")
            await screen.sees("query     Serve", "queued    for a worker, by")
            await screen.press("tab")
            await screen.sees("tea-1  guest  queued")
            await screen.press("o")
            await screen.sees("1 guest …", "… waits for a worker")

    wait_for(person(), 60)


def test_a_tab_says_where_the_job_is_though_a_delegate_of_it_waits_for_a_worker(bench: Bench) -> None:
    """One place: the Job waits for its delegates, one of them is at work, and one waits."""

    async def person() -> None:
        boss = [turn(tool("helper", {"query": "one"}), tool("helper", {"query": "two"})), text("Done.")]
        team = (expert("boss", delegates=("helper",)), expert("helper"))
        fleet = Fleet(bench, {"[[boss]]": boss, "[[helper]]": [text("Part.", delay_ms=60_000)]}, team)
        host = fleet.host()
        async with fleet.at_work("one", concurrency=1, drain=0.1) as (one,):
            await host.submit("boss", "Go", job_id="job")
            await until_driven(host, "job-2")
            async with run_app(host, job_id="job", size=(100, 30)) as screen:
                seen = await screen.sees("helper#2", "helper#3", "another process drives it; Esc stops watching")
                assert "waits for a worker" not in seen
                one.worker.leave()
                async with asyncio.timeout(10):
                    await one.task
                await screen.sees("waits for a worker; Esc stops watching", "… waits for a worker")
        assert {run.id: run.status for run in (await host.job("job")).runs} == dict.fromkeys(
            ("job-1", "job-2", "job-3"), "queued"
        )

    wait_for(person(), 60)


def test_a_job_that_another_process_drives_is_left_and_followed_again(bench: Bench) -> None:
    async def person() -> None:
        other = bench.host([text("Slow words.", delay_ms=60_000)], GUEST)
        host = bench.host([], GUEST)
        driving = asyncio.create_task(other.run("guest", "Serve", job_id="tea"))
        async with run_app(host) as screen:
            async with asyncio.timeout(20):
                while not (await host.jobs.list()).jobs:
                    await asyncio.sleep(0.01)  # a poll, bounded above
            screen.app.open_job("tea")
            await screen.sees("another process drives it; Esc stops watching")
            await screen.press("escape")
            await screen.sees("another process drives it; Enter follows it", "◌ another process drives it")
            await screen.press("enter")
            await screen.sees("another process drives it; Esc stops watching")
            driving.cancel()
            await screen.sees("stopped by interrupt", "Enter resumes")

    wait_for(person(), 60)


def test_line_by_line_an_answer_is_queued_and_what_the_worker_does_comes_once(bench: Bench) -> None:
    async def person() -> None:
        engine = Engine()
        host, of_worker = with_workers(bench, engine)
        await host.submit("guest", "Serve", job_id="tea")
        async with begin_person(host, job_id="tea") as one:
            await one.sees("query: Serve", "queued: for a worker")
            await one.types("hello?", "not sent: waits for a worker; Ctrl-C stops watching", "waits for a worker")
            one.program.interrupt()
            await one.sees("no longer watched", "> waits for a worker; Enter follows it")
            await one.types("hello?", "not sent: waits for a worker; Enter follows it")
            one.lines.clear()
            await one.program.on_line("")
            async with engine.at_work(of_worker):
                seen = await one.sees("guest asks: Tea?", "> type a number")
                assert "query: Serve" not in seen
                seen = await one.types("2", "queued: for a worker", "result: askUser: No", "  Served.", "completed")
                assert seen.count("  Served.") == 1
                assert "Tea?" not in seen

    wait_for(person(), 60)
