"""What a person sees: an interrupted call, an approval, no key, a killed Job, the templates; kept as text.

`PERSTACK_KEEP_SCREENS=1` writes the screens anew; look at each before it is committed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from terminal import Terminal, reply
from tmux import PERSTACK, Tmux, tmux

SCREENS = Path(__file__).parent / "screens" / "people"
TOML = """
[experts.clerk]
instruction = "You file."
[permissions]
allow = ["exec"]
ask = ["writeTextFile"]
"""
KILLS = ("exec", {"command": "sh", "args": ["-c", "kill -9 $PPID"]})
RUN = f"{PERSTACK} run clerk 'File it' --provider scripted --job-id job"


def kill(terminal: Terminal) -> None:
    terminal.project(TOML, clerk=[reply("I file it.", KILLS), reply("Filed.")])
    assert terminal.run("run", "clerk", "File it", "--provider", "scripted", "--job-id", "job").code not in (0, 2)


def interrupted(terminal: Terminal, window: Tmux) -> None:
    kill(terminal)
    window.type(f"clear; {PERSTACK} resume job --settle call_0_0=ask")
    window.sees("Enter: later)")
    window.type("1")
    window.sees("completed")


def approval(terminal: Terminal, window: Tmux) -> None:
    write = ("writeTextFile", {"path": "letter.txt", "text": "Dear reader,\nall is filed.\n"})
    terminal.project(TOML, clerk=[reply("I write it.", write), reply("Written.")])
    window.type(f"clear; {RUN}")
    window.sees("Enter: later)")
    window.type("perhaps")
    window.sees("perhaps", "Enter: later)")
    window.press("1")
    window.sees("completed")


def edited(terminal: Terminal, window: Tmux) -> None:
    write = ("writeTextFile", {"path": "letter.txt", "text": "Dear reader,\nall is filed.\n"})
    terminal.project(TOML, clerk=[reply("I write it.", write), reply("Written.")])
    window.type(f"clear; EDITOR='sed -i s/Dear/Esteemed/' {RUN}")
    window.sees("Enter: later)")
    window.press("e")
    window.sees("completed")
    assert (terminal.workspace / "letter.txt").read_text().startswith("Esteemed")


def no_key(terminal: Terminal, window: Tmux) -> None:
    terminal.project(TOML)
    window.type(f"clear; PERSTACK_PLUGINS= {PERSTACK} run clerk 'File it'; echo \"exit status $?\"")
    window.sees("exit status 2")


def killed(terminal: Terminal, window: Tmux) -> None:
    kill(terminal)
    window.type(f"clear; {PERSTACK}")
    window.sees("All commands")


def templates(terminal: Terminal, window: Tmux) -> None:
    window.type(f"clear; PERSTACK_PLUGINS= {PERSTACK} init notes")
    window.sees("Which of these [writer]")
    window.press("C-c")


@pytest.mark.parametrize(("columns", "lines"), [(80, 30), (120, 40)])
@pytest.mark.parametrize(
    "scene", [interrupted, approval, edited, no_key, killed, templates], ids=lambda scene: scene.__name__
)
def test_a_screen_looks_as_it_did(
    terminal: Terminal, scene: Callable[[Terminal, Tmux], None], columns: int, lines: int
) -> None:
    with tmux(terminal, columns=columns, lines=lines) as window:
        scene(terminal, window)
        text = window.screen().replace(PERSTACK, "perstack").replace(str(terminal.workspace), "WORKSPACE")
    text = re.sub(r"(result: \w+).*", r"\1: …", re.sub(r"(by:? +)\S+, cli", r"\1USER, cli", text))
    found = "".join(f"{line.rstrip()}\n" for line in text.rstrip().removesuffix("\n$").splitlines())
    path = SCREENS / f"{scene.__name__}-{columns}.txt"
    if os.environ.get("PERSTACK_KEEP_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()
