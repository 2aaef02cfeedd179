"""`perstack trust`: a person agrees to what is executed, per folder."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal, reply

from perstack.core.definitions.project import Project
from perstack.errors import NotAgreed
from perstack.host import Host

TOML = """
schedules.nightly = { cron = "0 2 * * *", expert = "solo", query = "Report." }
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
    terminal.as_stranger().env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    return terminal.project(TOML, solo=[reply("ok")])


def records(terminal: Terminal) -> list[Path]:
    return list(Path(terminal.env["XDG_STATE_HOME"]).rglob("*.json"))


def test_it_shows_all_that_has_an_effect_whole(terminal: Terminal) -> None:
    result = terminal.call("trust", "--show")
    assert result.code == 0
    assert result.lines == [
        f"{terminal.workspace}:",
        '+ reaches: providerName = "anthropic", setting.baseUrl = "https://proxy.example",'
        ' setting.headers.x-key = "s3cret"  (provider)',
        '+ pays: cron = "0 2 * * *", timezone = "UTC", expert = "solo", query = "Report.", overlap = "skip"'
        "  (schedules.nightly)",
        '+ executes: command = "uvx", args = ["mcp-server-time", "--utc", "--token", "s3cret-too"],'
        ' requiredEnv = ["TOKEN"], env.ZONE = "UTC"  (experts.solo.skills.clock)',
        '+ reaches: endpoint = "https://web.example/mcp", headers.Authorization = "Bearer s3cret"'
        "  (experts.solo.skills.web)",
        '+ executes: evaluator = "pytest -q"  (experts.solo.iterate)',
    ]
    assert records(terminal) == []


@pytest.mark.parametrize(
    "args",
    [r'"-c", "eval \"$1\"", "--token", "touch evil"', '"API_TOKEN=x;touch evil"', '"https://user:;touch$IFS-x@h"'],
)
def test_nothing_of_a_command_can_be_made_to_look_like_a_secret(terminal: Terminal, args: str) -> None:
    server = f'[experts.a.skills.s]\ntype = "mcpStdioSkill"\ncommand = "sh"\nargs = [{args}]\n'
    terminal.project(f'[experts.a]\ninstruction = "i"\n{server}')
    assert f"args = [{args}]" in terminal.call("trust", "--show").out


@pytest.mark.parametrize(
    "table",
    ["[retention]\nkeepLast = 0\n", '[prices."anthropic/x"]\ninput = 0\noutput = 0\n'],
    ids=["retention", "prices"],
)
def test_a_zero_is_a_value(terminal: Terminal, table: str) -> None:
    terminal.project(f"{table}{ALONE}")
    (line,) = [line for line in terminal.call("trust", "--show").lines if line[0] == "+"]
    assert " = 0" in line


LIMITS = ["maxSteps = {}", "maxDepth = {}", "maxRepeats = {}", "experts.b.maxSteps = {}"]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("value", [0, 100_000])
def test_a_limit_that_is_lifted_or_raised_pays(terminal: Terminal, limit: str, value: int) -> None:
    terminal.project(f'{limit.format(value)}\nexperts.b.instruction = "i"\n{ALONE}', solo=[reply("ok")])
    (line,) = [line for line in terminal.call("trust", "--show").lines if line[0] == "+"]
    assert line.startswith("+ pays: ")
    assert f" = {value}  (" in line
    assert terminal.call("run", "solo", "hi", *SCRIPTED).code == 2
    terminal.project(f'{limit.format(5)}\nexperts.b.instruction = "i"\n{ALONE}', solo=[reply("ok")])
    assert terminal.call("run", "solo", "hi", *SCRIPTED).code == 0


@pytest.mark.parametrize(
    "table", ['[experts.solo.iterate]\nevaluator.expert = "solo"\nmaxIterations = 100', "maxRetries = 50"]
)
def test_many_iterations_and_retries_pay(terminal: Terminal, table: str) -> None:
    terminal.project(f"{ALONE}{table}\n")
    (line,) = [line for line in terminal.call("trust", "--show").lines if line[0] == "+"]
    assert line.startswith("+ pays: max")


