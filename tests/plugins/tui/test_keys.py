"""Keys apart from a Job's course: the palette, the Inbox, folding, and agreeing to a changed definition."""

from __future__ import annotations

from hosts import Bench, expert, wait_for
from terminal_app import run_app

from perstack.definition_files import load_usable
from perstack.doors.shared.live_project import ReloadedProject
from perstack.testing.scripted import text, tool, turn
from perstack.trust.agreements import TrustStore
from perstack_tui.app import StartApp

GUEST = expert("guest", description="Asks first", ask=True)
WRITER = expert("writer", description="Writes haiku")


def test_the_palette_finds_an_action_by_its_name_and_does_it(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(bench.host([text("Hm.")], WRITER)) as screen:
            await screen.press("ctrl+p")
            await screen.sees("Help  F1", "Show every open question")
            await screen.type("inbox")
            await screen.sees_no("Help  F1")
            await screen.press("enter")
            await screen.sees("Nothing waits for you.")
            await screen.press("escape")
            await screen.sees("Writes haiku")

    wait_for(person())


def test_the_inbox_opens_the_job_that_asks_where_it_is_answered(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([tool("askUser", {"question": "Tea or coffee?"}), text("Served.")], GUEST)
        await host.run("guest", "Serve", job_id="tea")
        async with run_app(host) as screen:
            await screen.press("f3")
            await screen.sees("guest", "Tea or coffee?")
            await screen.press("enter")
            await screen.sees("guest asks: Tea or coffee?", "? waits for you")
            await screen.type("Tea")
            await screen.press("enter")
            await screen.sees("Served.", "✓ completed")

    wait_for(person())


def test_a_click_on_a_tab_shows_it(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(bench.host([text("Hm.")], WRITER, GUEST), expert="writer") as screen:
            await screen.press("ctrl+t")
            tabs = await screen.sees("1 writer", "2 new", "Choose an Expert")
            await screen._pilot.click("#tabs", offset=(tabs.index("writer"), 0))
            await screen.sees("what should writer do?")

    wait_for(person())


def test_everything_is_unfolded_and_folded_by_one_key(bench: Bench) -> None:
    script = {
        "lead": [turn(tool("helper", {"query": "one"})), text("All done.")],
        "helper": [text("A part.")],
    }

    async def person() -> None:
        host = bench.host(script, expert("lead", delegates=("helper",)), expert("helper"))
        async with run_app(host, expert="lead", query="Go") as screen:
            await screen.sees("▸ ✓ helper#2", "All done.")
            assert "A part." not in screen.text()
            await screen.press("ctrl+o")
            await screen.sees("▾ ✓ helper#2", "│   A part.")
            await screen.press("ctrl+o")
            await screen.sees_no("A part.")

    wait_for(person())


def test_what_a_changed_definition_executes_is_used_when_a_person_agrees(bench: Bench) -> None:
    plain = '[experts.writer]\ndescription = "Writes haiku"\ninstruction = "You write."\n'
    skill = '[experts.writer.skills.evil]\ntype = "mcpStdioSkill"\ncommand = "evil-server"\n'
    file = bench.workspace / "perstack.toml"
    file.write_text(plain)

    async def person() -> None:
        host = bench.host([text("Hm.")], WRITER)
        live = ReloadedProject(load_usable(file), TrustStore(bench.workspace / "trust"))
        async with run_app(host, app=StartApp(host, live)) as screen:
            await screen.sees("Writes haiku")
            file.write_text(plain.replace("haiku", "verse") + skill)
            await screen.sees("evil-server", "F9 uses it", "Writes haiku")
            await screen.press("f9")
            await screen.sees("Writes verse")
            await screen.sees_no("F9 uses it")
        assert [skill.name for skill in host.experts.get("writer").skills] == ["evil"]

    wait_for(person())


def test_a_changed_definition_that_does_not_fit_is_not_agreed_to_by_a_key(bench: Bench) -> None:
    plain = '[experts.writer]\ndescription = "Writes haiku"\ninstruction = "You write."\n'
    words = ", ".join(f'"word-{number}"' for number in range(200))
    skill = f'[experts.writer.skills.evil]\ntype = "mcpStdioSkill"\ncommand = "evil-server"\nargs = [{words}]\n'
    file = bench.workspace / "perstack.toml"
    file.write_text(plain)

    async def person() -> None:
        host = bench.host([text("Hm.")], WRITER)
        live = ReloadedProject(load_usable(file), TrustStore(bench.workspace / "trust"))
        async with run_app(host, app=StartApp(host, live)) as screen:
            await screen.sees("Writes haiku")
            file.write_text(plain.replace("haiku", "verse") + skill)
            await screen.sees("perstack trust")
            await screen.sees_no("F9 uses it")
            await screen.press("f9")
            await screen.sees("Writes haiku")
            assert live.open_change is not None
        assert host.experts.get("writer").skills == ()

    wait_for(person())


def test_the_line_of_keys_fits_the_window_after_each_resize(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(bench.host([text("Hm.")], WRITER)) as screen:
            await screen.sees("Enter send", "^Q quit")
            for width, shown in ((60, False), (120, True), (60, False)):
                await screen.resized(width, 24)
                await (screen.sees("^J new line") if shown else screen.sees_no("^J new line"))
                await screen.sees("^Q quit")

    wait_for(person())
