"""A plugin whose tool asks for filled-in forms: `PERSTACK_PLUGINS=questionnaire`, with this folder on PYTHONPATH.

The skill's settings list the forms: `settings = {forms = [JSON schema, …]}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import PluginSkill, Skill, ToolSpec
from perstack.core.runs.facts import Question
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset


@dataclass
class Questionnaire(SkillSession):
    """A skill whose tool `fill` asks each form in turn and returns the answers."""

    forms: list[JsonObject]

    async def tools(self) -> Toolset:
        return Toolset((ToolSpec(name="fill", description="Has a person fill in forms"),))

    async def call(self, call: ToolCall) -> ToolResult | Question:
        if len(call.answers) < len(self.forms):
            return Question(message="Please fill this in.", requested_schema=self.forms[len(call.answers)])
        return ToolResult.text(str([answer.content for answer in call.answers]))

    async def close(self) -> None:
        pass


class Questionnaires(SkillFactory):
    """The factory."""

    name = "questionnaire"

    def handles(self, definition: Skill) -> bool:
        return isinstance(definition, PluginSkill) and definition.plugin == "questionnaire"

    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        assert isinstance(definition, PluginSkill)
        forms = definition.settings["forms"]
        assert isinstance(forms, list)
        return Questionnaire([form for form in forms if isinstance(form, dict)])


@hookimpl
def perstack_skills() -> Sequence[SkillFactory]:
    return [Questionnaires()]
