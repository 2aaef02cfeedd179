"""A key of the user's own environment is not sent to an address that only a workspace's `.env` names."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import warnings

import pytest
from terminal import Result, Terminal
from wire import Said
from wire_anthropic import ANTHROPIC

from perstack.core.definitions.skills import McpSseSkill, OAuth
from perstack.engine.plugins.registry import load_plugins
from perstack.errors import SkillError, UsageError
from perstack.host import Host
from perstack.ports.environment import Environment
from perstack.ports.provider import ProviderConfig
from perstack.testing.fake_endpoint import FakeEndpoint
from perstack_mcp.remote_server import fill_endpoint

KEY = "sk-ant-the-canary-sings"
SOLO = """
model = "claude-sonnet-4-5"
[provider]
providerName = "anthropic"
[experts.a]
instruction = "You are terse."
"""

REDIRECTS = [
    ("anthropic", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", {}),
    ("anthropic", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", {}),
    ("anthropic", "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS", {}),
    ("openai", "OPENAI_BASE_URL", "OPENAI_API_KEY", {}),
    ("deepseek", "DEEPSEEK_BASE_URL", "DEEPSEEK_API_KEY", {}),
    ("ollama", "OLLAMA_HOST", "OLLAMA_API_KEY", {}),
    ("ollama", "OLLAMA_BASE_URL", "OLLAMA_API_KEY", {}),
    ("azure-openai", "AZURE_OPENAI_ENDPOINT", "AZURE_API_KEY", {}),
    ("azure-openai", "AZURE_RESOURCE_NAME", "AZURE_OPENAI_API_KEY", {}),
    ("google", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", {}),
    ("google", "GOOGLE_GENERATIVE_AI_BASE_URL", "GOOGLE_API_KEY", {}),
    ("amazon-bedrock", "AWS_ENDPOINT_URL", "AWS_BEARER_TOKEN_BEDROCK", {"AWS_REGION": "eu-west-1"}),
]


@pytest.mark.parametrize(("provider", "address", "key", "more"), REDIRECTS)
def test_no_provider_sends_it(provider: str, address: str, key: str, more: dict[str, str]) -> None:
    if provider == "amazon-bedrock" and importlib.util.find_spec("botocore") is None:
        pytest.skip("needs botocore")
    value = "elsewhere" if address == "AZURE_RESOURCE_NAME" else "https://elsewhere.example"
    variables = {address: value, key: "authorization: canary", **more}
    factory = load_plugins().provider(provider)
    with pytest.raises(UsageError) as refused:
        factory.create(ProviderConfig({}, Environment(variables, unconfirmed={address: "here/.env"})))
    assert f"{key} of your environment is not sent to the {address} that here/.env names" in str(refused.value)
    factory.create(ProviderConfig({}, Environment(variables)))
    factory.create(ProviderConfig({}, Environment(variables, unconfirmed=dict.fromkeys((address, key), "here/.env"))))


def test_a_signature_of_an_account_is_none_either() -> None:
    pytest.importorskip("botocore")
    own = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1"}
    env = Environment({**own, "AWS_ENDPOINT_URL": "https://x.example"}, unconfirmed={"AWS_ENDPOINT_URL": "here/.env"})
    with pytest.raises(UsageError, match=r"a signature of your AWS account is not sent to the AWS_ENDPOINT_URL that"):
        load_plugins().provider("amazon-bedrock").create(ProviderConfig({}, env))


def ran(
    terminal: Terminal, *args: str, toml: str = SOLO, dotenv: str = "ANTHROPIC_BASE_URL={url}\n", key: str = KEY
) -> tuple[Result, list[str]]:
    """A command, and the keys that the server saw which `.env` names."""
    terminal.project(toml)
    terminal.env = {"PATH": os.environ["PATH"], "HOME": str(terminal.workspace), "ANTHROPIC_API_KEY": key}

    async def work() -> tuple[Result, list[str]]:
        async with asyncio.timeout(60), FakeEndpoint(ANTHROPIC.reply(Said("Done."))) as endpoint:
            (terminal.workspace / ".env").write_text(dotenv.format(url=endpoint.url))
            result = await asyncio.to_thread(terminal.run, *args)
            return result, [asked.headers.get("x-api-key", "") for asked in endpoint.asked]

    return asyncio.run(work())


def test_a_job_is_refused_before_anything_is_sent_with_both_sources_named(terminal: Terminal) -> None:
    result, seen = ran(terminal, "run", "a", "hi")
    assert (result.code, seen) == (2, [])
    assert len(result.err.splitlines()) == 1
    assert "ANTHROPIC_API_KEY of your environment" in result.err
    assert f"ANTHROPIC_BASE_URL that {terminal.workspace / '.env'} names" in result.err
    assert KEY not in result.err


def test_a_file_that_envpath_names_is_the_workspaces_too(terminal: Terminal) -> None:
    result, seen = ran(terminal, "run", "a", "hi", toml=f'envPath = [".env"]\n{SOLO}')
    assert (result.code, seen) == (2, [])


def test_with_the_file_named_on_the_command_line_it_is_sent(terminal: Terminal) -> None:
    result, seen = ran(terminal, "run", "a", "hi", "--env-path", ".env")
    assert (result.code, seen) == (0, [KEY]), result.err


def test_a_key_that_the_same_file_names_is_sent(terminal: Terminal) -> None:
    dotenv = "ANTHROPIC_BASE_URL={url}\nANTHROPIC_API_KEY=theirs\n"
    assert ran(terminal, "run", "a", "hi", dotenv=dotenv)[1] == [], "the user's own key overrides that of the file"
    result, seen = ran(terminal, "run", "a", "hi", dotenv=dotenv, key="")
    assert (result.code, seen) == (0, ["theirs"])


def test_programs_are_not_chosen_by_a_workspaces_file(terminal: Terminal) -> None:
    (terminal.workspace / "evil.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    names = ("PERSTACK_PLUGINS=evil", "PYTHONPATH=.", "LD_PRELOAD=./evil.so", "MINE=1")
    (terminal.workspace / ".env").write_text("\n".join(names))
    terminal.project(SOLO)
    terminal.env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(terminal.workspace)}
    result = terminal.run("run", "a", "hi", "--provider", "scripted")
    assert not (terminal.workspace / "ran").exists()
    warning, _ = result.err.splitlines()
    assert warning.startswith(
        f"warning: {terminal.workspace / '.env'}: PERSTACK_PLUGINS, LD_PRELOAD not taken from here"
    )


def test_from_python_what_is_left_out_is_warned_of(terminal: Terminal) -> None:
    (terminal.workspace / ".env").write_text("LD_PRELOAD=./evil.so")
    terminal.project(SOLO)

    async def work() -> None:
        async with Host.open(workspace=terminal.workspace):
            pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(work())
    assert "LD_PRELOAD not taken from here" in str(caught[-1].message)


def test_a_server_on_the_web_is_sent_none_either() -> None:
    skill = McpSseSkill(name="web", endpoint="${WEB_URL}", headers={"Authorization": "Bearer ${TOKEN}"})
    variables = {"WEB_URL": "https://elsewhere.example", "TOKEN": "canary"}
    with pytest.raises(SkillError, match=r"skill 'web': TOKEN of your environment is not sent to the WEB_URL that"):
        fill_endpoint(skill, Environment(variables, unconfirmed={"WEB_URL": "here/.env"}))
    assert fill_endpoint(skill, Environment(variables)).endpoint == variables["WEB_URL"]


@pytest.mark.parametrize(
    ("oauth", "what"),
    [
        (OAuth(client_secret="${TOKEN}", issuer="${WEB_URL}"), "TOKEN of your environment"),
        (OAuth(identity_file="/token", issuer="${WEB_URL}"), "the token in /token"),
        (OAuth(identity_file="/token", identity_endpoint="${WEB_URL}"), "the token in /token"),
        (OAuth(identity_client_secret="${TOKEN}", identity_endpoint="${WEB_URL}"), "TOKEN of your environment"),
    ],
)
def test_nor_is_a_server_that_gives_tokens(oauth: OAuth, what: str) -> None:
    skill = McpSseSkill(name="web", endpoint="https://web.example", oauth=oauth)
    variables = {"WEB_URL": "https://elsewhere.example", "TOKEN": "canary"}
    with pytest.raises(SkillError, match=f"skill 'web': {what} is not sent to the WEB_URL that"):
        fill_endpoint(skill, Environment(variables, unconfirmed={"WEB_URL": "here/.env"}))
    assert fill_endpoint(skill, Environment(variables)) == skill
