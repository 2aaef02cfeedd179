"""F2: past Jobs, and their checkpoints."""

from __future__ import annotations

from hosts import Bench, expert, wait_for
from long_jobs import LONG, long_job
from terminal_app import run_app

from perstack.core.definitions.permissions import Permissions
from perstack.doors.shared.log_view import places_in
from perstack.engine.log.run_log import RunLog
from perstack.testing.scripted import text, tool, turn

WRITER = expert("writer", description="Writes haiku")
CRITIC = expert("critic", description="Says what is wrong")


def test_jobs_are_listed_newest_first_filtered_by_typing_and_opened(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Old pond.")], WRITER, CRITIC)
        await host.run("writer", "A haiku about ponds", job_id="pond")
        await host.run("critic", "Is it good?", job_id="good")
        async with run_app(host) as screen:
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
        async with run_app(host) as screen:
            await screen.looks_into("pond")
            await screen.sees("Step 1 (pond-1-", "Step 2 (pond-1-", "b branches")
            await screen.press("up", "b")
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
        async with run_app(host, size=(120, 24)) as screen:
            await screen.press("f2")
            shown = await screen.sees("(pond)", "[bold]")
            assert "\x1b" not in shown
            await screen.press("tab")
            await screen.sees("Step 1 (")
            await screen.press("escape")
            await screen.sees("(pond)", "Tab shows details")
            await screen.press("escape")
            await screen.sees_no("Tab shows details")

    wait_for(person())


def test_a_job_is_looked_into_run_by_run(bench: Bench) -> None:
    script = {
        "lead": [turn(tool("helper", {"query": "one"})), text("All done."), text("More.")],
        "helper": [turn(tool("think", {"thought": "hm"})), text("A part.")],
    }

    async def person() -> None:
        host = bench.host(script, expert("lead", delegates=("helper",)), expert("helper"))
        await host.run("lead", "Go", job_id="team")
        await host.continue_job("lead", "More", job_id="team", resume_from=_steps(await host.jobs.logs("team"))[0])
        async with run_app(host, size=(120, 30)) as screen:
            await screen.looks_into("team")
            await screen.sees("team  Runs  Checkpoints  Events", "Step 1 (team-2-")
            await screen.press("shift+tab")
            await screen.sees("team-1  lead  completed  2 steps", "├─ team-2  helper", "└─ team-3  lead", "branches at")
            await screen.press("down", "enter")
            await screen.sees("team-2  Checkpoints  Events", "Step 2 (team-2-", "completed")
            await screen.sees_no("(team-1-")
            await screen.press("tab")
            await screen.sees("helper#2", "calls     think", "result    think")
            await screen.press("up", "up", "enter")
            await screen.sees("finishGeneration of team-2", "─ says", "A part.")
            await screen.press("escape", "escape")
            await screen.sees("├─ team-2  helper")

    wait_for(person())


def _steps(logs: list[RunLog]) -> list[str]:
    return [place.id for place in places_in(logs[0])]


def test_a_checkpoint_shows_the_messages_that_the_model_sees_and_what_is_new_in_them(bench: Bench) -> None:
    async def person() -> None:
        script = [turn(tool("todo", {"newTodos": ["look"]}), text="I look."), text("Old [b]pond[/b].\x1b[31m")]
        host = bench.host(script, WRITER)
        await host.run("writer", "A haiku", job_id="pond")
        async with run_app(host, size=(100, 40)) as screen:
            await screen.press("f2")
            await screen.sees("(pond)")
            await screen.press("tab", "end", "enter")
            shown = await screen.sees(
                "Step 2 (pond-1-", "status", "─ query", "A haiku", "call of todo", "Old [b]pond[/b]."
            )
            assert "\x1b" not in shown
            await screen.press("tab")
            await screen.sees("since", "0 messages", "1 message", "+ Expert", "Old [b]pond")
            await screen.sees_no("A haiku")
            await screen.press("escape")
            await screen.sees("Step 1 (")

    wait_for(person())


def test_an_old_question_is_answered_differently_in_a_branch(bench: Bench) -> None:
    async def person() -> None:
        script = [turn(tool("askUser", {"question": "Tea?", "options": ["Yes", "No"]})), text("Served.")]
        host = bench.host(script, expert("guest", ask=True))
        await host.run("guest", "Serve", job_id="inn")
        await host.answer("Yes", job_id="inn")
        async with run_app(host, size=(100, 30), notices=True) as screen:
            await screen.looks_into("inn")
            await screen.sees("asks")
            await screen.press("end", "a")
            await screen.sees("Nothing was asked at")
            await screen.press("home", "a")
            await screen.sees("another answer, in a branch", "guest asks: Tea?", "1. Yes", "2. No", "type a number")
            await screen.type("2")
            await screen.press("enter")
            await screen.sees("with another answer", "result askUser: No", "✓ completed")
        tree = await host.jobs.tree("inn")
        assert [one.how for one in tree] == ["begun", "answer"]

    wait_for(person())


def test_what_a_delegate_asked_is_not_answered_again_and_that_is_said(bench: Bench) -> None:
    async def person() -> None:
        script = {
            "lead": [tool("hand", {"query": "write"}), text("Done.")],
            "hand": [tool("writeTextFile", {"path": "out.txt", "text": "x"}), text("Written.")],
        }
        asks = Permissions(ask=("writeTextFile",))
        host = bench.host(script, expert("lead", delegates=("hand",), permissions=asks), expert("hand"))
        job = await host.run("lead", "Go", job_id="inn")
        assert job.asking is not None
        await host.answer("yes", question_id=job.asking.id)
        async with run_app(host, size=(100, 30), notices=True) as screen:
            await screen.looks_into("inn")
            shown = await screen.sees("asks", "hand#2")
            rows = [line for line in shown.splitlines() if "Step " in line]
            for label in ("lead#1  asks", "hand#2  asks"):  # it waits for its delegate's question, so it asks as well
                at = next(at for at, line in enumerate(rows) if label in line)
                await screen.press("home", *["down"] * at, "a")
                await screen.sees("A delegate asked this")
                screen.app.clear_notifications()
                await screen.sees_no("A delegate asked this")

    wait_for(person())


def test_what_can_be_done_stands_in_the_palette_and_in_the_help_which_goes_back_there(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Old pond.")], WRITER)
        await host.run("writer", "A haiku", job_id="pond")
        async with run_app(host, size=(100, 50)) as screen:
            await screen.looks_into("pond")
            await screen.sees("Step 1 (")
            await screen.press("f1")
            await screen.sees("In the History", "Give another answer to the question there")
            await screen.press("escape")
            await screen.sees("Step 1 (")
            await screen.press("ctrl+p")
            await screen.type("Branch")
            await screen.sees("Branch  b")
            await screen.press("enter", "enter")
            await screen.sees("a new query, in a branch")

    wait_for(person())


def test_the_inbox_lists_what_waits_and_opens_it(bench: Bench) -> None:
    async def person() -> None:
        keys = [f"guest{number}" for number in range(30)]
        script = {key: [turn(tool("askUser", {"question": f"{key}?"}))] for key in keys}
        host = bench.host(script, *(expert(key, ask=True) for key in keys))
        for key in keys:
            await host.run(key, "Serve")
        async with run_app(host) as screen:
            await screen.press("f3")
            await screen.sees("guest0?", "guest10?")
            await screen.press("end")
            await screen.sees("guest29?")
            await screen.sees_no("guest2?")
            await screen.press("pageup", "pageup", "up", "home", "down", "enter")
            await screen.sees("guest1 asks: guest1?")

    wait_for(person())


def test_a_long_job_is_listed_from_its_end_scrolled_and_resized(bench: Bench) -> None:
    async def person() -> None:
        await long_job(bench, 600)
        async with run_app(bench.host([text("Hm.")], LONG)) as screen:
            await screen.looks_into("long")
            await screen.sees("❯ Step 600 (long-1-", "completed")
            await screen.press("4", "2")
            await screen.sees("❯ Step 42 (")
            await screen.press("home")
            await screen.sees("❯ Step 1 (")
            await screen.press("pagedown", "pagedown")
            await screen.sees("❯ Step 41 (")
            await screen.press("tab", "home")
            await screen.sees("❯ ", "query     Go")
            await screen.press("shift+tab", "end", "enter")
            await screen.sees("status", "─ instruction")
            await screen.press("end")
            await screen.sees("─ Expert", "Done.")
            await screen.resized(100, 30)
            await screen.sees("─ Expert", "Done.")
            await screen.press("escape")
            await screen.sees("❯ Step 600 (")
            await screen.resized(80, 12)
            await screen.sees("❯ Step 600 (")

    wait_for(person())
