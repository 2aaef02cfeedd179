"""Protocols for checking the agreements of a person: to definitions, and to tools of servers and plugins.

`perstack.trust` implements `TrustCheck`. A Host cannot be made without one. It is called by the code that opens a
storage, a dispatcher, a provider or a skill, and by the code that drives a Job.

`perstack.lockfile` implements `ToolLock`, which compares the tools that a skill offers with the definitions that were
agreed to. Without that part no Job is driven, so no changed tool is offered unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from perstack.core.definitions.skills import ToolSpec
from perstack.dataclass import dataclass
from perstack.ports.parts import Part
from perstack.ports.skill import Toolset

if TYPE_CHECKING:
    from perstack.core.definitions.experts import Expert, Iterate
    from perstack.core.definitions.project import Project
    from perstack.core.definitions.settings import ProviderSetting
    from perstack.core.definitions.skills import AgentSkill, AnySkill, Skill


class TrustCheck(Protocol):
    """Agreements to one definition, read at each call. Every `check_` method raises NotAgreed if one is missing.

    Skills, providers and evaluators are checked where they are used, because recorded definitions have them too.
    """

    path: str | None
    """Path of the definition file; None for a definition made in Python, which is its user's own."""

    def check_definition(self) -> None:
        """Check the whole definition. Must be called before anything is driven."""
        ...

    def check_keys(self, project: Project, names: Iterable[str]) -> None:
        """Check some keys of a definition, by the names of their fields."""
        ...

    def check_skill(self, skill: AnySkill) -> None: ...

    def check_provider(self, setting: ProviderSetting) -> None: ...

    def check_evaluator(self, settings: Iterate, expert_key: str) -> None: ...

    def undeclared_effects(self, expert: Expert, project: Project, declared_project: Project) -> Sequence[str]:
        """Return a phrase, without values, for each effect of an Expert that `declared_project` does not declare.

        `project` is the definition of the Expert. An effect is declared by an exactly equal setting.
        """
        ...


# Tools of a skill, compared with the definitions that were agreed to.

INSTRUCTIONS = ""  # key of a skill's instructions among the digests of its tools


@dataclass(frozen=True, slots=True)
class JudgedTool:
    """A tool as it may be offered, and why its calls need approval, if they do."""

    spec: ToolSpec
    definition: str = ""  # digest of the definition in force at the skill; empty for a tool of the host
    changed: str = ""  # reason why each call needs approval; empty for an agreed definition
    changes: tuple[str, ...] = ()  # lines that differ, for the person who is asked
    is_locked: bool = False  # True if perstack.lock has exactly this definition


@dataclass(frozen=True, slots=True)
class JudgedToolset:
    """The tools of a skill as they may be offered."""

    tools: tuple[JudgedTool, ...]
    instructions: str = ""
    digests: Mapping[str, str] | None = None  # digests of the agreed definitions, by tool and INSTRUCTIONS
    notice: str = ""  # differences from the agreed definitions, for the person who watches


def judge_own_tools(toolset: Toolset) -> JudgedToolset:
    """Return a toolset of the host or of a recording, which needs no comparison."""
    return JudgedToolset(tuple(map(JudgedTool, toolset.specs)), toolset.instructions)


class AgreedDefinitions(Protocol):
    """Definitions of one skill's tools that were agreed to."""

    def judge(self, skill: str, toolset: Toolset, recorded_digests: Mapping[str, str]) -> JudgedToolset:
        """Compare the tools that a skill lists with the agreed definitions, and with those in the Job's logs."""
        ...


class ToolLock(Protocol):
    """Tools and Agent Skills that a person has locked for a definition; possibly none."""

    def locked_toolset(self, definition: Skill) -> Toolset | None:
        """Return the locked tools of exactly this definition; None also if a lock cannot exempt one from rules."""
        ...

    def agreed_definitions(self, toolset: Toolset, *, is_locked: bool) -> AgreedDefinitions:
        """Return the definitions to compare with: the locked ones, or the first ones that the skill offered."""
        ...

    def notice_for(self, definition: Skill) -> str:
        """Return a notice that the lock is out of date, if it has a skill of that name; otherwise empty."""
        ...

    def folder_digest(self, config: str, skill: AgentSkill) -> str | None:
        """Return the digest of an Agent Skill of a definition file; None if it is not locked."""
        ...


TOOL_LOCKS: Part[Callable[[str | None], ToolLock]] = Part("perstack.lock")
"""Returns the lock beside a definition file; an empty one without a file. Raises UsageError if it cannot be parsed."""
