"""What a definition starts or reaches that the one before it did not."""

from __future__ import annotations

from perstack.core.definitions import Project, ProviderSetting
from perstack.engine.executed import Kind, digests_of, executed

IN_A_RUN: frozenset[Kind] = frozenset({"command", "endpoint", "plugin", "provider"})
EVER: frozenset[Kind] = frozenset({*IN_A_RUN, "evaluator", "anchor", "include"})


def new_reach(before: Project, after: Project, kinds: frozenset[Kind] = EVER) -> list[str]:
    """A line for each. A provider that is only named is none: where it is, is not for the definition to say."""
    settings = (after.provider, *(expert.provider for expert in after.experts.values()))
    named = (Project(provider=ProviderSetting(provider_name=one.provider_name)) for one in settings if one)
    known = digests_of(executed(before)).union(*(digests_of(executed(one)) for one in named))
    return [one.shown for one in executed(after) if one.kind in kinds and one.digest not in known]
