"""Decide which tools that a provider runs itself are offered, and find problems in an Expert's choice of them.

A provider names the tools that its endpoint runs (`Provider.tools`), an Expert wants some of them (`providerTools`). A
tool is offered if the provider of the model in force has it, can apply its options, and no rule denies it or asks about
it. The first provider must have all of them; a fallback model goes without a tool that its provider lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field

from perstack.core.base.records import JsonObject
from perstack.core.base.text import suggestion
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
    withheld_reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """Reason why each wanted tool is not offered, by the Expert's name for the tool."""

    @property
    def settings(self) -> JsonObject:
        """The recorded form of the tools, a part of the settings that change replies; empty without tools."""
        if not self.tools:
            return {}
        options = {tool.name: {} if tool.options is None else _as_json(tool.options) for tool in self.tools}
        return {"providerTools": {**options}}


NO_OFFER = ProviderToolOffer()


def offer_tools(
    expert: Expert,
    provider: str,
    tools: Sequence[ProviderTool],
    rules: Sequence[RuleSet],
    refused_names: Set[str] = frozenset(),
) -> ProviderToolOffer:
    """Return the tools of an Expert's `providerTools` that this provider may be offered under these rules.

    `refused_names`: tools that the endpoint has refused, left out without a reason: `adaptRequest` has it.
    """
    if not expert.provider_tools:
        return NO_OFFER
    offered: dict[str, OfferedProviderTool] = {}
    withheld_reasons: dict[str, str] = {}
    for tool_name in expert.provider_tools:
        tool = find_tool(tool_name, tools)
        if tool is not None and tool.name in refused_names:
            continue
        reason = (
            _missing_tool_problem(tool_name, provider, tools)
            if tool is None
            else _option_problem(expert, provider, tool)
        )
        if tool is not None and reason is None:
            reason = _rule_problem(tool, rules)
        if tool is None or reason is not None:
            withheld_reasons[tool_name] = f"{tool_name} is not offered: {reason}"
        else:
            offered[tool.name] = OfferedProviderTool(tool.name, _options(expert, tool.name))
    return ProviderToolOffer(tuple(offered.values()), withheld_reasons)


def find_tool(tool_name: str, tools: Sequence[ProviderTool]) -> ProviderTool | None:
    """Return the tool with this name or alias; None if the provider has none."""
    if ANY_TOOL in tools:
        return ProviderTool(tool_name, options=_OPTIONS)
    return next((tool for tool in tools if tool_name in (tool.name, tool.alias)), None)


def _rule_problem(tool: ProviderTool, rules: Sequence[RuleSet]) -> str | None:
    """Return why the rules withhold a tool; None if they allow it."""
    from perstack.core.permissions.decide_call import decide_offer
    from perstack.core.permissions.policy_calls import PolicyCall

    ruling = decide_offer(rules, PolicyCall(tool.name, PROVIDER, shown=tool.alias))
    return None if ruling.decision == "allow" else ruling.reason_text


def find_problems(expert: Expert, provider: str, tools: Sequence[ProviderTool]) -> Iterator[tuple[KeyPath, str]]:
    """Yield each problem of the Expert's choice, for the provider of its first model, with the key in its table."""
    for index, tool_name in enumerate(expert.provider_tools):
        tool = find_tool(tool_name, tools)
        if tool is None:
            yield ("providerTools", index), _missing_tool_problem(tool_name, provider, tools)
            continue
        options = _options(expert, tool.name)
        key_path = ("providerToolOptions", tool.name)
        for name in _option_names(options):
            if name not in tool.options:
                yield (
                    (*key_path, name),
                    f"provider {provider} has no such option for {tool.name}; {_list_of_names(tool.options)}",
                )
        for name in sorted(tool.required - {*_option_names(options)}):
            yield (*key_path, name), f"is missing: {tool_name} cannot be used without it"


def unused_options(expert: Expert, tools: Sequence[ProviderTool]) -> Iterator[str]:
    """Yield the names of tools for which the Expert has options although it does not want them."""
    wanted_names = {tool.name for name in expert.provider_tools if (tool := find_tool(name, tools)) is not None}
    provider_tool_options = expert.provider_tool_options
    for name in () if provider_tool_options is None else _as_json(provider_tool_options):
        if name not in wanted_names:
            yield name


def check_provider_tools(expert: Expert, provider: str, tools: Sequence[ProviderTool]) -> None:
    """Raise UsageError if the provider of the Expert's first model lacks a tool or an option that it wants."""
    for key_path, problem in find_problems(expert, provider, tools):
        raise UsageError(f"{spell(('experts', expert.key, *key_path))}: {problem}")


def _options(expert: Expert, tool: str) -> WebToolOptions | FileSearchOptions | None:
    return None if expert.provider_tool_options is None else expert.provider_tool_options.of(tool)


def _as_json(options: WebToolOptions | FileSearchOptions | ProviderToolOptions) -> JsonObject:
    return options.model_dump(mode="json", by_alias=True, exclude_none=True)


def _option_names(options: WebToolOptions | FileSearchOptions | None) -> tuple[str, ...]:
    return () if options is None else tuple(_as_json(options))


def _option_problem(expert: Expert, provider: str, tool: ProviderTool) -> str | None:
    option_names = set(_option_names(_options(expert, tool.name)))
    unsupported = sorted(option_names - tool.options)
    if unsupported:
        return f"provider {provider} cannot apply its {', '.join(unsupported)}"
    missing_options = sorted(tool.required - option_names)
    return f"it has no {', '.join(missing_options)}" if missing_options else None


def _missing_tool_problem(tool_name: str, provider: str, tools: Sequence[ProviderTool]) -> str:
    if not tools:
        return f"provider {provider} runs no tools itself"
    names = [tool.name for tool in tools]
    hint = suggestion(tool_name, [*names, *(tool.alias for tool in tools if tool.alias)])
    return f"provider {provider} has no tool `{tool_name}`; {_list_of_names(names)}{hint}"


def _list_of_names(names: Sequence[str] | frozenset[str]) -> str:
    ordered = sorted(names) if isinstance(names, frozenset) else names
    return f"it has: {', '.join(ordered) or 'none'}"
