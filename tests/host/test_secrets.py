"""Secrets of a definition are used, and never recorded."""

from __future__ import annotations

from hosting import Bench, Seen, expert, wait_for

from perstack.core.definitions import MASKED, McpSseSkill, OAuth, ProviderSetting, with_secrets, without_secrets
from perstack.ports.skill import Toolset
from perstack.testing.scripted import text

SECRET = "sk-a-literal-secret"
REMOTE = McpSseSkill(
    name="remote", endpoint="https://example.com/mcp", headers={"Authorization": SECRET, "X-Key": "${REMOTE_KEY}"}
)


class Remote:
    """Stands for the plugin that connects to remote servers."""

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


def test_a_secret_of_oauth_is_recorded_only_if_it_names_a_variable() -> None:
    named = OAuth(client_id="c", client_secret="${SECRET}")
    literal = OAuth(client_id="c", client_secret=SECRET)
    for oauth, recorded in ((named, named), (literal, OAuth(client_id="c", client_secret=MASKED))):
        one = expert("a").model_copy(update={"skills": (REMOTE.model_copy(update={"oauth": oauth}),)})
        assert without_secrets(one).skills[0].oauth == recorded
        assert with_secrets(without_secrets(one), one).skills == one.skills
