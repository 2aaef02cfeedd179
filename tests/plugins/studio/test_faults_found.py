"""Planted faults are found in `perstack studio` on the path of docs/studio.md, «Find out why», in a few clicks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from browser import Person, open_browser, person
from studio_server import serving_studio
from terminal import Terminal, reply, trusting

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

MAX_CLICKS = 6  # from the list of Jobs to a page that shows the fault
TODO = ("todo", {"newTodos": ["look"]})
THOUGHT = "words that fill the context " * 30

PROJECT = """
maxRepeats = 0
[experts.counter]
instruction = "You count."
[experts.lead]
instruction = "You lead."
delegates = ["converter"]
[experts.converter]
description = "converts files"
instruction = "You convert."
[experts.writer]
instruction = "You write."
[experts.chief]
instruction = "You tidy up."
delegates = ["cleaner"]
[experts.cleaner]
description = "removes files"
instruction = "You remove."
[experts.keeper]
instruction = "You keep."
contextWindow = 4000
[experts.planner]
instruction = "You plan."
delegates = ["reader", "checker", "reporter"]
[experts.reader]
description = "reads"
instruction = "You read."
[experts.checker]
description = "checks"
instruction = "You check."
[experts.reporter]
description = "reports"
instruction = "You report."
[permissions]
ask = ["writeTextFile"]
"""
SCRIPT = {
    # a wrong argument early: the query names 2026, the first of 150 steps reads 2025
    "counter": [
        reply("", ("readTextFile", {"path": "notes-2025.txt"})),
        *(reply(f"Line {number}.", TODO) for number in range(150)),
        reply("There are 150 lines."),
    ],
    # a delegate that lied: each of its calls failed
    "lead": [reply("", ("converter", {"query": "Convert a.txt and b.txt"})), reply("Both are converted.")],
    "converter": [
        reply("", ("readTextFile", {"path": "a.txt"})),
        reply("", ("readTextFile", {"path": "b.txt"})),
        reply("Done: I converted both files."),
    ],
    # an approval of the wrong thing: the query names report.md
    "writer": [
        reply("", ("writeTextFile", {"path": "settings.md", "text": "The report.\n"})),
        reply("The report is written."),
    ],
    # a condition that the query of a delegate does not have
    "chief": [reply("", ("cleaner", {"query": "Remove all old files"})), reply("Tidied up.")],
    "cleaner": [*(reply("", TODO) for _ in range(3)), reply("Removed all of them, the archive too.")],
    # a condition that a summary does not have
    "keeper": [
        *(reply("", ("think", {"thought": f"thought {number}: {THOUGHT}"})) for number in range(12)),
        reply("Removed all of them."),
    ],
    "You write the notes": [reply("The user wants old files to be removed.")],
    # a Run with most of the tokens
    "planner": [
        reply("", *((name, {"query": f"Go, {name}"}) for name in ("reader", "checker", "reporter")), usage=(900, 40)),
        reply("Planned.", usage=(1_000, 40)),
    ],
    "reader": [reply("Read.", usage=(700, 30))],
    "checker": [
        *(reply(f"Again {number}.", TODO, usage=(40_000, 900)) for number in range(8)),
        reply("Checked.", usage=(40_000, 900)),
    ],
    "reporter": [reply("Reported.", usage=(600, 20))],
}


class Clicks:
    """A page, and how often a person has clicked in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.count = 0

    def on(self, link: Locator) -> None:
        """Click, and wait for the page that it leads to."""
        link.click()
        self.count += 1
        self.page.wait_for_load_state()

    def shows(self, *texts: str) -> None:
        """Wait until the page shows each text to whoever looks at it: nothing folded counts."""
        for text in texts:
            self.page.get_by_text(text).locator("visible=true").first.wait_for()


