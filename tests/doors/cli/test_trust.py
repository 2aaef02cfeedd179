"""`perstack trust`: a person agrees to what is executed, folder by folder."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from terminal import Terminal, reply

TOML = """
include = ["more/*.toml"]
[provider]
providerName = "anthropic"
setting = { baseUrl = "https://proxy.example", headers = { x-key = "s3cret" } }
[experts.solo]
instruction = "You work alone."
[experts.solo.skills."@perstack/base"]
type = "mcpStdioSkill"
command = "npx"
packageName = "@perstack/base"
omit = ["exec"]
[experts.solo.skills.clock]
type = "mcpStdioSkill"
command = "uvx"
args = ["mcp-server-time", "--utc", "--token", "s3cret-too"]
env = { ZONE = "UTC" }
requiredEnv = ["TOKEN"]
[experts.solo.skills.web]
type = "mcpSseSkill"
endpoint = "https://web.example/mcp"
headers = { Authorization = "Bearer s3cret" }
[experts.solo.iterate]
evaluator = "pytest -q"
"""


@pytest.fixture
def terminal(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    terminal.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    return terminal.project(TOML, solo=[reply("ok")])


def records(terminal: Terminal) -> list[Path]:
    return list(Path(terminal.env["XDG_STATE_HOME"]).rglob("*.json"))


def test_it_shows_what_is_executed_and_where_requests_go(terminal: Terminal) -> None:
    shown = terminal.call("trust", "--show")
    assert shown.code == 0
    assert shown.lines == [
        f"{terminal.workspace}:",
        f"+ include: {terminal.workspace}/more/*.toml  (include)",
        "+ provider: anthropic at https://proxy.example with headers  (provider of perstack.toml)",
        "+ evaluator: pytest -q  (evaluator of solo)",
        "+ command: uvx mcp-server-time --utc --token '***' (gets TOKEN, ZONE)  (skill clock of solo)",
        "+ endpoint: https://web.example/mcp (gets Authorization)  (skill web of solo)",
    ]
    assert "s3cret" not in shown.out
    assert records(terminal) == []


def test_a_program_that_is_given_heads_is_something_to_agree_to(terminal: Terminal) -> None:
    toml = (
        '[audit]\nanchor = ["notary", "--token", "s3cret"]\nsigningKey = "env:KEY"\n[experts.solo]\ninstruction = "i"\n'
    )
    (terminal.workspace / "perstack.toml").write_text(toml)
    shown = terminal.call("trust", "--show")
    assert shown.lines[1] == "+ anchor: notary --token '***' with the key env:KEY  (audit)"
    assert terminal.call("trust", "--yes").code == 0
    (terminal.workspace / "perstack.toml").write_text(toml.replace("notary", "other"))
    assert any(line.startswith("+ anchor: other") for line in terminal.call("trust", "--show").lines)


def test_what_was_agreed_to_is_kept_outside_of_the_folder_for_the_user_alone(terminal: Terminal) -> None:
    assert terminal.call("trust", "--yes").code == 0
    (record,) = records(terminal)
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    assert not record.is_relative_to(terminal.workspace)
    text = record.read_text()
    assert json.loads(text)["folder"] == str(terminal.workspace)
    for value in ("s3cret", "--utc", "pytest -q"):
        assert value not in text
    assert "trusted already" in terminal.call("trust").err


def test_changes_since_are_marked(terminal: Terminal) -> None:
    terminal.call("trust", "--yes")
    text = TOML.replace("--utc", "--local").replace("You work alone.", "You work alone, and well.")
    terminal.project(text, solo=[reply("ok")])
    marked = [line for line in terminal.call("trust", "--show").lines if line[0] in "+-"]
    assert marked == [
        "+ command: uvx mcp-server-time --local --token '***' (gets TOKEN, ZONE)  (skill clock of solo)",
        "- command  (skill clock of solo)",
    ]
    terminal.call("trust", "--revoke")
    assert records(terminal) == []
    assert "nothing was agreed to here" in terminal.call("trust", "--revoke").err


@pytest.mark.parametrize(
    "change",
    [
        ("https://proxy.example", "https://other.example"),
        ("https://web.example/mcp", "https://other.example/mcp"),
        ("Bearer s3cret", "Bearer other"),
        ('requiredEnv = ["TOKEN"]', 'requiredEnv = ["OTHER"]'),
        ("pytest -q", "pytest"),
        ("s3cret-too", "other"),
        ('ZONE = "UTC"', 'PATH = "."'),
        ("more/*.toml", "others/*.toml"),
        ('omit = ["exec"]', 'omit = ["think"]'),
    ],
    ids=lambda change: change[0],
)
def test_every_part_that_is_executed_or_reached_counts(terminal: Terminal, change: tuple[str, str]) -> None:
    terminal.call("trust", "--yes")
    terminal.project(TOML.replace(*change), solo=[reply("ok")])
    assert any(line.startswith("+") for line in terminal.call("trust", "--show").lines)


def test_without_a_terminal_only_an_option_agrees(terminal: Terminal) -> None:
    refused = terminal.run("trust", stdin="y\n")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert records(terminal) == []


def test_a_record_that_does_not_read_is_no_agreement(terminal: Terminal) -> None:
    terminal.call("trust", "--yes")
    (record,) = records(terminal)
    record.write_text('{"folder": 1')
    assert all(line.startswith("+") for line in terminal.call("trust", "--show").lines[1:])
    assert terminal.call("trust", "--yes").code == 0
    assert "trusted already" in terminal.call("trust").err


def test_a_definition_cannot_write_on_the_terminal_that_asks(terminal: Terminal) -> None:
    terminal.project(TOML.replace("--utc", "\\u001b[2J\\n--utc"), solo=[reply("ok")])
    shown = terminal.call("trust", "--show").out
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 6


def test_an_address_that_only_env_names_is_taken_once_it_is_agreed_to(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "Hi."\n')
    terminal.env |= {"ANTHROPIC_API_KEY": "sk-ant-mine", "PATH": os.environ["PATH"]}
    dotenv = terminal.workspace / ".env"
    dotenv.write_text("ANTHROPIC_BASE_URL=http://127.0.0.1:9\n")
    run = ("run", "a", "hi", "--provider", "anthropic", "--max-retries", "0")
    refused = terminal.call(*run)
    assert (refused.code, "perstack trust" in refused.err) == (2, True)
    shown = terminal.call("trust", "--yes")
    assert "+ address: ANTHROPIC_BASE_URL=http://127.0.0.1:9  (ANTHROPIC_BASE_URL)" in shown.lines
    assert terminal.call(*run).code == 1, "it was sent there, where nobody listens"
    dotenv.write_text("ANTHROPIC_BASE_URL=http://127.0.0.1:10\n")
    assert terminal.call(*run).code == 2
