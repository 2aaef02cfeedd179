"""Servers that are a little off the protocol: what they offer works, at once, and a person sees what was odd."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import odd_servers
import pytest
from hosts import wait_for
from mcp_bed import Bed, blob_parts, words
from odd_servers import ERAS, MARK, RESULTS, SERVERS, STATELESS, Result, Server

from perstack.core.definitions.skills import McpSseSkill, McpStdioSkill, Skill
from perstack.errors import SkillError
from perstack.ports.skill import SkillSession

TIMEOUT_MS = 8_000
AT_ONCE_S = 6  # less than what a wait for a timeout or for the probe of a revision takes, on a busy machine

TRANSPORTS = ("stdio", "http")
COMBINATIONS = [(transport, era) for transport in TRANSPORTS for era in ERAS]


@contextmanager
def _skill(name: str, transport: str, era: str) -> Iterator[Skill]:
    web = odd_servers.serving(name, era) if transport == "http" else nullcontext()
    with web as endpoint:
        if endpoint is not None:
            yield McpSseSkill(name="odd", endpoint=endpoint, allow_local_network=True, timeout=TIMEOUT_MS)
        else:
            script = (str(Path(odd_servers.__file__)), name, era)
            yield McpStdioSkill(name="odd", command=sys.executable, args=script, timeout=TIMEOUT_MS)


async def _problem(bed: Bed, session: SkillSession, row: Result) -> str:
    """Return what is wrong with what comes of a result; an empty text if nothing is."""
    before = len(bed.shown)
    try:
        result = await bed.call(session, row.name)
    except SkillError as error:
        return f"raised {error}"
    text, shown = words(result), bed.shown[before:] if not row.says.startswith("tool ") else bed.shown
    if any(part not in text for part in row.gets):
        return f"the model gets {text!r}"
    if result.is_error != row.is_error:
        return f"is_error is {result.is_error}"
    if tuple(part.mime_type for part in blob_parts(result)) != row.blobs:
        return f"blobs: {blob_parts(result)}"
    is_said = any(row.says in line and row.name in line for line in shown) if row.says else not shown
    return "" if is_said else f"shown: {shown}"


@pytest.mark.parametrize(("transport", "era"), COMBINATIONS)
def test_the_result_counts_and_what_was_odd_is_shown(bed: Bed, transport: str, era: str) -> None:
    rows = [row for row in RESULTS if era in row.eras]

    async def run(skill: Skill) -> dict[str, str]:
        async with bed.session(skill) as session:
            assert [spec.name for spec in (await session.tools()).specs] == [row.name for row in rows]
            return {row.name: found for row in rows if (found := await _problem(bed, session, row))}

    with _skill("results", transport, era) as skill:
        problems = wait_for(run(skill), 60)
    assert not problems, "\n".join(f"{name}: {problem}" for name, problem in problems.items())


def _rows() -> Iterator[tuple[str, str, Server]]:
    """Yield each server with every fourth transport and revision, and with all of them with PERSTACK_FAULTS=all."""
    step = 1 if os.environ.get("PERSTACK_FAULTS") == "all" else 4
    for number, row in enumerate(SERVERS):
        fitting = [(each, era) for each, era in COMBINATIONS if era in row.eras and row.only in ("", each)]
        for transport, era in fitting[number % step % len(fitting) :: step]:
            yield transport, era, row


@pytest.mark.parametrize(("transport", "era", "row"), list(_rows()), ids=lambda one: getattr(one, "name", one))
def test_its_tools_work_at_once_and_what_is_odd_is_shown(bed: Bed, transport: str, era: str, row: Server) -> None:
    async def run(skill: Skill) -> tuple[list[str], str]:
        async with bed.session(skill) as session:
            names = [spec.name for spec in (await session.tools()).specs]
            return names, words(await bed.call(session, "hello")) if row.lists else MARK

    began = time.monotonic()
    with _skill(row.name, transport, era) as skill:
        if row.refused:
            with pytest.raises(SkillError, match="could not be connected to: ") as caught:
                wait_for(run(skill))
            assert row.refused in str(caught.value)
            assert "\n" not in str(caught.value)
        else:
            names, answer = wait_for(run(skill))
            assert names[:1] == ["hello"] if row.lists is ... else names == list(row.lists)
            assert answer == MARK
            shown = [line for line in bed.shown if line.strip() and "refused the handshake" not in line]
            assert any(row.says in line for line in shown) if row.says else not shown
    assert time.monotonic() - began < AT_ONCE_S


def test_what_is_odd_in_every_answer_is_shown_once(bed: Bed) -> None:
    async def run(skill: Skill) -> None:
        async with bed.session(skill) as session:
            for _ in range(5):
                await bed.call(session, "content-text")

    with _skill("results", "http", STATELESS) as skill:
        wait_for(run(skill))
    assert len([line for line in bed.shown if "content is a text" in line]) == 1
