"""The checkpoints of the History: a row for each step, first the Coordinator's latest, and only what works there."""

from __future__ import annotations

import shlex

from hosts import Bench, expert, wait_for
from terminal import Terminal, reply
from terminal_app import run_app

from perstack.doors.shared.next_step_phrases import of_checkpoint
from perstack.host import Host
from perstack.testing.scripted import text, tool, turn

LEAD, HAND = expert("lead", delegates=("hand",)), expert("hand")
SCRIPT = {
    "lead": [turn(tool("hand", {"query": "one"})), text("All done.")],
    "hand": [turn(tool("think", {"thought": "hm"})), text("A part.")],
}


def _rows(shown: str) -> list[str]:
    return [line.strip() for line in shown.splitlines() if "Step " in line]


async def _team(bench: Bench) -> Host:
    host = bench.host(SCRIPT, LEAD, HAND)
    await host.run("lead", "Go", job_id="team")
    return host


def test_a_step_is_one_row_and_the_coordinators_latest_is_chosen(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(await _team(bench), size=(100, 24)) as screen:
            await screen.looks_into("team")
            rows = _rows(await screen.sees("❯ Step 2 (team-1-", "Step 2 (team-2-"))
            assert [row.split(" (")[0].removeprefix("❯ ") for row in rows] == ["Step 1", "Step 2"] * 2
            assert [row.startswith("❯") for row in rows] == [False, True, False, False]

    wait_for(person())


def test_at_a_delegates_checkpoint_no_branch_is_offered_and_b_says_why(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(await _team(bench), size=(100, 24), notices=True) as screen:
            await screen.looks_into("team")
            await screen.sees("❯ Step 2 (team-1-", "b branches")
            await screen.press("down")
            await screen.sees("❯ Step 1 (team-2-")
            await screen.sees_no("b branches")
            for key in ("b", "f"):
                await screen.press(key)
                await screen.sees("A branch cannot start at a delegate's")
                screen.app.clear_notifications()
                await screen.sees_no("A branch cannot start at a delegate's")
            await screen.press("k")
            shown = await screen.sees("Command lines", "perstack log --checkpoint team-2-")
            assert "--resume-from" not in shown
            await screen.press("escape", "up", "k")
            await screen.sees("--resume-from team-1-")

    wait_for(person())


def test_a_question_and_what_came_of_it_are_one_row_where_both_can_be_taken_up_again(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host(
            [turn(tool("askUser", {"question": "Tea?", "options": ["Yes", "No"]})), text("Served."), text("More.")],
            expert("guest", ask=True),
        )
        await host.run("guest", "Serve", job_id="inn")
        await host.answer("Yes", job_id="inn")
        async with run_app(host, size=(120, 24)) as screen:
            await screen.looks_into("inn")
            rows = _rows(await screen.sees("❯ Step 2 (inn-1-", "asks"))
            assert len(rows) == 2
            assert "Tea?" in rows[0]
            await screen.press("up", "enter")
            await screen.sees("Step 1 (inn-1-9)", "Left, Right others of the step", "proceeding")
            await screen.press("left")
            await screen.sees_no("Step 1 (inn-1-9)")
            await screen.sees("Step 1 (inn-1-", "─ query")
            await screen.sees_no("proceeding")
            await screen.press("escape", "a")
            await screen.sees("another answer, in a branch", "guest asks: Tea?")
            await screen.press("escape")
            await screen.looks_into("inn")
            await screen.press("up", "b")
            await screen.sees("a new query, in a branch")
            await screen.type("Go on")
            await screen.press("enter")
            await screen.sees("❯ Go on", "✓ completed")
        tree = await host.jobs.tree("inn")
        assert [one.how for one in tree] == ["begun", "branch"]

    wait_for(person())


def test_every_command_that_is_offered_at_a_delegates_checkpoint_works(terminal: Terminal) -> None:
    toml = "[workspace]\nsnapshots = true\n[experts.lead]\ninstruction = 'lead'\ndelegates = ['hand']\n"
    write = ("writeTextFile", {"path": "a.txt", "text": "x\n"})
    terminal.project(
        f"{toml}[experts.hand]\ninstruction = 'hand'\n",
        lead=[reply("", ("hand", {"query": "q"})), reply("done")],
        hand=[reply("", write), reply("ok")],
    )
    done = terminal.run("run", "lead", "q", "--job-id", "team", "--provider", "scripted")
    assert done.code == 0, done.err
    place = next(one["checkpointId"] for one in done.events if one["type"] == "finishStep" and "team-2" in one["runId"])
    lines = of_checkpoint("team", place, "hand", begins_branch=False, asked=place, marked=place)
    assert len(lines) > 4
    for line in lines:
        words = shlex.split(line.text.partition(" > ")[0])
        result = terminal.call(*words[1:])
        assert result.code == 0, (line.text, result.err)


async def _shown_commands(host: Host, job_id: str) -> str:
    async with run_app(host, size=(110, 40)) as screen:
        await screen.looks_into(job_id)
        await screen.press("k")
        return await screen.sees("Command lines", "perstack export")


def test_the_command_lines_are_those_that_continue_the_job_as_it_stands(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([tool("askUser", {"question": "Tea?"}), text("Served.")], expert("guest", ask=True))
        await host.run("guest", "Serve", job_id="inn")
        shown = await _shown_commands(host, "inn")
        assert "perstack answer inn ANSWER" in shown
        assert "continue what was stopped" not in shown
        await host.answer("Yes", job_id="inn")
        shown = await _shown_commands(host, "inn")
        assert "perstack run guest QUERY --continue-job inn" in shown
        assert "continue what was stopped" not in shown
        assert "perstack answer" not in shown
        stopped = bench.host([tool("nothing"), text("Late.")], expert("guest"), max_steps=1)
        await stopped.run("guest", "Serve", job_id="bar")
        assert "perstack resume bar --max-steps N" in await _shown_commands(stopped, "bar")
        await stopped.cancel("bar", final=True)
        shown = await _shown_commands(stopped, "bar")
        assert "perstack resume" not in shown
        assert "--continue-job" not in shown

    wait_for(person())
