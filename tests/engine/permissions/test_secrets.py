"""Secrets of a definition are used, and never recorded."""

from __future__ import annotations

import json

import pytest
from hosts import OPENED, Bench, Seen, expert, wait_for
from pydantic import BaseModel
from terminal import Terminal, reply
from toolkit_experts import with_kit

from perstack.core.definitions.project import Project
from perstack.core.definitions.secrets import MASKED, with_secrets, without_secrets
from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.core.definitions.skills import McpSseSkill, OAuth
from perstack.errors import UsageError
from perstack.host import Host
from perstack.ports.skill import SkillFactory, SkillSession, Toolset
from perstack.tasks.events import WaitingFor
from perstack.testing.scripted import ScriptedProvider, text, tool
from perstack.toolkit import ToolContext, Toolkit

SECRET = "sk-a-literal-secret"
REMOTE = McpSseSkill(
    name="remote", endpoint="https://example.com/mcp", headers={"Authorization": SECRET, "X-Key": "${REMOTE_KEY}"}
)


class Remote(SkillFactory, SkillSession):
    """A stand-in for the plugin that connects to remote servers."""

    name = "remote"

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []

    def handles(self, definition) -> bool:
        return isinstance(definition, McpSseSkill)

    async def open(self, definition, context):
        self.headers.append(definition.headers)
        return self

    async def tools(self):
        return Toolset()

    async def call(self, call):
        raise AssertionError("it has no tools")

    async def close(self) -> None:
        pass

    from perstack.ports.hooks import hookimpl

    @hookimpl
    def perstack_skills(self):
        return [self]


def test_literal_headers_and_provider_settings_are_in_no_event_and_no_file(bench: Bench) -> None:
    setting = ProviderSetting(provider_name="scripted", setting={"headers": {"x": SECRET}})
    one = expert("a").model_copy(update={"skills": (REMOTE,), "provider": setting})
    seen, remote = Seen(), Remote()
    wait_for(bench.host([text("ok")], one, plugins=(remote,)).run("a", "q", on_event=seen))
    assert remote.headers == [REMOTE.headers]
    assert not any(SECRET.encode() in line for line in seen.lines)
    for path in bench.workspace.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_a_resumed_run_takes_its_secrets_from_todays_definition() -> None:
    one = expert("a").model_copy(update={"skills": (REMOTE,)})
    recorded = without_secrets(one)
    assert recorded.skills[0].headers == {"Authorization": MASKED, "X-Key": "${REMOTE_KEY}"}
    assert with_secrets(recorded, one).skills == (REMOTE,)
    assert with_secrets(recorded, None) == recorded


def test_what_a_client_has_at_an_identity_provider_is_not_recorded() -> None:
    address = "https://identity.example.com/token?key=" + SECRET
    for oauth in (OAuth(identity_client_secret=SECRET), OAuth(identity_endpoint=address)):
        one = expert("a").model_copy(update={"skills": (REMOTE.model_copy(update={"oauth": oauth}),)})
        assert SECRET not in without_secrets(one).model_dump_json()
        assert with_secrets(without_secrets(one), one).skills == one.skills


def test_a_secret_of_oauth_is_recorded_only_if_it_names_a_variable() -> None:
    named = OAuth(client_id="c", client_secret="${SECRET}")
    literal = OAuth(client_id="c", client_secret=SECRET)
    for oauth, recorded in ((named, named), (literal, OAuth(client_id="c", client_secret=MASKED))):
        one = expert("a").model_copy(update={"skills": (REMOTE.model_copy(update={"oauth": oauth}),)})
        assert without_secrets(one).skills[0].oauth == recorded
        assert with_secrets(without_secrets(one), one).skills == one.skills


class Account(BaseModel):
    """Settings of a plugin, with names that its author may have chosen."""

    apiKey: str = ""
    database: str = ""
    argv: tuple[str, ...] = ()
    depth: int = 3
    names: dict[str, str] = {}


LITERAL = {
    "apiKey": "canary-of-a-key",
    "database": "postgres://ada:canary-of-a-password@db/x",
    "argv": ["serve", "--token", "canary-of-a-token"],
    "depth": 3,
    "names": {"greeting": "hello", "client_secret": "canary-of-a-secret"},
}


def account() -> tuple[Toolkit, list[Account]]:
    """Return a kit with settings, and a list of the settings that its tool receives."""
    kit, received = Toolkit("kit", settings=Account), []

    @kit.tool()
    async def look(context: ToolContext[Account]) -> str:
        """Look."""
        received.append(context.settings)
        return "seen"

    return kit, received


def assert_no_canary(bench: Bench, seen: Seen) -> None:
    assert not any(b"canary" in line for line in seen.lines)
    for path in bench.workspace.rglob("*"):
        assert not path.is_file() or b"canary" not in path.read_bytes(), path


def test_a_plugins_settings_reach_it_and_their_secrets_are_in_no_event_and_no_file(bench: Bench) -> None:
    kit, given = account()
    seen, one = Seen(), with_kit(**LITERAL)
    script = [tool("look"), tool("look"), text("ok")]
    job = wait_for(bench.host(script, one, plugins=(kit,), max_steps=1).run("a", "q", on_event=seen))
    assert job.status == "stoppedByMaxSteps"
    host = bench.host(script, one, plugins=(kit,), max_steps=9)
    assert wait_for(host.resume(job.id, on_event=seen)).status == "completed"
    assert given == [Account.model_validate(LITERAL)] * 2
    assert_no_canary(bench, seen)
    (recorded,) = seen.of("startRun")[0].expert.skills
    assert recorded.settings["database"].startswith("postgres://secret-sha256:")
    assert recorded.settings["names"]["greeting"] == "hello", "what is no secret can be read"


