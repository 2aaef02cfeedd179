"""The tools of one Run: name them, offer them to the model, and check the calls that the model asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import count
from weakref import WeakValueDictionary

from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.core.definitions.expert_changes import CREATE_EXPERT
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.instruction import DelegateInfo
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import ToolSearch, intern_record
from perstack.core.definitions.skills import (
    CHANGING_TOOLS,
    DecidedCall,
    InteractiveSkill,
    McpSseSkill,
    McpStdioSkill,
    Skill,
    ToolSpec,
    apply_definition,
    is_base_skill,
    is_picked,
    legal_tool_name,
    named_arguments,
)
from perstack.core.definitions.tool_definitions import Definitions
from perstack.core.messages.messages import History, ToolCallPart
from perstack.core.messages.tool_search import DEFAULT_RESULTS, SEARCH_TOOL, RevealedTools, divide, result_text, search
from perstack.core.runs.context_window import PIN_TOOL, RECALL_TOOL
from perstack.core.runs.request_digest import StoredTools, stored_tools
from perstack.core.schemas.json_schema import Checker
from perstack.dataclass import dataclass
from perstack.engine.plugins.trust_checks import INSTRUCTIONS, JudgedTool
from perstack.ports.skill import SkillSession, ToolCall, ToolResult, Toolset
from perstack.system.concurrency import violation_of

# Sessions without a skill: the host answers the calls itself.


class BuiltinSession(SkillSession):
    """A session whose calls are answered by a function of the host."""

    def __init__(self, toolset: Toolset, answer: Callable[[ToolCall], Awaitable[ToolResult]]) -> None:
        self._toolset = toolset
        self._answer = answer

    @override
    async def tools(self) -> Toolset:
        return self._toolset

    @override
    async def call(self, tool_call: ToolCall) -> ToolResult:
        return await self._answer(tool_call)

    @override
    async def close(self) -> None:
        pass  # nothing is open


class PlayedSession(BuiltinSession):
    """A session that offers a skill's recorded tools without opening the skill."""

    def __init__(self, toolset: Toolset) -> None:
        super().__init__(toolset, _answer_not_recorded)


async def _answer_not_recorded(tool_call: ToolCall) -> ToolResult:
    return ToolResult.text(f"{tool_call.tool_name} is not in the recording.", is_error=True)


_RESERVED = frozenset({SEARCH_TOOL, PIN_TOOL, RECALL_TOOL})
"""Names of tools that the host offers in some Runs: a result under one of these names is always the host's."""

_MAX_RENAMED_LISTED = 10  # tools that one notice lists at most

