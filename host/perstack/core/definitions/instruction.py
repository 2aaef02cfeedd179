"""The text that a model is given as its instruction. Rendered once for a Run, so that its prefix stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from perstack.core.base import JsonObject
from perstack.core.definitions import AgentSkill, Expert, InteractiveSkill
from perstack.core.results import asked_for
from perstack.core.skill_definitions import agent_skills, with_tools
from perstack.dataclass import dataclass

BETWEEN = "\n\n"

_PREAMBLE = """\
You are an Expert run by Perstack. You work in a loop: each turn you may call tools, see their results, and go on.

- Keep calling tools until the task is done. A reply without a tool call ends your work, and its text is the result.
- When the task is done, or lies outside your expertise, or cannot be understood, call attemptCompletion.
- An error from a tool is information: read it, and change what you do.
- You see only what you are sent. Whoever sent the query sees only your result."""


@dataclass(frozen=True, slots=True)
class DelegateInfo:
    """A delegate as the model is told of it."""

    tool_name: str
    description: str


def render_instruction(
    expert: Expert,
    delegates: Sequence[DelegateInfo],
    *,
    time: str,
    directory: str,
    is_coordinator: bool,
    schema: JsonObject | None = None,
    agents_md: str = "",
) -> str:
    """The instruction of one Run. `time` is an ISO 8601 instant; `directory` is what tools see as the working one.

    `schema` is what its result has to fit, `agents_md` what the project's AGENTS.md files say.
    """
    parts = instruction_parts(
        expert,
        delegates,
        time=time,
        directory=directory,
        is_coordinator=is_coordinator,
        schema=schema,
        agents_md=agents_md,
    )
    return BETWEEN.join(parts.values())


def instruction_parts(
    expert: Expert,
    delegates: Sequence[DelegateInfo],
    *,
    time: str,
    directory: str,
    is_coordinator: bool,
    schema: JsonObject | None = None,
    agents_md: str = "",
) -> dict[str, str]:
    """The same in its parts, each by a name for people; `BETWEEN` stands between them."""
    parts = {
        "loop": f"{_PREAMBLE}{BETWEEN}Started at {time}. {_place(directory)}",
        "instruction": expert.instruction.strip(),
        "rules": BETWEEN.join(_skill_rules(expert, is_coordinator)),
    }
    knowledge = agent_skills(expert.skills)
    if knowledge:
        parts["agent skills"] = _told_of(knowledge)
    parts["AGENTS.md"] = agents_md
    if delegates:
        told = "\n".join(f"- {one.tool_name}: {one.description}" for one in delegates)
        parts["delegates"] = (
            "You can delegate to these Experts by calling them as tools. They see only the query you send:\n" + told
        )
    if schema is not None:
        parts["result"] = asked_for(schema)
    return {name: text for name, text in parts.items() if text}


def names_directory(instruction: str, directory: str) -> bool:
    """Whether an instruction was rendered for this working directory."""
    return _place(directory) in instruction


def _place(directory: str) -> str:
    return f"The working directory is {directory}."


@lru_cache(maxsize=256)
def whole_instruction(instruction: str, guidance: str) -> str:
    """An Expert's instruction, and after it what the skills say; the same object each time, for it is long."""
    return f"{instruction}{BETWEEN}{guidance}" if guidance else instruction


def _told_of(skills: Sequence[AgentSkill]) -> str:
    told = "\n".join(f"- {one.name} (in {one.path}): {' '.join(one.description.split())}" for one in skills)
    return (
        "You have these skills: folders of instructions for a kind of task. Before you do what one of them is for, read"
        " it with loadSkill, and do as it says. Paths in it are seen from its folder.\n" + told
    )


def _skill_rules(expert: Expert, is_coordinator: bool) -> list[str]:
    return [
        f"Rules for the tools of {skill.name}:\n{skill.rule.strip()}"
        for skill in with_tools(expert.skills)
        if skill.rule and (is_coordinator or not isinstance(skill, InteractiveSkill))
    ]
