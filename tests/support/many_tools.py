"""A skill with more tools than models are shown, and an Expert that has it."""

from __future__ import annotations

from hosts import expert

from perstack.core.definitions.skills import PluginSkill, ToolSpec
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillFactory, SkillSession, ToolCall, ToolResult, Toolset

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "which city " * 20}}}
TOOLS = Toolset(
    tuple(
        ToolSpec(name=f"{verb}{thing}{number}", description=f"{verb} the {thing} of a city", input_schema=SCHEMA)
        for number in range(10)
        for verb in ("get", "set", "list", "delete")
        for thing in ("Weather", "Traffic", "Mayor", "Budget", "Museum")
    )
)


class City(SkillFactory, SkillSession):
    """A skill with two hundred tools."""

    name = "city"

    def handles(self, definition) -> bool:
        return isinstance(definition, PluginSkill) and definition.plugin == "city"

    async def open(self, definition, context):
        return self

    async def tools(self) -> Toolset:
        return TOOLS

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult.text(f"{call.tool_name} done")

    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_skills(self):
        return [self]


def mayor(**fields):
    return expert("a", **fields).model_copy(update={"skills": (PluginSkill(name="city", plugin="city"),)})
