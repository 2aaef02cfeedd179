"""F2: past Jobs, and their checkpoints."""

from __future__ import annotations

from hosting import Bench, expert, wait_for
from starting import started

from perstack.testing.scripted import text, tool, turn

WRITER = expert("writer", description="Writes haiku")
CRITIC = expert("critic", description="Says what is wrong")


def test_jobs_are_listed_newest_first_filtered_by_typing_and_opened(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Old pond.")], WRITER, CRITIC)
        await host.run("writer", "A haiku about ponds", job_id="pond")
        await host.run("critic", "Is it good?", job_id="good")
        async with started(host) as screen:
            await screen.sees("writer")
            await screen.press("f2")
            shown = await screen.sees("writer - 1 step (pond) (", "critic - 1 step (good) (")
            assert shown.index("(good)") < shown.index("(pond)")
            await screen.type("pond")
            await screen.sees_no("(good)")
            await screen.press("enter")
            await screen.sees("A haiku about ponds", "Old pond.")

    wait_for(person())


def test_a_job_is_branched_from_one_of_its_checkpoints(bench: Bench) -> None:
    async def person() -> None:
        script = [turn(tool("todo", {"newTodos": ["look"]}), text="I look."), text("Old pond."), text("Another pond.")]
        host = bench.host(script, WRITER)
        await host.run("writer", "A haiku", job_id="pond")
        async with started(host) as screen:
            await screen.press("f2")
            await screen.sees("(pond)")
            await screen.press("tab")
            await screen.sees("Step 1 (pond-1-", "Step 2 (pond-1-", "branches from it")
            await screen.press("up", "enter")
            await screen.sees("writer")
            await screen.type("Another")
            await screen.press("enter")
            await screen.sees("❯ Another")
        runs = (await host.jobs.runs("pond")).runs
        assert len(runs) == 2
        assert runs[1].continued_from is not None

    wait_for(person())


def test_what_a_query_says_is_text_and_escape_goes_back(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Hm.")], WRITER)
        await host.run("writer", "[bold]\x1b[31mred[/bold]\nand more", job_id="pond")
        async with started(host, size=(120, 24)) as screen:
            await screen.press("f2")
            shown = await screen.sees("(pond)", "[bold]")
            assert "\x1b" not in shown
            await screen.press("tab")
            await screen.sees("Step 1 (")
            await screen.press("escape")
            await screen.sees("(pond)", "Tab checkpoints")
            await screen.press("escape")
            await screen.sees_no("Tab checkpoints")

    wait_for(person())
