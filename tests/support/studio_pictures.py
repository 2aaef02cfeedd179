"""Take the pictures of docs/studio.md: `PYTHONPATH=tests/support python tests/support/studio_pictures.py [FOLDER]`.

Without a folder the pictures of the page are written; with one, each page in each size, dark and light, to look at.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from browser import Person, crawl, kind_of, open_browser, person, picture
from studio_server import serving_studio
from terminal import Terminal, reply, trusting

KEPT = Path(__file__).parents[2] / "docs" / "pictures" / "studio"
SIZES = ((390, 844), (1280, 800), (1920, 1080))

PROJECT = """
maxSteps = 40
[prices."scripted/scripted"]
input = 3.0
output = 15.0
[experts.planner]
description = "Plans a journey, and has it written down"
instruction = "Plan what the query asks for. Let the writer write it."
delegates = ["writer", "timetable"]
[experts.writer]
description = "Writes a text to a file"
instruction = "Write what the query asks for to the file that it names."
[experts.timetable]
description = "Finds trains"
instruction = "Find trains."
[permissions]
ask = ["writeTextFile"]
"""

PLAN = """Two days, by train:

| day | from | to | train |
| --- | --- | --- | --- |
| Saturday | Genova | Levanto | 9:20 |
| Sunday | Levanto | Genova | 18:05 |

**Levanto** is quieter than the villages, and the path to Monterosso begins there. `trip.md` has the whole plan.
"""
FILE = "# A weekend in Liguria\n\n## Saturday\n\n- 9:20 Genova – Levanto\n- Path to Monterosso, 3 hours\n"
SCRIPT = {
    "planner": [
        {**reply("I look for trains first.", ("timetable", {"query": "Genova to Levanto, on a Saturday"}),
                 thinking="By train, two days. Trains first, then the text.", usage=(2150, 96)), "delayMs": 300},
        {**reply("Now the text.", ("writer", {"query": "Write trip.md: Saturday Levanto, Sunday back"}),
                 usage=(2410, 88)), "delayMs": 250},
        {**reply(PLAN, usage=(2700, 210)), "delayMs": 300},
    ],
    "timetable": [
        {**reply("", ("todo", {"newTodos": ["Saturday morning", "Sunday evening"]}), usage=(810, 40)), "delayMs": 300},
        {**reply("Saturday 9:20, Sunday 18:05.", usage=(880, 30)), "delayMs": 200},
    ],
    "writer": [
        {**reply("", ("writeTextFile", {"path": "trip.md", "text": FILE}), usage=(1200, 150)), "delayMs": 500},
        {**reply("trip.md is written.", usage=(1420, 20)), "delayMs": 200},
    ],
}  # fmt: skip


def main(folder: Path | None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_STATE_HOME"] = f"{temporary}/state"
        terminal = Terminal(Path(temporary) / "journeys")
        terminal.workspace.mkdir()
        terminal.env["PERSTACK_TRUST"] = str(terminal.workspace)
        with (
            trusting(terminal.workspace),
            open_browser() as browser,
            serving_studio(terminal.project(PROJECT, **SCRIPT)) as server,
        ):
            plan = terminal.workspace / "trip.md"
            plan.write_text("# A weekend in Liguria\n\nTo be planned.\n")
            before = plan.read_bytes()
            for name, query in (("trip", "A weekend in Liguria, by train"), ("hills", "Three days in the hills")):
                terminal.run("run", "planner", query, "--provider", "scripted", "--job-id", name, "--no-input")
            question = next(one["id"] for one in terminal.run("inbox", "--json").events if one["id"].startswith("trip"))
            terminal.run("answer", question, "yes", "--provider", "scripted")
            plan.write_bytes(before)  # as it was when the other Job asked
            for scheme in ("light", "dark"):
                for width, height in SIZES:
                    view = {"width": width, "height": height}
                    with person(browser, server, viewport=view, color_scheme=scheme) as me:
                        me.expected = {404}
                        if folder is not None:
                            _take_pictures(me, folder, f"{width}-{scheme}")
                        elif width != 1920:
                            _take_picture(me, width, scheme)


def _take_pictures(me: Person, folder: Path, name: str) -> None:
    for path, page in crawl(me, "/", "/jobs", "/jobs/trip", "/experts/planner/start"):
        picture(page, folder / f"{kind_of(path).strip('/').replace('/', '_').replace('?', '_') or 'inbox'}-{name}.png")


def _take_picture(me: Person, width: int, scheme: str) -> None:
    wanted = {(1280, "light"): {"job": "/jobs/trip", "conversation": "/jobs/trip/conversation"},
              (1280, "dark"): {"job-dark": "/jobs/trip"}}  # fmt: skip
    page = me.tab("/")
    for name, path in wanted.get((width, scheme), {}).items():
        picture(me.go(page, path), KEPT / f"{name}.png")
    me.go(page, "/")
    if scheme == "light":
        page.get_by_role("link", name="Read and decide").first.click()
        page.wait_for_load_state()
        picture(page, KEPT / ("question.png" if width == 1280 else "question-phone.png"))
    elif width == 390:
        picture(page, KEPT / "inbox-phone-dark.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
