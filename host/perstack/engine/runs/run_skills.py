"""Open the skills of a Run, and carry out the changes that its calls make to its skills and delegates.

`core.definitions.expert_changes` has the rules. A call that adds a skill connects to it first, so that a server which
does not start is an error result and changes nothing. The result has the change, and `RunLoop` opens the skills of the
changed Expert before the next step: skills that stay are kept as they are, removed ones are closed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from perstack.core.definitions import expert_changes
from perstack.core.definitions.expert_changes import ExpertChange
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.secrets import skill_without_secrets, with_secrets, without_secrets
from perstack.core.definitions.skills import tool_skills
from perstack.core.messages.messages import TextPart
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup
from perstack.engine.plugins.job_skills import RunSkills
from perstack.engine.plugins.tool_catalogue import BuiltinSession, OfferedTool
from perstack.engine.runs.beginning import with_strict_skills
from perstack.engine.runs.job_drive import JobDrive
from perstack.engine.runs.playback_protocol import PLAYBACK
from perstack.errors import PerstackError, SkillError
from perstack.ports.parts import Part
from perstack.ports.skill import ToolCall, ToolResult, Toolset

EXPERT_OF_FILE: Part[Callable[[HostSetup, str, str], Expert]] = Part("Experts of other definition files")
"""Returns an Expert of a definition file in the workspace, by its path and name. Raises PerstackError if refused."""


async def open_skills(drive: JobDrive, run: Run) -> RunSkills:
    """Open the skills that a Run has now. Raises SkillError, or any error of a skill's code."""
    skills = await _open(drive, run)
    skills.changes = run.expert_changes
    skills.fit_to(run, drive.setup.storage, drive.setup.parts)
    await skills.refresh()
    return skills


async def reopen_skills(drive: JobDrive, run: Run) -> RunSkills:
    """Open the skills of a Run that has changed, and close those that it no longer has. Raises as `open_skills`."""
    skills = await open_skills(drive, run)
    await drive.skills.keep_only(skills.expert, run.id, run.start.sandbox, played_skills(drive, run))
    return skills


def played_skills(drive: JobDrive, run: Run) -> Mapping[str, Toolset]:
    """Return the skills that are not opened for a Run, because a recording answers for their tools."""
    setup = drive.setup
    try:
        provider = setup.providers.for_run(run, setup.project, setup.overrides).provider
    except PerstackError:
        return {}  # the Run fails when it opens its endpoint, which raises the error again
    if provider.player is None:
        return {}
    return setup.parts.get(PLAYBACK).played_skills(provider, run)


async def _open(drive: JobDrive, run: Run) -> RunSkills:
    start, project = run.start, _project_with_added_experts(drive.setup.project, run)
    tools = expert_changes.changing_tools_of(run.expert, project)
    changes = BuiltinSession(Toolset(tools), _ExpertChanges(drive, run).perform) if tools else None
    return await drive.skills.open(
        _openable_expert(drive, run),
        project,
        run_id=run.id,
        is_coordinator=run.is_coordinator,
        policy=start.sandbox,
        played_toolsets=played_skills(drive, run),
        vault=drive.vault(run),
        recorded_definitions=drive.offered_definitions(run),
        host_tools=[OfferedTool(spec, changes, spec.name) for spec in tools],
    )


def _project_with_added_experts(project: Project, run: Run) -> Project:
    """Return the project with the delegates that the Run has added from other files."""
    added = run.added_experts
    return project.model_copy(update={"experts": {**added, **project.experts}}) if added else project


