"""Registration with the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from perstack.core.definitions import McpSseSkill, McpStdioSkill, Skill, is_base_skill
from perstack.errors import SkillError
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession


class McpSkillFactory:
    """Opens `mcpStdioSkill` and `mcpSseSkill`; the base skill, though declared as the former, is another plugin's."""

    name = "mcp"

    def handles(self, definition: Skill) -> bool:
        """Whether a declaration means an MCP server."""
        if isinstance(definition, McpStdioSkill):
            return not is_base_skill(definition)
        return isinstance(definition, McpSseSkill)

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        """A session that connects when its tools are asked for. Raises SkillError for what its author must change."""
        if isinstance(definition, McpStdioSkill):
            from perstack_mcp.local import LocalServer
            from perstack_mcp.session import McpSession

            return McpSession(LocalServer(definition, context), definition.timeout, may_sample=definition.sampling)
        if isinstance(definition, McpSseSkill):
            from perstack_mcp.remote import RemoteServer
            from perstack_mcp.session import McpSession

            server = RemoteServer(_remote(definition, context), context)
            return McpSession(server, definition.timeout, may_sample=definition.sampling)
        raise SkillError(f"skill {definition.name!r} is not an MCP server: {definition.type}")

    async def login(self, definition: Skill, context: SkillContext, present: Callable[[str], Awaitable[None]]) -> None:
        """By OAuth, for a server on the web. Raises SkillError."""
        from perstack_mcp.login import log_in

        await log_in(_remote(definition, context), context, present)

    async def logout(self, definition: Skill, context: SkillContext) -> bool:
        """Delete the tokens."""
        from perstack_mcp.remote import place_of

        return await place_of(_remote(definition, context), context.env).forget()


def _remote(definition: Skill, context: SkillContext) -> McpSseSkill:
    from perstack_mcp.remote import filled_in

    if not isinstance(definition, McpSseSkill):
        raise SkillError(f"skill {definition.name!r} ({definition.type}) is not a server on the web: it has no login")
    return filled_in(definition, context.env)


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    """MCP servers."""
    return [McpSkillFactory()]
