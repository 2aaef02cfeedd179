"""Listing, making, moving and deleting; what is known of a file."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_a_listing_has_directories_first_and_each_path_can_be_used_as_it_stands(tools: Any, workspace: Path) -> None:
    (workspace / "src/z").mkdir(parents=True)
    (workspace / "src/b.txt").write_text("12345")
    (workspace / "src/a.txt").write_text("")
    (workspace / "src/link").symlink_to("b.txt")
    listed = tools("listDirectory", "src").json
    assert listed["path"] == "src"
    assert [(item["name"], item["type"]) for item in listed["items"]] == [
        ("z", "directory"),
        ("a.txt", "file"),
        ("b.txt", "file"),
        ("link", "symlink"),
    ]
    assert listed["items"][2]["path"] == "src/b.txt"
    assert listed["items"][2]["size"] == 5
    assert TIME.fullmatch(listed["items"][2]["modified"])


def test_an_empty_directory_lists_nothing(tools: Any) -> None:
    assert tools("listDirectory", ".").json == {"path": ".", "items": []}


def test_a_huge_directory_is_listed_in_part_and_says_so(tools: Any, workspace: Path) -> None:
    for n in range(700):
        (workspace / f"{n:04}").touch()
    listed = tools("listDirectory", ".").json
    assert len(listed["items"]) == 500
    assert "700" in listed["notice"]


def test_a_file_name_that_is_no_utf_8_does_not_spoil_the_listing(tools: Any, workspace: Path) -> None:
    (Path(os.fsdecode(os.fsencode(workspace) + b"/caf\xe9"))).touch()
    (item,) = tools("listDirectory", ".").json["items"]
    assert item["name"] == "caf\ufffd"


def test_listing_a_file_or_nothing_is_an_error(tools: Any, workspace: Path) -> None:
    (workspace / "f").touch()
    assert "not a directory" in tools("listDirectory", "f").error
    assert "does not exist" in tools("listDirectory", "nothing").error


def test_directories_are_made_with_their_parents_and_twice_is_once(tools: Any, workspace: Path) -> None:
    assert tools("createDirectory", "a/b/c").json == {"path": "a/b/c"}
    assert not tools("createDirectory", "a/b/c").is_error
    assert not tools("createDirectory", ".").is_error
    assert (workspace / "a/b/c").is_dir()
    (workspace / "f").touch()
    assert "not a directory" in tools("createDirectory", "f").error


def test_a_full_directory_is_deleted_only_when_asked_for(tools: Any, workspace: Path) -> None:
    (workspace / "d/e").mkdir(parents=True)
    (workspace / "d/e/f").touch()
    assert "recursive" in tools("deleteDirectory", "d").error
    assert (workspace / "d/e/f").exists()
    assert tools("deleteDirectory", "d", recursive=True).json == {"path": "d"}
    assert not (workspace / "d").exists()


def test_the_wrong_tool_for_deleting_names_the_right_one(tools: Any, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "f").touch()
    (workspace / "link").symlink_to("d")
    assert "deleteDirectory" in tools("deleteFile", "d").error
    assert "deleteFile" in tools("deleteDirectory", "f", recursive=True).error
    assert "deleteFile" in tools("deleteDirectory", "link", recursive=True).error
    assert "does not exist" in tools("deleteFile", "nothing").error
    assert "does not exist" in tools("deleteDirectory", "nothing").error


def test_deleting_a_link_leaves_what_it_leads_to(tools: Any, workspace: Path) -> None:
    (workspace / "f").write_text("kept")
    (workspace / "link").symlink_to("f")
    assert tools("deleteFile", "link").json == {"path": "link"}
    assert (workspace / "f").read_text() == "kept"
    assert not (workspace / "link").is_symlink()


@pytest.mark.parametrize("path", [".", "", "./", "a/..", "/"])
def test_the_workspace_itself_is_never_deleted_or_moved(tools: Any, workspace: Path, path: str) -> None:
    (workspace / "f").touch()
    assert tools("deleteDirectory", path, recursive=True).is_error
    assert tools("moveFile", source=path, destination="x").is_error
    assert tools("deleteDirectory", str(workspace), recursive=True).is_error
    assert (workspace / "f").exists()


def test_files_and_directories_move_into_directories_that_are_made(tools: Any, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a")
    (workspace / "d").mkdir()
    (workspace / "d/x").write_text("x")
    moved = tools("moveFile", source="a.txt", destination="new/place/b.txt")
    assert moved.json == {"source": "a.txt", "destination": "new/place/b.txt"}
    assert (workspace / "new/place/b.txt").read_text() == "a"
    assert not tools("moveFile", source="d", destination="e").is_error
    assert (workspace / "e/x").read_text() == "x"
    assert not (workspace / "a.txt").exists()
    assert not (workspace / "d").exists()


def test_moving_never_overwrites(tools: Any, workspace: Path) -> None:
    (workspace / "a").write_text("a")
    (workspace / "b").write_text("b")
    (workspace / "d").mkdir()
    for destination in ("b", "d", "a", "."):
        assert "already exists" in tools("moveFile", source="a", destination=destination).error
    assert (workspace / "a").read_text() == "a"
    assert (workspace / "b").read_text() == "b"


def test_a_move_that_cannot_be_leaves_no_trace(tools: Any, workspace: Path) -> None:
    (workspace / "d").mkdir()
    assert "into itself" in tools("moveFile", source="d", destination="d/e").error
    assert "does not exist" in tools("moveFile", source="nothing", destination="there").error
    assert [entry.name for entry in workspace.rglob("*")] == ["d"]


def test_what_is_known_of_a_file_has_the_original_names(tools: Any, workspace: Path) -> None:
    (workspace / "hello.txt").write_text("hello world\nline two\n")
    (workspace / "hello.txt").chmod(0o600)
    info = tools("getFileInfo", "hello.txt").json
    for name in ("created", "modified", "accessed"):
        assert TIME.fullmatch(info.pop(name))
    assert info == {
        "exists": True,
        "path": "hello.txt",
        "absolutePath": str(workspace / "hello.txt"),
        "name": "hello.txt",
        "directory": str(workspace),
        "extension": ".txt",
        "type": "file",
        "mimeType": "text/plain",
        "size": 21,
        "sizeFormatted": "21.00 B",
        "permissions": {"readable": True, "writable": True, "executable": False},
    }


def test_a_directory_and_nothing_are_answers_too(tools: Any, workspace: Path) -> None:
    (workspace / "v1.0").mkdir()
    info = tools("getFileInfo", "v1.0").json
    assert (info["type"], info["extension"], info["mimeType"]) == ("directory", None, None)
    assert tools("getFileInfo", ".").json["type"] == "directory"
    assert tools("getFileInfo", "nothing").json == {"exists": False, "path": "nothing"}


def test_a_directory_of_thousands_of_levels_is_refused_in_a_line(tools: Any, workspace: Path) -> None:
    (workspace / "deep").mkdir()
    handle = os.open(workspace / "deep", os.O_RDONLY)
    for level in range(3_000):
        os.close(os.open(f"file{level}", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    assert tools("deleteDirectory", "deep", recursive=True).error.endswith("more than 200 levels deep; use exec")
    assert (workspace / "deep/file0").exists()
    # no test runner's cleaning up goes that deep either
    subprocess.run(["rm", "-r", "deep"], cwd=workspace, check=True)
