"""A skill whose tool asks the model, and the turns of a Job that uses it."""

from __future__ import annotations

import asyncio

from hosts import expert

from perstack.core.definitions.skills import McpStdioSkill, ToolSpec
from perstack.core.messages.messages import TextPart, UserMessage
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SampleRequest, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.testing.scripted import text, tool, turn


class Summing(SkillFactory, SkillSession):
    """A skill whose tool `sum` asks the model three times: twice concurrently, then once."""

    name = "summing"

    def handles(self, definition) -> bool:
        return isinstance(definition, McpStdioSkill) and definition.name == "summing"

    async def open(self, definition, context):
        return self

    async def tools(self) -> Toolset:
        return Toolset((ToolSpec(name="sum"),))

    async def call(self, call: ToolCall) -> ToolResult:
        assert call.sample is not None
        asked = SampleRequest((UserMessage(contents=(TextPart(text="2 + 2?"),)),), "[[calculator]]", max_tokens=500)
        await asyncio.gather(call.sample(asked), call.sample(asked))
        await call.sample(asked)
        return ToolResult.text("4")

    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_skills(self):
        return [self]


SAMPLING = expert("a").model_copy(update={"skills": (McpStdioSkill(name="summing", command="x", sampling=True),)})
TURNS = {
    "[[calculator]]": [text("4", usage=(100, 400))],
    "[[a]]": [turn(tool("sum"), usage=(9, 1)), text("done", usage=(9, 1))],
}
