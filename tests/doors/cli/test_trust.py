"""`perstack trust`: a person agrees to what is executed, per folder."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal, reply

from perstack.config.trust import items_to_trust
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Audit, Project, Workers
from perstack.core.definitions.settings import ProviderSetting
from perstack.core.definitions.skills import McpSseSkill, OAuth, PluginSkill
from perstack.errors import UsageError
from perstack.host import Host

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
    result = terminal.call("trust", "--show")
    assert result.code == 0
    assert result.lines == [
        f"{terminal.workspace}:",
        f"+ include: {terminal.workspace}/more/*.toml  (include)",
        "+ provider: anthropic at https://proxy.example with headers  (provider of perstack.toml)",
        "+ evaluator: pytest -q  (evaluator of solo)",
        "+ command: uvx mcp-server-time --utc --token '***' (gets TOKEN, ZONE)  (skill clock of solo)",
        "+ endpoint: https://web.example/mcp (gets Authorization)  (skill web of solo)",
    ]
    assert "s3cret" not in result.out
    assert records(terminal) == []


def test_a_program_that_is_given_heads_is_something_to_agree_to(terminal: Terminal) -> None:
    toml = (
        '[audit]\nanchor = ["notary", "--token", "s3cret"]\nsigningKey = "env:KEY"\n[experts.solo]\ninstruction = "i"\n'
    )
    (terminal.workspace / "perstack.toml").write_text(toml)
    result = terminal.call("trust", "--show")
    assert result.lines[1] == "+ anchor: notary --token '***' with the key env:KEY  (audit)"
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
    output = terminal.call("trust", "--show").out
    assert "\x1b" not in output
    assert len(output.splitlines()) == 6


def test_an_address_that_only_env_names_is_taken_once_it_is_agreed_to(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "Hi."\n')
    terminal.env |= {"ANTHROPIC_API_KEY": "sk-ant-mine", "PATH": os.environ["PATH"]}
    dotenv = terminal.workspace / ".env"
    dotenv.write_text("ANTHROPIC_BASE_URL=http://127.0.0.1:9\n")
    run = ("run", "a", "hi", "--provider", "anthropic", "--max-retries", "0")
    refused = terminal.call(*run)
    assert (refused.code, "perstack trust" in refused.err) == (2, True)
    result = terminal.call("trust", "--yes")
    assert "+ address: ANTHROPIC_BASE_URL=http://127.0.0.1:9  (ANTHROPIC_BASE_URL)" in result.lines
    assert terminal.call(*run).code == 1, "it was sent there, where nobody listens"
    dotenv.write_text("ANTHROPIC_BASE_URL=http://127.0.0.1:10\n")
    assert terminal.call(*run).code == 2


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
    assert f"+ storage: {address}  (storage)" in terminal.call("trust", "--yes").lines
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
    for other in ("1", ".", "perstack.toml", str(terminal.workspace), f"{definition}.old", ""):
        assert terminal.run("jobs", env={"PERSTACK_TRUST": other}).code == 2, other
    (terminal.workspace / ".env").write_text(f"PERSTACK_TRUST={definition}\n")
    assert terminal.run("jobs").code == 2
    assert len(stranger.sent) == 2


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


def test_an_expert_is_run_beside_one_whose_server_nobody_has_agreed_to(terminal: Terminal) -> None:
    other = ALONE.replace("solo", "other") + OUTSIDE[4].replace("solo", "other").format(place="example.com", port=0)
    terminal.project(f"{ALONE}{other}", solo=[reply("ok")])
    assert terminal.run("run", "solo", "hi", *SCRIPTED).code == 0
    assert terminal.run("run", "other", "hi", *SCRIPTED).code == 2


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
    assert "(recorded, and no more in the file: put it back first)" in resumed.err
    assert len(stranger.sent) == before


def test_a_key_is_not_shown_as_the_address_that_it_is_not(terminal: Terminal) -> None:
    terminal.project(f'storage = "${{OPENAI_API_KEY}}"\n{ALONE}')
    terminal.env["OPENAI_API_KEY"] = SECRET
    for command in (("validate",), ("jobs",), ("trust", "--yes"), ("jobs",), ("doctor",)):
        result = terminal.call(*command)
        assert SECRET not in result.out + result.err, command
    assert "is no address of what is installed, with the value of OPENAI_API_KEY" in terminal.call("jobs").err


LOCAL = [
    "file:perstack",
    "sqlite:state.db",
    "postgresql://localhost/x",
    "postgresql://me:pw@127.0.0.1:5432,localhost/x?sslmode=disable",
    "postgresql://me@/x?host=/run/pg&schema=s",
    "postgresql://%2Frun%2Fpg/x",
    "postgresql://[::1]/x?hostaddr=::1",
    "temporal://localhost:7233/default",
]
REMOTE = [
    "postgresql://db.example.com/x",
    "postgresql://localhost.example.com/x",
    "postgresql://localhost,example.com/x",
    "postgresql://localhost@example.com/x",
    "postgresql://a@localhost@example.com/x",
    "postgresql://example.com\\\\@localhost/x",
    "postgresql:///x?host=example.com",
    "postgresql://localhost/x?host=/run/pg&host=example.com",
    "postgresql:///x?%68ost=example.com",
    "postgresql:///x?host=/run/pg,example.com",
    "postgresql://localhost/x?hostaddr=203.0.113.1",
    "postgresql:///x?service=theirs",
    "postgresql:host=example.com",
    "postgresql://127.0.0.1.example.com/x",
    "postgresql://0.0.0.0/x",
    "postgresql://127.1/x",
    "postgresql://[::ffff:203.0.113.1]/x",
    "postgresql://local\\thost@example.com/x",
    "postgresql://example.com%2Flocalhost/x",
    "s3://bucket/x",
    "s3://localhost/x",
    "sqlite:${HOME}/state.db",
    "${DATABASE_URL}",
    "redis:example.com",
    "http:///example.com",
    "https://me@localhost/x",
    "gs://localhost/x",
]


@pytest.mark.parametrize(
    ("address", "is_outside"), [*((address, False) for address in LOCAL), *((address, True) for address in REMOTE)]
)
def test_only_an_address_that_is_certainly_on_this_machine_needs_no_agreement(address: str, is_outside: bool) -> None:
    address = address.encode().decode("unicode_escape")
    for project in (Project(storage=address), Project(workers=Workers(dispatcher=address))):
        assert any(item.is_outside for item in items_to_trust(project)) is is_outside


@pytest.mark.parametrize(
    ("project", "is_outside"),
    [
        (Project(provider=ProviderSetting(provider_name="p", setting={"baseUrl": "http://127.0.0.1:1/v1"})), False),
        (Project(provider=ProviderSetting(provider_name="p", setting={"headers": {"Referer": "https://a.b"}})), False),
        (Project(provider=ProviderSetting(provider_name="p", setting={"region": "eu-west-1"})), False),
        (Project(provider=ProviderSetting(provider_name="p", setting={"region": "wss://a.b"})), True),
        (Project(provider=ProviderSetting(provider_name="p", setting={"proxy": {"apiHost": "a.b"}})), True),
        (Project(provider=ProviderSetting(provider_name="p", setting={"hosts": {"more": ["http://a.b"]}})), True),
        (Project(audit=Audit(anchor="http://127.0.0.1:1/x")), False),
        (Project(audit=Audit(anchor="https://a.b/x")), True),
    ],
)
def test_settings_name_addresses_too(project: Project, is_outside: bool) -> None:
    assert [item.is_outside for item in items_to_trust(project)] == [is_outside]


@pytest.mark.parametrize(
    ("skill", "is_outside"),
    [
        (McpSseSkill(name="s", endpoint="http://localhost:1/mcp", headers={"A": "$${B}"}), False),
        (McpSseSkill(name="s", endpoint="http://localhost:1/mcp", headers={"A": "x${B}"}), True),
        (McpSseSkill(name="s", endpoint="http://localhost:1/${B}"), True),
        (McpSseSkill(name="s", endpoint="http://localhost:1/", oauth=OAuth(issuer="https://a.b")), True),
        (McpSseSkill(name="s", endpoint="http://localhost:1/", oauth=OAuth(client_secret="${B}")), True),
        (McpSseSkill(name="s", endpoint="http://localhost:1/", oauth=OAuth(identity_file="/token")), True),
        (McpSseSkill(name="s", endpoint="http://localhost:1/", oauth=OAuth(identity_endpoint="https://a.b")), True),
        (PluginSkill(name="s", plugin="p", settings={"deep": [{"er": "${B}"}]}), True),
        (PluginSkill(name="s", plugin="p", settings={"to": ["https://a.b"]}), True),
        (PluginSkill(name="s", plugin="p", settings={"serverUrl": "a.b"}), True),
        (PluginSkill(name="s", plugin="p", settings={"to": "words: not an address"}), False),
    ],
)
def test_what_a_skill_reaches_or_is_given_counts(skill: McpSseSkill | PluginSkill, is_outside: bool) -> None:
    project = Project(experts={"a": Expert(key="a", instruction="i", skills=(skill,))})
    found = [item.is_outside for item in items_to_trust(project) if item.kind in ("endpoint", "plugin")]
    assert found == [is_outside]


def test_a_project_that_was_made_in_python_opens_what_it_names(tmp_path: Path, stranger: Stranger) -> None:
    address = f"postgresql://{stranger.place}/x?connect_timeout=2"
    Host(Project(storage=address), workspace=tmp_path, env={})
    with pytest.raises(UsageError, match="nobody has agreed"):
        Host(Project(storage=address, path=str(tmp_path / "perstack.toml")), workspace=tmp_path, env={})
    asyncio.run(Host(Project(), workspace=tmp_path, storage=address, env={}).close())
