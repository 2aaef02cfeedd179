"""Servers that nobody here wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hosts import wait_for
from mcp_bed import Bed, blob_parts, words
from npm import installed
from web_pages import Pages

from perstack.core.definitions.skills import McpStdioSkill
from perstack.errors import SkillError

pytestmark = pytest.mark.timeout(350)  # the first time, packages are installed

PLENTY = 60_000

ASKING = {"trigger-elicitation-request", "trigger-url-elicitation"}
"""Called in test_everything_asks.py, like `trigger-sampling-request`, which is there for skills that may sample."""

ARGUMENTS: dict[str, dict] = {
    "echo": {"message": "hi"},
    "get-annotated-message": {"messageType": "success", "includeImage": True},
    "get-env": {},
    "get-resource-links": {"count": 2},
    "get-resource-reference": {"resourceType": "Blob", "resourceId": 1},
    "get-roots-list": {},
    "get-structured-content": {"location": "New York"},
    "get-sum": {"a": 2, "b": 3},
    "get-tiny-image": {},
    "gzip-file-as-resource": {"name": "a.gz", "data": "data:text/plain,hello", "outputType": "resource"},
    "simulate-research-query": {"topic": "cats"},
    "toggle-simulated-logging": {},
    "toggle-subscriber-updates": {},
    "trigger-long-running-operation": {"duration": 1, "steps": 2},
}


def _module(name: str, *args: str) -> McpStdioSkill:
    pytest.importorskip(name)
    return McpStdioSkill(name=name, command=sys.executable, args=("-m", name, *args), timeout=PLENTY)


def test_mcp_server_time_tells_the_time_and_refuses_a_zone_that_is_none(bed: Bed) -> None:
    async def run() -> tuple[str, bool]:
        async with bed.session(_module("mcp_server_time")) as session:
            assert {spec.name for spec in (await session.tools()).specs} == {"get_current_time", "convert_time"}
            now = await bed.call(session, "get_current_time", timezone="UTC")
            bad = await bed.call(session, "get_current_time", timezone="Nowhere")
            return words(now), bad.is_error

    now, is_error = wait_for(run())
    assert '"timezone": "UTC"' in now
    assert is_error


def test_mcp_server_git_reads_a_repository(bed: Bed) -> None:
    subprocess.run(["git", "init", "-q", "-b", "main", str(bed.workspace)], check=True)
    (bed.workspace / "new.txt").write_text("x")

    async def run() -> str:
        async with bed.session(_module("mcp_server_git")) as session:
            assert {"git_status", "git_log"} <= {spec.name for spec in (await session.tools()).specs}
            return words(await bed.call(session, "git_status", repo_path=str(bed.workspace)))

    assert "new.txt" in wait_for(run())


def test_every_tool_of_server_everything_is_answered(bed: Bed, npm_servers: Path) -> None:
    skill = McpStdioSkill(
        name="all", command=str(npm_servers / "mcp-server-everything"), args=("stdio",), timeout=PLENTY
    )

    async def run() -> dict:
        async with bed.session(skill) as session:
            names = {spec.name for spec in (await session.tools()).specs}
            assert names == ARGUMENTS.keys() | ASKING
            return {name: await bed.call(session, name, **args) for name, args in ARGUMENTS.items()}

    got = wait_for(run())
    refused = {name: words(result) for name, result in got.items() if result.is_error}
    assert refused.keys() == {"simulate-research-query"}, "which is for clients with the tasks extension"
    assert "requires task augmentation" in refused["simulate-research-query"]
    assert [part.mime_type for part in blob_parts(got["gzip-file-as-resource"])] == ["application/gzip"]
    assert words(got["echo"]) == "Echo: hi"
    assert "5" in words(got["get-sum"])
    assert [part.mime_type for part in blob_parts(got["get-tiny-image"])] == ["image/png"]
    assert blob_parts(got["get-resource-reference"])
    assert "demo://resource" in words(got["get-resource-links"])
    assert bed.workspace.as_uri() in words(got["get-roots-list"])
    assert '"temperature"' in words(got["get-structured-content"])
    assert "trigger-long-running-operation: 1/2" in bed.progress
    assert not [line for line in bed.shown if "repaired" in line]


def test_server_filesystem_is_held_to_its_folder(bed: Bed, npm_servers: Path) -> None:
    (bed.workspace / "note.txt").write_text("inside")
    command = str(npm_servers / "mcp-server-filesystem")
    skill = McpStdioSkill(name="files", command=command, args=(str(bed.workspace),), timeout=PLENTY)

    async def run() -> tuple[str, bool]:
        async with bed.session(skill) as session:
            read = await bed.call(session, "read_text_file", path=str(bed.workspace / "note.txt"))
            out = await bed.call(session, "read_text_file", path="/etc/hostname")
            return words(read), out.is_error

    read, is_error = wait_for(run())
    assert "inside" in read
    assert is_error


def test_server_memory_keeps_what_it_is_told_where_its_variable_says(bed: Bed, npm_servers: Path) -> None:
    bed.env["MEMORY_FILE_PATH"] = str(bed.workspace / "memory.json")
    command = str(npm_servers / "mcp-server-memory")
    skill = McpStdioSkill(name="memory", command=command, required_env=("MEMORY_FILE_PATH",), timeout=PLENTY)

    async def run() -> str:
        async with bed.session(skill) as session:
            entity = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
            await bed.call(session, "create_entities", entities=[entity])
            return words(await bed.call(session, "read_graph"))

    assert "Ada" in wait_for(run())
    assert "Ada" in (bed.workspace / "memory.json").read_text()


def test_server_sequential_thinking_counts_thoughts(bed: Bed, npm_servers: Path) -> None:
    command = str(npm_servers / "mcp-server-sequential-thinking")
    skill = McpStdioSkill(name="think", command=command, timeout=PLENTY)
    thought = {"thought": "one", "thoughtNumber": 1, "totalThoughts": 2, "nextThoughtNeeded": True}

    async def run() -> list[str]:
        async with bed.session(skill) as session:
            first = await bed.call(session, "sequentialthinking", **thought)
            second = await bed.call(session, "sequentialthinking", **{**thought, "thoughtNumber": 2})
            return [words(first), words(second)]

    first, second = wait_for(run())
    assert '"thoughtHistoryLength": 1' in first
    assert '"thoughtHistoryLength": 2' in second


def test_mcp_server_fetch_brings_a_page_of_this_machine(bed: Bed) -> None:
    bed.env["PATH"] = ""  # where it finds node, it installs packages from the network at its first page

    async def run() -> tuple[str, bool]:
        fetching = _module("mcp_server_fetch", "--allow-private-ips")
        page = b"<html><body><h1>Tides</h1><p>High at noon.</p></body></html>"
        async with Pages({"/tides.html": page}) as pages, bed.session(fetching) as session:
            found = await bed.call(session, "fetch", url=f"{pages.url}/tides.html")
            missing = await bed.call(session, "fetch", url=f"{pages.url}/none.html")
            return words(found), missing.is_error

    found, is_error = wait_for(run())
    assert "High at noon." in found
    assert is_error


@pytest.mark.parametrize("tool", ["no-such-tool"])
def test_a_tool_that_the_server_does_not_know_is_an_error_for_the_model(bed: Bed, tool: str) -> None:
    async def run() -> str:
        async with bed.session(_module("mcp_server_time")) as session:
            try:
                return words(await bed.call(session, tool))
            except SkillError as error:
                return str(error)

    assert tool in wait_for(run())


FAR = {
    "context7": ("@upstash/context7-mcp@4.1.1", "context7-mcp", (), "resolve-library-id"),
    "playwright": ("@playwright/mcp@0.0.83", "playwright-mcp", ("--headless", "--isolated"), "browser_tabs"),
}
"""Servers whose tools reach the web or start a browser: package, command, its arguments, and a tool that answers."""

FAR_ARGUMENTS: dict[str, dict] = {
    "resolve-library-id": {"query": "a router", "libraryName": "react"},
    "browser_tabs": {"action": "list"},
}


@pytest.mark.others
@pytest.mark.parametrize("name", FAR)
def test_a_server_of_the_web_or_of_a_browser_lists_and_answers(bed: Bed, name: str) -> None:
    package, command, args, tool = FAR[name]
    program = str(installed(name, (package,), (command,)) / command)

    async def run() -> tuple[set[str], str]:
        async with bed.session(McpStdioSkill(name=name, command=program, args=args, timeout=PLENTY)) as session:
            names = {spec.name for spec in (await session.tools()).specs}
            return names, words(await bed.call(session, tool, **FAR_ARGUMENTS[tool]))

    names, answer = wait_for(run(), 90)
    assert tool in names
    assert answer, "without the web, or a browser, it says what is not there"
    assert not [line for line in bed.shown if "repaired" in line or "left out" in line]
