"""From the History: the files of a step, between checkpoints, a rewind and its undoing, a branch with files; and what
is copied and exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hosts import Bench, expert, recording, wait_for
from terminal_app import Screen, run_app

from perstack.host import Host
from perstack.testing.scripted import text, tool, turn

WRITER = expert("writer", description="Writes haiku")


def write(path: str, said: str) -> dict[str, object]:
    return tool("writeTextFile", {"path": path, "text": said})


async def drafted(bench: Bench) -> Host:
    """Run a Job that writes a first draft in its first step, and a second in its second."""
    (bench.workspace / "notes.txt").write_text("mine\n")
    script = [turn(write("pond.txt", "first\n")), turn(write("pond.txt", "second [b]\x1b[31m\n")), text("Done.")]
    host = recording(bench.host(script, WRITER))
    await host.run("writer", "A haiku", job_id="pond")
    return host


async def at_checkpoints(screen: Screen) -> None:
    await screen.looks_into("pond")
    await screen.sees("Step 1 (pond-1-", "Step 3 (pond-1-")


def test_the_files_of_a_step_between_checkpoints_and_until_now_are_shown_line_by_line(bench: Bench) -> None:
    async def person() -> None:
        host = await drafted(bench)
        (bench.workspace / "notes.txt").write_text("mine too\n")
        async with run_app(host, size=(100, 40)) as screen:
            await at_checkpoints(screen)
            await screen.press("1", "m")
            await screen.sees("● Step 1 (")
            await screen.press("2", "d")
            shown = await screen.sees(
                "since the mark", "of step 2", "changed  +1 −1", "-first", "+second [b]\\u001b[31m"
            )
            assert "\x1b" not in shown
            await screen.press("tab", "tab")
            await screen.sees("from there until now", "notes.txt", "-mine", "+mine too")
            await screen.press("escape", "end", "d")
            await screen.sees("since the mark", "-first")
            await screen.press("escape", "shift+tab", "d")
            await screen.sees("Files  of pond-1", "+++ b/pond.txt")

    wait_for(person())


def test_a_rewind_shows_its_plan_changes_the_files_when_a_person_agrees_and_is_undone(bench: Bench) -> None:
    pond = bench.workspace / "pond.txt"

    async def person() -> None:
        host = await drafted(bench)
        async with run_app(host, size=(100, 40), location_options=" --storage s") as screen:
            await at_checkpoints(screen)
            await screen.press("1", "r")
            await screen.sees("Change these files in", "changed  +1 −1", "+first")
            await screen.press("escape")
            await screen.sees("Step 1 (pond-1-")
            assert pond.read_text().startswith("second")
            await screen.press("r")
            await screen.sees("Change these files in")
            await screen.press("y")
            await screen.sees("rewound, +1 −1 in 1 file", "perstack rewind pond pond-1-", " --storage s")
            assert pond.read_text() == "first\n"
            await screen.press("u")
            await screen.sees("Change these files in", "-first")
            await screen.press("y")
            await screen.sees("rewound, +1 −1 in 1 file")
            assert pond.read_text().startswith("second")
            await screen.press("escape")
            await screen.sees("❯ Step 1 (pond-1-", "before a rewind")

    wait_for(person())


def test_a_rewind_stands_at_once_among_the_rows_of_the_job_and_in_its_tab(bench: Bench) -> None:
    async def person() -> None:
        host = await drafted(bench)
        async with run_app(host, size=(100, 40), job_id="pond") as screen:
            await screen.sees("Done.", "✓ completed")
            await at_checkpoints(screen)
            await screen.press("1", "enter")
            await screen.sees("─ query")
            await screen.press("r")
            await screen.sees("Change these files in")
            await screen.press("y")
            await screen.sees("rewound")
            await screen.press("escape", "escape")
            await screen.sees("❯ Step 1 (pond-1-", "before a rewind")
            await screen.press("tab")
            await screen.sees("rewound")
            await screen.press("escape", "escape")
            await screen.sees("✓ completed", "rewound")

    wait_for(person())


def test_files_that_changed_after_the_plan_was_shown_are_not_overwritten(bench: Bench) -> None:
    pond = bench.workspace / "pond.txt"

    async def person() -> None:
        host = await drafted(bench)
        async with run_app(host, size=(100, 40)) as screen:
            await at_checkpoints(screen)
            await screen.press("1", "r")
            await screen.sees("Change these files in")
            pond.write_text("mine now\n")
            await screen.press("y")
            await screen.sees("files have changed since")
            assert pond.read_text() == "mine now\n"

    wait_for(person())


def test_a_branch_with_files_begins_with_those_of_then(bench: Bench) -> None:
    async def person() -> None:
        host = await drafted(bench)
        async with run_app(host, size=(100, 40)) as screen:
            await at_checkpoints(screen)
            await screen.press("1", "f")
            await screen.sees("Change these files in")
            await screen.press("y")
            await screen.sees("a new query, in a branch")
            assert (bench.workspace / "pond.txt").read_text() == "first\n"
            await screen.type("Again")
            await screen.press("enter")
            await screen.sees("❯ Again")
        assert [one.how for one in await host.jobs.tree("pond")][:2] == ["begun", "branch"]

    wait_for(person())


def test_without_snapshots_it_is_said_how_to_have_them(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text("Done.")], WRITER)
        await host.run("writer", "A haiku", job_id="pond")
        async with run_app(host, size=(100, 30), notices=True) as screen:
            await screen.looks_into("pond")
            await screen.sees("Step 1 (")
            for key in ("d", "r"):
                await screen.press(key)
                await screen.sees("snapshot", "snapshots = true")
                await screen.press("escape")
                await screen.sees("Step 1 (")
            await screen.press("shift+tab")
            await screen.sees("pond-1  writer")
            await screen.press("b")
            await screen.sees("Choose a checkpoint first")

    wait_for(person())


def test_ids_and_command_lines_are_copied_and_a_job_and_a_checkpoint_are_exported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)

    async def person() -> None:
        host = bench.host([text("Done.")], WRITER)
        await host.run("writer", "A haiku", job_id="pond")
        async with run_app(host, size=(110, 40), notices=True, location_options=" --config x.toml") as screen:
            await screen.looks_into("pond")
            await screen.sees("Step 1 (")
            await screen.press("home", "y")
            place = screen.app.clipboard
            assert place.startswith("pond-1-")
            await screen.press("k")
            await screen.sees(f"perstack log --checkpoint {place} --messages --config x.toml", "--with-files")
            await screen.press("down", "down", "down", "enter")
            branch = f"perstack run writer QUERY --continue-job pond --resume-from {place} --config x.toml"
            assert screen.app.clipboard == branch
            await screen.press("escape", "x")
            await screen.sees("Export  pond-1-", "jsonl", f"{place}.json")
            await screen.press("enter")
            await screen.sees("Step 1 (")
            await screen.press("x")
            await screen.sees("jsonl")
            await screen.press("down", "down")
            await screen.sees("pond.jsonl")
            await screen.press("enter")
            await screen.sees("Step 1 (")
        assert json.loads((folder / f"{place}.json").read_text())["id"] == place
        lines = (folder / "pond.jsonl").read_text().splitlines()
        assert lines == [line.decode() for log in await host.jobs.logs("pond") for line in log.lines]

    wait_for(person())
