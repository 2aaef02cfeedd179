"""Fixtures for tests of the MCP server."""

from __future__ import annotations

import pytest
from terminal import Terminal, reply

EXPERTS = """
[experts.solo]
description = "works alone"
instruction = "[[solo]] You work alone."
[experts."@team/lead"]
description = "leads"
instruction = "[[lead]] You lead."
delegates = ["researcher"]
[experts.researcher]
description = "looks things up"
instruction = "[[researcher]] You look things up."
[permissions]
allow = ["exec"]
"""


@pytest.fixture
def terminal(terminal: Terminal) -> Terminal:
    """Return a project with three Experts: `solo` reads a file, `@team/lead` asks `researcher`."""
    (terminal.workspace / "notes.txt").write_text("a note")
    return terminal.project(
        EXPERTS,
        **{
            "[[solo]]": [reply("", ("readTextFile", {"path": "notes.txt"}), usage=(10, 1)), reply("One note.")],
            "[[lead]]": [reply("", ("researcher", {"query": "look it up"})), reply("It is known.")],
            "[[researcher]]": [reply("", ("think", {"thought": "hm"})), reply("Found.")],
        },
    )


@pytest.fixture(params=["handshake", "stateless"])
def era(request: pytest.FixtureRequest) -> str:
    """Return each of the two eras of MCP in turn."""
    return request.param
