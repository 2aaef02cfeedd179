"""Files of the workspace that an MCP client adds to a query."""

from __future__ import annotations

import json
from typing import Any

from editor import attached, structure, texts
from hosts import wait_for
from mcp_types import CallToolResult
from terminal import Terminal

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def first_events(terminal: Terminal, job: str) -> list[dict[str, Any]]:
    """Return the first event of each Run of a Job."""
    firsts = (terminal.log_of(f"{job}-{number}").read_bytes().splitlines()[0] for number in (1, 2))
    return [json.loads(line) for line in firsts]


def test_paths_and_resource_links_of_the_workspace_are_attached(terminal: Terminal) -> None:
    (terminal.workspace / "shot.png").write_bytes(PNG)
    link = {"type": "resource_link", "uri": f"file://{terminal.workspace}/notes.txt", "name": "notes"}

    async def work() -> CallToolResult:
        async with attached(terminal) as editor:
            first = await editor.call("solo", query="look", attachments=["shot.png", link])
            assert not first.is_error, texts(first)
            await editor.call("continue_job", job=structure(first)["id"], query="more", attachments=["shot.png"])
            return first

    job = structure(wait_for(work(), 60))["id"]
    first, second = first_events(terminal, job)
    assert [attachment.get("name") for attachment in first["attachments"]] == ["shot.png", None]
    assert first["attachments"][1]["text"].endswith("Attached file notes.txt:\na note")
    assert len(second["attachments"]) == 1


def test_what_is_outside_or_off_limits_is_refused(terminal: Terminal) -> None:
    (terminal.workspace.parent / "outside.png").write_bytes(PNG)
    (terminal.workspace / ".env").write_text("A=1")

    async def work() -> None:
        async with attached(terminal) as editor:
            for place in ("../outside.png", ".env", f"file://{terminal.workspace.parent}/outside.png", "perstack.toml"):
                refused = await editor.call("solo", query="look", attachments=[place])
                assert refused.is_error
                assert "cannot be attached" in texts(refused)[0]
            too_many = await editor.call("solo", query="look", attachments=["notes.txt"] * 21)
            assert too_many.is_error
            listed = structure(await editor.call("list_jobs"))
            assert listed["jobs"] == []

    wait_for(work(), 60)
