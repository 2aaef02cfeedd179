"""System instruction of a Run's model. It is rendered once for a Run, so that the prompt prefix does not change."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from pydantic import Field

from perstack.core.base.records import JsonObject, Record, falsy
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.skills import InteractiveSkill, tool_skills
from perstack.core.schemas.result_schemas import result_instruction
from perstack.dataclass import dataclass


class AgentsMdFile(Record):
    """AGENTS.md as recorded when a Run began."""

    path: str  # path relative to the project's top folder
    sha256: str  # digest of the whole file, in hex
    size: int  # bytes
    shown: int | None = None  # number of bytes that the model sees; None: all
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


def instruction_parts(
    expert: Expert,
    delegates: Sequence[DelegateInfo],
    *,
    time: str,
    directory: str,
    is_coordinator: bool,
    schema: JsonObject | None = None,
    knowledge: Mapping[str, str] = MappingProxyType({}),
    masks_secrets: bool = False,
) -> dict[str, str]:
    """Return the non-empty parts of one Run's instruction by display name; `SEPARATOR` joins them.

    `time` is an ISO 8601 instant, `directory` the working directory as tools see it. `schema` is the JSON schema of the
    result; `knowledge` are the parts that come from files.
    """
    parts = {
        "loop": f"{_PREAMBLE}{SEPARATOR}Started at {time}. {_directory_line(directory)}",
        "instruction": expert.instruction.strip(),
        "rules": SEPARATOR.join(_skill_rules(expert, is_coordinator)),
    }
    if expert.standing:
        parts["standing"] = "This always holds:\n" + "\n".join(f"- {text.strip()}" for text in expert.standing)
    parts |= knowledge
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
    """Return True if an instruction was rendered for this working directory."""
    return _directory_line(directory) in instruction


def _directory_line(directory: str) -> str:
    return f"The working directory is {directory}."


@lru_cache(maxsize=256)
def whole_instruction(instruction: str, guidance: str) -> str:
    """Return an Expert's instruction and the skills' guidance; cached, so that equal inputs share one string."""
    return f"{instruction}{SEPARATOR}{guidance}" if guidance else instruction


def _skill_rules(expert: Expert, is_coordinator: bool) -> list[str]:
    return [
        f"Rules for the tools of {skill.name}:\n{skill.rule.strip()}"
        for skill in tool_skills(expert.skills)
        if skill.rule and (is_coordinator or not isinstance(skill, InteractiveSkill))
    ]