def test_a_plugin_that_resumes_gets_the_secret_that_was_changed_since_and_no_digest(bench: Bench) -> None:
    kit, given = account()
    script = [tool("look"), tool("look"), text("ok")]
    job = wait_for(bench.host(script, with_kit(**LITERAL), plugins=(kit,), max_steps=1).run("a", "q"))
    changed = with_kit(**{**LITERAL, "apiKey": "another"})
    assert wait_for(bench.host(script, changed, plugins=(kit,), max_steps=2).resume(job.id)).status
    assert given[1].apiKey == "another"
    gone = wait_for(bench.host(script, expert("a"), plugins=(kit,), max_steps=9).resume(job.id))
    assert "skill 'mine' was started with a secret, which is not recorded" in (gone.error or "")
    assert len(given) == 2


def test_a_variable_in_a_plugins_settings_is_filled_in_for_it_alone(bench: Bench) -> None:
    kit, given = account()
    seen = Seen()
    settings = {"apiKey": "${THE_KEY}", "names": {"shown": "$${THE_KEY}"}}
    host = Host(
        Project(experts={"a": with_kit(**settings)}),
        workspace=bench.workspace,
        storage=bench.storage,
        env={"THE_KEY": "canary-of-a-variable"},
        overrides=Overrides(provider="scripted"),
        plugins=[ScriptedProvider([tool("look"), text("ok")]), kit],
    )
    OPENED.append(host)
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    assert (given[0].apiKey, given[0].names) == ("canary-of-a-variable", {"shown": "${THE_KEY}"})
    assert_no_canary(bench, seen)
    missing = wait_for(bench.host([text("never")], with_kit(**settings), plugins=(kit,)).run("a", "q"))
    assert "skill 'mine' needs THE_KEY for its settings" in (missing.error or "")


def test_validate_names_secrets_in_settings_and_evaluators_and_the_way_out(terminal: Terminal) -> None:
    terminal.project(
        """
[experts.a]
instruction = "x"
[experts.a.skills.mine]
type = "pluginSkill"
plugin = "@perstack/execution-memory"
settings = { apiKey = "canary", argv = ["--token", "canary"], deep = { url = "https://ada:canary@db" }, ok = "${KEY}" }
[experts.a.iterate]
evaluator = "judge --token canary"
[experts.b]
instruction = "x"
[experts.b.iterate]
evaluator = ["judge", "--token", "canary"]
[experts.c]
instruction = "x"
[experts.c.iterate]
evaluator = "TOKEN=$(cat token) judge --token ${KEY} --key file"
"""
    )
    result = terminal.run("validate")
    assert result.code == 0, result.err
    lines = [line for line in (result.out + result.err).splitlines() if "looks like a secret" in line]
    places = (
        "a.skills.mine.settings.apiKey",
        "a.skills.mine.settings.argv[1]",
        "a.skills.mine.settings.deep.url",
        "a.iterate.evaluator",
        "b.iterate.evaluator[2]",
    )
    assert len(lines) == len(places), lines
    assert all(place in line and "`${VAR}`" in line for place, line in zip(places, lines, strict=True))
    assert "canary" not in result.out + result.err


@pytest.mark.parametrize("evaluator", ["judge ${KEY}", ["sh", "-c", "judge ${KEY}"]])
def test_an_evaluator_gets_the_variables_that_it_names_and_no_other(terminal: Terminal, evaluator) -> None:
    terminal.env |= {"KEY": "canary-of-a-key", "OTHER": "canary-of-another"}
    judge = terminal.workspace / "judge"
    judge.write_text("#!/bin/sh\necho $1$OTHER > told\n[ -e good ] && echo '{\"score\": 1}'\n")
    judge.chmod(0o700)
    terminal.env["PATH"] = f"{terminal.workspace}:{terminal.env['PATH']}"
    toml = (
        f'[experts.a]\ninstruction = "x"\n[experts.a.iterate]\nmaxIterations = 1\nevaluator = {json.dumps(evaluator)}\n'
    )
    terminal.project(toml, a=[reply("made")])
    (terminal.workspace / "good").touch()
    result = terminal.run("iterate", "a", "q", "--id", "it", "--provider", "scripted")
    assert result.code == 0, result.err
    assert (terminal.workspace / "told").read_text() == "canary-of-a-key\n"
    assert "canary" not in result.out + result.err


@pytest.mark.parametrize(
    "command",
    ["curl -H 'x' --token canary https://ci", ("curl", "https://ada:canary@ci"), "TOKEN=canary ci"],
)
def test_a_command_of_a_task_may_name_a_secret_and_not_hold_it(bench: Bench, command) -> None:
    async def work() -> None:
        host = bench.host([])
        await host.tasks.create("deploy", start=True)
        with pytest.raises(UsageError, match=r"holds what looks like a secret.*name it as `\$\{VAR\}`"):
            await host.tasks.pause("deploy", "external_dependency", waiting_for=WaitingFor(command=command))
        fine = 'TOKEN=$(cat token); test "${TOKEN}" && curl --token "$TOKEN" https://ada:${TOKEN}@ci'
        await host.tasks.pause("deploy", "external_dependency", waiting_for=WaitingFor(command=fine))

    wait_for(work())
    assert_no_canary(bench, Seen())
