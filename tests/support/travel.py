"""A plugin whose tool asks a person: `PERSTACK_PLUGINS=travel`, with this folder on PYTHONPATH."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.definitions.skills import PluginSkill, Skill, ToolSpec
from perstack.core.runs.facts import Question
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset

WHERE = Question(
    message="Where to, and for how long?",
    requested_schema={
        "type": "object",
        "properties": {"city": {"type": "string", "title": "City"}, "nights": {"type": "integer", "minimum": 1}},
        "required": ["city"],
    },
)
OFFERED = Toolset((ToolSpec(name="book", description="Books a hotel"),))


class Travel(SkillFactory, SkillSession):
    """A skill whose tool `book` asks, and returns the answer."""

    name = "travel"

    def handles(self, definition: Skill) -> bool:
        return isinstance(definition, PluginSkill) and definition.plugin == "travel"

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        return self

    async def tools(self) -> Toolset:
        return OFFERED

    async def call(self, call: ToolCall) -> ToolResult | Question:
        if not call.answers:
            return WHERE
        answer = call.answers[-1]
        return ToolResult.text(f"{answer.action} {answer.content.get('city')} {answer.content.get('nights')}")

    async def close(self) -> None:
        pass


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    return [Travel()]
