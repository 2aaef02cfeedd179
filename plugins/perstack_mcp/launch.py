"""What is started for a skill, and what of the environment it is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath

from perstack.core.definition_secrets import secrets_of
from perstack.core.definitions import McpStdioSkill
from perstack.core.secret_text import is_secret_name
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack.ports.processes.environment import inherited
from perstack.ports.runtime import LOCAL_RUNTIME, Runtime
from perstack.ports.skill import SkillContext
from perstack.ports.variables import check_known, filled, variables_in

_SHORTEST_SECRET = 6
"""Characters: shorter ones are found in too many words."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line with its surroundings."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    records: Path | None = None
    """Where it is recorded while it runs."""
    secrets: tuple[str, ...] = ()
    """What no line of its stderr may show, the longest first."""
    runtime: Runtime = LOCAL_RUNTIME
    domains: tuple[str, ...] = ()
    """What it may reach over the network, in a runtime that has a say in that."""


def launch_of(definition: McpStdioSkill, context: SkillContext) -> Launch:
    """Raises SkillError that names what is missing, before anything starts."""
    missing = [name for name in definition.required_env if not context.env.get(name)]
    if missing:
        names = ", ".join(missing)
        raise SkillError(f"skill {definition.name!r} needs {names}: set it in the environment or in a .env file")
    check_known((*definition.args, *definition.env.values()), definition.name)
    args = filled(
        {str(number): arg for number, arg in enumerate(definition.args)}, context.env, definition.name, "args"
    )
    given = filled(definition.env, context.env, definition.name, "env")
    filled_in = definition.model_copy(update={"args": tuple(args.values()), "env": given})
    variables = variables_in((*definition.args, *definition.env.values()))
    named = {context.env[name] for name in variables if is_secret_name(name)}
    secrets = {secret for secret in (*secrets_of(filled_in), *named) if len(secret) >= _SHORTEST_SECRET}
    return Launch(
        _argv(filled_in),
        {**inherited(context.env, (*definition.required_env, *context.variables)), **given},
        context.workspace,
        context.programs,
        tuple(sorted(secrets, key=len, reverse=True)),
        context.runtime,
        definition.allowed_domains,
    )


def _argv(definition: McpStdioSkill) -> tuple[str, ...]:
    package = (definition.package_name,) if definition.package_name else ()
    is_npx = PurePath(definition.command).name == "npx"
    # npx asks before it installs, and nobody is there to answer
    unasked = ("-y",) if is_npx and not {"-y", "--yes"}.intersection(definition.args) else ()
    return (definition.command, *unasked, *package, *definition.args)
