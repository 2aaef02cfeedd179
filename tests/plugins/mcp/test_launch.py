"""What is started for a declaration."""

from __future__ import annotations

import pytest

from perstack.core.definitions.skills import McpSseSkill, McpStdioSkill, PluginSkill
from perstack.ports.skill import SkillContext
from perstack_mcp.plugin import McpSkillFactory
from perstack_mcp.server_process import launch_of


@pytest.mark.parametrize(
    ("fields", "argv"),
    [
        ({"package_name": "pkg", "args": ("x",)}, ("npx", "-y", "pkg", "x")),
        ({"args": ("-y", "pkg", "x")}, ("npx", "-y", "pkg", "x")),
        ({"command": "uvx", "package_name": "pkg", "args": ("x",)}, ("uvx", "pkg", "x")),
        ({"command": "/usr/bin/npx", "package_name": "@org/pkg@1"}, ("/usr/bin/npx", "-y", "@org/pkg@1")),
        ({"command": "python", "args": ("-m", "server")}, ("python", "-m", "server")),
    ],
)
def test_a_package_is_run_without_a_question(tmp_path, fields: dict, argv: tuple[str, ...]) -> None:
    assert launch_of(McpStdioSkill(name="s", **fields), SkillContext(tmp_path, "job", {})).argv == argv


@pytest.mark.parametrize(
    ("skill", "is_ours"),
    [
        (McpStdioSkill(name="s", package_name="pkg"), True),
        (McpSseSkill(name="s", endpoint="https://example.com"), True),
        (McpStdioSkill(name="@perstack/base"), False),
        (McpStdioSkill(name="s", package_name="@perstack/base@0.0.1"), False),
        (PluginSkill(name="s", plugin="mcp"), False),
    ],
)
def test_mcp_servers_are_taken_and_the_base_skill_is_left_to_its_plugin(skill, is_ours: bool) -> None:
    assert McpSkillFactory().handles(skill) is is_ours
