"""What `[sandbox]` adds to the workspace holds for the file tools as it does for programs, and no further."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

SECRET = "the canary sings"


@dataclass(frozen=True)
class Around:
    """A workspace, and beside it a folder that may be changed, one that may be read, and one that may not."""

    tools: Any
    workspace: Path
    shared: Path
    library: Path
    keys: Path

    def with_places(self, **fields: tuple[str, ...]) -> Around:
        return replace(self, tools=replace(self.tools, **fields))


@pytest.fixture
def around(tools: Any, workspace: Path, tmp_path: Path) -> Around:
    shared, library, keys = (tmp_path / name for name in ("shared", "library", "keys"))
    for folder in (shared, library, keys):
        folder.mkdir()
        (folder / "file").write_text(SECRET)
    added = replace(tools, writable=(str(shared),), readable=(str(library),))
    return Around(added, workspace, shared, library, keys)


def test_what_is_writable_can_be_read_and_changed(around: Around) -> None:
    tools, shared = around.tools, around.shared
    assert tools("readTextFile", f"{shared}/file").json == {
        "path": f"{shared}/file", "content": SECRET, "from": 0, "to": 1,
    }  # fmt: skip
    assert tools("writeTextFile", f"{shared}/a/b", text="one").json["path"] == f"{shared}/a/b"
    tools("appendTextFile", f"{shared}/a/b", text=" two")
    tools("editTextFile", f"{shared}/a/b", oldText="two", newText="three")
    assert (shared / "a" / "b").read_text() == "one three"
    tools("moveFile", source=f"{shared}/a", destination="here")
    assert (around.workspace / "here" / "b").read_text() == "one three"
    tools("moveFile", source="here/b", destination="../shared/c")
    tools("deleteFile", f"{shared}/c")
    tools("createDirectory", f"{shared}/d")
    tools("deleteDirectory", f"{shared}/d")
    items = tools("listDirectory", str(shared)).json["items"]
    assert [item["path"] for item in items] == [f"{shared}/file"]


CHANGES: dict[str, dict[str, Any]] = {
    "writeTextFile": {"text": "x"},
    "appendTextFile": {"text": "x"},
    "editTextFile": {"oldText": "canary", "newText": "cat"},
    "deleteFile": {},
}


def test_what_is_readable_can_be_read_and_nothing_else(around: Around) -> None:
    tools, library = around.tools, around.library
    assert tools("readTextFile", f"{library}/file").json["content"] == SECRET
    assert tools("getFileInfo", f"{library}/file").json["permissions"]["writable"] is False
    for tool, args in CHANGES.items():
        assert "can be read but not changed" in tools(tool, f"{library}/file", **args).error, tool
    assert "can be read but not changed" in tools("writeTextFile", f"{library}/new/file", text="x").error
    assert "can be read but not changed" in tools("createDirectory", f"{library}/new").error
    for source, destination in ((f"{library}/file", "mine"), (f"{around.shared}/file", f"{library}/new")):
        assert "can be read but not changed" in tools("moveFile", source=source, destination=destination).error
    assert [path.name for path in library.iterdir()] == ["file"]
    assert (library / "file").read_text() == SECRET


def test_what_is_not_named_stays_outside_and_the_model_sees_what_is_there(around: Around) -> None:
    error = around.tools("readTextFile", f"{around.keys}/file").error
    assert error.endswith(f"use a path relative to the workspace, or one in {around.library}, {around.shared}")
    for way in ("../shared/../keys/file", f"{around.shared}/../keys/file", f"{around.shared}x/file"):
        assert "outside the workspace" in around.tools("readTextFile", way).error


def test_links_lead_from_one_place_to_another_and_not_out(around: Around) -> None:
    tools, workspace, shared = around.tools, around.workspace, around.shared
    (workspace / "absolute").symlink_to(shared)
    (workspace / "relative").symlink_to("../shared")
    (shared / "back").symlink_to("../workspace/mine")
    (shared / "out").symlink_to("../keys/file")
    (workspace / "out").symlink_to("../shared/out")
    (shared / "library").symlink_to(around.library)
    (workspace / "mine").write_text("mine")
    for way in ("absolute/file", "relative/file"):
        assert tools("readTextFile", way).json["content"] == SECRET
    assert tools("readTextFile", "absolute/back").json["content"] == "mine"
    for way in ("absolute/out", "out", f"{shared}/out"):
        assert "leads outside the workspace" in tools("readTextFile", way).error
    assert "can be read but not changed" in tools("writeTextFile", "relative/library/new", text="x").error


@pytest.mark.parametrize("name", [".env", "deep/.env.local", "perstack.toml", ".git/hooks/x", ".git/config"])
def test_what_is_protected_in_the_workspace_is_in_a_place_that_was_added(around: Around, name: str) -> None:
    path = around.shared / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SECRET)
    (around.shared / "soft").symlink_to(name)
    for way in (str(path), f"{around.shared}/soft"):
        assert "off limits" in around.tools("readTextFile", way).error
        assert "off limits" in around.tools("appendTextFile", way, text="x").error
    assert "off limits" in around.tools("deleteDirectory", str(path.parent), recursive=True).error or (
        path.parent == around.shared
    )
    assert path.read_text() == SECRET


def test_a_hard_link_to_a_protected_file_of_another_place_is_known(around: Around) -> None:
    for folder in (around.workspace, around.shared):
        (folder / ".env").write_text(SECRET)
    (around.workspace / "copy").hardlink_to(around.shared / ".env")
    (around.shared / "copy").hardlink_to(around.workspace / ".env")
    for path in ("copy", f"{around.shared}/copy"):
        assert "off limits" in around.tools("readTextFile", path).error
        assert "off limits" in around.tools("appendTextFile", path, text="x").error


def test_the_git_folder_of_another_repository_is_not_changed(around: Around) -> None:
    git = around.shared / ".git"
    git.mkdir()
    (git / "config").write_text(SECRET)
    added = around.with_places(writable=(str(git),))
    for name in ("config", "hooks/pre-commit", "info/exclude", "commondir"):
        assert "off limits" in added.tools("writeTextFile", f"{git}/{name}", text="x").error
    assert [path.name for path in git.iterdir()] == ["config"]


def test_a_file_of_variables_is_seen_only_if_it_is_named_and_never_changed(around: Around) -> None:
    for folder in (around.workspace, around.keys, around.library):
        (folder / ".env").write_text("KEY=value")
        (folder / ".env.other").write_text("KEY=other")
    named = around.with_places(
        readable=(str(around.workspace / ".env"), str(around.keys / ".env"), str(around.library))
    )
    for path in (".env", str(around.workspace / ".env"), f"{around.keys}/.env"):
        assert named.tools("readTextFile", path).json["content"] == "KEY=value"
        assert named.tools("writeTextFile", path, text="x").is_error
        assert named.tools("deleteFile", path).is_error
    for path in (".env.other", f"{around.library}/.env", f"{around.library}/.env.other"):
        assert "off limits" in named.tools("readTextFile", path).error
    for path in (f"{around.keys}/file", str(around.keys), f"{around.keys}/.env.other"):
        assert "outside the workspace" in named.tools("readTextFile", path).error
    assert "off limits" in around.tools("readTextFile", ".env").error
    assert (around.workspace / ".env").read_text() == "KEY=value"


def test_a_named_file_that_becomes_a_link_leads_nowhere(around: Around) -> None:
    named = around.with_places(readable=(str(around.keys / ".env"),), writable=(str(around.keys / "mine"),))
    (around.keys / "mine").write_text("mine")
    (around.keys / ".env").write_text("KEY=value")

    async def swapped() -> list[str]:
        async with named.tools.session() as session:
            read = {"path": str(around.keys / ".env")}
            before = await named.tools.ask(session, "readTextFile", read)
            (around.keys / ".env").unlink()
            (around.keys / ".env").symlink_to("file")
            return [before.text, (await named.tools.ask(session, "readTextFile", read)).error]

    import asyncio

    before, after = asyncio.run(swapped())
    assert "KEY=value" in before
    assert "outside the workspace" in after
    named.tools("editTextFile", f"{around.keys}/mine", oldText="mine", newText="ours")
    assert (around.keys / "mine").read_text() == "ours"
    assert "neither moved nor deleted" in named.tools("deleteFile", f"{around.keys}/mine").error


def test_what_is_named_deepest_decides(around: Around) -> None:
    inner = around.library / "out" / "here"
    inner.mkdir(parents=True)
    fixed = around.workspace / "vendor"
    fixed.mkdir()
    (fixed / "file").write_text(SECRET)
    named = around.with_places(readable=(str(around.library), str(fixed)), writable=(str(inner),))
    named.tools("writeTextFile", f"{inner}/new/file", text="x")
    assert (inner / "new" / "file").read_text() == "x"
    assert "can be read but not changed" in named.tools("writeTextFile", f"{inner.parent}/file", text="x").error
    assert "can be read but not changed" in named.tools("writeTextFile", "vendor/file", text="x").error
    assert "can be read but not changed" in named.tools("deleteDirectory", "vendor", recursive=True).error
    (around.workspace / "above").mkdir()
    fixed.rename(around.workspace / "above" / "vendor")
    named = named.with_places(readable=(str(around.workspace / "above" / "vendor"),))
    for answer in (
        named.tools("deleteDirectory", "above", recursive=True),
        named.tools("moveFile", source="above", destination="below"),
    ):
        assert "contains, a path of [sandbox]" in answer.error


def test_a_place_that_comes_to_be_later_is_found_then(around: Around) -> None:
    later = around.keys.parent / "later"
    named = around.with_places(writable=(str(later),))

    async def work() -> list[str]:
        async with named.tools.session() as session:
            write = {"path": f"{later}/file", "text": "x"}
            before = await named.tools.ask(session, "writeTextFile", write)
            later.mkdir()
            return [before.text, (await named.tools.ask(session, "writeTextFile", write)).text]

    import asyncio

    before, after = asyncio.run(work())
    assert "outside the workspace" in before
    assert '"path"' in after
    assert (later / "file").read_text() == "x"


def test_a_place_that_holds_the_workspace_keeps_the_workspace_and_its_state(around: Around, tmp_path: Path) -> None:
    (around.workspace / "perstack").mkdir()
    (around.workspace / "perstack" / "job").write_text(SECRET)
    (tmp_path / "link").symlink_to("workspace/perstack")
    named = around.with_places(writable=(str(tmp_path),))
    assert "off limits" in named.tools("readTextFile", f"{tmp_path}/link/job").error
    assert (
        "neither moved nor deleted"
        in named.tools("moveFile", source=str(tmp_path / "workspace"), destination=str(tmp_path / "elsewhere")).error
    )
    assert named.tools("readTextFile", f"{tmp_path}/keys/file").json["content"] == SECRET


def test_a_place_that_a_link_in_the_workspace_leads_to_is_not_taken(around: Around) -> None:
    (around.workspace / "models").symlink_to(around.keys)
    named = around.with_places(readable=(str(around.workspace / "models"),))
    from perstack.errors import SkillError

    with pytest.raises(SkillError, match="is a link that programs may change: name what it leads to"):
        named.tools("readTextFile", "models/file")


def test_programs_start_in_a_place_that_was_added(around: Around) -> None:
    assert around.tools("exec", command="pwd", cwd=str(around.shared)).json["output"].strip() == os.path.realpath(
        around.shared
    )
