"""Check that this worker has the providers, plugins, programs and variables of a Job, before anything is written."""

from __future__ import annotations

import os
import shutil

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import with_delegates
from perstack.core.definitions.sandbox import LOCAL
from perstack.core.definitions.skills import AgentSkill, InteractiveSkill, McpStdioSkill, with_base
from perstack.core.jobs.job import Job
from perstack.core.runs.events import StartRun
from perstack.engine.context.host_context import Setup
from perstack.engine.plugins.skills import factory_for
from perstack.errors import UsageError
from perstack.support.variables import check_known, variables_in


async def check_serves(setup: Setup, loaded: Job, start: StartRun) -> None:
    """Raise an error that names the key, plugin, program, variable or sandbox that a Run of the Job lacks here.

    Each Run of the team is checked: a delegate that lacks something would fail in the middle of the work.
    """
    for expert in with_delegates(setup.project, (start.expert_key,)) or (start.expert,):
        settings = setup.providers.settings(setup.project, expert, setup.overrides)
        setup.providers.check(settings, setup.project, expert)
        if setup.providers.get(settings.provider).player is None:
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