_DELEGATE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "the whole task, with all that it needs"}},
    "required": ["query"],
}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as offered to a model; `skill_session` runs it, and is None for delegates, questions and loop tools."""

    spec: ToolSpec
    skill_session: SkillSession | None = None
    own_name: str = ""  # the tool's name in its skill, which may differ from the one the model sees
    may_sample: bool = False  # True if the skill may ask the Run's model for generations
    may_wait: bool = False  # True if the tool may be deferred behind the tool search
    judged: JudgedTool | None = None  # its definition in force, for a tool of a server or plugin

    @property
    def rank(self) -> int:
        """Precedence in a name conflict: 0 for the host's tools, 1 for questions and delegates, 2 for skills' tools."""
        return 2 if self.may_wait else 1 if self.spec.kind in ("interactive", "delegate") else 0

    @property
    def plain_name(self) -> str:
        """The name without a prefix, used if no other tool has it."""
        return legal_tool_name(self.own_name)

    @property
    def prefixed_name(self) -> str:
        return legal_tool_name(f"{self.spec.skill_name}_{self.plain_name}")


class Catalogue:
    """The tools of a Run under unique, legal names, in a stable order."""

    def __init__(
        self,
        offered: Sequence[OfferedTool],
        missing_reasons: Mapping[str, str] | None = None,
        guidance: str = "",
        tool_search: ToolSearch = "auto",
        unreachable: Mapping[str, str] | None = None,
        revealed: Sequence[str] = (),
        definitions: Definitions | None = None,
        difference_notices: Mapping[str, str] | None = None,
    ) -> None:
        """Assign names, and defer tools. `revealed`: tools found by searches that are no longer in the context."""
        named_tools = _with_unique_names(offered)
        self.rename_notices = _rename_notices(offered, named_tools)
        """Notices about tools that are offered under other names than their own, by skill."""
        self._division = divide(((tool.spec, tool.may_wait) for tool in named_tools), tool_search)
        self._revealed = RevealedTools(self._division.deferred, revealed)
        self._kept_tools: StoredTools | None = None
        self._by_name = {tool.spec.name: tool for tool in named_tools}
        self._checkers: dict[str, Checker] = {}  # checkers of the tools that were called, by name
        if self._division.deferred:
            self._by_name[SEARCH_TOOL] = builtin_tool(self._division.shown[-1], self._search)
        self._missing = missing_reasons or {}
        """Skills whose tools are not offered, and why: shown to a model that calls an unknown tool."""
        self.guidance = guidance  # instructions of the skills for the model, and which skills cannot be reached
        self.unreachable = dict(unreachable or {})
        self.definitions = definitions or {}  # agreed definitions of the tools on offer, to be recorded
        self.difference_notices = difference_notices or {}  # notices about tools that are not as agreed, by skill

    @property
    def shown(self) -> tuple[ToolSpec, ...]:
        """The tools that the model sees from the start."""
        return self._division.shown

    @property
    def deferred(self) -> tuple[ToolSpec, ...]:
        """The tools that the model finds only by a search."""
        return self._division.deferred

    def specs(self, messages: History) -> tuple[ToolSpec, ...]:
        """Return the tools to offer after these messages, which must extend the messages of the previous call."""
        return (
            self._division.shown + self._revealed.tools_found_in(messages)
            if self._division.deferred
            else self._division.shown
        )

    def stored_tools(self, messages: History) -> StoredTools:
        """Return `specs` in serialized form, cached until the tools change."""
        specs = self.specs(messages)
        if self._kept_tools is None or self._kept_tools.specs != specs:
            self._kept_tools = _shared_kept_tools(specs)
        return self._kept_tools

    def find(self, decided: DecidedCall) -> OfferedTool | None:
        """Return the tool that a call was decided for, even if it has another name after a resume.

        Never return a tool of another skill: a decision or approval for one skill must not run a tool of another.
        """
        offered = self._by_name.get(decided.tool_name)
        if offered is not None and decided.skill_name in ("", offered.spec.skill_name):
            return offered
        matches = [
            tool
            for tool in self._by_name.values()
            if tool.spec.skill_name == decided.skill_name and decided.tool_name in (tool.plain_name, tool.prefixed_name)
        ]
        return matches[0] if len(matches) == 1 else None

    def look_up(self, part: ToolCallPart) -> DecidedCall:
        """Return a call with the facts about its tool. A call of an unknown tool is refused, with a message."""
        offered = self._by_name.get(part.tool_name)
        if offered is None:
            names = ", ".join(spec.name for spec in self._division.shown)
            problem = f"There is no tool {part.tool_name!r}. The tools are: {names}."
            reasons = [f"Not there now: {reason}." for reason in self._missing.values()]
            if part.tool_name in CHANGING_TOOLS:
                reasons.append("An Expert has it if the `pick` of its base skill in perstack.toml names it.")
            elif part.tool_name == CREATE_EXPERT:
                reasons.append("Only a person makes an Expert, in perstack.toml.")
            return _refuse(part, " ".join((problem, *reasons)))
        spec, judged = offered.spec, offered.judged
        return DecidedCall(
            id=part.tool_call_id,
            tool_name=part.tool_name,
            skill_name=spec.skill_name,
            kind=spec.kind,
            effect=spec.effect,
            polling=spec.polling,
            pin=spec.pin,
            target=spec.target,
            definition="" if judged is None else judged.definition,
            changed="" if judged is None else judged.changed,
        )

    async def check_arguments(self, part: ToolCallPart, decided: DecidedCall) -> DecidedCall:
        """Return the call. If its arguments violate the tool's schema it is refused, with a message for the model."""
        offered = self._by_name[part.tool_name]
        if part.raw_args is not None:
            return _refuse(part, f"The arguments are not a JSON object: {part.raw_args[:200]}", offered.spec)
        if part.tool_name not in self._checkers:
            self._checkers[part.tool_name] = Checker(offered.spec.input_schema)
        checker = self._checkers[part.tool_name]
        violation = await violation_of(checker, named_arguments(offered.spec.subject, part.args))
        if violation is None:
            return decided
        place = f" at {violation.place}" if violation.place else ""
        return _refuse(part, f"Wrong arguments{place}: {violation.message}", offered.spec)

    async def _search(self, tool_call: ToolCall) -> ToolResult:
        max_results = tool_call.args.get("most")
        names = search(
            str(tool_call.args["query"]),
            self.deferred,
            max_results if isinstance(max_results, int) else DEFAULT_RESULTS,
        )
        return ToolResult.text(result_text(names, self.deferred))


