"""File tools neither read nor write what holds keys, or says what is executed, under any name."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fuzzing import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.config.file_patterns import matches
from perstack.core.files.file_names import matches_pattern

SECRET = "the canary sings"

TOOLS: dict[str, dict[str, Any]] = {
    "readTextFile": {},
    "readImageFile": {},
    "readPdfFile": {},
    "writeTextFile": {"text": "overwritten"},
    "appendTextFile": {"text": "appended"},
    "editTextFile": {"oldText": "canary", "newText": "cat"},
    "deleteFile": {},
    "getFileInfo": {},
    "createDirectory": {},
}

PROTECTED = [
    ".env",
    ".env.local",
    ".env.production",
    "deep/.env",
    "perstack.toml",
    "perstack.lock",
    "deep/perstack.toml",
    ".git/config",
    ".git/hooks/pre-commit",
    "deep/.git/hooks/post-checkout",
    ".git/modules/sub/hooks/pre-push",
    ".git/worktrees/one/config.worktree",
]


def plant(workspace: Path, name: str) -> Path:
    path = workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SECRET)
    return path


def all_refuse(tools: Any, workspace: Path, path: str) -> None:
    for tool, args in TOOLS.items():
        answer = tools(tool, path, **args)
        assert "off limits" in answer.error, (tool, path)
        assert SECRET not in answer.text
    assert "off limits" in tools("moveFile", source=path, destination="taken").error
    (workspace / "mine").write_text("mine")
    assert tools("moveFile", source="mine", destination=path).is_error


@pytest.mark.parametrize("name", PROTECTED)
def test_a_protected_file_is_neither_read_nor_written_nor_moved(tools: Any, workspace: Path, name: str) -> None:
    path = plant(workspace, name)
    all_refuse(tools, workspace, name)
    all_refuse(tools, workspace, str(Path(name).with_name(Path(name).name.upper())))
    all_refuse(tools, workspace, f"none/../{name}")
    assert path.read_text() == SECRET


@pytest.mark.parametrize("name", PROTECTED)
def test_a_protected_file_is_not_made(tools: Any, workspace: Path, name: str) -> None:
    assert "off limits" in tools("writeTextFile", name, text="x").error
    assert not (workspace / name).exists()


@pytest.mark.parametrize(
    "name", [".env.example", ".env.sample", ".env.template", ".env.dist", ".env.local.example", ".envrc", "my.env"]
)
def test_a_sample_of_variables_is_an_ordinary_file(tools: Any, workspace: Path, name: str) -> None:
    tools("writeTextFile", name, text="KEY=")
    assert tools("readTextFile", name).json["content"] == "KEY="


@pytest.mark.parametrize(
    "name",
    ["git/config", "hooks/a", ".github/hooks/x", "HEAD/a", "refs/a", "objects/b", "commondir", "heads", "HEAD.md"],
)
def test_other_files_about_git_are_ordinary(tools: Any, name: str) -> None:
    tools("writeTextFile", name, text="here")
    assert tools("readTextFile", name).json["content"] == "here"


@pytest.mark.parametrize("name", [".\uff45nv", ".e\u200bnv", ".EN\u200dV", ".g\u200cit/config"])
def test_a_name_that_some_file_system_takes_for_a_protected_one_is_refused(tools: Any, name: str) -> None:
    assert "off limits" in tools("writeTextFile", name, text="x").error


@pytest.mark.parametrize("name", [".env", "perstack.toml", ".git/hooks/pre-commit", ".git/config", "perstack/job.json"])
def test_a_protected_file_is_known_through_links_of_both_kinds(tools: Any, workspace: Path, name: str) -> None:
    path = plant(workspace, name)
    (workspace / "soft").symlink_to(name)
    (workspace / "hard").hardlink_to(path)
    (workspace / "folder").symlink_to(path.parent)
    for tool in ("readTextFile", "appendTextFile", "editTextFile"):
        for way in ("soft", "hard", f"folder/{path.name}"):
            answer = tools(tool, way, **TOOLS[tool])
            assert "off limits" in answer.error, (tool, way)
    assert path.read_text() == SECRET


def test_what_a_protected_name_leads_to_is_protected_under_its_own_name(tools: Any, workspace: Path) -> None:
    plant(workspace, "settings/keys.txt")
    plant(workspace, "scripts/pre-commit")
    (workspace / ".env").symlink_to("settings/keys.txt")
    (workspace / ".git").mkdir()
    (workspace / ".git/hooks").symlink_to("../scripts")
    for path in ("settings/keys.txt", "scripts/pre-commit"):
        assert "off limits" in tools("readTextFile", path).error
        assert "off limits" in tools("writeTextFile", path, text="x").error


def test_a_file_with_several_names_that_nothing_protects_is_ordinary(tools: Any, workspace: Path) -> None:
    plant(workspace, "a").chmod(0o644)
    (workspace / "b").hardlink_to(workspace / "a")
    assert tools("readTextFile", "b").json["content"] == SECRET


@pytest.mark.parametrize("name", ["d/.env", "d/deep/perstack.toml", "d/.git/config", "d/.git/hooks/x"])
def test_a_folder_that_holds_one_is_neither_moved_nor_deleted(tools: Any, workspace: Path, name: str) -> None:
    path = plant(workspace, name)
    (workspace / "d/mine.txt").write_text("mine")
    assert "off limits" in tools("moveFile", source="d", destination="e").error
    assert "off limits" in tools("deleteDirectory", "d", recursive=True).error
    assert path.read_text() == SECRET
    assert (workspace / "d/mine.txt").exists()


@pytest.mark.parametrize("inside", ["hooks/pre-commit", "config"])
def test_a_folder_does_not_become_a_repository_with_hooks(tools: Any, workspace: Path, inside: str) -> None:
    tools("writeTextFile", f"made/{inside}", text="#!/bin/sh")
    assert "off limits" in tools("moveFile", source="made", destination=".git").error
    assert (workspace / "made" / inside).exists()
    assert not (workspace / ".git").exists()


def test_no_file_is_written_that_says_where_a_repository_is(tools: Any, workspace: Path) -> None:
    (workspace / "mine").write_text("gitdir: made")
    assert "off limits" in tools("writeTextFile", ".git", text="gitdir: made").error
    assert "off limits" in tools("moveFile", source="mine", destination="sub/.git").error
    (workspace / ".git").write_text("gitdir: /elsewhere")
    assert "off limits" in tools("appendTextFile", ".git", text="x").error
    assert tools("readTextFile", ".git").json["content"] == "gitdir: /elsewhere"


def test_folders_without_one_are_moved_and_deleted_whole(tools: Any, workspace: Path) -> None:
    plant(workspace, "d/deep/er/f.txt")
    plant(workspace, "d/.env.example")
    assert not tools("moveFile", source="d", destination="e").is_error
    assert not tools("deleteDirectory", "e", recursive=True).is_error
    assert not (workspace / "e").exists()


def test_names_are_listed(tools: Any, workspace: Path) -> None:
    plant(workspace, ".env")
    plant(workspace, ".git/config")
    plant(workspace, "perstack.toml")
    assert [item["name"] for item in tools("listDirectory", ".").json["items"]] == [".git", ".env", "perstack.toml"]
    assert "off limits" in tools("listDirectory", ".git/hooks").error


def test_what_the_host_reads_is_protected_wherever_it_is(tools: Any, workspace: Path, tmp_path: Path) -> None:
    inside, outside = plant(workspace, "team.toml"), plant(tmp_path, "shared.toml")
    tools.protected = (inside, outside)
    (workspace / "hard").hardlink_to(outside)
    for path in ("team.toml", "TEAM.toml", "hard"):
        assert "off limits" in tools("readTextFile", path).error
        assert "off limits" in tools("appendTextFile", path, text="x").error


def test_what_a_pattern_of_include_would_find_is_not_made(tools: Any, workspace: Path) -> None:
    tools.patterns = (f"{workspace}/experts/**/*.toml",)
    for path in ("experts/a.toml", "experts/deep/er/b.toml"):
        assert "off limits" in tools("writeTextFile", path, text="x").error
    assert not tools("writeTextFile", "experts/a.md", text="x").is_error
    assert not tools("writeTextFile", "made/deep/c.toml", text="x").is_error
    assert "off limits" in tools("moveFile", source="made", destination="experts/made").error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_not_moved(tools: Any, workspace: Path) -> None:
    (workspace / "d").mkdir(mode=0)
    assert tools("moveFile", source="d", destination="e").is_error


PARTS = st.lists(st.sampled_from(["a", "b", "x.toml", "y.toml"]), min_size=1, max_size=5)
PATTERN = st.lists(st.sampled_from(["a", "b", "*", "**", "*.toml"]), min_size=1, max_size=5)


@settings(deadline=None, max_examples=scaled(50))
@given(PARTS, PATTERN)
def test_patterns_mean_at_least_what_glob_finds(parts: list[str], pattern: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        path = Path(root).joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if "/".join(parts) in matches("/".join(pattern), Path(root)):
            assert matches_pattern(parts, pattern)


@pytest.mark.parametrize("name", [*PROTECTED, "perstack/jobs/one/log.jsonl"])
def test_a_path_that_a_permission_names_is_opened_for_that_call_alone(tools: Any, workspace: Path, name: str) -> None:
    plant(workspace, name)
    other = plant(workspace, "other/.env").relative_to(workspace)
    opened = replace(tools, opens=(name,))
    assert opened("readTextFile", name).json["content"] == SECRET
    assert not opened("writeTextFile", name, text="new").is_error
    assert (workspace / name).read_text() == "new"
    (workspace / "link").symlink_to(name)
    assert opened("readTextFile", "link").json["content"] == "new"
    assert "off limits" in opened("readTextFile", str(other)).error
    assert "off limits" in tools("readTextFile", name).error


def test_opening_a_file_opens_neither_its_folder_nor_its_neighbours(tools: Any, workspace: Path) -> None:
    plant(workspace, ".git/hooks/pre-commit")
    plant(workspace, ".git/hooks/pre-push")
    opened = replace(tools, opens=(".git/hooks/pre-commit",))
    assert not opened("editTextFile", ".git/hooks/pre-commit", oldText="canary", newText="cat").is_error
    for tool, path in [("deleteDirectory", ".git/hooks"), ("readTextFile", ".git/hooks/pre-push")]:
        assert "off limits" in opened(tool, path).error
    os.link(workspace / ".git/hooks/pre-push", workspace / "other")
    assert "off limits" in opened("readTextFile", "other").error
