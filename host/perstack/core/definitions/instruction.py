"""System instruction of a Run's model. It is rendered once for a Run, so that the prompt prefix does not change."""

from collections.abc import Sequence
from functools import lru_cache

from pydantic import Field

from perstack.core.base.records import Fact, JsonObject, falsy
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.skills import AgentSkill, InteractiveSkill, agent_skills, with_tools
from perstack.core.schemas.result_schemas import result_instruction
from perstack.dataclass import dataclass

# AGENTS.md: a project's instructions to agents, in the public format. The file nearest to the working directory takes
# precedence.


class AgentsMdFile(Fact):
    """AGENTS.md as recorded when a Run began."""

    path: str  # path relative to the project's top folder
    sha256: str  # digest of the whole file, in hex
    size: int
    shown: int | None = None  # bytes shown; None: all
    problem: str = Field(default="", exclude_if=falsy)  # reason why the model does not see it; empty if it does


SEPARATOR = "\n\n"

_PREAMBLE = """\
You are an Expert run by Perstack. You work in a loop: each turn you may call tools, see their results, and go on.

- Keep calling tools until the task is done. A reply without a tool call ends your work, and its text is the result.
- When the task is done, or lies outside your expertise, or cannot be understood, call attemptCompletion.
- An error from a tool is information: read it, and change what you do.
- You see only what you are sent. Whoever sent the query sees only your result."""


_SECRETS = (
    "Secrets in what tools return are replaced by placeholders such as [secret:1]. To use one, write the placeholder in"
    " the arguments of a tool: the tool receives the value."
)


@dataclass(frozen=True, slots=True)
class DelegateInfo:
    """Delegate as shown to the model."""

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
    masks_secrets: bool = False,
) -> str:
    """Return the instruction of one Run.

    `time` is an ISO 8601 instant, `directory` the working directory as tools see it. `schema` is the JSON schema of the
    result; `agents_md` is the text of the project's AGENTS.md files.
    """
    parts = instruction_parts(
        expert,
        delegates,
        time=time,
        directory=directory,
        is_coordinator=is_coordinator,
        schema=schema,
        agents_md=agents_md,
        masks_secrets=masks_secrets,
    )
    return SEPARATOR.join(parts.values())


def instruction_parts(
    expert: Expert,
    delegates: Sequence[DelegateInfo],
    *,
    time: str,
    directory: str,
    is_coordinator: bool,
    schema: JsonObject | None = None,
    agents_md: str = "",
    masks_secrets: bool = False,
) -> dict[str, str]:
    """Return the non-empty parts of the instruction by display name; `SEPARATOR` joins them."""
    parts = {
        "loop": f"{_PREAMBLE}{SEPARATOR}Started at {time}. {_place(directory)}",
        "instruction": expert.instruction.strip(),
        "rules": SEPARATOR.join(_skill_rules(expert, is_coordinator)),
    }
    if expert.standing:
        parts["standing"] = "This always holds:\n" + "\n".join(f"- {text.strip()}" for text in expert.standing)
    knowledge = agent_skills(expert.skills)
    if knowledge:
        parts["agent skills"] = _list_agent_skills(knowledge)
    parts["AGENTS.md"] = agents_md
    if delegates:
        lines = "\n".join(f"- {delegate.tool_name}: {delegate.description}" for delegate in delegates)
        parts["delegates"] = (
            "You can delegate to these Experts by calling them as tools. They see only the query you send:\n" + lines
        )
    if masks_secrets:
        parts["secrets"] = _SECRETS
    if schema is not None:
        parts["result"] = result_instruction(schema)
    return {name: text for name, text in parts.items() if text}


def names_directory(instruction: str, directory: str) -> bool:
    """Return whether an instruction was rendered for this working directory."""
    return _place(directory) in instruction


def _place(directory: str) -> str:
    return f"The working directory is {directory}."


@lru_cache(maxsize=256)
def whole_instruction(instruction: str, guidance: str) -> str:
    """Return an Expert's instruction and the skills' guidance; cached, so that equal inputs share one string."""
    return f"{instruction}{SEPARATOR}{guidance}" if guidance else instruction


def _list_agent_skills(skills: Sequence[AgentSkill]) -> str:
    lines = "\n".join(f"- {skill.name} (in {skill.path}): {' '.join(skill.description.split())}" for skill in skills)
    return (
        "You have these skills: folders of instructions for a kind of task. Before you do what one of them is for, read"
        " it with loadSkill, and do as it says. Paths in it are seen from its folder.\n" + lines
    )


def _skill_rules(expert: Expert, is_coordinator: bool) -> list[str]:
    return [
        f"Rules for the tools of {skill.name}:\n{skill.rule.strip()}"
        for skill in with_tools(expert.skills)
        if skill.rule and (is_coordinator or not isinstance(skill, InteractiveSkill))
    ]
