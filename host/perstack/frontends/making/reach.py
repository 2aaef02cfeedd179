"""What a definition starts or reaches that the one before it did not."""

from __future__ import annotations

import shlex
from pathlib import Path

from perstack.config.expert_tests import read_tests
from perstack.config.load import DefinitionFile
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


def commands_of_tests(path: Path) -> list[str]:
    """The programs that judge in its tests, a line for each: no Run starts them, but `perstack test` does."""
    said = ((one.title, one.test.expect.command) for one in read_tests(DefinitionFile(path)))
    lines = ((title, one if isinstance(one, str) else shlex.join(one)) for title, one in said if one is not None)
    return [f"test {title}: {line}" for title, line in lines]
