"""File changes over MCP: anyone may read them, and only a person's confirmation reverts them."""

from __future__ import annotations

import pytest
from editor import Editor, attached, structure, texts
from folder_trees import tree
from hosts import wait_for
from jsonschema import validate
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult
from terminal import Terminal, reply

PROJECT = """
workspace = { path = ".", snapshots = true }
[experts.solo]
instruction = "You work alone."
"""


@pytest.fixture
def writing(terminal: Terminal) -> Terminal:
    """Write a project whose Expert writes a file twice."""
    return terminal.project(
        PROJECT,
        solo=[
            reply("", ("writeTextFile", {"path": "a.txt", "text": "one\n"})),
            reply("", ("writeTextFile", {"path": "a.txt", "text": "two\n"})),
            reply("done"),
        ],
    )


def says(word: str):
    def fill(params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"decision": word})

    return fill


async def first_checkpoint(editor: Editor) -> tuple[str, str]:
    job = structure(await editor.call("solo", query="go"))
    checkpoint = structure(await editor.call("get_checkpoint", checkpoint=f"{job['id']}-1-8"))
    assert len(checkpoint["snapshot"]) == 64
    return job["id"], f"{job['id']}-1-8"


def test_a_rewind_is_put_to_the_person_and_made_by_a_yes(writing: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(writing, era=era, fill=says("yes")) as editor:
            job, checkpoint = await first_checkpoint(editor)
            tools = {tool.name: tool for tool in (await editor.client.list_tools()).tools}
            result = await editor.call("diff", job=job, what="2")
            assert structure(result)["files"] == [{"path": "a.txt", "kind": "changed", "added": 1, "removed": 1}]
            assert "-one\n+two" in texts(result)[1]
            done = await editor.call("rewind", job=job, checkpoint=checkpoint)
            (asked,) = editor.shown
            assert isinstance(asked, ElicitRequestFormParams)
            assert asked.message.endswith("This changes:\n  | changed a.txt +1 −1")
            assert structure(done)["done"] is True
            assert tree(writing.workspace)[b"a.txt"] == ("file", b"one\n")
            back = await editor.call("rewind", job=job, checkpoint=structure(done)["undo"])
            assert tree(writing.workspace)[b"a.txt"] == ("file", b"two\n")
            for name, value in (("diff", result), ("rewind", done), ("rewind", back)):
                validate(structure(value), tools[name].output_schema)
            (started,) = writing.run("log", job, "--type", "startRewind", "--take", "1", "--json").events
            assert started["by"]["door"] == "mcp"

    wait_for(work(), 60)


def test_nothing_is_changed_without_a_yes_or_where_nobody_can_be_asked(writing: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(writing, era=era, fill=says("no")) as editor:
            job, checkpoint = await first_checkpoint(editor)
            result = await editor.call("rewind", job=job, checkpoint=checkpoint)
            assert "the person did not agree" in texts(result)[0]
        async with attached(writing, era=era) as editor:
            refused = await editor.call("rewind", job=job, checkpoint=checkpoint)
            assert refused.is_error
            assert "only a person can decide this" in texts(refused)[0]
        assert tree(writing.workspace)[b"a.txt"] == ("file", b"two\n")

    wait_for(work(), 60)
