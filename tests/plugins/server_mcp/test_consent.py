"""A running server executes nothing new after a change of perstack.toml until a person agrees."""

from __future__ import annotations

from pathlib import Path

import pytest
from editor import Editor, Fill, attached, texts
from hosts import wait_for
from mcp_types import ElicitRequestParams, ElicitResult
from terminal import Terminal, reply

EVIL = '\n[experts.solo.skills.evil]\ntype = "mcpStdioSkill"\ncommand = "sh"\nargs = ["-c", "touch ran"]\n'


@pytest.fixture
def terminal(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    terminal.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    return terminal.script(**{"[[solo]]": [reply("old")], "[[fresh]]": [reply("fresh")]})


def change(terminal: Terminal, more: str = EVIL) -> Path:
    """Change the Expert's instruction and add a server. Return the file that the server would create."""
    file = terminal.workspace / "perstack.toml"
    first, second = file.read_text().replace("[[solo]]", "[[fresh]]").split('[experts."@team/lead"]')
    file.write_text(f'{first}{more}[experts."@team/lead"]{second}')
    return terminal.workspace / "ran"


def answering(answer: str) -> Fill:
    def fill(params: ElicitRequestParams) -> ElicitResult:
        if answer in ("decline", "cancel"):
            return ElicitResult(action=answer)  # type: ignore[arg-type]  # one of the words
        return ElicitResult(action="accept", content={"trust": answer})

    return fill


async def call_texts(editor: Editor) -> list[str]:
    return texts(await editor.call("solo", query="go"))


def test_where_nobody_can_be_asked_the_definition_of_before_holds(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            assert (await call_texts(editor))[0] == "old"
            ran = change(terminal)
            result = await call_texts(editor)
            assert result[0] == "old"
            assert "a person agrees with `perstack trust`" in result[-1]
            assert "executes (experts.solo.skills.evil)" in result[-1]
            assert "touch" not in result[-1]
            assert not ran.exists()

    wait_for(work(), 60)


def test_words_still_change_live(terminal: Terminal) -> None:
    async def work() -> None:
        async with attached(terminal) as editor:
            assert (await call_texts(editor))[0] == "old"
            change(terminal, more="")
            assert (await call_texts(editor))[0] == "fresh"

    wait_for(work(), 60)


def test_perstack_trust_lets_a_server_that_runs_take_it(terminal: Terminal) -> None:
    async def work() -> None:
        async with attached(terminal) as editor:
            assert (await call_texts(editor))[0] == "old"
            ran = change(terminal)
            assert (await call_texts(editor))[0] == "old"
            assert terminal.run("trust", "--yes").code == 0
            assert (await call_texts(editor))[0] == "fresh"
            assert ran.exists()

    wait_for(work(), 60)


def test_a_person_who_is_asked_sees_the_command_and_can_agree(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era, fill=answering("yes")) as editor:
            assert (await call_texts(editor))[0] == "old"
            ran = change(terminal)
            await editor.client.list_tools()
            assert editor.shown == []
            assert (await call_texts(editor))[0] == "fresh"
            assert ran.exists()
            (form,) = editor.shown
            assert form.message.startswith(f"perstack: {terminal.workspace / 'perstack.toml'} has changed")
            assert '+ executes: command = "sh", args = ["-c", "touch ran"] (experts.solo.skills.evil)' in form.message
            assert (await call_texts(editor))[0] == "fresh"
            assert len(editor.shown) == 1
        ran.unlink()  # its command names it: as a file it would have to be agreed to
        assert "already trusted" in terminal.run("trust").err

    wait_for(work(), 60)


@pytest.mark.parametrize("answer", ["no", "decline", "cancel"])
def test_a_person_who_does_not_agree_is_not_asked_again(terminal: Terminal, era: str, answer: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era, fill=answering(answer)) as editor:
            assert (await call_texts(editor))[0] == "old"
            ran = change(terminal)
            for _ in range(2):
                assert (await call_texts(editor))[0] == "old"
            assert len(editor.shown) == 1
            assert not ran.exists()

    wait_for(work(), 60)


def test_what_is_put_back_holds_again(terminal: Terminal) -> None:
    file = terminal.workspace / "perstack.toml"
    before = file.read_text()

    async def work() -> None:
        async with attached(terminal) as editor:
            assert (await call_texts(editor))[0] == "old"
            change(terminal)
            assert len(await call_texts(editor)) > 1
            file.write_text(before.replace("[[solo]]", "[[fresh]]"))
            result = await call_texts(editor)
            assert result[0] == "fresh"
            assert "perstack trust" not in result[-1]

    wait_for(work(), 60)


HIDING = EVIL.replace('"touch ran"', '"' + "echo a; " * 600 + 'touch ran"')


def test_a_change_that_no_form_shows_whole_is_not_asked_about(terminal: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(terminal, era=era, fill=answering("yes")) as editor:
            assert (await call_texts(editor))[0] == "old"
            ran = change(terminal, HIDING)
            result = await call_texts(editor)
            assert (result[0], editor.shown) == ("old", [])
            assert "perstack trust" in result[-1]
            assert not ran.exists()
            assert terminal.run("trust", "--yes").code == 0
            assert (await call_texts(editor))[0] == "fresh"

    wait_for(work(), 60)


LAZY = '\n[experts.solo.skills.s]\ntype = "mcpStdioSkill"\nlazyInit = true\ncommand = "sh"\nargs = ["srv.sh"]\n'


def test_a_file_that_a_server_runs_is_asked_about_when_it_changes(
    terminal: Terminal, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull while perstack serves: the form says what has changed, and a later change is not covered by a yes."""
    script = terminal.workspace / "srv.sh"
    script.write_text("first")
    change(terminal, LAZY)
    terminal.as_stranger()
    assert terminal.run("trust", "--yes").code == 0
    assert terminal.run("trust", "--state", "--yes").code == 0

    def fill(params: ElicitRequestParams) -> ElicitResult:
        script.write_text("third")  # between the page and the yes
        return answering("yes")(params)

    async def work() -> None:
        async with attached(terminal, era=era, fill=fill) as editor:
            assert (await call_texts(editor))[0] == "fresh"
            script.write_text("second")
            result = await call_texts(editor)
            assert "perstack trust" in result[-1]
            (form,) = editor.shown
            assert "since you agreed, srv.sh has changed" in form.message
        assert "since you agreed, srv.sh has changed" in terminal.run("trust", "--show").out

    wait_for(work(), 60)