@pytest.mark.parametrize(
    ("setting", "is_asked"),
    [("temperature = 0", False), ("maxTokens = 100", False), ("structuredOutput = true", False), ("name = 'x'", True)],
)
def test_numbers_and_flags_of_a_vendor_need_no_agreement(terminal: Terminal, setting: str, is_asked: bool) -> None:
    terminal.project(f'provider.providerName = "openai"\nprovider.setting.{setting}\n{ALONE}')
    assert any(line.startswith("+") for line in terminal.call("trust", "--show").lines) == is_asked


def test_every_setting_of_another_provider_is_agreed_to(terminal: Terminal) -> None:
    toml = f'provider.providerName = "ollama"\nprovider.setting.verify = true\n{ALONE}'
    terminal.project(toml)
    assert terminal.call("trust", "--yes").code == 0
    terminal.project(toml.replace("true", "false"))
    assert any("setting.verify = false" in line for line in terminal.call("trust", "--show").lines if line[0] == "+")


def test_a_program_that_is_given_heads_is_something_to_agree_to(terminal: Terminal) -> None:
    toml = (
        '[audit]\nanchor = ["notary", "--token", "s3cret"]\nsigningKey = "env:KEY"\n[experts.solo]\ninstruction = "i"\n'
    )
    (terminal.workspace / "perstack.toml").write_text(toml)
    shown = '+ reaches, reads: anchor = ["notary", "--token", "s3cret"], signingKey = "env:KEY"  (audit)'
    assert terminal.call("trust", "--show").lines[1] == shown
    assert terminal.call("trust", "--yes").code == 0
    (terminal.workspace / "perstack.toml").write_text(toml.replace("notary", "other"))
    assert any(line.startswith("+ reaches, reads: anchor") for line in terminal.call("trust", "--show").lines)


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
    assert "already trusted" in terminal.call("trust").err


def test_changes_since_are_marked_and_the_earlier_declaration_stays_agreed_to(terminal: Terminal) -> None:
    terminal.call("trust", "--yes")
    text = TOML.replace("--utc", "--local").replace("You work alone.", "You work alone, and well.")
    terminal.project(text, solo=[reply("ok")])
    (marked,) = [line for line in terminal.call("trust", "--show").lines if line[0] == "+"]
    assert '"--local"' in marked
    terminal.project(TOML, solo=[reply("ok")])
    assert "already trusted" in terminal.call("trust").err
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
        ("0 2 * * *", "* * * * *"),
        ('omit = ["exec"]', 'pick = ["exec"]'),
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
    assert "already trusted" in terminal.call("trust").err


def test_a_definition_cannot_write_on_the_terminal_that_asks(terminal: Terminal) -> None:
    terminal.project(TOML.replace("--utc", "\\u001b[2J\\n--utc"), solo=[reply("ok")])
    output = terminal.call("trust", "--show").out
    assert "\x1b" not in output
    assert len(output.splitlines()) == 6


SECRET = "sk-canary-0123456789abcdef"
ALONE = '[experts.solo]\ninstruction = "You work alone."\n'
SCRIPTED = ("--provider", "scripted")


