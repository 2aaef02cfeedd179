"""`perstack login` and `perstack logout`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from perstack.config.settings import Overrides
from perstack.frontends.cli.options import PlaceOptions, Setup, place_options
from perstack.frontends.cli.terminal import err
from perstack.host import Host

_F = TypeVar("_F", bound=Callable[..., object])
_T = TypeVar("_T")


def _options(command: _F) -> _F:
    for option in (
        click.option("--env-path", multiple=True, metavar="FILE", help="A .env file to read; may be given again."),
        click.option("--expert", metavar="KEY", help="Whose skill, if Experts declare it differently."),
    ):
        command = option(command)
    return click.argument("skill")(command)


@click.command("login")
@_options
@click.option("--no-browser", is_flag=True, help="Only print the address that you have to go to.")
@place_options
def login_command(
    skill: str,
    expert: str | None,
    env_path: tuple[str, ...],
    no_browser: bool,
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Log in to the server of a skill, for all later Jobs.

    Opens a browser, and waits five minutes for you to come back from it.
    """

    async def present(url: str) -> None:
        err(f"Log in here:\n{url}")
        if not no_browser and _has_browser():
            # some browsers end only when their window is closed: the answer is not to wait for that
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    async def work(host: Host) -> None:
        await host.login(skill, present, expert_key=expert)

    _with_host(PlaceOptions(config, workspace, storage), env_path, work)
    err(f"logged in: {skill}")


@click.command("logout")
@_options
@place_options
def logout_command(
    skill: str,
    expert: str | None,
    env_path: tuple[str, ...],
    config: str | None,
    workspace: str | None,
    storage: str | None,
) -> None:
    """Log out of the server of a skill: its tokens are deleted here. The server is not notified."""

    async def work(host: Host) -> bool:
        return await host.logout(skill, expert_key=expert)

    was_there = _with_host(PlaceOptions(config, workspace, storage), env_path, work)
    err(f"logged out: {skill}" if was_there else f"there was no login: {skill}")


def _with_host(place: PlaceOptions, env_path: tuple[str, ...], work: Callable[[Host], Awaitable[_T]]) -> _T:
    async def main() -> _T:
        async with Setup(place, Overrides(), env_path).host() as host:
            return await work(host)

    return asyncio.run(main())


def _has_browser() -> bool:
    """Whether one with a window may be opened: one in the terminal would take this program's place."""
    is_desktop = sys.platform in ("darwin", "win32")
    return is_desktop or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
