"""The tools of the Experts that write definitions: checking one, and trying an Expert of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from perstack.config.load import DefinitionFile
from perstack.config.problems import describe_problems
from perstack.core.definitions import Project
from perstack.errors import SkillError
from perstack.frontends.making.team import DEFINITION
from perstack.frontends.making.trial import Trials
from perstack.frontends.shared.checked import checked
from perstack.frontends.shared.words import count
from perstack.ports.environment import Environment
from perstack.ports.toolkit import ToolContext, Toolkit

NAME = "@perstack/create"
_MOST = 1 << 20
"""Characters of a definition."""


def kit_for(
    folder: Path,
    env: Environment,
    plugins: Sequence[object],
    trials: Trials,
    on_tried: Callable[[str, str], None],
) -> Toolkit:
    """The skill `@perstack/create` for one folder; `on_tried` gets each Expert and query that was tried."""
    kit = Toolkit(NAME)

    @kit.tool(name="validateDefinition", effect="readOnly")
    async def validate(text: str = "") -> str:
        """Check perstack.toml as `perstack validate` does: every problem with its line. Writes and starts nothing.

        Args:
            text: the whole text that perstack.toml would have; empty to check the file as it is
        """
        if len(text) > _MOST:
            raise SkillError(f"a definition has at most {_MOST:,} characters")
        path = folder / DEFINITION
        if not text and not path.is_file():
            raise SkillError(f"there is no {DEFINITION} yet: give its text")
        definition = await asyncio.to_thread(DefinitionFile, path, text or None)
        project, problems = await checked(definition, env, plugins)
        return "\n".join(_lines(project, [line.replace(f"{folder}/", "") for line in describe_problems(problems)]))

    @kit.tool(name="tryExpert")
    async def attempt(expert: str, query: str, context: ToolContext) -> str:
        """Run an Expert of perstack.toml on a query in a copy of the folder, with few steps. Programs are not started.

        Args:
            expert: its name
            query: what it is asked
        """
        on_tried(expert, query)
        return await trials.tried(expert, query, context.call.on_progress)

    return kit


def _lines(project: Project | None, problems: Sequence[str]) -> Sequence[str]:
    said = problems if len(problems) > 1 else ()
    if project is None:
        return said
    return (*said, f"ok: {count(len(project.experts), 'Expert')}: {', '.join(project.experts)}")
