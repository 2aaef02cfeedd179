"""The terminal program by its keys, on a Host with a scripted model."""

from __future__ import annotations

from collections.abc import Sequence

from hosts import Bench, expert, wait_for
from long_runs import Patient
from terminal_app import run_app

from perstack.errors import StorageError
from perstack.ports.storage import RunRef, Storage
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.scripted import text, tool, turn

WRITER = expert("writer", description="Writes haiku")
CRITIC = expert("critic", description="Says what is wrong")


def test_typing_filters_the_experts_and_enter_chooses_one(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(bench.host([text("Hm.")], WRITER, CRITIC)) as screen:
            await screen.sees("writer  Writes haiku", "critic  Says what is wrong")
            await screen.type("wrong")
            await screen.sees_no("Writes haiku")
            await screen.press("enter")
            await screen.sees("what should critic do?", "1 critic")

    wait_for(person())


def test_a_query_is_run_shown_and_followed_up_in_the_same_job(bench: Bench) -> None:
    async def person() -> None:
        script = [turn(tool("todo", {"newTodos": ["look"]}), text="I look."), text("Old pond."), text("A frog.")]
        host = bench.host(script, WRITER)
        async with run_app(host, expert="writer", query="A haiku") as screen:
            await screen.sees("❯ A haiku", "I look.", "● todo", "Old pond.", "✓ completed", "todos 0/1: look")
            await screen.type("Another")
            await screen.press("enter")
            await screen.sees("❯ Another", "A frog.", "✓ completed")
        (job,) = (await host.jobs.list()).jobs
        assert len(job.runs) == 2

    wait_for(person())


def test_what_is_sent_while_the_job_works_is_told_to_it(bench: Bench) -> None:
    model = Patient()

    async def person() -> None:
        host = bench.host(model, WRITER)
        async with run_app(host, expert="writer", query="A haiku") as screen:
            await screen.sees("● at work", "tell it something")
            await screen.type("lower case, please")
            await screen.press("enter")
            await screen.sees("told it takes effect before the next generation")
            model.may_reply.set()
            await screen.sees("In lower case.", "✓ completed")
        (job,) = (await host.jobs.list()).jobs
        assert (job.text, len(job.runs)) == ("In lower case.", 1)

    wait_for(person())


def test_escape_interrupts_and_enter_resumes(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Slow words", delay_ms=60_000)], WRITER)
        async with run_app(host, expert="writer", query="A haiku") as screen:
            await screen.sees("Slow", "● at work")
            await screen.press("escape")
            await screen.sees("stopped by interrupt", "Enter resumes")
            await screen.press("enter")
            await screen.sees("resumes after an interrupt", "● at work")

    wait_for(person())


def test_the_history_lists_jobs_newest_first_filters_and_opens_one(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Old pond.")], WRITER, CRITIC)
        await host.run("writer", "A haiku", job_id="pond")
        await host.run("critic", "What is wrong?", job_id="wrong")
        async with run_app(host) as screen:
            await screen.press("f2")
            seen = await screen.sees("critic - 1 step (wrong) (", "writer - 1 step (pond) (")
            assert seen.index("(wrong)") < seen.index("(pond)")
            await screen.type("haiku")
            await screen.sees_no("(wrong)")
            await screen.press("enter")
            await screen.sees("❯ A haiku", "Old pond.", "✓ completed", "a follow-up")

    wait_for(person())


def test_a_broken_definition_is_shown_with_its_line_and_the_last_good_one_stays(bench: Bench) -> None:
    from perstack.definition_files import load_usable
    from perstack.doors.shared.live_project import ReloadedProject
    from perstack_tui.app import StartApp

    good = '[experts.writer]\ndescription = "Writes haiku"\ninstruction = "You write."\n'
    file = bench.workspace / "perstack.toml"
    file.write_text(good)

    async def person() -> None:
        host = bench.host([text("Hm.")], WRITER)
        app = StartApp(host, ReloadedProject(load_usable(file)))
        async with run_app(host, app=app, notices=True) as screen:
            await screen.sees("Writes haiku")
            file.write_text(good + "x = [\n")
            await screen.sees("the last valid one is used", "perstack.toml:5:", "Writes haiku")
            await screen.press("f9")
            await screen.sees("perstack.toml is invalid: there is")
            file.write_text(good.replace("haiku", "verse"))
            await screen.sees("Writes verse")
            await screen.sees_no("last valid one")

    wait_for(person())


def test_a_follow_up_that_fails_is_not_said_to_be_completed(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Old pond.")], WRITER)
        async with run_app(host, expert="writer", query="A haiku") as screen:
            await screen.sees("✓ completed 1 step")
            (job,) = (await host.jobs.list()).jobs
            await host.jobs.delete(job.id)
            await screen.type("Another")
            await screen.press("enter")
            seen = await screen.sees("✗ error", "there is no Job")
            assert seen.count("✓ completed 1 step,") == 1

    wait_for(person())


class FullStorage(CrashingStorage):
    """A storage whose disk is full until the test sets `is_full` to False."""

    is_full = True

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        if self.is_full:
            raise StorageError("no space left on device")
        await super().append(run, expected_seq, records)


def test_after_a_job_that_could_not_begin_the_next_query_begins_one(bench: Bench) -> None:
    async def person() -> None:
        disks: list[FullStorage] = []

        def fill(inner: Storage) -> Storage:
            disks.append(FullStorage(inner))
            return disks[0]

        async with run_app(bench.host([text("Old pond.")], WRITER, wrap=fill), expert="writer") as screen:
            await screen.type("A haiku")
            await screen.press("enter")
            await screen.sees("✗ error no space left", "what should writer do?")
            disks[0].is_full = False
            await screen.press("up")
            await screen.sees("│ A haiku")
            await screen.press("enter")
            await screen.sees("❯ A haiku", "Old pond.", "✓ completed")

    wait_for(person())
