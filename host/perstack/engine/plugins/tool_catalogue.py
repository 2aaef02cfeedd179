"""The tools of one Run: what the model is offered, and what is made of each call it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property

from perstack.core.base import JsonObject
from perstack.core.checking import Checker
from perstack.core.definitions import (
    Expert,
    InteractiveSkill,
    McpSseSkill,
    McpStdioSkill,
    Project,
    Skill,
    ToolSearch,
    is_base_skill,
)
from perstack.core.digests import KeptTools, kept_tools
from perstack.core.instruction import DelegateInfo
from perstack.core.messages import History, ToolCallPart
from perstack.core.tools import DecidedCall, ToolSpec, legal_tool_name
from perstack.core.toolsearch import MOST_FOUND, SEARCH_TOOL, RevealedTools, divide, result_text, search, search_spec
from perstack.dataclass import dataclass
from perstack.ports.checking import violation_of
from perstack.ports.skill import SkillSession, ToolCall, ToolResult, Toolset

_DELEGATE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "the whole task, with all that it needs"}},
    "required": ["query"],
}


@dataclass(frozen=True)
class Offered:
    """A tool as offered, and the session that answers it; none for the loop's own tools, delegates and questions."""

    spec: ToolSpec
    session: SkillSession | None = None
    own_name: str = ""
    """The tool's name in its skill, which may differ from the one the model sees."""
    may_sample: bool = False
    """Whether the skill may ask the Run's model for generations of its own."""
    may_wait: bool = False
    """Whether it may be deferred behind a search."""

    @cached_property
    def checker(self) -> Checker:
        """For the arguments."""
        return Checker(self.spec.input_schema)


class Catalogue:
    """Unique, legal names over all sources of tools, in a stable order."""

    def __init__(
        self,
        offered: Sequence[Offered],
        missing: Mapping[str, str] | None = None,
        guidance: str = "",
        tool_search: ToolSearch = "auto",
        unreachable: Mapping[str, str] | None = None,
        revealed: Sequence[str] = (),
    ) -> None:
        """`revealed` are deferred tools that were found in messages which are not shown any more."""
        named = _with_unique_names(offered)
        self._division = divide(((one.spec, one.may_wait) for one in named), tool_search)
        self._revealed = RevealedTools(self._division.deferred, revealed)
        self._kept: KeptTools | None = None
        self._by_name = {one.spec.name: one for one in named}
        if self._division.deferred:
            self._by_name[SEARCH_TOOL] = Offered(
                self._division.shown[-1], _SearchSession(self._division.deferred), SEARCH_TOOL
            )
        self._missing = missing or {}
        """Skills whose tools are not offered, and why: told to a model that calls what is not there."""
        self.guidance = guidance
        """What the skills themselves have to say to the model, and which cannot be reached."""
        self.unreachable = dict(unreachable or {})

    @property
    def shown(self) -> tuple[ToolSpec, ...]:
        """What a model is shown at first."""
        return self._division.shown

    @property
    def deferred(self) -> tuple[ToolSpec, ...]:
        """What it finds by a search."""
        return self._division.deferred

    def specs(self, messages: History) -> tuple[ToolSpec, ...]:
        """What the model is offered after these messages, which only grow from one call to the next."""
        return (
            self._division.shown + self._revealed.after(messages) if self._division.deferred else self._division.shown
        )

    def kept(self, messages: History) -> KeptTools:
        """The same, as it is kept: made again only when the tools have changed."""
        specs = self.specs(messages)
        if self._kept is None or self._kept.specs != specs:
            self._kept = kept_tools(specs)
        return self._kept

    def find(self, name: str) -> Offered | None:
        return self._by_name.get(name)

    async def decide(self, call: ToolCallPart) -> DecidedCall:
        """What this call is; a wrong one is refused with words for the model."""
        offered = self._by_name.get(call.tool_name)
        if offered is None:
            names = ", ".join(spec.name for spec in self._division.shown)
            problem = f"There is no tool {call.tool_name!r}. The tools are: {names}."
            return _refused(call, " ".join((problem, *(f"Not there now: {why}." for why in self._missing.values()))))
        if call.raw_args is not None:
            return _refused(call, f"The arguments are not a JSON object: {call.raw_args[:200]}", offered.spec)
        found = await violation_of(offered.checker, call.args)
        if found is not None:
            place = f" at {found.place}" if found.place else ""
            return _refused(call, f"Wrong arguments{place}: {found.message}", offered.spec)
        spec = offered.spec
        return DecidedCall(
            id=call.tool_call_id,
            tool_name=spec.name,
            skill_name=spec.skill_name,
            kind=spec.kind,
            effect=spec.effect,
            polling=spec.polling,
            pin=spec.pin,
            target=spec.target,
        )


class _SearchSession:
    """Answers the search for deferred tools."""

    def __init__(self, deferred: Sequence[ToolSpec]) -> None:
        self._deferred = deferred

    async def tools(self) -> Toolset:
        return Toolset((search_spec(self._deferred),))

    async def call(self, call: ToolCall) -> ToolResult:
        most = call.args.get("most")
        found = search(str(call.args["query"]), self._deferred, most if isinstance(most, int) else MOST_FOUND)
        return ToolResult.text(result_text(found, self._deferred))

    async def close(self) -> None:
        """Nothing was opened."""


