"""Whether what a Job needs is here: what a worker looks at before it writes anything."""

from __future__ import annotations

import os
import shutil

from perstack.core.definitions import AgentSkill, Expert, InteractiveSkill, McpStdioSkill
from perstack.core.events import StartRun
from perstack.core.sandbox import LOCAL
from perstack.core.skill_definitions import with_base
from perstack.core.teams import with_delegates
from perstack.engine.logs.runs import LoadedJob
from perstack.engine.setup import Setup
from perstack.engine.skills import factory_for
from perstack.errors import UsageError
from perstack.ports.provider import plays_recording
from perstack.ports.variables import check_known, variables_in


async def check_serves(setup: Setup, loaded: LoadedJob, start: StartRun) -> None:
    """Raises what says which key, plugin, program, variable or sandbox is missing here that a Run of a Job needs.

    Each Run of the team needs its own; a delegate without would fail in the middle of the work.
    """
    for expert in with_delegates(setup.project, (start.expert_key,)) or (start.expert,):
        settings = setup.providers.settings(setup.project, expert, setup.overrides)
        setup.providers.check(settings, setup.project, expert)
        if not plays_recording(setup.providers.get(settings.provider)):
            _check_skills(setup, expert)
    await setup.check_policies([run.start.sandbox for run in loaded.runs.values()])


def _check_skills(setup: Setup, expert: Expert) -> None:
    policy = setup.policy(expert)
    for skill in with_base(expert.skills):
        if isinstance(skill, InteractiveSkill | AgentSkill):
            continue
        factory_for(setup.plugins.skills, skill)
        if isinstance(skill, McpStdioSkill) and (policy is None or policy.runtime == LOCAL):
            _check_program(setup, skill)


def _check_program(setup: Setup, skill: McpStdioSkill) -> None:
    check_known((*skill.args, *skill.env.values()), skill.name)
    named = {*skill.required_env, *variables_in((*skill.args, *skill.env.values()))}
    missing = ", ".join(sorted(name for name in named if not setup.env.get(name)))
    if missing:
        raise UsageError(f"skill {skill.name!r} needs {missing}: set it in the environment or in a .env file")
    found = shutil.which(skill.command, path=setup.env.get("PATH", os.defpath))
    if found is None and not (setup.workspace / skill.command).is_file():
        raise UsageError(f"skill {skill.name!r} needs the program {skill.command}, which is not installed here")
