"""The file tools of an Expert without `exec` cannot reach files that would yield keys or run programs."""

from __future__ import annotations

import pytest
from terminal import Terminal, reply

SOLO = '[experts.solo]\ninstruction = "You work alone."\n'
SECRET = "the canary sings"


def results_seen(terminal: Terminal, toml: str, path: str, *args: str) -> list[str]:
    """Return the result that an Expert gets from each file tool on a path."""
    tools = ("readTextFile", "writeTextFile", "appendTextFile", "deleteFile")
    calls = [reply("", (tool, {"path": path, "text": "x"})) for tool in tools]
    terminal.project(toml, solo=[*calls, reply("ok")])
    result = terminal.call("run", "solo", "q", "--provider", "scripted", *args)
    assert result.code == 0, result.err
    assert SECRET not in result.out
    return [event["contents"][0]["text"] for event in result.events if event["type"] == "finishToolCall"]


@pytest.mark.parametrize("name", [".env", ".env.local", "keys/prod", "team.toml", "more/late.toml"])
def test_an_expert_neither_reads_nor_writes_what_the_host_reads(terminal: Terminal, name: str) -> None:
    path = terminal.workspace / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# {SECRET}\n")
    toml = f'include = ["team*.toml", "more/*.toml"]\nenvPath = ["keys/prod"]\n{SOLO}'
    said = results_seen(terminal, toml, name)
    assert len(said) == 4
    assert all("off limits" in text for text in said), said
    assert path.read_text() == f"# {SECRET}\n"


@pytest.mark.parametrize("name", ["more/new.toml", "perstack.toml", ".env", ".git/hooks/post-checkout"])
def test_an_expert_does_not_make_what_would_be_read_next_time(terminal: Terminal, name: str) -> None:
    below = terminal.workspace / "src"
    below.mkdir()
    toml = f'include = ["src/more/*.toml"]\nworkspace = "src"\n{SOLO}'
    said = results_seen(terminal, toml, name)
    assert all("off limits" in text for text in said), said
    assert list(below.iterdir()) == []


def test_a_definition_of_another_name_is_known_and_so_are_its_other_names(terminal: Terminal) -> None:
    own = terminal.workspace / "mine.toml"
    own.write_text(f"# {SECRET}\n{SOLO}")
    (terminal.workspace / "hard.txt").hardlink_to(own)
    (terminal.workspace / "soft.txt").symlink_to("mine.toml")
    for name in ("mine.toml", "hard.txt", "soft.txt"):
        *others, deleted = results_seen(terminal, SOLO, name, "--config", "mine.toml")
        assert all("off limits" in text for text in others), (name, others)
        assert ("off limits" in deleted) == (name != "soft.txt")  # a link itself may go
    assert SECRET in own.read_text()