def _refused(call: ToolCallPart, problem: str, spec: ToolSpec | None = None) -> DecidedCall:
    skill = spec.skill_name if spec is not None else ""
    return DecidedCall(
        id=call.tool_call_id, tool_name=call.tool_name, skill_name=skill, kind="refused", problem=problem
    )


def skill_tools(definition: Skill, session: SkillSession, specs: Sequence[ToolSpec]) -> list[Offered]:
    """A skill's tools, after its pick and omit."""
    may_sample = isinstance(definition, McpStdioSkill | McpSseSkill) and definition.sampling
    may_wait = not is_base_skill(definition)
    return [
        Offered(
            replace_name(declared(spec, definition), legal_tool_name(spec.name), definition.name),
            session,
            spec.name,
            may_sample,
            may_wait,
        )
        for spec in specs
        if picked(spec.name, definition.pick, definition.omit)
    ]


def declared(spec: ToolSpec, definition: Skill) -> ToolSpec:
    """The tool with what perstack.toml says of it."""
    if definition.polling and not spec.polling:
        spec = spec.model_copy(update={"polling": True})
    if not isinstance(definition, McpStdioSkill | McpSseSkill):
        return spec
    told = next((one for one in definition.tools if one.name == spec.name), None)
    if told is not None and told.pin:
        spec = spec.model_copy(update={"pin": True})
    is_told = told is not None and bool(told.names) and spec.subject is None
    return spec.model_copy(update={"subject": told}) if is_told else spec


def misdeclared(specs: Sequence[ToolSpec], definition: Skill) -> Iterator[str]:
    """What perstack.toml says of tools that are not there, or of arguments that they do not have, in words."""
    by_name = {spec.name: spec for spec in specs}
    for one in definition.tools if isinstance(definition, McpStdioSkill | McpSseSkill) else ():
        spec = by_name.get(one.name)
        if spec is None:
            yield f"perstack.toml describes a tool {one.name} that is not there, so its rules are about nothing"
            continue
        properties = spec.input_schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        for name in one.names if known else ():
            if name not in known:
                yield f"tool {one.name} has no argument {name}, which perstack.toml describes"


def picked(name: str, pick: Sequence[str], omit: Sequence[str]) -> bool:
    """Whether `pick` (empty: all) takes the name and `omit` leaves it; both are globs."""
    taken = not pick or any(fnmatchcase(name, pattern) for pattern in pick)
    return taken and not any(fnmatchcase(name, pattern) for pattern in omit)


def replace_name(spec: ToolSpec, name: str, skill_name: str) -> ToolSpec:
    """The tool under that name, of that skill."""
    if (spec.name, spec.skill_name) == (name, skill_name):
        return spec
    return spec.model_copy(update={"name": name, "skill_name": skill_name})


def interactive_tools(definition: InteractiveSkill) -> list[Offered]:
    """The questions that a Coordinator may ask."""
    return [
        Offered(
            ToolSpec(
                name=legal_tool_name(tool.name),
                description=tool.description or definition.description or "",
                input_schema=tool.input_schema,
                skill_name=definition.name,
                kind="interactive",
                approval=tool.approval,
                pin=tool.pin,
            )
        )
        for tool in definition.tools
        if picked(tool.name, definition.pick, definition.omit)
    ]


def delegate_tools(expert: Expert, experts: Mapping[str, Expert]) -> list[Offered]:
    """The Experts that this one may call, as tools."""
    return [
        Offered(
            ToolSpec(
                name=legal_tool_name(found.key),
                description=found.description or f"Delegate to the Expert {found.key}.",
                input_schema=_DELEGATE_SCHEMA,
                skill_name=f"delegate/{found.key}",
                kind="delegate",
                target=key,
            )
        )
        for key in expert.delegates
        if (found := Project(experts=dict(experts)).expert(key)) is not None
    ]


def delegate_infos(offered: Sequence[Offered]) -> list[DelegateInfo]:
    """The delegates, for the instruction."""
    return [DelegateInfo(one.spec.name, one.spec.description) for one in offered]


def _with_unique_names(offered: Sequence[Offered]) -> list[Offered]:
    """A name that two sources share is prefixed with the source's name, for both."""
    counts: dict[str, int] = {}
    for one in offered:
        counts[one.spec.name] = counts.get(one.spec.name, 0) + 1
    result: list[Offered] = []
    taken: set[str] = set()
    for one in offered:
        name = one.spec.name
        if counts[name] > 1:
            name = _free_name(legal_tool_name(f"{one.spec.skill_name}_{name}"), taken)
        taken.add(name)
        is_same = name == one.spec.name
        result.append(one if is_same else replace(one, spec=replace_name(one.spec, name, one.spec.skill_name)))
    return result


def _free_name(name: str, taken: set[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free = f"{name[:60]}_{number}"
        number += 1
    return free