def builtin_tool(spec: ToolSpec, answer: Callable[[ToolCall], Awaitable[ToolResult]]) -> OfferedTool:
    """Return a tool whose calls the function `answer` answers."""
    return OfferedTool(spec, BuiltinSession(Toolset((spec,)), answer), spec.name)


def _refuse(part: ToolCallPart, problem: str, spec: ToolSpec | None = None) -> DecidedCall:
    skill = spec.skill_name if spec is not None else ""
    return DecidedCall(
        id=part.tool_call_id, tool_name=part.tool_name, skill_name=skill, kind="refused", problem=problem
    )


def skill_tools(definition: Skill, skill_session: SkillSession, tools: Sequence[JudgedTool]) -> list[OfferedTool]:
    """Return a skill's tools, filtered by its `pick` and `omit`."""
    may_sample = isinstance(definition, McpStdioSkill | McpSseSkill) and definition.sampling
    may_wait = not is_base_skill(definition)
    return [
        OfferedTool(
            replace_name(apply_definition(tool.spec, definition), legal_tool_name(tool.spec.name), definition.name),
            skill_session,
            tool.spec.name,
            may_sample,
            may_wait,
            tool if tool.definition else None,
        )
        for tool in tools
        if is_picked(tool.spec.name, definition.pick, definition.omit)
    ]


def agreed_definitions_of(digests: Mapping[str, str], tools: Sequence[OfferedTool]) -> Mapping[str, str]:
    """Return the agreed definitions of the offered tools, and of the skill's instructions."""
    names = {INSTRUCTIONS, *(tool.own_name for tool in tools)}
    return {name: digest for name, digest in digests.items() if name in names}


def replace_name(spec: ToolSpec, name: str, skill_name: str) -> ToolSpec:
    """Return the tool under another name and skill name; the object itself if both are unchanged."""
    if (spec.name, spec.skill_name) == (name, skill_name):
        return spec
    return spec.model_copy(update={"name": name, "skill_name": skill_name})


def interactive_tools(definition: InteractiveSkill) -> list[OfferedTool]:
    """Return the questions that a Coordinator may ask, as tools."""
    return [
        OfferedTool(
            ToolSpec(
                name=legal_tool_name(tool.name),
                description=tool.description or definition.description or "",
                input_schema=tool.input_schema,
                skill_name=definition.name,
                kind="interactive",
                approval=tool.approval,
                pin=tool.pin,
            ),
            own_name=tool.name,
        )
        for tool in definition.tools
        if is_picked(tool.name, definition.pick, definition.omit)
    ]


