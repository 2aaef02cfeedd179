"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from typing_extensions import override

from perstack.core.definitions.skills import McpSseSkill, McpStdioSkill, Skill, is_base_skill
from perstack.errors import SkillError
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession

PLUGIN_API = 1


class McpSkillFactory(SkillFactory):
    """Factory for `mcpStdioSkill` and `mcpSseSkill`, except the base skill, which is declared as `mcpStdioSkill`."""

    name = "mcp"
    has_login = True

    @override
    def handles(self, definition: Skill) -> bool:
        if isinstance(definition, McpStdioSkill):
            return not is_base_skill(definition)
        return isinstance(definition, McpSseSkill)

    @override
    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        if isinstance(definition, McpStdioSkill):
            from perstack_mcp.local_server import LocalServer
            from perstack_mcp.session import McpSession

            return McpSession(LocalServer(definition, context), definition.timeout, may_sample=definition.sampling)
        if isinstance(definition, McpSseSkill):
            from perstack_mcp.remote_server import RemoteServer
            from perstack_mcp.session import McpSession

            server = RemoteServer(_require_remote(definition, context), context)
            return McpSession(server, definition.timeout, may_sample=definition.sampling)
        raise SkillError(f"skill {definition.name!r} is not an MCP server: {definition.type}")

    @override
    async def login(self, definition: Skill, context: SkillContext, present: Callable[[str], Awaitable[None]]) -> None:
        from perstack_mcp.login import log_in

        await log_in(_require_remote(definition, context), context, present)

    @override
    async def logout(self, definition: Skill, context: SkillContext) -> bool:
        from perstack_mcp.remote_server import login_file_of

        return await login_file_of(_require_remote(definition, context), context.env).forget()


def _require_remote(definition: Skill, context: SkillContext) -> McpSseSkill:
    from perstack_mcp.remote_server import fill_endpoint

    if not isinstance(definition, McpSseSkill):
        raise SkillError(f"skill {definition.name!r} ({definition.type}) is not a remote server, so it has no login")
    return fill_endpoint(definition, context.env)


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    return [McpSkillFactory()]
