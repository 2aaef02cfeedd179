"""Registration with the host."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.definitions import BASE_SKILL, McpSseSkill, McpStdioSkill, Skill
from perstack.errors import SkillError
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession


class McpSkillFactory:
    """Opens `mcpStdioSkill` and `mcpSseSkill`; the base skill, though declared as the former, is another plugin's."""

    name = "mcp"

    def handles(self, definition: Skill) -> bool:
        """Whether a declaration means an MCP server."""
        if isinstance(definition, McpStdioSkill):
            package = definition.package_name or ""
            return BASE_SKILL not in (definition.name, package) and not package.startswith(f"{BASE_SKILL}@")
        return isinstance(definition, McpSseSkill)

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        """A session that connects when its tools are asked for. Raises SkillError for what its author must change."""
        from importlib.util import find_spec

        if find_spec("mcp") is None:
            raise SkillError(f"skill {definition.name!r} needs the MCP SDK: pip install 'perstack[mcp]'")
        if isinstance(definition, McpStdioSkill):
            from perstack_mcp.local import LocalServer
            from perstack_mcp.session import McpSession

            return McpSession(LocalServer(definition, context), definition.timeout)
        if isinstance(definition, McpSseSkill):
            from perstack_mcp.remote import RemoteServer
            from perstack_mcp.session import McpSession

            return McpSession(RemoteServer(definition, context), definition.timeout)
        raise SkillError(f"skill {definition.name!r} is no MCP server: {definition.type}")


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    """MCP servers."""
    return [McpSkillFactory()]