def delegate_tools(expert: Expert, experts: Mapping[str, Expert]) -> list[OfferedTool]:
    """Return the Experts that this one may delegate to, as tools."""
    return [
        OfferedTool(
            ToolSpec(
                name=legal_tool_name(delegate.key),
                description=delegate.description or f"Delegate to the Expert {delegate.key}.",
                input_schema=_DELEGATE_SCHEMA,
                skill_name=f"delegate/{delegate.key}",
                kind="delegate",
                target=key,
            ),
            own_name=delegate.key,
        )
        for key in expert.delegates
        if (delegate := Project(experts=dict(experts)).expert(key)) is not None
    ]


def delegate_infos(offered: Sequence[OfferedTool]) -> list[DelegateInfo]:
    """Return the delegates, as described in the instruction."""
    return [DelegateInfo(tool.spec.name, tool.spec.description) for tool in offered]


def _with_unique_names(offered: Sequence[OfferedTool]) -> list[OfferedTool]:
    """Return the tools under unique names, which do not depend on their order.

    If another tool of equal or higher precedence has its name, a tool is prefixed with the name of its skill: so no
    server can take a name from the host.
    """
    ranks = Counter((tool.spec.name, tool.rank) for tool in offered)
    names = {index: tool.spec.name for index, tool in enumerate(offered) if _keeps_name(tool, ranks)}
    used_names = set(names.values())
    indexes = [index for index in range(len(offered)) if index not in names]
    prefixed = Counter(offered[index].prefixed_name for index in indexes)
    for index in sorted(indexes, key=lambda index: (offered[index].spec.skill_name, offered[index].own_name)):
        tool = offered[index]
        is_free = prefixed[tool.prefixed_name] == 1 and tool.prefixed_name not in used_names
        names[index] = tool.prefixed_name if is_free else _digest_name(tool, used_names | prefixed.keys())
        used_names.add(names[index])
    return [
        replace(tool, spec=intern_record(replace_name(tool.spec, names[index], tool.spec.skill_name)))
        for index, tool in enumerate(offered)
    ]


# Jobs of one Expert have equal tools. Sharing these saves 15 KB for each of a thousand waiting Jobs.
_KEPT_TOOLS: WeakValueDictionary[str, StoredTools] = WeakValueDictionary()


def _shared_kept_tools(specs: tuple[ToolSpec, ...]) -> StoredTools:
    tools = stored_tools(specs)
    shared_tools = _KEPT_TOOLS.setdefault(tools.sha256, tools)
    return shared_tools if shared_tools == tools else tools


def _keeps_name(tool: OfferedTool, ranks: Mapping[tuple[str, int], int]) -> bool:
    name = tool.spec.name
    # a recording already has the names that its model was offered
    is_reserved = tool.rank > 0 and name in _RESERVED and not isinstance(tool.skill_session, PlayedSession)
    is_outranked = any((name, rank) in ranks for rank in range(tool.rank))
    return ranks[name, tool.rank] == 1 and not (is_reserved or is_outranked)


def _digest_name(tool: OfferedTool, used_names: Collection[str]) -> str:
    """Return a free name that does not change when other tools are added or removed."""
    for number in count():
        digest = sha256(f"{tool.spec.skill_name}\0{tool.own_name}\0{number}".encode(errors="replace")).hexdigest()
        name = f"{tool.prefixed_name[:55]}_{digest[:8]}"
        if name not in used_names:
            return name
    raise AssertionError("unreachable")


def _rename_notices(offered: Sequence[OfferedTool], named_tools: Sequence[OfferedTool]) -> Mapping[str, str]:
    changes: dict[str, list[str]] = {}
    for old, new in zip(offered, named_tools, strict=True):
        if old.spec.name != new.spec.name:
            changes.setdefault(new.spec.skill_name, []).append(f"{old.spec.name} as {new.spec.name}")
    return {
        skill: "tools are offered under other names, because their own are in use: "
        + ", ".join(names[:_MAX_RENAMED_LISTED])
        + (f", and {len(names) - _MAX_RENAMED_LISTED} more" if len(names) > _MAX_RENAMED_LISTED else "")
        for skill, names in changes.items()
    }
