"""Servers whose schemas are made to take for ever: no check keeps the host, and what is not checked is said."""

from __future__ import annotations

import sys

from hosts import Seen, expert, project_of, results, wait_for
from mcp_bed import MISBEHAVING, Bed

from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import McpStdioSkill
from perstack.host import Host
from perstack.testing.scripted import ScriptedProvider, text, tool

WORD = "a" * 40 + "!"


def test_schemas_that_take_for_ever_keep_nobody_waiting(bed: Bed) -> None:
    seen = Seen()
    server = McpStdioSkill(
        name="bad",
        command=sys.executable,
        args=(str(MISBEHAVING), "schemas-that-take-for-ever"),
        timeout=60_000,
        pick=("slow_*", "doubling", "large"),
    )
    key = expert("a").model_copy(update={"skills": (server,)})
    turns = [
        tool("slow_in", {"a": WORD}),
        tool("slow_in", {"b": "c"}),
        tool("slow_out"),
        tool("doubling", {"a": 1}),
        text("done"),
    ]
    host = Host(
        project_of(key),
        workspace=bed.workspace,
        storage="file:perstack",
        env=bed.env,
        overrides=Overrides(provider="scripted"),
        plugins=[ScriptedProvider(turns)],
    )
    assert wait_for(host.run("a", "q", on_event=seen), 90).status == "completed"
    first, second, third, fourth = results(seen)
    assert first == f"Wrong arguments at a: {WORD!r} does not match '^(a+)+$'"
    assert "Wrong arguments" not in second
    assert WORD in third
    assert fourth == "Wrong arguments: too large or too involved to be checked against the schema"
    said = [event.message for event in seen.of("skillStderr")]
    assert "tool large is left out: its schema is too large to be checked" in said
    broken = f"the structured output violates the tool's output schema at a: {WORD!r} does not match '^(a+)+$'"
    assert f"(slow_out: {broken})" in said
    assert any(line.startswith("tool slow_in: pattern (?=b)b is not checked: ") for line in said)