def _openable_expert(drive: JobDrive, run: Run) -> Expert:
    """Return the Expert to open: with secrets, and with all skills required if the option was given."""
    expert, project = run.expert, drive.setup.project
    declared_expert = project.experts.get(run.start.expert_key)
    if run.expert_changes or declared_expert is None:
        declared_skills = [skill for other in project.experts.values() for skill in tool_skills(other.skills)]
        equal_skills = {
            skill.name: skill for skill in reversed(declared_skills) if skill_without_secrets(skill) in expert.skills
        }
        own_skills = {} if declared_expert is None else {skill.name: skill for skill in declared_expert.skills}
        declared_expert = expert.model_copy(update={"skills": tuple({**own_skills, **equal_skills}.values())})
    return with_secrets(with_strict_skills(drive.setup, expert), declared_expert)


@dataclass(frozen=True, slots=True)
class ChangeResult(ToolResult):
    """Result of a call that has changed the Run's Expert."""

    change: ExpertChange | None = None


class _ExpertChanges:
    """The changes that the calls of one reply make, one after the other."""

    def __init__(self, drive: JobDrive, run: Run) -> None:
        self._drive = drive
        self._run = run
        self._lock = asyncio.Lock()

    async def perform(self, tool_call: ToolCall) -> ToolResult:
        """Carry out one call. Raises PerstackError if it changes nothing."""
        async with self._lock:
            change = await self._decide_change(tool_call)
            changed_run = replace(self._run, expert_changes=(*self._run.expert_changes, change))
            if change.skill is not None:
                await self._check_reachable(changed_run, change.name)
            catalogue = (await _open(self._drive, changed_run)).catalogue
            self._run = changed_run
        specs = (*catalogue.shown, *catalogue.deferred)
        result: dict[str, object] = {"removed": change.name}
        if change.tool == "addSkill":
            result = {"added": change.name, "tools": [spec.name for spec in specs if spec.skill_name == change.name]}
        elif change.tool in ("addDelegate", "addDelegateFromConfig"):
            names = (spec.name for spec in specs if spec.kind == "delegate" and spec.target == change.name)
            result = {"added": change.name, "tools": [*names]}
        return ChangeResult((TextPart(text=json.dumps(result, ensure_ascii=False)),), change=change)

    async def _decide_change(self, tool_call: ToolCall) -> ExpertChange:
        """Return the change that a call asks for. Raises PerstackError if it is not possible or not allowed."""
        setup, expert = self._drive.setup, self._run.expert
        project = _project_with_added_experts(setup.project, self._run)
        name = str(tool_call.args["name"])
        match tool_call.tool_name:
            case "addSkill":
                skill = expert_changes.skill_to_add(project, expert, name, str(tool_call.args.get("expert", "")))
                return ExpertChange(tool="addSkill", name=name, skill=skill_without_secrets(skill))
            case "removeSkill":
                return ExpertChange(tool="removeSkill", name=expert_changes.skill_to_remove(expert, name))
            case "addDelegate":
                delegate = expert_changes.delegate_to_add(project, expert, name)
                await setup.check_policies(setup.policies(delegate))
                return ExpertChange(tool="addDelegate", name=delegate.key)
            case "removeDelegate":
                entry = expert_changes.delegate_to_remove(project, expert, name)
                return ExpertChange(tool="removeDelegate", name=entry)
            case _:
                delegate = await asyncio.to_thread(
                    setup.parts.get(EXPERT_OF_FILE), setup, str(tool_call.args["path"]), name
                )
                expert_changes.check_foreign(project, expert, delegate)
                await setup.check_policies((setup.policy(delegate),))
                return ExpertChange(tool="addDelegateFromConfig", name=name, expert=without_secrets(delegate))

    async def _check_reachable(self, changed_run: Run, name: str) -> None:
        """Open an added skill. Raises SkillError if it cannot be reached."""
        drive = self._drive
        definition = next(
            skill for skill in tool_skills(_openable_expert(drive, changed_run).skills) if skill.name == name
        )
        played_toolset = played_skills(drive, changed_run).get(name)
        problem = await drive.skills.reach(definition, changed_run.id, changed_run.start.sandbox, played_toolset)
        if problem is not None:
            raise SkillError(f"skill {name!r} is not added: {problem}")
