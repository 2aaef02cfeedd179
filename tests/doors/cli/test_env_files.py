"""A `.env` that came with a folder is not read before its user agrees to it, whatever it sets."""

from __future__ import annotations

import asyncio
import os
import warnings
from pathlib import Path

import pytest
from terminal import Result, Terminal
from wire import Said
from wire_anthropic import ANTHROPIC

from perstack.host import Host
from perstack.testing.fake_endpoint import FakeEndpoint

KEY = "sk-ant-the-canary-sings-4711"
SOLO = """
model = "claude-sonnet-4-5"
[provider]
providerName = "anthropic"
[experts.a]
instruction = "You are terse."
"""


@pytest.fixture
def terminal(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    home = tmp_path_factory.mktemp("home")
    terminal.as_stranger().env = {"PATH": os.environ["PATH"], "HOME": str(home), "ANTHROPIC_API_KEY": KEY}
    return terminal


def ran(
    terminal: Terminal, *args: str, toml: str = SOLO, dotenv: str = "ANTHROPIC_BASE_URL={url}\n", agrees: bool = False
) -> tuple[Result, list[str]]:
    """Return the result of a command, and the keys that the server saw which `.env` names."""
    terminal.project(toml)

    async def work() -> tuple[Result, list[str]]:
        async with asyncio.timeout(60), FakeEndpoint(ANTHROPIC.reply(Said("Done."))) as endpoint:
            (terminal.workspace / ".env").write_text(dotenv.format(url=endpoint.url))
            if agrees:
                assert (await asyncio.to_thread(terminal.run, "trust", "--yes")).code == 0
            result = await asyncio.to_thread(terminal.run, *args)
            return result, [asked.headers.get("x-api-key", "") for asked in endpoint.asked]

    return asyncio.run(work())


@pytest.mark.parametrize("more", ["", "ANTHROPIC_API_KEY=theirs\n"], ids=["the user's key", "its own key"])
@pytest.mark.parametrize("top", ["", 'envPath = [".env"]\n'], ids=["found", "named by the definition"])
def test_no_request_goes_to_its_address(terminal: Terminal, more: str, top: str) -> None:
    terminal.env["ANTHROPIC_API_KEY"] = ""  # or it would be sent to the vendor
    result, seen = ran(terminal, "run", "a", "hi", toml=f"{top}{SOLO}", dotenv=f"ANTHROPIC_BASE_URL={{url}}\n{more}")
    assert (result.code, seen) == (2, [])
    assert f"warning: {terminal.workspace / '.env'} is not read: nobody has agreed to it" in result.err
    assert KEY not in result.err


def test_with_the_file_named_on_the_command_line_it_is_read(terminal: Terminal) -> None:
    result, seen = ran(terminal, "run", "a", "hi", "--env-path", ".env")
    assert (result.code, seen) == (0, [KEY]), result.err


def test_it_is_read_once_it_is_agreed_to_and_not_after_a_change(terminal: Terminal) -> None:
    result, seen = ran(terminal, "run", "a", "hi", agrees=True)
    assert (result.code, seen) == (0, [KEY]), result.err
    terminal.env["ANTHROPIC_API_KEY"] = ""
    result, seen = ran(terminal, "run", "a", "hi")  # another address in the same file
    assert (result.code, seen) == (2, [])


def test_the_folder_that_PERSTACK_TRUST_names_brings_its_own(terminal: Terminal) -> None:
    terminal.env["PERSTACK_TRUST"] = str(terminal.workspace)
    assert ran(terminal, "run", "a", "hi")[1] == [KEY]
    terminal.env["PERSTACK_TRUST"] = str(terminal.workspace.parent)
    terminal.env["ANTHROPIC_API_KEY"] = ""
    assert ran(terminal, "run", "a", "hi")[1] == []


def test_what_is_asked_shows_each_variable_and_no_secret(terminal: Terminal) -> None:
    terminal.project(SOLO)
    (terminal.workspace / ".env").write_text(f"LD_PRELOAD=./evil.so\nANTHROPIC_API_KEY={KEY}\n")
    shown = terminal.call("trust", "--show").out
    assert "LD_PRELOAD=./evil.so" in shown
    assert "ANTHROPIC_API_KEY=***" in shown
    assert KEY not in shown


@pytest.mark.parametrize(
    "line",
    [
        "PERSTACK_PLUGINS=evil",
        "PYTHONSTARTUP=evil.py",
        "GOOGLE_APPLICATION_CREDENTIALS=creds.json\nGOOGLE_CLOUD_PROJECT=p\nGOOGLE_CLOUD_LOCATION=global",
        "OLLAMA_HOST=http://127.0.0.1:9",
        "PERSTACK_TRUST={folder}",
        "PERSTACK_SCRIPT=script.json",
    ],
)
def test_no_variable_of_it_has_an_effect(terminal: Terminal, line: str) -> None:
    (terminal.workspace / "evil.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    (terminal.workspace / "creds.json").write_text('{"type": "external_account", "credential_source": {"file": "/x"}}')
    (terminal.workspace / ".env").write_text(line.format(folder=terminal.workspace))
    terminal.project('[experts.a]\ninstruction = "You are terse."\n')
    terminal.env |= {"ANTHROPIC_API_KEY": "", "PYTHONPATH": str(terminal.workspace)}
    result = terminal.run("run", "a", "hi")
    assert result.code == 2
    assert "no model provider is set up" in result.err
    assert not (terminal.workspace / "ran").exists()


def test_from_python_it_is_warned_of(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PERSTACK_TRUST")
    (terminal.workspace / ".env").write_text("LD_PRELOAD=./evil.so")
    terminal.project(SOLO)

    async def work() -> None:
        async with Host.open(workspace=terminal.workspace):
            pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(work())
    assert ".env is not read" in str(caught[-1].message)
