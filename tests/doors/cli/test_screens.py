"""Every screen of the command line, kept beside this file: wide, narrow, with colours, without.

`PERSTACK_KEEP_SCREENS=1` writes them anew; look at each before it is committed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from terminal import Terminal, reply

from perstack.engine.plugins import job_skills
from perstack.engine.runs import generation, tool_calls
from perstack.engine.runs import generation as tries
from perstack.system import user as who
from perstack.system.clock import SystemClock

SCREENS = Path(__file__).parent / "screens" / "commands"
BEGIN = 1_800_000_000_000
MINUTE = 60_000

PROJECT = """
model = "scripted"
maxSteps = 30
[provider]
providerName = "scripted"
[prices."scripted/scripted"]
input = 3
output = 15
[permissions]
ask = ["exec(git push *)"]
deny = ["exec(rm *)"]
[experts.lead]
description = "Plans a text, and lets the writer write its parts"
instruction = "You plan. Let the writer write each part, then put them together."
delegates = ["writer"]
[experts.writer]
description = "Writes a part of a text"
instruction = "You write what the query asks for."
[experts.guest]
description = "Asks what to serve"
instruction = "You ask, then you serve."
[experts.guest.skills.user]
type = "interactiveSkill"
[experts.guest.skills.user.tools.askUser]
description = "Ask the person one question"
inputJsonSchema = '''{"type": "object", "properties": {"question": {"type": "string"}, "options": {"type": "array"}},
"required": ["question"]}'''
[experts.releaser]
description = "Releases what is ready"
instruction = "You push what is ready."
[experts.improver]
description = "Makes a text shorter"
instruction = "You make the text shorter."
[experts.improver.iterate]
evaluator = ["sh", "-c", "echo '{\\"score\\": 0.8, \\"analysis\\": \\"Short, and one image too many.\\"}'"]
target = 0.9
maxIterations = 2
"""

LONG = "Write about the old pond, the frog that jumps in, and the sound of water: 古池や蛙飛びこむ水の音"
SCRIPT = {
    "lead": [
        reply(
            "I plan two parts.",
            ("todo", {"newTodos": ["the pond", "the frog"]}),
            thinking="Two parts.",
            usage=(1200, 40),
        ),
        reply("", ("writer", {"query": "the pond"}), usage=(1300, 60)),
        reply("", ("nosuch", {"a": 1}), ("todo", {"completedTodos": [0, 1]}), usage=(1500, 30)),
        reply("An old pond.\n\nA frog jumps in: the sound of water.", usage=(1600, 80)),
        *[reply("Shorter: a pond, a frog, a sound.", usage=(1700, 20))] * 3,
    ],
    "writer": [reply("", ("think", {"thought": "hm"}), usage=(300, 10)), reply("A part.", usage=(400, 20))],
    "guest": [reply("", ("askUser", {"question": "What to drink?", "options": ["Tea", "Coffee"]}), usage=(200, 10))],
    "releaser": [reply("", ("exec", {"command": "git", "args": ["push", "origin", "main"]}), usage=(200, 10))],
    "improver": [reply("A pond. A frog. A sound.", usage=(100, 10))],
}

COMMANDS: dict[str, tuple[str, ...]] = {
    "help": ("--help",),
    "help-of-jobs": ("jobs", "--help"),
    "help-of-task": ("task", "--help"),
    "jobs": ("jobs",),
    "jobs-failed": ("jobs", "--status", "failed"),
    "log": ("log", "pond"),
    "log-verbose": ("log", "pond", "--step", "1-2", "--verbose"),
    "log-tree": ("log", "pond", "--tree"),
    "log-checkpoint": ("log", "--checkpoint", "pond-1-6"),
    "log-messages": ("log", "drink", "--messages"),
    "log-of-approval": ("log", "release"),
    "inbox": ("inbox",),
    "task-list": ("task", "list"),
    "task-get": ("task", "get", "house"),
    "task-checkpoints": ("task", "checkpoints", "house"),
    "iterations": ("iterations",),
    "report": ("report", "shorter"),
    "cost": ("cost",),
    "cost-by-day": ("cost", "--by", "day"),
    "verify": ("verify", "pond"),
    "verify-damaged": ("verify", "broken"),
    "replay": ("replay", "pond"),
    "prune": ("prune", "--expert", "lead", "--dry-run"),
    "validate": ("validate",),
    "validate-wrong": ("validate", "--config", "wrong.toml"),
    "permissions-test": ("permissions", "test", "releaser", "exec", '{"command": "git", "args": ["push", "origin"]}'),
    "permissions-backtest": ("permissions", "backtest", "--rules", "stricter.toml"),
    "trust": ("trust", "--show"),
    "completion": ("completion", "csh"),
    "error-no-command": ("jbos",),
    "error-no-option": ("jobs", "--taek", "3"),
    "error-no-job": ("log", "nosuch"),
    "error-ambiguous": ("log", "sh"),
    "error-no-expert": ("run", "poet", "A haiku"),
    "error-no-file": ("validate", "--config", "nosuch.toml"),
    "error-not-driven": ("cancel", "drink"),
    "error-unsure": ("delete", "pond"),
    "error-answered": ("answer", "pond", "yes"),
    "damaged": ("log", "broken"),
}


class Clock:
    """A clock that stands still while a command runs."""

    now = BEGIN


def stand_still(patch: pytest.MonkeyPatch, clock: type[Clock]) -> None:
    patch.setattr(SystemClock, "now", lambda _: clock.now)
    patch.setattr(who, "_user", lambda: "ann")
    for module in (generation, job_skills, tool_calls, tries):  # what is measured takes no time
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Yield a project with Jobs, tasks and iterations of every kind, with the same ids and times on each day."""
    terminal = Terminal(tmp_path_factory.mktemp("screens"))
    terminal.project(PROJECT, **SCRIPT)
    (terminal.workspace / "stricter.toml").write_text('[permissions]\ndefault = "allow"\ndeny = ["todo"]\n')
    (terminal.workspace / "wrong.toml").write_text('modle = "x"\n[experts.a]\ninstruction = 3\ndelegates = ["b"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        stand_still(patch, Clock)

        def did(*args: str, status: int = 0) -> None:
            Clock.now += MINUTE
            result = terminal.call(*args)
            assert result.code == status, (args, result.err)

        did("run", "lead", LONG, "--job-id", "pond", "--label", "team=poets")
        did("run", "lead", "Once more, shorter", "--continue-job", "pond")
        did("run", "lead", "Another frog", "--continue-job", "pond", "--resume-from", "pond-1-6")
        did("run", "guest", "Serve", "--job-id", "drink", status=3)
        did("run", "releaser", "Release it", "--job-id", "release", status=3)
        did("iterate", "improver", "The pond, shorter", "--id", "shorter")
        did("run", "writer", "A part", "--job-id", "broken")
        did(
            "task",
            "create",
            "house",
            "--name",
            "Paint the house",
            "--agent",
            "painter",
            "--state",
            '{"left": ["roof"]}',
            "--start",
        )
        did("task", "checkpoint", "house", "--state", '{"left": []}', "--name", "walls")
        did("task", "pause", "house", "--reason", "human_approval", "--message", "May I paint the door red?")
        did("task", "create", "boat", "--depends-on", "house", "--description", LONG)
        log = terminal.log_of("broken-1")
        log.write_bytes(log.read_bytes().replace(b"A part", b"A hole", 1))
        Clock.now += MINUTE
        yield terminal
    time.tzset()


def screen(terminal: Terminal, name: str, columns: int, *, colours: bool) -> str:
    result = terminal.call(*COMMANDS[name], columns=columns, env={} if colours else {"NO_COLOR": "1"})
    text = f"{result.out}{result.err}".replace(str(terminal.workspace), "WORKSPACE")
    return f"{text}[exit status {result.code}]\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_looks_as_it_did(store: Terminal, name: str) -> None:
    shown = {
        f"{columns} columns{', in colour' if colours else ''}": screen(store, name, columns, colours=colours)
        for columns in (80, 200)
        for colours in (False, True)
    }
    for columns in (80, 200):
        plain, coloured = shown[f"{columns} columns"], shown[f"{columns} columns, in colour"]
        assert "\x1b" not in plain
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
        if name in TABLES:
            assert all(cell_len(line) <= columns for line in plain.splitlines())
    found = "\n".join(f"──── {title} ────\n{text}" for title, text in shown.items()).replace("\x1b", "␛")
    path = SCREENS / f"{name}.txt"
    if os.environ.get("PERSTACK_KEEP_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()


TABLES = (
    *("jobs", "jobs-failed", "log", "log-tree", "log-of-approval", "task-list", "task-get", "task-checkpoints"),
    *("iterations", "report", "cost", "cost-by-day", "verify", "prune"),
)
"""Screens that fit their terminal. Texts in full, commands to copy and errors are broken by it where they must be."""


def test_every_screen_that_is_kept_is_one_of_a_command() -> None:
    assert {path.stem for path in SCREENS.iterdir()} == set(COMMANDS)
