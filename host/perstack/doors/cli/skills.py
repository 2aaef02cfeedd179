"""The commands `perstack install`, `login` and `logout`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import assert_never

import click

from perstack.core.base.text import approvable_text, count, one_line
from perstack.diagnostics.install import Installed, InstallStep, OnInstall
from perstack.doors.cli.first_run.model_setup import keep_key, remove_key, variable_of_provider
from perstack.doors.cli.options import HostOptions, env_path_option, place_options, run_with, stack
from perstack.doors.cli.terminal import LiveRows, confirm, is_attended, print_err, print_out
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.screen import is_terminal
from perstack.errors import UsageError

# perstack install


@click.command("install")
@click.argument("experts", nargs=-1, metavar="[EXPERT]...")
@click.option("--yes", is_flag=True, help="Agree to new and changed tools without confirmation.")
@env_path_option
@place_options
def install_command(experts: tuple[str, ...], yes: bool, options: HostOptions) -> None:
    """Ask every skill for its tools, and record them in perstack.lock, next to perstack.toml.

    Covers the given Experts and their delegates, by default all. Shows the differences from the earlier lock, and asks
    before it records new or changed tools of a locked skill. Exit status 1 if a skill failed; the others are
    recorded.
    """

    def agrees(changes: Sequence[str]) -> bool:
        progress.end()
        for line in changes:
            print_err(approvable_text(line).replace("\n", "\\n"))
        if yes:
            return True
        if not (is_attended() and is_terminal(sys.stdin)):
            raise UsageError("these tools differ from perstack.lock: to agree to them, add --yes")
        return confirm("Agree to all of this?")

    async def main(on_step: OnInstall) -> Installed:
        async with options.open_host() as host:
            return await host.skills.install(*experts, on_step=on_step, agrees=agrees)

    progress = _Table() if is_attended() else _ProgressLines()
    try:
        with progress.live_display():
            installed = asyncio.run(main(progress.show_step))
    except KeyboardInterrupt:
        print_err("interrupted: perstack.lock was not written")
        sys.exit(130)
    for step in installed.failed:
        problem = "" if step.problem is None else step.problem.text_for(cli_phrase)
        print_err(f"error: {one_line(f'{step.skill}: {problem}')}")
    ready = len(installed.skills) - len(installed.failed)
    print_out(f"{installed.path}: {count(ready, 'skill')} locked")
    sys.exit(1 if installed.failed else 0)


def _words(step: InstallStep) -> str:
    seconds = f"{step.duration_ms / 1000:.1f} s"
    match step.status:
        case "starting":
            return "starting"
        case "ready":
            return f"ready with {count(step.tools, 'tool')} in {seconds}"
        case "failed":
            return f"failed after {seconds}"
        case _:
            assert_never(step.status)


class _ProgressLines:
    def live_display(self) -> AbstractContextManager[object]:
        return nullcontext()

    def end(self) -> None:
        pass  # appended rows need no erasing at the end

    def show_step(self, step: InstallStep) -> None:
        print_err(f"{step.skill}: {_words(step)}")


class _Table:
    def __init__(self) -> None:
        self._steps: dict[str, InstallStep] = {}
        self._rows = LiveRows()

    def live_display(self) -> AbstractContextManager[object]:
        return self._rows.live

    def end(self) -> None:
        self._rows.live.stop()  # the live rows must not overwrite a question

    def show_step(self, step: InstallStep) -> None:
        self._steps[step.skill] = step
        style = {"starting": "dim", "ready": "green", "failed": "red"}
        self._rows.update((name, _words(current), style[current.status]) for name, current in self._steps.items())


_skill_options = stack(
    click.argument("skill", required=False),
    click.option("--provider", metavar="NAME", help="The provider of the key, instead of a skill."),
    click.option(
        "--expert", metavar="KEY", help=("The Expert that declares the skill, if several declare it differently.")
    ),
    env_path_option,
)


@click.command("login")
@_skill_options
@click.option("--no-browser", is_flag=True, help="Only print the address to open.")
@place_options
def login_command(
    skill: str | None, provider: str | None, expert: str | None, no_browser: bool, options: HostOptions
) -> None:
    """Log in to the server of a skill, for all later Jobs; with --provider, keep a key for a provider.

    Opens a browser, and waits up to five minutes for the login. A key is asked for, or read from stdin, and kept in
    your configuration folder, where only you can read it.
    """
    if provider is not None:
        variable = variable_of_provider(_require_one(skill, provider))
        if not keep_key(variable):
            raise UsageError("no key was given: paste it, or pipe it to stdin")
        return
    skill = _require_one(skill, provider)

    async def present(url: str) -> None:
        print_err(f"Log in here:\n{url}")
        if not no_browser and _has_browser():
            # some browsers return only when their window is closed; the login must not wait for that
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    run_with(options.open_host(), lambda host: host.skills.login(skill, present, expert_key=expert))
    print_err(f"logged in: {skill}")


@click.command("logout")
@_skill_options
@place_options
def logout_command(skill: str | None, provider: str | None, expert: str | None, options: HostOptions) -> None:
    """Log out of the server of a skill: delete its tokens here. With --provider, delete the key that login kept.

    No server is notified.
    """
    if provider is not None:
        remove_key(variable_of_provider(_require_one(skill, provider)))
        return
    skill = _require_one(skill, provider)
    was_there = run_with(options.open_host(), lambda host: host.skills.logout(skill, expert_key=expert))
    print_err(f"logged out: {skill}" if was_there else f"was not logged in: {skill}")


def _require_one(skill: str | None, provider: str | None) -> str:
    if (skill is None) == (provider is None):
        raise UsageError("name either a skill or --provider NAME")
    return skill or provider or ""


def _has_browser() -> bool:
    """Return whether a browser with a window can be opened: a browser in the terminal would take it over."""
    is_desktop = sys.platform in ("darwin", "win32")
    return is_desktop or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
