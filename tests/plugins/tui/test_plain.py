"""The linear mode: lines in, lines out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hosts import Bench, expert, wait_for
from long_runs import Patient
from plain_person import begin_person
from terminal import Terminal, reply
from tmux import PERSTACK, tmux

from perstack.core.definitions.permissions import Permissions
from perstack.core.runs.events import Event
from perstack.doors.shared.activity import JobActivity
from perstack.doors.shared.job_printer import JobPrinter
from perstack.doors.shared.next_step_phrases import plain_phrase
from perstack.doors.shared.screen import Screen
from perstack.testing.scripted import text, tool, turn
from perstack_tui.actions import COMMANDS

ROOT = Path(__file__).parents[3]
WRITER = expert("writer", description="Writes haiku")
GUEST = expert("guest", description="Asks first", ask=True)
RELEASER = expert("releaser", description="Releases", permissions=Permissions(ask=("editTextFile",)))
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe [red]not markup[/red]\r\x08\n> y yes"


def test_an_expert_is_chosen_by_number_name_or_words_and_a_follow_up_is_the_next_run(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Old pond.\nA frog."), text("Another.")], GUEST, WRITER)
        async with begin_person(host) as one:
            await one.sees("1. guest: Asks first", "2. writer: Writes haiku")
            await one.types("nobody", "no Expert matches these words")
            await one.types("3", "no Expert matches these words")
            await one.types("haiku", "> what should writer do?")
            await one.types("/new", "1. guest: ")
            await one.types("2", "> what should writer do?")
            await one.types("First line\\")
            seen = await one.types("second line", "completed: 1 step", "> a follow-up")
            assert seen.splitlines()[2:4] == ["  Old pond.", "  A frog."]
            assert re.match(r"writer · scripted · Job \S+\n", seen)
            assert "query: First line second line" in seen
            await one.types("More", "  Another.", "completed: 2 steps")
        (job,) = (await host.jobs.list()).jobs
        assert job.query == "First line\nsecond line"
        assert len(job.runs) == 2

    wait_for(person())


def test_what_the_model_says_comes_line_by_line_and_each_line_once(bench: Bench) -> None:
    events: list[Event] = []
    host = bench.host([text("One.\nTwo.\nThree.")], WRITER)
    wait_for(host.run("writer", "Go", on_event=lambda event, _: events.append(event)))
    lines: list[str] = []
    put = lambda *parts: lines.append("".join(map(str, parts)))  # noqa: E731
    printer, state = JobPrinter(put, lambda: Screen(80, False), plain_phrase), JobActivity()
    seen: list[list[str]] = []
    for event in events:
        printer.print_event(event, state.apply(event), state)
        if event.type in ("streamText", "finishGeneration"):
            seen.append(lines[2:])
    assert seen == [
        [],
        ["  One."],
        ["  One.", "  Two."],
        ["  One.", "  Two.", "  Three."],
    ]


def test_while_a_job_is_at_work_enter_alone_says_what_it_does_and_nothing_is_sent(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Slow words", delay_ms=60_000)], WRITER)
        async with begin_person(host, expert="writer", query="Go") as one:
            await one.sees("query: Go")
            await one.repeat_until(lambda: one.types("", "at work"), "writer#1: the model writes")
        (job,) = (await host.jobs.list()).jobs
        assert len(job.runs) == 1
        assert len(await host.texts.standing_texts(job.id)) == 1

    wait_for(person())


def test_what_is_stopped_before_it_begins_has_ended(bench: Bench) -> None:
    async def person() -> None:
        async with begin_person(bench.host([text("A.")], WRITER), expert="writer") as one:
            one.program.shown_job.session.send("Go")
            await one.program.leave()
            assert one.program.has_left.is_set()

    wait_for(person())


def test_a_delegates_lines_bear_its_name(bench: Bench) -> None:
    script = {
        "lead": [turn(tool("helper", {"query": "one"}), tool("helper", {"query": "two"})), text("All done.")],
        "helper": [text("A part.")],
    }

    async def person() -> None:
        host = bench.host(script, expert("lead", delegates=("helper",)), expert("helper"))
        async with begin_person(host, expert="lead", query="Go") as one:
            seen = (await one.sees("completed: ")).splitlines()
            assert {"  helper#2 A part.", "  helper#3 A part.", "  All done.", "helper#3 completed"} <= set(seen)

    wait_for(person())


def test_questions_and_approvals_are_answered_in_place_with_all_of_the_change(bench: Bench) -> None:
    edit = {"path": "notes.md", "oldText": "version 1", "newText": "version 2"}
    script = {
        "guest": [tool("askUser", {"question": "Which?", "options": ["Tea", "Coffee"]}), text("Served.")],
        "releaser": [tool("editTextFile", edit), tool("editTextFile", edit), text("Well.")],
    }
    (bench.workspace / "notes.md").write_text("version 1\n")

    async def person() -> None:
        host = bench.host(script, GUEST, RELEASER)
        async with begin_person(host, expert="guest", query="Serve") as one:
            await one.sees("guest asks: Which?", "  2. Coffee", "> type a number")
            assert one.dropped == 1
            await one.types("2", "  Served.", "completed")
            await one.types("/new", "Choose")
            await one.types("releaser", "what should releaser do?")
            await one.types("Release", "  path: notes.md", "  -version 1", "  +version 2", "> y yes")
            seen = await one.types("maybe", "error: ", "> y yes")
            assert "-version 1" not in seen  # it was shown
            await one.types("y", "calls: editTextFile", "> y yes")
            assert "version 2" in (bench.workspace / "notes.md").read_text()
            await one.types("no: not again", "  Well.", "completed")
        jobs = (await host.jobs.list()).jobs
        assert [job.status for job in jobs] == ["completed", "completed"]

    wait_for(person())


def test_a_line_while_the_job_works_is_told_to_it(bench: Bench) -> None:
    model = Patient()

    async def person() -> None:
        host = bench.host(model, WRITER)
        async with begin_person(host, expert="writer", query="A haiku") as one:
            await one.sees("query: A haiku")
            await one.types("lower case, please", "told: it takes effect before")
            model.may_reply.set()
            await one.sees("In lower case.", "completed")
        (job,) = (await host.jobs.list()).jobs
        assert job.text == "In lower case."

    wait_for(person())


def test_ctrl_c_interrupts_which_is_recorded_enter_resumes_and_quit_asks(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Slow words", delay_ms=60_000)], WRITER)
        async with begin_person(host, expert="writer", query="A haiku") as one:
            await one.sees("query: A haiku")
            one.program.interrupt()
            await one.sees("stopped: by interrupt", "> Enter resumes")
            await one.types("", "resumes: after an interrupt")
            await one.types("/quit", "1 Job is at work.", "> w keep waiting")
            await one.types("w", "stays")
            assert not one.program.has_left.is_set()
            await one.program.on_end()
            await one.sees("> w keep waiting")
            await one.program.on_end()
            assert one.program.has_left.is_set()
        (job,) = (await host.jobs.list()).jobs
        assert job.status == "stoppedByInterrupt"

    wait_for(person())


def test_a_job_in_the_background_says_when_it_waits_and_is_shown_again(bench: Bench) -> None:
    script = {
        "guest": [turn(tool("askUser", {"question": "Which?"}), delay_ms=300), text("Served.")],
        "writer": [text("A.")],
    }

    async def person() -> None:
        async with begin_person(bench.host(script, GUEST, WRITER), expert="guest", query="Serve") as one:
            seen = await one.types("/new", "Choose", "Job 1, guest: waits for you; /job 1 shows it")
            assert "Which?" not in seen
            await one.types("/jobs", "1. guest: waits for you", "2. new: new, shown")
            await one.types("/job 1", "guest asks: Which?", "> ")
            await one.types("Tea", "  Served.")

    wait_for(person())


def test_past_jobs_are_listed_found_opened_and_branched(bench: Bench) -> None:
    async def person() -> None:
        asks = tool("askUser", {"question": "Which?", "options": ["Tea", "Coffee"]})
        host = bench.host([asks, text("Served."), text("Well.")], GUEST, WRITER)
        await host.run("guest", "Serve", job_id="tea")
        await host.answer("Tea", job_id="tea")
        await host.run("guest", "Serve again", job_id="open")
        async with begin_person(host) as one:
            await one.types("/history serve", "1. guest - 1 step (open)", "2. guest - 2 steps (tea)")
            await one.types("/history nothing", "no Job contains these words")
            await one.types("/inbox", "1. guest: Which?", "/open NUMBER")
            await one.types("/open 1", "guest asks: Which?")
            seen = await one.types("/open tea", "Job tea", "  Served.", "completed: 2 steps", "> a follow-up")
            assert "Which?" not in seen
            await one.types("/checkpoints", "1. Step 1 (tea-1-", "asks Which?", "3. Step 2 (tea-1-")
            await one.types("/branch 9", "where?")
            await one.types("/again 3", "there was no question to you there")
            await one.types("/branch 3", "> a new query, in a branch from tea-1-")
            assert one.program.interrupt()
            await one.sees("left the branch", "> a follow-up")
            await one.types(
                "/again 1", "> another answer, in a branch from tea-1-", "guest asks: Which?", "  2. Coffee"
            )
            await one.types("2", "result: askUser: Coffee", "completed")
            await one.types("/open nosuch", "error: ")
        runs = (await host.jobs.runs("tea")).runs
        assert len(runs) == 2
        assert runs[1].continued_from is not None

    wait_for(person())


def test_who_leaves_sees_how_each_job_stands_and_nothing_to_type(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Slow words", delay_ms=60_000)], WRITER)
        async with begin_person(host, expert="writer", query="A haiku") as one:
            await one.sees("query: A haiku")
            await one.types("/new", "Choose")
            await one.types("writer", "what should writer do?")
            await one.types("Another", "query: Another")
            await one.types("/quit", "2 Jobs are at work.")
            seen = await one.types("i", "Job 1, writer: stopped", "Job 2, writer: stopped")
            assert "/job" not in seen
            assert "> " not in seen

    wait_for(person())


def test_what_a_model_says_is_text_and_never_looks_like_a_line_of_the_program(bench: Bench) -> None:
    async def person() -> None:
        script = [turn(tool("nosuch", {"a": EVIL}), text=EVIL, thinking=EVIL), text(EVIL)]
        async with begin_person(bench.host(script, WRITER), expert="writer", query="Go") as one:
            seen = await one.sees("completed")
            assert "[red]not markup[/red]" in seen
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", seen)
            ours = [line for line in seen.splitlines() if line.startswith(">")]
            assert ours in ([], ["> a follow-up: the next Run of this Job"])

    wait_for(person())


def test_every_command_is_in_the_help_and_on_the_page(bench: Bench) -> None:
    async def person() -> None:
        async with begin_person(bench.host([text("A.")], WRITER)) as one:
            seen = await one.types("/help", *(f"/{command.name}" for command in COMMANDS))
            assert "Ctrl-C interrupts" in seen
            await one.types("/nosuch", "there is no /nosuch")

    wait_for(person())
    rows = re.findall(r"^\| `/(.+)` \| (.+) \|$", (ROOT / "docs/start.md").read_text(), re.M)
    assert rows == [(" ".join(filter(None, (command.name, command.arguments))), command.text) for command in COMMANDS]


TOML = """
[experts.writer]
instruction = "You write."
[experts.releaser]
instruction = "You release."
[experts.releaser.permissions]
ask = ["writeTextFile"]
"""


def without_textual(terminal: Terminal) -> None:
    """Make `textual` fail to import in commands of this terminal."""
    folder = terminal.workspace / "hides"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['textual'] = None\n")
    terminal.env["PYTHONPATH"] = str(folder)


@pytest.mark.parametrize("how", ["TERM=dumb", "--plain"])
def test_a_dumb_terminal_without_the_library_gets_lines_and_loses_nothing(terminal: Terminal, how: str) -> None:
    terminal.project(
        TOML,
        writer=[{**reply("Once upon a time"), "delayMs": 60_000}],
        releaser=[reply("", ("writeTextFile", {"path": "out.txt", "text": "version 2\n"})), reply("It is out.")],
    )
    without_textual(terminal)
    command = f"{PERSTACK} start --provider scripted"
    with tmux(terminal) as win:
        before = win.state()
        with_env, option = ("TERM=dumb ", "") if how == "TERM=dumb" else ("", " --plain")
        win.type(f"clear; {with_env}{command}{option}; echo exit $?")
        win.sees("Choose an Expert by its number or name", "1. writer")
        assert ("TERM is dumb" in win.screen()) is (how == "TERM=dumb")
        win.type("1")
        win.sees("> what should writer do?")
        win.type("A story")
        win.sees("query: A story")
        win.press("C-c")
        win.sees("stopped: by interrupt", "> Enter resumes")
        win.press("Enter")
        win.sees("resumes: after an interrupt")
        win.type("/new")
        win.type("releaser")
        win.type("Release it")
        win.sees("wants to call writeTextFile", "version 2", "> y yes")
        win.type("y")
        win.sees("  It is out.", "completed: 2 steps")
        assert (terminal.workspace / "out.txt").read_text() == "version 2\n"
        win.press("C-d")
        win.sees("1 Job is at work.", "> w keep waiting")
        win.type("i")
        win.sees("exit 0")
        assert win.state() == before
        terminal.script(writer=[reply("Well, the end.")])
        win.type(f"clear; {PERSTACK} resume; echo exit $?")
        win.sees("Well, the end.", "exit 0")
