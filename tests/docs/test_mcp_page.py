"""docs/mcp.md: its example loads, and its facts are the code's."""

from __future__ import annotations

from pathlib import Path

from pages import fenced, page

from perstack.core.definitions.skills import McpSseSkill, McpStdioSkill
from perstack.ports.environment import INHERITED
from perstack.ports.skill import SkillContext
from perstack.trust.definition_files import load_project
from perstack_mcp.login import LOGIN_TIMEOUT_S, PATH
from perstack_mcp.plugin import McpSkillFactory
from perstack_mcp.remote_server import RemoteServer, headers_of, oauth_of
from perstack_mcp.server_process import launch_of
from perstack_mcp.session import DEFAULT_TIMEOUT_MS

PAGE = page("docs/mcp.md")


def test_the_example_loads_and_its_servers_would_be_started_as_the_page_says(tmp_path: Path) -> None:
    file = tmp_path / "perstack.toml"
    example = fenced(PAGE, "toml")[0]
    file.write_text(example)
    notes, time, search = load_project(file).project.experts["archivist"].skills
    assert all(McpSkillFactory().handles(skill) for skill in (notes, time, search))
    context = SkillContext(tmp_path, "job", {"LOCAL_TIMEZONE": "UTC", "SEARCH_TOKEN": "t"})
    assert isinstance(notes, McpStdioSkill)
    assert launch_of(notes, context).argv == ("npx", "-y", "@modelcontextprotocol/server-filesystem", "notes")
    assert isinstance(time, McpStdioSkill)
    assert launch_of(time, context).env == {"LOCAL_TIMEZONE": "UTC"}
    assert isinstance(search, McpSseSkill)
    assert headers_of(search, context.env) == {"Authorization": "Bearer t"}
    assert RemoteServer(search, context).name == "search"


def test_the_example_of_a_login_loads_and_its_secret_is_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "perstack.toml"
    file.write_text('[experts.planner]\ninstruction = "x"\n' + fenced(PAGE, "toml")[1])
    loaded = load_project(file)
    assert loaded.warnings == ()
    (tracker,) = loaded.project.experts["planner"].skills
    assert isinstance(tracker, McpSseSkill)
    assert oauth_of(tracker, {"TRACKER_SECRET": "s"}).client_secret == "s"
    assert tracker.oauth is not None
    assert tracker.oauth.scopes == ("issues:read",)


def test_the_place_and_the_times_of_a_login_are_those_of_the_code() -> None:
    assert f"waits {LOGIN_TIMEOUT_S // 60:g} minutes".replace("5", "five") in PAGE
    assert f"http://127.0.0.1:PORT{PATH}" in PAGE
    assert "$XDG_CONFIG_HOME/perstack/logins" in PAGE


def test_the_variables_and_the_time_are_those_of_the_code() -> None:
    words = " ".join(PAGE.split())
    named = words.partition("Of the environment: ")[2].partition(", LC_")[0]
    assert set(named.split(", ")) == INHERITED
    assert f"{DEFAULT_TIMEOUT_MS:,} if not given" in words
