"""What is started for a skill, and what of the environment it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from perstack.core.definitions import McpStdioSkill
from perstack.errors import SkillError
from perstack.ports.processes.environment import inherited
from perstack.ports.skill import SkillContext


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line with its surroundings."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    records: Path | None = None
    """Where it is recorded while it runs."""


def launch_of(definition: McpStdioSkill, context: SkillContext) -> Launch:
    """Raises SkillError that names what is missing, before anything starts."""
    missing = [name for name in definition.required_env if not context.env.get(name)]
    if missing:
        names = ", ".join(missing)
        raise SkillError(f"skill {definition.name!r} needs {names}: set it in the environment or in a .env file")
    return Launch(
        _argv(definition), inherited(context.env, definition.required_env), context.workspace, context.programs
    )


def _argv(definition: McpStdioSkill) -> tuple[str, ...]:
    package = (definition.package_name,) if definition.package_name else ()
    is_npx = PurePath(definition.command).name == "npx"
    # npx asks before it installs, and nobody is there to answer
    unasked = ("-y",) if is_npx and not {"-y", "--yes"}.intersection(definition.args) else ()
    return (definition.command, *unasked, *package, *definition.args)
