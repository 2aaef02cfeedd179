"""Every screen and state is what it was, and the pictures of docs/start.md are what a person sees.

`PERSTACK_KEEP_SCREENS=1` writes them anew; look at each before it is committed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hosting import Bench, expert, wait_for
from pages import ROOT
from starting import Screen, started
from textual.widgets import Input

from perstack.config.load import load_usable
from perstack.core.policy.permissions import Permissions
from perstack.engine import generation, skills, toolrun, tries, who
from perstack.engine.clock import SystemClock
from perstack.engine.live import LiveProject
from perstack.frontends.tui.app import StartApp
from perstack.host import Host
from perstack.testing.scripted import text, tool, turn

KEEPS = bool(os.environ.get("PERSTACK_KEEP_SCREENS"))
SMALL, WIDE = (80, 24), (200, 50)
BEGIN = 1_800_000_000_000
IN_DOCS = {"choose", "work", "question", "approval", "tabs", "interrupted", "help"}
HERE = Path(__file__).parent / "pictures"

EXPERTS = (
    expert("lead", description="Plans a text, and lets the writer write its parts", delegates=("writer",)),
    expert("writer", description="Writes a part of a text"),
    expert("guest", description="Asks what to serve, then serves it", ask=True),
    expert(
        "releaser",
        description="Releases what is ready, if you agree",
        permissions=Permissions(ask=("exec(git push *)", "editTextFile", "writeTextFile")),
    ),
)
PLAN = turn(
    tool("todo", {"newTodos": ["the pond", "the frog"]}),
    thinking="Two parts: the pond first, for the frog needs something to jump into. Then the frog.",
    text="I plan two parts, and let the writer write them.",
    usage=(1200, 40),
)
PARTS = turn(tool("writer", {"query": "Write the part about the old pond"}), tool("writer", {"query": "Then the frog"}))
WRITE = turn(
    tool("writeTextFile", {"path": "pond.md", "text": "An old pond.\nA frog jumps in.\n"}),
    tool("todo", {"completedTodos": [0]}),
    usage=(1500, 90),
)
EDIT = turn(
    tool("editTextFile", {"path": "pond.md", "oldText": "A frog jumps in.", "newText": "A frog jumps in:\nthe sound!"}),
    tool("nosuch", {"a": 1}),
    usage=(1600, 80),
)
DONE = text("The haiku is in pond.md:\n\n- an old pond\n- a frog jumps in\n- the sound of water", usage=(1700, 60))
SCRIPT = {
    "lead": [PLAN, PARTS, WRITE, EDIT, DONE, text("Shorter: pond, frog, sound.", usage=(1800, 20))],
    "writer": [turn(tool("think", {"thought": "hm"}), usage=(300, 10)), text("A part.", usage=(400, 20))],
    "guest": [
        turn(
            tool("askUser", {"question": "What will you drink?", "options": ["Tea", "Coffee", "Water"]}), usage=(200, 9)
        ),
        text("Served.", usage=(210, 5)),
    ],
    "releaser": [
        turn(tool("editTextFile", {"path": "notes.md", "oldText": "version 1", "newText": "version 2\n(stable)"})),
        turn(tool("exec", {"command": "git", "args": ["push", "origin", "main"]}), usage=(200, 10)),
        text("Released.", usage=(220, 5)),
    ],
}
SLOW = {**SCRIPT, "lead": [PLAN, PARTS, text("The haiku begins with an old pond.", delay_ms=60_000)]}

Scene = Callable[[Screen], Awaitable[None]]


class Still:
    """Time, which stands still but for a second at each look."""

    def __init__(self) -> None:
        self.time = BEGIN

    def now(self) -> int:
        return self.time


async def choose(screen: Screen) -> None:
    await screen.sees("Choose an Expert", "releaser")


async def work(screen: Screen) -> None:
    await _begin(screen, "lead", "Write a haiku about a frog")
    await screen.sees("7 steps", "The", "at work")


async def question(screen: Screen) -> None:
    await _begin(screen, "guest", "Serve me something")
    await screen.sees("What will you drink?", "3. Water", "? waits for you")


async def approval(screen: Screen) -> None:
    await _begin(screen, "releaser", "Release it")
    await screen.sees("wants to call", "+version 2", "y yes")

    screen.app.pane._panel.focus()  # what was typed just before keeps the keys
    await screen.sees_no("Tab, then")


async def interrupted(screen: Screen) -> None:
    await work(screen)
    await screen.press("escape")
    await screen.sees("stopped", "Enter resumes")


async def tabs(screen: Screen) -> None:
    await question(screen)
    await screen.press("ctrl+t")
    await screen.sees("2 new")
    await _begin(screen, "lead", "Write a haiku about a frog")
    await screen.sees("✓ completed", "1 guest ?")


async def quitting(screen: Screen) -> None:
    await work(screen)
    await screen.press("ctrl+q")
    await screen.sees("keep waiting")


async def palette(screen: Screen) -> None:
    await screen.press("ctrl+p")
    screen.app.screen.query_one(Input).cursor_blink = False
    await screen.sees("Help  F1", "Show every key")


async def broken(screen: Screen) -> None:
    await screen.sees("the last good one is used", "perstack.toml:5:", "Writes haiku")


async def inbox(screen: Screen) -> None:
    await question(screen)
    await screen.press("f3")
    await screen.sees("Inbox", "What will you drink?", "just now")


async def history(screen: Screen) -> None:
    host, clock = screen.app.host, screen.app.host.clock
    await host.run("guest", "Serve me something", job_id="tea")
    clock.time += 60_000  # type: ignore[attr-defined]  # it is `Still`
    await host.run("lead", "Write a haiku about a frog", job_id="frog")
    await screen.press("f2")
    await screen.sees("(tea)", "(frog)")


async def help(screen: Screen) -> None:
    await screen.press("f1")
    await screen.sees("Show every key")


async def _choose(screen: Screen, key: str) -> None:
    await screen.type(key)
    await screen.press("enter")
    await screen.sees(f"what should {key} do?")


async def _begin(screen: Screen, key: str, query: str) -> None:
    await _choose(screen, key)
    await screen.type(query)
    await screen.press("enter")


SCENES: dict[str, Scene] = {
    one.__name__.replace("_", "-"): one
    for one in (
        choose, work, question, approval, interrupted, tabs, broken, inbox, history, help, palette, quitting,
    )
}  # fmt: skip
SLOWLY = {"work", "interrupted", "quitting"}


def host_of(bench: Bench, script: object, clock: Still) -> Host:
    return bench.host(script, *EXPERTS, clock=clock)  # type: ignore[arg-type]


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are those of Greenwich."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, SMALL) for name in SCENES),
        *((name, WIDE) for name in ("choose", "help")),
    ],
)
def test_a_screen_looks_as_it_did(
    name: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, clock = Bench(tmp_path / "haiku", "file:perstack"), Still()
    bench.workspace.mkdir()
    monkeypatch.setattr(SystemClock, "now", lambda _: clock.now())
    monkeypatch.setattr(who, "_user", lambda: "ann")
    for module in (generation, skills, toolrun, tries):  # what is measured takes no time
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    (bench.workspace / "notes.md").write_text("# Notes\n\nversion 1\n")

    kept = (ROOT / "docs/pictures" if name in IN_DOCS and size == SMALL else HERE) / f"{name}.svg"
    kept = kept if size == SMALL else HERE / f"{name}-wide.svg"
    before = said(kept.read_text()) if kept.exists() and not KEEPS else None

    async def person() -> tuple[str, str]:
        host = host_of(bench, SLOW if name in SLOWLY else SCRIPT, clock)
        app = changed_for_the_worse(bench, host) if name == "broken" else None
        async with started(host, size=size, app=app) as screen:
            await SCENES[name](screen)
            return await screen.pictured(plain, before, said)

    seen, found = wait_for(person())
    if KEEPS:
        kept.parent.mkdir(exist_ok=True, parents=True)
        kept.write_text(found)
        print(f"──── {name} ────\n{seen}")
    assert kept.exists(), f"{kept} is missing: PERSTACK_KEEP_SCREENS=1 writes it"
    assert said(found) == said(kept.read_text()), f"it looks like this now:\n{seen}"


def changed_for_the_worse(bench: Bench, host: Host) -> StartApp:
    """The program, with a definition that cannot be read since it was started."""
    file = bench.workspace / "perstack.toml"
    file.write_text('[experts.writer]\ndescription = "Writes haiku"\ninstruction = "You write."\n')
    live = LiveProject(load_usable(file))
    host.use(live.loaded.project)
    file.write_text(f"{file.read_text()}x = [\n")
    return StartApp(host, live)


def plain(svg: str) -> str:
    """The picture without what differs from time to time, and without what it would fetch from elsewhere."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    svg = re.sub(r"<!-- Generated .*?-->\s*", "", svg).replace("Fira Code", "monospace")
    svg = re.sub(r"\b1m[0-9a-z]{10}(?=-\d)", "1m0000000000", svg)  # a Job's id
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines())


def said(svg: str) -> str:
    """What stands in a picture."""
    return "\n".join(re.findall(r"<text [^>]*>([^<]*)</text>", svg))
