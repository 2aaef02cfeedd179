"""Tools with which an Expert changes its own skills and delegates while it runs, and the rules for what it may add.

An Expert has the tools that the `pick` of its base skill names. A change is recorded in the result of its call
(`ExpertChange`), holds from the Run's next generation on, and is folded into `Run.expert`. A new Run begins with the
definition.

A model names what is added and never describes it, so that nothing can act without the agreement of the folder's user:

- An Expert may add a skill that another Expert of the project declares, if both have the same `permissions`,
  `runtime` and `maskSecrets`: otherwise the other Expert's restrictions on the skill would not apply.
- It may add a delegate that `delegates` could name.
- An Expert of another file in the workspace may have only effects (`Key.effect`) that the project declares in the
  same words. `run_skills.EXPERT_OF_FILE` reads the file and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, assert_never

from pydantic import Field

from perstack.core.base.records import EMPTIED, JsonObject, Record, Redactable, falsy
from perstack.core.base.text import REDACTED
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import delegation_problem
from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import (
    AnySkill,
    ChangingTool,
    InteractiveSkill,
    PluginSkill,
    Skill,
    Subject,
    ToolSpec,
    find_base_skill,
    is_base_skill,
    legal_tool_name,
    picked_changing_tools,
    tool_skills,
)
from perstack.errors import SkillError

if TYPE_CHECKING:
    from pydantic import JsonValue


def _identity(expert: Expert) -> Expert:
    """Return the Expert with only its identity and maximum steps: its settings may contain any text."""
    return Expert(key=expert.key, version=expert.version, instruction=REDACTED, max_steps=expert.max_steps)


ExpertOfRun = Annotated[Expert, Redactable(_identity)]


def _identity_if_any(expert: Expert | None) -> Expert | None:
    return None if expert is None else _identity(expert)


class ExpertChange(Record):
    """A change of a Run to its Expert's skills or delegates; it holds from the next generation on."""

    tool: ChangingTool
    name: str  # name of the skill, or key of the delegate
    skill: Annotated[AnySkill | None, EMPTIED] = Field(default=None, exclude_if=falsy)  # added skill, without secrets
    # delegate that the project does not declare, without secrets
    expert: Annotated[Expert | None, Redactable(_identity_if_any)] = Field(default=None, exclude_if=falsy)


CREATE_EXPERT = "createExpert"
"""A tool of the original's base skill that is not offered: it would let a model write definitions."""

_DESCRIPTIONS: dict[ChangingTool, str] = {
    "addSkill": "Add a skill that the project declares to your own. You have its tools from your next turn on.",
    "removeSkill": "Remove one of your skills with its tools. Its server stops after this turn.",
    "addDelegate": "Add an Expert of the project to those that you can delegate to. It is a tool from your next turn"
    " on, and sees only the query that you send.",
    "removeDelegate": "Remove an Expert from those that you can delegate to.",
    "addDelegateFromConfig": "Add an Expert of another definition file in the workspace to those that you can delegate"
    " to, as addDelegate does.",
}


def changing_specs(base: Skill, project: Project | None = None, expert: Expert | None = None) -> tuple[ToolSpec, ...]:
    """Return the specs of the picked tools; with a project and an Expert, also the names that may be added."""
    return tuple(_spec(tool, base, project, expert) for tool in picked_changing_tools(base))


def changing_tools_of(expert: Expert, project: Project) -> tuple[ToolSpec, ...]:
    """Return the specs of the tools with which an Expert may change itself."""
    return changing_specs(find_base_skill(expert.skills), project, expert)


def _spec(tool: ChangingTool, base: Skill, project: Project | None, expert: Expert | None) -> ToolSpec:
    properties: dict[str, JsonValue] = {"name": {"type": "string", "description": "The skill"}}
    required: list[JsonValue] = ["name"]
    names: list[str] = []
    if tool == "addSkill":
        names = (
            []
            if project is None or expert is None
            else [*dict.fromkeys(s.name for _, s in _lendable_skills(project, expert))]
        )
        properties["expert"] = {"type": "string", "description": "Who declares it, if several do so differently"}
    elif tool != "removeSkill":
        properties["name"] = {"type": "string", "description": "The Expert"}
        if tool == "addDelegate" and project is not None and expert is not None:
            names = [key for key in project.experts if _delegate_problem(project, expert, key) is None]
    if names:
        properties["name"] = {"type": "string", "enum": [*names]}
    if tool == "addDelegateFromConfig":
        path: JsonObject = {"type": "string", "description": "Definition file, relative to the workspace"}
        properties, required = {"path": path, **properties}, ["path", *required]
    schema: JsonObject = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return ToolSpec(
        name=tool,
        description=_DESCRIPTIONS[tool],
        input_schema=schema,
        skill_name=base.name,
        effect="idempotent",
        subject=Subject(paths=("path",), reads=("path",)) if tool == "addDelegateFromConfig" else None,
    )


