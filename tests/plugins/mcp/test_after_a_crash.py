"""What a server says of its tools, `readOnlyHint` and `idempotentHint`, decides what is run again after a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Seen, expert, open_storage, project_of, wait_for
from mcp_bed import Bed

from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import McpStdioSkill
from perstack.core.messages.messages import text_of
from perstack.host import Host
from perstack.ports.storage import Storage
from perstack.testing.crashing_storage import Crash, CrashingStorage
from perstack.testing.scripted import ScriptedProvider, text, tool, turn


class DiesBeforeAResult(CrashingStorage):
    """The process dies when the first result would be written: the server has answered by then."""

    async def append(self, run, expected_seq, records) -> None:
        if any(b'"finishToolCall"' in record for record in records):
            raise Crash("before a result")
        await super().append(run, expected_seq, records)


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(bed: Bed) -> Path:
    """With one commit, and a file that differs from it."""
    folder = bed.workspace
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "config", "user.name", "Ada")
    _git(folder, "config", "user.email", "ada@example.com")
    (folder / "notes.txt").write_text("first\n")
    _git(folder, "add", "notes.txt")
    _git(folder, "commit", "-q", "-m", "First")
    (folder / "notes.txt").write_text("second\n")
    return folder


def _host(bed: Bed, storage: str | Storage = "file:perstack") -> Host:
    pytest.importorskip("mcp_server_git")
    skill = McpStdioSkill(name="git", command=sys.executable, args=("-m", "mcp_server_git"), timeout=60_000)
    here = {"repo_path": str(bed.workspace)}
    calls = turn(
        tool("git_commit", {**here, "message": "Second"}),
        tool("git_add", {**here, "files": ["notes.txt"]}),
        tool("git_status", here),
    )
    return Host(
        project_of(expert("a").model_copy(update={"skills": (skill,)})),
        workspace=bed.workspace,
        storage=storage,
        env=bed.env,
        overrides=Overrides(provider="scripted"),
        plugins=[ScriptedProvider([calls, text("ok")])],
    )


def test_reading_and_repeatable_tools_are_run_again_and_one_with_an_effect_is_not(bed: Bed, repository: Path) -> None:
    async def crash() -> None:
        async with _host(bed, DiesBeforeAResult(open_storage("file:perstack", bed.workspace))) as host:
            with pytest.raises(Crash):
                await host.run("a", "q", job_id="job")

    wait_for(crash())
    commits = _git(repository, "rev-list", "--count", "HEAD")
    (repository / "notes.txt").write_text("third\n")
    (repository / "later.txt").touch()
    seen = Seen()

    async def resume() -> None:
        async with _host(bed) as host:
            assert [call.tool_name for call in await host.jobs.unsettled("job")] == ["git_commit"]
            assert (await host.resume("job", on_event=seen)).status == "completed"

    wait_for(resume())
    told = {event.tool_name: event for event in seen.of("finishToolCall")}
    assert told["git_commit"].is_error
    assert "may have had its effect" in text_of(told["git_commit"].contents)
    assert _git(repository, "rev-list", "--count", "HEAD") == commits
    assert not told["git_add"].is_error
    assert _git(repository, "diff", "--name-only") == "", "what was written after the crash is added"
    assert "later.txt" in text_of(told["git_status"].contents), "what was made after the crash is seen"
