"""perstack.toml is read again when it changes, and clients are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from editor import Editor, Pipe, attached, structure, texts
from hosts import wait_for
from mcp_types import ToolListChangedNotification
from terminal import Terminal, reply

LATE_EXPERT = '\n[experts.late]\ndescription = "came late"\ninstruction = "[[late]] You are new."\n'


async def names(editor: Editor) -> list[str]:
    return [tool.name for tool in (await editor.client.list_tools()).tools][:-7]


@asynccontextmanager
async def notified_editor(terminal: Terminal, era: str) -> AsyncIterator[tuple[Editor, asyncio.Event]]:
    """Yield an editor, and the event that is set when it is notified of changed tools."""
    changed = asyncio.Event()

    async def on_message(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async with attached(terminal, era=era, message_handler=on_message) as editor:
        if era == "handshake":
            yield editor, changed
            return
        async with editor.client.listen(tools_list_changed=True) as events:

            async def follow() -> None:
                async for _ in events:
                    changed.set()

            following = asyncio.create_task(follow())
            yield editor, changed
            following.cancel()


def test_a_client_is_told_of_a_new_expert_and_can_call_it(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with notified_editor(terminal, era) as (editor, changed):
            assert "late" not in await names(editor)
            file = terminal.workspace / "perstack.toml"
            file.write_text(file.read_text() + LATE_EXPERT)
            await changed.wait()
            assert "late" in await names(editor)

    wait_for(work(), 60)


def test_prompts_and_resources_are_told_to_have_changed_too(terminal: Terminal, era: str) -> None:
    kinds = {"handshake": "ListChangedNotification", "stateless": "ListChanged"}
    heard: set[str] = set()

    async def on_message(message: object) -> None:
        heard.add(type(message).__name__)

    async def work() -> None:
        async with attached(terminal, era=era, message_handler=on_message) as editor, asyncio.TaskGroup() as group:
            if era == "stateless":
                heard_first = asyncio.Event()

                async def follow() -> None:
                    listening = editor.client.listen(
                        tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
                    )
                    async with listening as events:
                        heard_first.set()
                        async for event in events:
                            heard.add(type(event).__name__)

                following = group.create_task(follow())
                await heard_first.wait()
            assert "late" not in await names(editor)
            file = terminal.workspace / "perstack.toml"
            file.write_text(file.read_text() + LATE_EXPERT)
            while len([name for name in heard if name.endswith(kinds[era])]) < 3:
                await editor.client.list_tools()
            assert "late" in {prompt.name for prompt in (await editor.client.list_prompts()).prompts}
            uris = {resource.uri for resource in (await editor.client.list_resources()).resources}
            assert "perstack://experts/late" in uris
            if era == "stateless":
                following.cancel()

    wait_for(work(), 60)


def test_an_edit_while_the_server_starts_is_not_missed(terminal: Terminal) -> None:
    client = Pipe(terminal)
    client.greet()
    file = terminal.workspace / "perstack.toml"
    file.write_text(file.read_text() + LATE_EXPERT)
    client.write("tools/list", 1)
    assert "late" in {tool["name"] for tool in client.answer_to(1)["result"]["tools"]}
    assert client.close() == (0, "")


def test_an_edit_holds_for_the_next_call_at_once(terminal: Terminal) -> None:
    terminal.script(late=[reply("I am new.")], **{"[[solo]]": [reply("old")], "[[fresh]]": [reply("fresh")]})

    async def work() -> None:
        async with attached(terminal) as editor:
            assert texts(await editor.call("solo", query="go"))[0] == "old"
            file = terminal.workspace / "perstack.toml"
            file.write_text(file.read_text().replace("[[solo]]", "[[fresh]]"))
            assert texts(await editor.call("solo", query="go"))[0] == "fresh"
            file.write_text(file.read_text() + LATE_EXPERT)
            assert texts(await editor.call("late", query="go"))[0] == "I am new."

    wait_for(work(), 60)


def test_a_file_that_a_pattern_of_include_finds_later_is_taken_in(terminal: Terminal, era: str) -> None:
    file = terminal.workspace / "perstack.toml"
    file.write_text('include = ["experts/*.toml"]\n' + file.read_text())

    async def work() -> None:
        async with notified_editor(terminal, era) as (editor, changed):
            assert "late" not in await names(editor)
            (terminal.workspace / "experts").mkdir()
            (terminal.workspace / "experts" / "late.toml").write_text(LATE_EXPERT)
            await changed.wait()
            changed.clear()
            assert "late" in await names(editor)
            (terminal.workspace / "experts" / "late.toml").write_text(LATE_EXPERT.replace("late", "later"))
            await changed.wait()
            assert "later" in await names(editor)

    wait_for(work(), 60)


@pytest.mark.parametrize("place", ["root", "included"])
def test_while_the_file_is_broken_the_last_good_one_holds_and_results_say_so(terminal: Terminal, place: str) -> None:
    root, other = terminal.workspace / "perstack.toml", terminal.workspace / "other.toml"
    good = root.read_text()
    if place == "included":
        other.touch()
        root.write_text('include = ["other.toml"]\n' + good)

    async def work() -> None:
        async with attached(terminal) as editor:
            before = await names(editor)
            if place == "root":
                root.write_text(good + "[experts.solo\n")
            else:
                other.write_text("[experts.late]\ninstrction = 1\n")
            assert await names(editor) == before
            result = await editor.call("solo", query="go")
            assert texts(result)[0] == "One note."
            note = texts(result)[-1]
            assert "the last valid one is used" in note
            assert ("perstack.toml:" if place == "root" else "other.toml:") in note
            details = await editor.job(structure(result)["id"])
            assert note == texts(await editor.call("get_checkpoint", checkpoint=details["checkpoint"]))[-1]
            if place == "root":
                root.write_text(good + LATE_EXPERT)
            else:
                other.write_text(LATE_EXPERT)
            assert "late" in await names(editor)
            assert "the last valid one is used" not in texts(await editor.call("solo", query="go"))[-1]

    wait_for(work(), 60)


BROKEN_EXPERT = '\n[experts.ill]\ndescription = "no instruction"\n'


def test_an_expert_with_errors_is_not_offered_and_the_others_are(terminal: Terminal) -> None:
    file = terminal.workspace / "perstack.toml"
    file.write_text(file.read_text() + BROKEN_EXPERT)

    async def work() -> None:
        async with attached(terminal) as editor:
            assert "ill" not in await names(editor)
            assert "solo" in await names(editor)

    wait_for(work(), 60)


def test_an_expert_that_is_broken_by_an_edit_stays_as_it_was_and_the_others_change(terminal: Terminal) -> None:
    file = terminal.workspace / "perstack.toml"
    before = file.read_text()
    file.write_text(before + LATE_EXPERT)

    async def work() -> None:
        async with notified_editor(terminal, "handshake") as (editor, changed):
            assert "late" in await names(editor)
            broken = LATE_EXPERT.replace("instruction =", "instructoin =")
            file.write_text(before + broken + LATE_EXPERT.replace("late", "later"))
            await changed.wait()
            assert {"late", "later"} <= set(await names(editor))

    wait_for(work(), 60)
