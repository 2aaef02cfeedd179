"""What the tools of each Expert cost at every step, for `perstack validate --tools`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from perstack.config.settings import Overrides
from perstack.core.base import JsonObject
from perstack.core.definitions import Project
from perstack.core.plain import one_line
from perstack.core.tools import ToolSpec
from perstack.core.toolsearch import tokens_of
from perstack.engine.tooling import OfferedTools
from perstack.errors import SkillError
from perstack.frontends.cli.next_steps import said
from perstack.frontends.cli.options import PlaceOptions, Setup
from perstack.frontends.cli.terminal import Screen, err, out, table
from perstack.frontends.shared.words import count
from perstack.host import Host


def tools_of(project: Project, place: PlaceOptions) -> dict[str, OfferedTools]:
    """By Expert. Starts the skills of one Expert after the other, and ends them."""

    async def ask() -> dict[str, OfferedTools]:
        async with Setup(place, Overrides(), ()).host(project) as host:
            return {key: await _offered(host, key) for key in project.experts}

    return asyncio.run(ask())


async def _offered(host: Host, key: str) -> OfferedTools:
    try:
        return await host.tools(key)
    except SkillError as error:
        # the others' costs are still to be told
        return OfferedTools((), problems=(error.note,))


def can_run(tools: OfferedTools) -> bool:
    """Whether an Expert's Runs would begin: a server that is not there costs only its own tools."""
    return bool(tools.shown) or not tools.problems


def tools_to_json(offered: Mapping[str, OfferedTools]) -> JsonObject:
    """The same for programs; tokens are estimates."""
    return {
        key: {
            "tokens": _tokens(tools.shown),
            "tools": [
                {"name": spec.name, "skill": spec.skill_name, "tokens": tokens_of(spec), "deferred": deferred}
                for specs, deferred in ((tools.shown, False), (tools.deferred, True))
                for spec in specs
            ],
            "problems": [problem.said(said) for problem in tools.problems],
        }
        for key, tools in offered.items()
    }


def print_tools(offered: Mapping[str, OfferedTools]) -> None:
    """A table for each Expert, a row for each skill."""
    screen = Screen.of_stdout()
    for key, tools in offered.items():
        for problem in tools.problems:
            err(f"{'warning' if can_run(tools) else 'error'}: {key}: {one_line(problem.said(said))}")
        if not can_run(tools):
            continue
        out()
        rows = [
            (skill, str(len(specs)), f"{_tokens(specs):,}" if not waits else f"({_tokens(specs):,})", names)
            for (skill, waits), specs in _by_skill(tools).items()
            if (names := ", ".join(spec.name for spec in specs))
        ]
        table(screen, (f"{key}: skill", "tools", "tokens", "names"), rows, right=(1, 2))
        out(f"{key}: about {_tokens(tools.shown):,} tokens of tools at every step{_deferred(tools)}")


def _deferred(tools: OfferedTools) -> str:
    if not tools.deferred:
        return ""
    return f"; {count(len(tools.deferred), 'tool')} of {_tokens(tools.deferred):,} (in brackets) found by a search"


def _by_skill(tools: OfferedTools) -> dict[tuple[str, bool], list[ToolSpec]]:
    found: dict[tuple[str, bool], list[ToolSpec]] = {}
    for specs, waits in ((tools.shown, False), (tools.deferred, True)):
        for spec in specs:
            found.setdefault((spec.skill_name, waits), []).append(spec)
    return found


def _tokens(specs: Iterable[ToolSpec]) -> int:
    return sum(map(tokens_of, specs))
