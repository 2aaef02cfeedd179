"""Functions that a program gives to Experts, `Expert(…, tools=[find_order])`, as a plugin of its Host.

A definition, and so a log, has the names of the functions (`core.definitions.skills.functions_skill`). A Host takes the
functions themselves out of the definition, so that it is equal to a recorded one, and keeps a Toolkit for each Expert.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import PluginSkill, Skill, functions_skill
from perstack.errors import SkillError
from perstack.ports.skill import SkillContext, SkillSession
from perstack.toolkit.toolkit import Toolkit


class FunctionsOfExpert(Toolkit[None, None]):
    """The functions of one Expert."""

    def __init__(self, expert: Expert) -> None:
        """Make the Expert's functions tools. Raises PluginError for a function that cannot be a tool."""
        super().__init__(functions_skill(expert.key, expert.tools).plugin)
        for function in expert.tools:
            self.add(function)

    @override
    def check(self, definition: Skill) -> None:
        recorded = definition.functions if isinstance(definition, PluginSkill) else ()
        missing = [name for name in recorded if name not in self.tool_names]
        if missing:
            raise SkillError(
                f"{', '.join(missing)}: the Run began with this Python function, which is no longer in the `tools`"
                f" of the Expert: pass it again, tools=[{', '.join((*self.tool_names, *missing))}]"
            )

    @override
    async def open(self, definition: Skill, context: SkillContext) -> SkillSession:
        """Open the skill. Raises SkillError if a function with which the Run began is missing."""
        self.check(definition)
        return await super().open(definition, context)


def take_functions(project: Project) -> tuple[Project, Sequence[FunctionsOfExpert]]:
    """Return the project without the functions of its Experts, and a plugin for each Expert that has any."""
    experts_with_functions = [expert for expert in project.experts.values() if expert.tools]
    experts = {key: expert.model_copy(update={"tools": ()}) for key, expert in project.experts.items()}
    return project.model_copy(update={"experts": experts}), [
        FunctionsOfExpert(expert) for expert in experts_with_functions
    ]
