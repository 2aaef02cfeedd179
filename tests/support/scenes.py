"""Scenes of the terminal program: one for each screen and state, from an empty folder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from hosts import Bench, expert, recording, until_it_crashes
from terminal_app import Screen
from textual.widgets import Input

from perstack.core.definitions.permissions import Permissions
from perstack.definition_files import load_usable
from perstack.doors.shared.live_project import ReloadedProject
from perstack.host import Host
from perstack.ports.storage import RunRef
from perstack.testing.crashing_storage import CrashingStorage, CrashPoint
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher
from perstack.testing.scripted import text, tool, turn
from perstack.trust.agreements import TrustStore
from perstack_tui.app import StartApp

BEGIN = 1_800_000_000_000

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
LATER = {**SCRIPT, "guest": [SCRIPT["guest"][0].model_copy(update={"delay_ms": 1500})]}
VERSES = text("\n".join(f"Verse {number}." for number in range(1, 13)), delay_ms=4000)
MORE = {**SCRIPT, "lead": [*SCRIPT["lead"][:-1], VERSES]}
SLOW = {**SCRIPT, "lead": [PLAN, PARTS, text("The haiku begins with an old pond.", delay_ms=60_000)]}

Scene = Callable[[Screen], Awaitable[None]]


class DiesAtAnEdit(CrashingStorage):
    """A storage whose process dies after recording the decision to edit a file."""

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        if self.point is None and any(b'"callTools"' in one and b'"editTextFile"' in one for one in records):
            self.point = CrashPoint("after", self.appends + 1)
        await super().append(run, expected_seq, records)


class Still:
    """A stopped clock; some scenes move it on."""

    def __init__(self) -> None:
        self.time = BEGIN

    def now(self) -> int:
        return self.time


async def choose(screen: Screen) -> None:
    await screen.sees("Choose an Expert", "releaser")


async def work(screen: Screen) -> None:
    """Show a plan, two delegates, and a text that is being streamed."""
    await _begin_job(screen, "lead", "Write a haiku about a frog")
    await screen.sees("7 steps", "The", "at work")


async def question(screen: Screen) -> None:
    await _begin_job(screen, "guest", "Serve me something")
    await screen.sees("What will you drink?", "3. Water", "? waits for you")


async def approval(screen: Screen) -> None:
    await _begin_job(screen, "releaser", "Release it")
    await screen.sees("wants to call")
    if "Tab, then" in screen.text():  # keys still go to the text that was just typed
        await screen.press("tab")
    await screen.sees_no("Tab, then")
    if "before a yes" in screen.text():  # the call does not fit: a yes is taken once its end was visible
        await screen.press("end")
    await screen.sees("y yes")


async def scrolled(screen: Screen) -> None:
    """Show the middle of a transcript while more has come below."""
    await folded(screen)
    await screen.type("Go on")
    await screen.press("enter")
    await screen.sees("❯ Go on", "Verse")
    await screen.press(*["pageup"] * 3)
    await screen.sees("new lines", "^End shows them", "✓ completed")


async def find(screen: Screen) -> None:
    """Show a match of a search."""
    await folded(screen)
    await screen.press("ctrl+f")
    await screen.sees("find:")
    await screen.type("frog")
    await screen.sees(" of ", "Esc closes")


async def model(screen: Screen) -> None:
    """Show the models, with a typed name that is nearly one of them."""
    await _select_by_key(screen, "lead")
    await screen.press("f4")
    await screen.sees("in force")
    await screen.type("scriptd")
    await screen.sees("did you mean `scripted`?")


async def interrupted(screen: Screen) -> None:
    await work(screen)
    await screen.press("escape")
    await screen.sees("stopped", "Enter resumes")


async def tabs(screen: Screen) -> None:
    await question(screen)
    await screen.press("ctrl+t")
    await screen.sees("2 new")
    await _begin_job(screen, "lead", "Write a haiku about a frog")
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
    await screen.sees("the last valid one is used", "perstack.toml:5:", "Writes haiku")


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


async def _select_by_key(screen: Screen, key: str) -> None:
    await screen.type(key)
    await screen.press("enter")
    await screen.sees(f"what should {key} do?")


async def _begin_job(screen: Screen, key: str, query: str) -> None:
    await _select_by_key(screen, key)
    await screen.type(query)
    await screen.press("enter")


async def _scroll_to_top(screen: Screen, *words: str) -> None:
    """Scroll to the top until it stays there: late drawing may still follow the end."""

    def there(seen: str) -> bool:
        screen.app.pane.view.scroll_to(y=0, animate=False)
        return all(word in seen for word in words)

    await screen.wait_until(there, f"{words}")


async def folded(screen: Screen) -> None:
    """Show two finished delegates and the resulting text."""
    await _begin_job(screen, "lead", "Write a haiku about a frog")
    await screen.sees("✓ completed")
    await _scroll_to_top(screen, "❯ Write a haiku", "▸ ✓ writer#2")


async def unfolded(screen: Screen) -> None:
    await folded(screen)
    await screen.press("ctrl+o", "tab", "up", "up")
    await _scroll_to_top(screen, "❯ Write a haiku", "▾ ✓ writer#2", "think")


async def no_color(screen: Screen) -> None:
    await approval(screen)


async def draft(screen: Screen) -> None:
    """Show a question that puts aside a text which was being typed."""
    await _select_by_key(screen, "guest")
    await screen.type("Serve me something")
    await screen.press("enter", *"And then")
    await screen.sees("What will you drink?", "your draft comes back after it", "│ your answer")


async def refusing(screen: Screen) -> None:
    await approval(screen)
    await screen.press("n")
    await screen.sees("why not?")


async def crashed(screen: Screen) -> None:
    """Show a Job whose process was killed during a call."""
    host = screen.app.host
    dying = Bench(host.workspace, "file:perstack").host(SCRIPT, *EXPERTS, clock=host.clock, wrap=DiesAtAnEdit)
    with until_it_crashes():
        await dying.run("lead", "Write a haiku about a frog", job_id="frog")
    screen.app.open_job("frog")
    await screen.sees("How did they end?", "editTextFile of lead")
    if "Tab, then" in screen.text():
        await screen.press("tab")
    await screen.press("d")
    await screen.sees("it was done")


async def queued(screen: Screen) -> None:
    await screen.app.host.submit("guest", "Serve me something", job_id="tea")
    screen.app.open_job("tea")
    await screen.sees("queued", "… waits for a worker", "Esc stops watching")


async def history_queued(screen: Screen) -> None:
    host = screen.app.host
    await host.run("guest", "Serve me something", job_id="asks")
    await host.submit("guest", "Serve me too", job_id="waits")
    await host.run("lead", "Write a haiku about a frog", job_id="frog")
    await screen.press("f2")
    await screen.sees("(asks)", "(waits)", "queued", "waiting")


async def agree(screen: Screen) -> None:
    await screen.sees("evil-server", "F9 uses it")


async def checkpoints(screen: Screen) -> None:
    """Show the checkpoints of a Job with delegates."""
    await _open_history(screen)
    await screen.press("tab")
    await screen.sees("Runs  Checkpoints  Events", "Step 1 (frog-1-", "completed")


async def runs(screen: Screen) -> None:
    await checkpoints(screen)
    await screen.press("shift+tab")
    await screen.sees("├─ frog-2  writer", "frog-4  lead  completed")


async def run(screen: Screen) -> None:
    """Show one Run of a Job."""
    await runs(screen)
    await screen.press("down", "enter")
    await screen.sees("frog-2  Checkpoints  Events", "Step 2 (frog-2-")


async def events(screen: Screen) -> None:
    await checkpoints(screen)
    await screen.press("tab")
    await screen.sees("query", "completed")


async def event(screen: Screen) -> None:
    await events(screen)
    await screen.press("home", "down", "down", "down", "enter")
    await screen.sees(" of frog-1", "─ ")


async def messages(screen: Screen) -> None:
    """Show the messages of a checkpoint as the model sees them."""
    await checkpoints(screen)
    await screen.press("3", "enter")
    await screen.sees("Step 3 (frog-1-", "Messages", "─ ")


async def new_messages(screen: Screen) -> None:
    await messages(screen)
    await screen.press("tab")
    await screen.sees("since", "no more", "+ ")


async def commands(screen: Screen) -> None:
    await checkpoints(screen)
    await screen.press("3", "k")
    await screen.sees("Command lines", "perstack rewind frog")


async def export(screen: Screen) -> None:
    await checkpoints(screen)
    await screen.press("3", "x")
    screen.app.screen.query_one(Input).cursor_blink = False
    await screen.sees("Export", "checkpoint")


async def files(screen: Screen) -> None:
    """Show what a step did to files, and the other comparisons."""
    await checkpoints(screen)
    await screen.press("3", "m", "4", "d")
    await screen.sees("since the mark", "+the sound!")


async def rewind(screen: Screen) -> None:
    await checkpoints(screen)
    await screen.press("3", "r")
    await screen.sees("Change these files in", "-the sound!")


async def rewound(screen: Screen) -> None:
    await rewind(screen)
    await screen.press("y")
    await screen.sees("rewound", "u undoes it")


async def branch(screen: Screen) -> None:
    await checkpoints(screen)
    await screen.press("3", "b")
    await screen.sees("a new query, in a branch from frog-1-", "✓ completed")


async def again(screen: Screen) -> None:
    """Show an old question that is answered differently."""
    host = screen.app.host
    await host.run("guest", "Serve me something", job_id="tea")
    await host.answer("Tea", job_id="tea")
    await screen.press("f2")
    await screen.sees("(tea)")
    await screen.press("tab")
    await screen.sees("asks")
    await screen.press("home", "a")
    await screen.sees("What will you drink?", "3. Water", "another answer, in a branch from tea-1-")


async def _open_history(screen: Screen) -> None:
    """Show a Job with two Coordinator Runs in the History."""
    host = screen.app.host
    recording(host)
    await host.run("lead", "Write a haiku about a frog", job_id="frog")
    await host.continue_job("lead", "Shorter", job_id="frog")
    await screen.press("f2")
    await screen.sees("(frog)")


class Picture(NamedTuple):
    """A scene, and the class of the screen at its end."""

    scene: Scene
    shows: str = "Screen"
    """`Screen` is the screen of the Jobs."""


SCENES: dict[str, Picture] = {
    scene.__name__.strip("_").replace("_", "-"): Picture(scene, shows)
    for shows, scenes in {
        "Screen": (
            choose, work, folded, unfolded, question, approval, draft, refusing, no_color, interrupted, crashed, tabs,
            scrolled, find, broken, agree, queued, branch, again,
        ),
        "QuitScreen": (quitting,),
        "HelpScreen": (help,),
        "CommandPalette": (palette,),
        "InboxScreen": (inbox,),
        "HistoryScreen": (history, history_queued),
        "JobScreen": (checkpoints, runs, run, events),
        "TextsScreen": (event,),
        "CheckpointScreen": (messages, new_messages),
        "CommandsScreen": (commands,),
        "ExportScreen": (export,),
        "FilesScreen": (files,),
        "ModelScreen": (model,),
        "RewindScreen": (rewind, rewound),
    }.items()
    for scene in scenes
}  # fmt: skip
SLOWLY = {"work", "interrupted", "quitting"}
QUEUED = {"queued", "history-queued"}


def program_of(name: str, bench: Bench, clock: Still) -> StartApp:
    """Return the program for a scene."""
    dispatcher = InMemoryDispatcher() if name in QUEUED else None
    script = {"draft": LATER, "scrolled": MORE, **dict.fromkeys(SLOWLY, SLOW)}.get(name, SCRIPT)
    host = bench.host(script, *EXPERTS, clock=clock, dispatcher=dispatcher)  # type: ignore[arg-type]
    if name == "broken":
        return extended_program(bench, host, "x = [\n")
    if name == "agree":
        return extended_program(
            bench, host, '[experts.writer.skills.evil]\ntype = "mcpStdioSkill"\ncommand = "evil-server"\n'
        )
    return StartApp(host)


def extended_program(bench: Bench, host: Host, more: str) -> StartApp:
    """Return the program with a definition that was extended after its start."""
    file = bench.workspace / "perstack.toml"
    file.write_text('[experts.writer]\ndescription = "Writes haiku"\ninstruction = "You write."\n')
    live = ReloadedProject(load_usable(file), TrustStore(bench.workspace / "trust"))
    host.use(live.loaded.project)
    file.write_text(file.read_text() + more)
    return StartApp(host, live)
