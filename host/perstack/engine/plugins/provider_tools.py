"""Decide which tools that a provider runs itself are offered, and find what is wrong with an Expert's choice of them.

A provider names the tools that its endpoint runs (`Provider.tools`), an Expert wants some of them (`providerTools`). A
tool is offered if the provider of the model in force has it, can apply its options, and no rule denies it or asks about
it. The first provider must have all of them; a fallback model goes without a tool that its provider lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from perstack.config.check import suggestion
from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import Expert, FileSearchOptions, ProviderToolOptions, WebToolOptions
from perstack.core.definitions.keys import KeyPath, spell
from perstack.core.definitions.permissions import PROVIDER, RuleSet
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.ports.provider import ANY_TOOL, OfferedProviderTool, ProviderTool

_OPTIONS = frozenset({"maxUses", "allowedDomains", "blockedDomains", "vectorStoreIds"})


@dataclass(frozen=True, slots=True)
class ProviderToolOffer:
    """The tools of a provider for one generation."""

    tools: tuple[OfferedProviderTool, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text by tool, as the Expert names it, for wanted tools that are not offered."""

    @property
    def settings(self) -> JsonObject:
        """The tools as recorded with the settings that change replies; empty without any."""
        if not self.tools:
            return {}
        options = {one.name: {} if one.options is None else _plain(one.options) for one in self.tools}
        return {"providerTools": {**options}}


NO_OFFER = ProviderToolOffer()


def offer_tools(
    expert: Expert, provider: str, tools: Sequence[ProviderTool], rules: Sequence[RuleSet]
) -> ProviderToolOffer:
    """Return the tools of an Expert's `providerTools` that this provider may be offered under these rules."""
    if not expert.provider_tools:
        return NO_OFFER
    found: dict[str, OfferedProviderTool] = {}
    withheld: dict[str, str] = {}
    for wanted in expert.provider_tools:
        tool = find_tool(wanted, tools)
        why = _missing_tool(wanted, provider, tools) if tool is None else _option_problem(expert, provider, tool)
        if tool is not None and why is None:
            why = _forbidding_rule(tool, rules)
        if tool is None or why is not None:
            withheld[wanted] = f"{wanted} is not offered: {why}"
        else:
            found[tool.name] = OfferedProviderTool(tool.name, _options(expert, tool.name))
    return ProviderToolOffer(tuple(found.values()), withheld)


def find_tool(wanted: str, tools: Sequence[ProviderTool]) -> ProviderTool | None:
    """Return the tool with this name or alias; None if the provider has none."""
    if ANY_TOOL in tools:
        return ProviderTool(wanted, options=_OPTIONS)
    return next((one for one in tools if wanted in (one.name, one.alias)), None)


def _forbidding_rule(tool: ProviderTool, rules: Sequence[RuleSet]) -> str | None:
    """Return which rule keeps a tool away; None if none does."""
    from perstack.core.permissions.calls import PolicyCall
    from perstack.core.permissions.decisions import decide_offer

    ruling = decide_offer(rules, PolicyCall(tool.name, PROVIDER, shown=tool.alias))
    return None if ruling.decision == "allow" else ruling.said


def problems(expert: Expert, provider: str, tools: Sequence[ProviderTool]) -> Iterator[tuple[KeyPath, str]]:
    """Yield what is wrong with the Expert's choice for the provider of its first model, with the place in its table."""
    for index, wanted in enumerate(expert.provider_tools):
        tool = find_tool(wanted, tools)
        if tool is None:
            yield ("providerTools", index), _missing_tool(wanted, provider, tools)
            continue
        options = _options(expert, tool.name)
        at = ("providerToolOptions", tool.name)
        for name in _option_names(options):
            if name not in tool.options:
                yield (*at, name), f"provider {provider} has no such option for {tool.name}; {_list(tool.options)}"
        for name in sorted(tool.required - {*_option_names(options)}):
            yield (*at, name), f"is missing: {wanted} cannot be used without it"


def unused_options(expert: Expert, tools: Sequence[ProviderTool]) -> Iterator[str]:
    """Yield the tools that the Expert has options for, but does not want."""
    wanted = {tool.name for name in expert.provider_tools if (tool := find_tool(name, tools)) is not None}
    options = expert.provider_tool_options
    for name in () if options is None else _plain(options):
        if name not in wanted:
            yield name


def check_provider_tools(expert: Expert, provider: str, tools: Sequence[ProviderTool]) -> None:
    """Raise UsageError if the provider of the Expert's first model lacks a tool or an option that it wants."""
    for at, problem in problems(expert, provider, tools):
        raise UsageError(f"{spell(('experts', expert.key, *at))}: {problem}")


def _options(expert: Expert, tool: str) -> WebToolOptions | FileSearchOptions | None:
    return None if expert.provider_tool_options is None else expert.provider_tool_options.of(tool)


def _plain(options: WebToolOptions | FileSearchOptions | ProviderToolOptions) -> JsonObject:
    return options.model_dump(mode="json", by_alias=True, exclude_none=True)


def _option_names(options: WebToolOptions | FileSearchOptions | None) -> tuple[str, ...]:
    return () if options is None else tuple(_plain(options))


def _option_problem(expert: Expert, provider: str, tool: ProviderTool) -> str | None:
    given = set(_option_names(_options(expert, tool.name)))
    lacking = sorted(given - tool.options)
    if lacking:
        return f"provider {provider} cannot apply its {', '.join(lacking)}"
    needed = sorted(tool.required - given)
    return f"it has no {', '.join(needed)}" if needed else None


def _missing_tool(wanted: str, provider: str, tools: Sequence[ProviderTool]) -> str:
    if not tools:
        return f"provider {provider} runs no tools itself"
    names = [one.name for one in tools]
    near = suggestion(wanted, [*names, *(one.alias for one in tools if one.alias)])
    return f"provider {provider} has no tool `{wanted}`; {_list(names)}{near}"


def _list(names: Sequence[str] | frozenset[str]) -> str:
    each = sorted(names) if isinstance(names, frozenset) else names
    return f"it has: {', '.join(each) or 'none'}"