class Stranger:
    """A server that records what it is sent and never answers. Its address counts as one on the internet."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.place = f"0.0.0.0:{self.port}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(2)
                try:
                    self.sent.append(connection.recv(65536))
                except TimeoutError:
                    self.sent.append(b"")
                if self.sent[-1] == b"end":
                    self.sent.pop()
                    return

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as last:
            last.sendall(b"end")
        self._thread.join(timeout=10)
        self._listener.close()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    there = Stranger()
    yield there
    there.close()


LOOKING = [
    ("jobs",),
    ("log",),
    ("inbox",),
    ("verify", "--all"),
    ("cost",),
    ("du",),
    ("iterations",),
    ("doctor",),
    ("task", "list"),
    ("schedules",),
    ("delete", "job", "--yes"),
    ("prune", "--older-than", "1d", "--yes"),
    ("export", "job", "--format", "json"),
    ("run", "solo", "hi", *SCRIPTED),
    ("submit", "solo", "hi"),
    ("resume", "job", *SCRIPTED),
    ("worker",),
]


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
@pytest.mark.parametrize(
    "storage",
    [
        'storage = "postgresql://${{OPENAI_API_KEY}}@{place}/x"',
        'storage = "postgresql://${{OPENAI_API_KEY}}@127.0.0.1:{port}/x"',
        'storage = "s3://bucket/x"\nstorageSetting = {{ endpoint = "http://{place}", region = "r" }}',
    ],
    ids=["database", "database of another user here", "bucket"],
)
def test_no_command_opens_a_storage_of_a_cloned_repository(
    terminal: Terminal, stranger: Stranger, command: tuple[str, ...], storage: str
) -> None:
    terminal.project(storage.format(place=stranger.place, port=stranger.port) + f"\n{ALONE}", solo=[reply("ok")])
    terminal.env |= {"OPENAI_API_KEY": SECRET, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": SECRET}
    result = terminal.run(*command)
    assert stranger.sent == []
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    assert "`perstack trust`" in line
    assert SECRET not in result.out + result.err


def test_what_is_agreed_to_is_opened_until_it_changes(terminal: Terminal, stranger: Stranger) -> None:
    address = f"postgresql://${{NAME}}@{stranger.place}/x?connect_timeout=2"
    terminal.project(f'storage = "{address}"\n{ALONE}')
    terminal.env["NAME"] = "ada"
    assert f'+ writes: storage = "{address}"  (storage)' in terminal.call("trust", "--yes").lines
    assert terminal.run("jobs").code == 1
    assert len(stranger.sent) == 1
    terminal.project(f'storage = "{address.replace("NAME", "OPENAI_API_KEY")}"\n{ALONE}')
    assert terminal.run("jobs", env={"OPENAI_API_KEY": SECRET}).code == 2
    assert len(stranger.sent) == 1


def test_an_address_that_a_person_names_needs_no_agreement(terminal: Terminal, stranger: Stranger) -> None:
    terminal.project(ALONE)
    named = f"postgresql://{stranger.place}/x?connect_timeout=2"
    assert terminal.run("jobs", "--storage", named).code == 1
    terminal.project(f'storage = "{named}"\n{ALONE}')
    definition = str(terminal.workspace / "perstack.toml")
    assert terminal.run("jobs", env={"PERSTACK_TRUST": f"/elsewhere:{definition}"}).code == 1
    assert len(stranger.sent) == 2
    assert terminal.run("jobs", env={"PERSTACK_TRUST": str(terminal.workspace)}).code == 1
    for other in ("1", ".", "perstack.toml", str(terminal.workspace.parent), f"{definition}.old", ""):
        assert terminal.run("jobs", env={"PERSTACK_TRUST": other}).code == 2, other
    (terminal.workspace / ".env").write_text(f"PERSTACK_TRUST={definition}\n")
    assert terminal.run("jobs").code == 2
    assert len(stranger.sent) == 3


OUTSIDE = [
    '[workers]\ndispatcher = "postgresql://{place}/x"\n',
    '[audit]\nanchor = "https://{place}/heads"\n',
    '[provider]\nproviderName = "openai"\nsetting = {{ baseUrl = "https://{place}" }}\n',
    'model = "m"\n[provider]\nproviderName = "azure-openai"\nsetting = {{ resourceName = "somebody" }}\n',
    '[experts.solo.skills.web]\ntype = "mcpSseSkill"\nendpoint = "http://{place}/mcp"\nallowLocalNetwork = true\n',
    '[experts.solo.skills.web]\ntype = "mcpSseSkill"\nendpoint = "http://127.0.0.1:{port}/mcp"\n'
    'allowLocalNetwork = true\nheaders = {{ Key = "${{OPENAI_API_KEY}}" }}\n',
]


@pytest.mark.parametrize("toml", OUTSIDE, ids=["dispatcher", "anchor", "provider", "resource", "server", "header"])
def test_nothing_else_that_a_definition_names_is_reached_either(
    terminal: Terminal, stranger: Stranger, toml: str
) -> None:
    written = toml.format(place=stranger.place, port=stranger.port)
    terminal.project(f"{ALONE}{written}" if "skills" in written else f"{written}{ALONE}", solo=[reply("ok")])
    terminal.env |= {"OPENAI_API_KEY": SECRET, "AZURE_OPENAI_API_KEY": SECRET}
    is_model = "provider" in written
    run = ("run", "solo", "hi", "--max-retries", "0", *(() if is_model else SCRIPTED))
    refused = terminal.run("submit", "solo", "hi") if "dispatcher" in written else terminal.run(*run)
    assert refused.code == 2
    assert "`perstack trust`" in refused.err
    terminal.run("install")
    assert stranger.sent == []
    assert SECRET not in refused.err
    assert not list((terminal.workspace / "perstack").rglob("*.jsonl")), "a Job was begun"
    terminal.call("trust", "--yes")
    assert "+" not in "".join(line[0] for line in terminal.call("trust", "--show").lines)


def test_no_expert_is_run_while_anything_of_the_definition_is_not_agreed_to(terminal: Terminal) -> None:
    other = ALONE.replace("solo", "other") + OUTSIDE[4].replace("solo", "other").format(place="example.com", port=0)
    terminal.project(f"{ALONE}{other}", solo=[reply("ok")])
    refused = terminal.run("run", "solo", "hi", *SCRIPTED)
    assert (refused.code, "experts.other.skills.web" in refused.err) == (2, True)
    assert not (terminal.workspace / "perstack").exists()
    assert terminal.run("trust", "--yes").code == 0
    assert terminal.run("run", "solo", "hi", *SCRIPTED).code == 0


def test_a_recorded_job_of_a_repository_does_not_bring_its_own_server(terminal: Terminal, stranger: Stranger) -> None:
    server = OUTSIDE[4].format(place=stranger.place, port=stranger.port)
    terminal.project(f"maxSteps = 1\n{ALONE}{server}", solo=[reply("", ("think", {"thought": "x"})), reply("ok")])
    definition = str(terminal.workspace / "perstack.toml")
    first = terminal.run("run", "solo", "hi", "--job-id", "job", *SCRIPTED, env={"PERSTACK_TRUST": definition})
    assert first.code == 4, first.err
    before = len(stranger.sent)
    assert before
    (terminal.workspace / "perstack.toml").write_text(ALONE)
    resumed = terminal.run("resume", "job", "--max-steps", "9", *SCRIPTED)
    assert resumed.code == 1
    assert "you have not agreed to: skill web" in resumed.err
    assert len(stranger.sent) == before


def test_a_key_is_not_shown_as_the_address_that_it_is_not(terminal: Terminal) -> None:
    terminal.project(f'storage = "${{OPENAI_API_KEY}}"\n{ALONE}')
    terminal.env["OPENAI_API_KEY"] = SECRET
    for command in (("validate",), ("jobs",), ("trust", "--yes"), ("jobs",), ("doctor",)):
        result = terminal.call(*command)
        assert SECRET not in result.out + result.err, command
    assert "with the value of OPENAI_API_KEY, is not an address of an installed plugin" in terminal.call("jobs").err


def test_a_project_that_was_made_in_python_opens_what_it_names(
    tmp_path: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERSTACK_TRUST")
    address = f"postgresql://{stranger.place}/x?connect_timeout=2"
    Host(Project(storage=address), workspace=tmp_path, env={})
    with pytest.raises(NotAgreed):
        Host(Project(storage=address, path=str(tmp_path / "perstack.toml")), workspace=tmp_path, env={})
    asyncio.run(Host(Project(), workspace=tmp_path, storage=address, env={}).close())