def with_changes(expert: Expert, changes: Iterable[ExpertChange]) -> Expert:
    """Return the Expert with these changes to its skills and delegates."""
    skills, delegates = expert.skills, expert.delegates
    for change in changes:
        match change.tool:
            case "addSkill":
                skills = skills if change.skill is None else (*skills, change.skill)  # None: redacted
            case "removeSkill":
                skills = tuple(skill for skill in skills if skill.name != change.name)
            case "addDelegate" | "addDelegateFromConfig":
                delegates = (*delegates, change.name)
            case "removeDelegate":
                delegates = tuple(key for key in delegates if key != change.name)
            case _:
                assert_never(change.tool)
    return expert.model_copy(update={"skills": skills, "delegates": delegates})


# What may be added and removed. Each function raises SkillError that tells the model what to do instead.


def skill_to_add(project: Project, expert: Expert, name: str, owner: str = "") -> Skill:
    """Return the skill `name` as the project declares it. `owner`: key of the declaring Expert; empty for any."""
    if any(skill.name == name for skill in expert.skills):
        raise SkillError(f"you have skill {name!r} already")
    candidates = [
        (key, skill)
        for key, skill in _lendable_skills(project, expert)
        if skill.name == name and (not owner or key == owner)
    ]
    if not candidates:
        reason = f"{owner or 'the project'} declares no skill {name!r} that can be added"
        others = dict.fromkeys(skill.name for _, skill in _lendable_skills(project, expert))
        raise SkillError(f"{reason}{_list_names(others)}; only a person declares another, in perstack.toml")
    if any(skill != candidates[0][1] for _, skill in candidates):
        owners = ", ".join(key for key, _ in candidates)
        raise SkillError(f"skill {name!r} is declared in different ways by {owners}: say whose with `expert`")
    return candidates[0][1]


def skill_to_remove(expert: Expert, name: str) -> str:
    """Return `name` if the Expert has this skill and can do without it."""
    if name == find_base_skill(expert.skills).name:
        raise SkillError(f"{name} cannot be removed: it has the tools that finish a task")
    names = [skill.name for skill in tool_skills(expert.skills) if not is_base_skill(skill)]
    if name not in names:
        raise SkillError(f"you have no skill {name!r}{_list_names(names)}")
    return name


def delegate_to_add(project: Project, expert: Expert, name: str) -> Expert:
    """Return the Expert with the key `name`, which is no delegate of `expert` yet."""
    delegate = project.expert(name)
    if delegate is None:
        keys = [key for key in project.experts if _delegate_problem(project, expert, key) is None]
        raise SkillError(f"there is no Expert {name!r} in this project{_list_names(keys)}")
    problem = _delegate_problem(project, expert, delegate.key)
    if problem is None and _find_entry(project, expert.delegates, delegate.key) is not None:
        problem = "you can delegate to it already"
    if problem is not None:
        raise SkillError(f"{delegate.key} is not added: {problem}")
    return delegate


def delegate_to_remove(project: Project, expert: Expert, name: str) -> str:
    """Return the entry of the Expert's `delegates` for `name`, which is a key or the name of a delegate's tool."""
    entry = _find_entry(project, expert.delegates, name)
    if entry is None:
        raise SkillError(f"you do not delegate to {name!r}{_list_names(expert.delegates)}")
    return entry


def check_foreign(project: Project, expert: Expert, delegate_expert: Expert) -> None:
    """Raise SkillError unless an Expert of another file can be a delegate here. Its effects are not checked."""
    if project.expert(delegate_expert.key) is not None:
        raise SkillError(f"this project has an Expert {delegate_expert.key!r} of its own: rename the other one")
    if delegate_expert.key in expert.delegates:
        raise SkillError(f"you can delegate to {delegate_expert.key!r} already")
    if delegate_expert.delegates:
        raise SkillError(
            f"{delegate_expert.key} has delegates of its own: only perstack.toml can take them in, by `include`"
        )


def _lendable_skills(project: Project, expert: Expert) -> list[tuple[str, Skill]]:
    """Return the skills that an Expert may add, each with the key of an Expert that declares it."""
    return [
        (owner_expert.key, skill)
        for owner_expert in project.experts.values()
        if owner_expert.key == expert.key or _restrictions(owner_expert) == _restrictions(expert)
        for skill in tool_skills(owner_expert.skills)
        if not (is_base_skill(skill) or isinstance(skill, InteractiveSkill))
        if not (isinstance(skill, PluginSkill) and skill.functions)
    ]


def _restrictions(expert: Expert) -> tuple[object, ...]:
    return expert.permissions, expert.runtime, expert.mask_secrets


def _delegate_problem(project: Project, expert: Expert, key: str) -> str | None:
    if key == expert.key:
        return "an Expert is no delegate of its own"
    if key in project.unguarded:
        return "one of its rules or limits may be misspelt"
    return delegation_problem(expert.key, key, project.experts)


def _find_entry(project: Project, delegates: Sequence[str], name: str) -> str | None:
    for entry in delegates:
        declared = project.expert(entry)
        key = entry if declared is None else declared.key
        if name in (entry, key, legal_tool_name(key)):
            return entry
    return None


def _list_names(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return f"; there are: {text}" if text else ""
