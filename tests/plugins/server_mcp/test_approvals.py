"""Calls that a rule asks about, put to the person behind an MCP client, and never to the client's model."""

from __future__ import annotations

import pytest
from changing_server import EVIL, Project, entry
from editor import attached, structure, texts
from hosts import wait_for
from mcp_types import ElicitRequestFormParams, ElicitResult
from terminal import Terminal, reply

RULES = """
[permissions]
ask = ["appendTextFile"]
[experts.guest]
instruction = "You write."
"""


@pytest.fixture
def asking(terminal: Terminal) -> Terminal:
    """Write a project whose Expert writes two files, each after an approval."""
    for name in ("a.txt", "b.txt"):
        (terminal.workspace / name).write_text("")
    calls = [reply("", ("appendTextFile", {"path": name, "text": "x"})) for name in ("a.txt", "b.txt")]
    return terminal.project(RULES, guest=[*calls, reply("Done.")])


def written(terminal: Terminal) -> tuple[str, ...]:
    return tuple((terminal.workspace / name).read_text() for name in ("a.txt", "b.txt"))


def test_a_form_takes_other_arguments(asking: Terminal, era: str) -> None:
    def fill(params: ElicitRequestFormParams) -> ElicitResult:
        if "a.txt" in params.message:
            changed = '{"path": "a.txt", "text": "changed"}'
            return ElicitResult(action="accept", content={"answer": "yes", "arguments": changed})
        return ElicitResult(action="accept", content={"answer": "no"})

    async def work() -> str:
        async with attached(asking, era=era, fill=fill) as editor:
            return structure(await editor.call("guest", query="Write"))["id"]

    job_id = wait_for(work(), 60)
    assert written(asking) == ("changed", "")
    (change,) = asking.run("log", "--job", job_id, "--type", "changeCall", "--json").events
    assert change["by"]["door"] == "mcp"


def test_each_call_is_a_form_with_all_its_arguments_and_the_answer_is_recorded(asking: Terminal, era: str) -> None:
    def fill(params: ElicitRequestFormParams) -> ElicitResult:
        if "a.txt" in params.message:
            return ElicitResult(action="accept", content={"answer": "yes"})
        return ElicitResult(action="accept", content={"answer": "no", "words": "not that one"})

    async def work() -> str:
        async with attached(asking, era=era, fill=fill) as editor:
            result = await editor.call("guest", query="Write")
            assert texts(result)[0] == "Done."
            first = editor.shown[0]
            assert first.message.startswith("guest wants to call appendTextFile of skill @perstack/base")
            assert "\n  path: a.txt\n  --- a.txt\n  +++ a.txt\n  @@ -0,0 +1 @@\n  +x" in first.message
            options = first.requested_schema["properties"]["answer"]["enum"]
            assert options == [
                "yes",
                "always",
                "always: appendTextFile",
                "always in this project: appendTextFile",
                "no",
            ]
            return structure(result)["id"]

    job_id = wait_for(work(), 60)
    assert written(asking) == ("x", "")
    decided = asking.run("log", "--job", job_id, "--type", "decideApproval", "--json").events
    assert [(one["decision"], one.get("text"), one["by"]["door"]) for one in decided] == [
        ("once", None, "mcp"),
        ("no", "not that one", "mcp"),
    ]


def test_a_change_is_shown_as_a_diff_to_the_file_but_never_that_of_a_file_off_limits(
    terminal: Terminal, era: str
) -> None:
    """The lines around the change come from the file, in the form and in the list of approvals."""
    (terminal.workspace / "poem.txt").write_text("one\ntwo\nthree\nfour\n")
    (terminal.workspace / ".env").write_text("TOKEN=hunter2\n")
    (terminal.workspace / "link.txt").symlink_to(".env")
    changes = [
        ("editTextFile", {"path": "poem.txt", "oldText": "three", "newText": "3"}),
        *(("writeTextFile", {"path": path, "text": "TOKEN=x\n"}) for path in (".env", "link.txt")),
    ]
    rules = RULES.replace("appendTextFile", "*TextFile")
    terminal.project(rules, guest=[*(reply("", change) for change in changes), reply("Done.")])

    async def work() -> list[str]:
        deny = ElicitResult(action="accept", content={"answer": "no"})
        async with attached(terminal, era=era, fill=lambda params: deny) as editor:
            assert texts(await editor.call("guest", query="Write"))[0] == "Done."
            return [one.message for one in editor.shown]

    poem, *hidden = wait_for(work(), 60)
    assert "\n  --- poem.txt\n  +++ poem.txt\n  @@ -1,4 +1,4 @@\n   one\n   two\n  -three\n  +3\n   four" in poem
    assert len(hidden) == 2
    for message in hidden:
        assert "text: TOKEN=x" in message
        assert "hunter2" not in message


def test_declining_the_form_denies_the_call(asking: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(asking, era=era, fill=lambda params: ElicitResult(action="decline")) as editor:
            assert texts(await editor.call("guest", query="Write"))[0] == "Done."

    wait_for(work(), 60)
    assert written(asking) == ("", "")


def test_the_tool_answer_approves_of_nothing_and_puts_the_form_to_the_person(asking: Terminal, era: str) -> None:
    assert asking.run("run", "guest", "Go", "--provider", "scripted", "--job-id", "ask").code == 3

    async def model() -> None:
        async with attached(asking, era=era) as editor:
            job = structure(await editor.call("get_job", job="ask"))
            assert f"perstack answer {job['questionId']}." in job["next"]
            refused = await editor.call("answer", job="ask", answer="yes", question=job["questionId"])
            assert refused.is_error
            assert "only a person can decide this" in texts(refused)[0]

    async def person() -> None:
        fill = ElicitResult(action="accept", content={"answer": "no"})
        async with attached(asking, era=era, fill=lambda params: fill) as editor:
            result = await editor.call("answer", job="ask", answer="yes")
            assert texts(result)[0] == "Done."
            assert len(editor.shown) == 2

    wait_for(model(), 60)
    assert written(asking) == ("", "")
    wait_for(person(), 60)
    assert written(asking) == ("", "")


def test_the_form_of_a_changed_tool_shows_what_changed(terminal: Terminal, era: str) -> None:
    folder = terminal.workspace
    Project(folder).serve([entry()])
    terminal.script(a=[reply("", ("add", {"a": "1"})), reply("Done.")])
    assert terminal.call("install").code == 0
    Project(folder).serve([entry(description=EVIL)])

    async def work() -> list[str]:
        deny = ElicitResult(action="accept", content={"answer": "no"})
        async with attached(terminal, era=era, fill=lambda params: deny) as editor:
            assert texts(await editor.call("a", query="Add"))[0] == "Done."
            return [one.message for one in editor.shown]

    (shown,) = wait_for(work(), 60)
    assert "needs approval (its definition is not the one of perstack.lock)" in shown
    assert f"\n  definition - description: Adds two numbers.\n  definition + description: {EVIL}\n" in shown
    assert not (folder / "notes").exists()