@pytest.fixture(scope="module")
def me(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """Somebody who looks at a project with a Job for each fault."""
    terminal = Terminal(tmp_path_factory.mktemp("faults"))
    with trusting(terminal.workspace):
        terminal.project(PROJECT, **SCRIPT)
        for name in ("notes-2025.txt", "notes-2026.txt"):
            (terminal.workspace / name).write_text("a line\n" * 150)
        for expert, query in (
            ("counter", "How many lines has notes-2026.txt?"),
            ("lead", "Convert a.txt and b.txt"),
            ("writer", "Write the report to report.md"),
            ("chief", "Remove old files, but nothing in archive/"),
            ("keeper", "Remove old files, but nothing in archive/"),
            ("planner", "Plan the week"),
        ):
            done = terminal.run(
                *("run", expert, query, "--provider", "scripted", "--no-input", "--job-id", expert),
                *("--max-steps", "200"),
            )
            assert done.code in (0, 3), done.err
        (question,) = terminal.run("inbox", "--json").events
        answered = terminal.run("answer", question["id"], "yes", "--provider", "scripted")
        assert answered.code == 0, answered.err
        with open_browser() as browser, serving_studio(terminal) as server, person(browser, server) as found:
            yield found


@pytest.fixture
def clicks(me: Person, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Clicks]]:
    """Return a function that opens a Job in the list of Jobs. Afterwards the clicks are printed and limited."""
    begun: list[Clicks] = []

    def open_job(expert: str) -> Clicks:
        clicks = Clicks(me.tab("/jobs"))
        begun.append(clicks)
        clicks.on(clicks.page.locator(f'tbody a[href="/jobs/{expert}"]'))
        return clicks

    yield open_job
    for each in begun:
        print(f"{request.node.name}: {each.count} clicks")
        assert each.count <= MAX_CLICKS


def run_of(clicks: Clicks, expert: str) -> Locator:
    """Return a Run in the time line."""
    return clicks.page.locator("live-state .line a", has_text=expert)


def test_a_wrong_argument_early_in_a_long_run(clicks: Callable[[str], Clicks]) -> None:
    found = clicks("counter")
    found.shows("There are 150 lines.")
    found.on(run_of(found, "counter"))
    found.page.get_by_label("Step, of").fill("1")
    found.on(found.page.get_by_role("button", name="Go to the step"))

    found.shows("How many lines has notes-2026.txt?", '"path": "notes-2025.txt"')


def test_a_delegate_that_lied(clicks: Callable[[str], Clicks]) -> None:
    found = clicks("lead")
    found.on(run_of(found, "lead"))
    found.on(found.page.locator(".entry.call summary", has_text="converter"))
    found.shows("Done: I converted both files.")
    found.on(found.page.get_by_role("link", name="The conversation of the delegate"))

    found.shows("Done: I converted both files.", "failed")
    assert found.page.locator(".entry.call details[open] .status.bad").count() == 2


def test_an_approval_of_the_wrong_thing(clicks: Callable[[str], Clicks]) -> None:
    found = clicks("writer")
    found.on(run_of(found, "writer"))
    found.on(found.page.locator(".entry.call summary", has_text="writeTextFile"))

    found.shows("Write the report to report.md", '"path": "settings.md"', "once by ")
    found.shows("rule writeTextFile")


def test_a_condition_that_a_delegate_was_not_given(clicks: Callable[[str], Clicks]) -> None:
    found = clicks("chief")
    found.on(run_of(found, "cleaner"))

    found.shows("Remove old files, but nothing in archive/", "Remove all old files", "the archive too")


def test_a_condition_that_a_summary_does_not_have(clicks: Callable[[str], Clicks]) -> None:
    found = clicks("keeper")
    found.on(run_of(found, "keeper"))
    found.on(found.page.locator(".entry", has_text="compacts").first.get_by_role("link", name="step"))
    found.on(found.page.locator("summary", has_text="The summary"))

    found.shows("Remove old files, but nothing in archive/", "The user wants old files to be removed.")


def test_a_run_that_costs_most_even_if_no_price_is_known(clicks: Callable[[str], Clicks]) -> None:
    found = clicks("planner")

    lines = found.page.locator("live-state .line > span").all_inner_texts()
    assert [text.split(", ")[:2] for text in lines] == [
        ["2 steps", "1,980 tokens"],
        ["1 step", "730 tokens"],
        ["9 steps", "368,100 tokens"],
        ["1 step", "620 tokens"],
    ]
    found.on(run_of(found, "checker"))
    found.shows("Again 7.")
