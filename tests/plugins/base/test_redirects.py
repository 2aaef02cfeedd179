"""A shell that `exec` runs opens no protected file itself, where that can be read in its script."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

REFUSED = [
    "echo x > .env",
    "echo x >> .env",
    "echo x >| .env",
    "echo x 2> .env",
    "echo x &> .env",
    "echo x > ./deep/../.env",
    'echo x > ".env"',
    "echo x > '.e'nv",
    "echo x > .ENV",
    "echo x > .env.local",
    "echo x > deep/perstack.toml",
    "echo x > .git/hooks/pre-commit",
    "echo x > perstack/state",
    "echo x > link",
    "echo x > folder/config",
    "cat < .env",
    "if true; then { echo x > .env; }; fi",
    "f() { echo x > .env; }; f",
    "true && (true; echo x) > .env",
    "cat <<END > .env\nx\nEND",
    "sh -c 'echo x > .env'",
    "env A=b bash -ec 'echo x > .env'",
    "cd deep && echo x > .env",
    "cd deep; cat < ../.env",
]
RUN = [
    "echo x > plain",
    "echo x > .env.example",
    "echo '> .env'",
    "echo x > /dev/null 2>&1",
    "cat < plain",
    "echo x > deep/plain && cat deep/plain",
    'F=other; echo x > "$F"',
]


@pytest.fixture
def files(workspace: Path) -> Path:
    for name in (".env", "deep/.env", ".git/config", "plain"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("as it was")
    (workspace / "link").symlink_to(".env")
    (workspace / "folder").symlink_to(".git")
    return workspace


def everything(workspace: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(workspace.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("script", REFUSED)
def test_a_redirection_to_a_protected_file_is_refused_and_nothing_runs(tools: Any, files: Path, script: str) -> None:
    before = everything(files)
    refused = tools("exec", command="sh", args=["-c", f"touch ran; {script}"])
    assert (refused.is_error, "off limits" in refused.text) == (True, True), refused.text
    assert everything(files) == before


@pytest.mark.parametrize("script", RUN)
def test_other_redirections_are_those_of_any_shell(tools: Any, files: Path, script: str) -> None:
    done = tools("exec", command="sh", args=["-c", script])
    assert done.json["exitCode"] == 0
    assert (files / ".env").read_text() == "as it was"


def test_a_path_outside_of_the_workspace_is_the_programs_own_affair(tools: Any, files: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    assert tools("exec", command="sh", args=["-c", f"echo x > {target}"]).json["exitCode"] == 0
    assert target.read_text() == "x\n"


def test_a_path_is_seen_from_where_the_program_runs(tools: Any, files: Path) -> None:
    assert "off limits" in tools("exec", command="sh", args=["-c", "cat < ../.env"], cwd="deep").text
    shutil.copy(files / ".env", files / "deep" / "x")
    assert tools("exec", command="sh", args=["-c", "cat < x"], cwd="deep").json["output"] == "as it was"


def test_a_file_that_is_protected_under_another_name_is_refused(tools: Any, files: Path, tmp_path: Path) -> None:
    os.link(files / ".env", files / "hard")
    assert "off limits" in tools("exec", command="sh", args=["-c", "cat < hard"]).text


def test_what_a_rule_opens_for_the_call_is_redirected_to(tools: Any, files: Path) -> None:
    tools.opens = (".env",)
    assert tools("exec", command="sh", args=["-c", "echo x > .env"]).json["exitCode"] == 0
    assert (files / ".env").read_text() == "x\n"
    assert "off limits" in tools("exec", command="sh", args=["-c", "echo x > deep/.env"]).text
