"""Nothing that a tool does, whatever its path, reaches outside the workspace or into the state directory."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import scaled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SECRET = "the canary sings"

PATH_TOOLS: dict[str, dict[str, Any]] = {
    "readTextFile": {},
    "readImageFile": {},
    "readPdfFile": {},
    "writeTextFile": {"text": "overwritten"},
    "appendTextFile": {"text": "appended"},
    "editTextFile": {"oldText": "canary", "newText": "cat"},
    "deleteFile": {},
    "getFileInfo": {},
    "listDirectory": {},
    "createDirectory": {},
    "deleteDirectory": {"recursive": True},
}


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """All that is in a directory: names, modes, times and contents."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in sorted([directory, *directory.rglob("*")]):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, data)
    return found


def plant(directory: Path) -> Path:
    """A directory that must stay as it is, whose contents must never be seen."""
    (directory / "in").mkdir(parents=True)
    (directory / "secret.txt").write_text(SECRET)
    (directory / "in/secret.txt").write_text(SECRET)
    return directory


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return plant(tmp_path / "outside")


@pytest.fixture
def state(workspace: Path) -> Path:
    return plant(workspace / "perstack")


def each_tool_fails(tools: Any, path: str, complaint: str) -> None:
    for tool, args in PATH_TOOLS.items():
        assert complaint in tools(tool, path, **args).error, tool
    assert complaint in tools("moveFile", source=path, destination="taken").error
    assert complaint in tools("exec", command="pwd", cwd=path).error


def each_tool_fails_as_destination(tools: Any, workspace: Path, path: str) -> None:
    (workspace / "mine").write_text("mine")
    assert tools("moveFile", source="mine", destination=path).is_error
    assert (workspace / "mine").read_text() == "mine"


@pytest.mark.parametrize("path", ["../outside", "../outside/secret.txt", "a/../../outside", "/etc/passwd", "//etc"])
def test_no_path_leads_out_by_its_text(tools: Any, workspace: Path, outside: Path, path: str) -> None:
    before = snapshot(outside)
    each_tool_fails(tools, path, "outside the workspace")
    each_tool_fails_as_destination(tools, workspace, path)
    assert snapshot(outside) == before


@pytest.mark.parametrize("target", ["../outside", "{outside}", "d/../../outside", "perstack/../../outside"])
def test_no_link_leads_out(tools: Any, workspace: Path, outside: Path, target: str) -> None:
    (workspace / "d").mkdir()
    (workspace / "way").symlink_to(target.format(outside=outside))
    before = snapshot(outside)
    each_tool_fails(tools, "way/in", "the workspace" if "perstack" not in target else "")
    each_tool_fails_as_destination(tools, workspace, "way/new")
    assert tools("writeTextFile", "way", text="x").is_error
    assert tools("listDirectory", "way").is_error
    assert snapshot(outside) == before


def test_a_link_that_leads_out_can_be_deleted_and_moved_as_a_link(tools: Any, workspace: Path, outside: Path) -> None:
    (workspace / "way").symlink_to(outside)
    before = snapshot(outside)
    assert not tools("moveFile", source="way", destination="d/way").is_error
    assert (workspace / "d/way").is_symlink()
    assert not tools("deleteDirectory", "d", recursive=True).is_error
    assert snapshot(outside) == before


def test_links_that_stay_inside_are_followed(tools: Any, workspace: Path) -> None:
    (workspace / "a/b").mkdir(parents=True)
    (workspace / "a/b/f.txt").write_text("here")
    (workspace / "a/up").symlink_to("b/../b/./f.txt")
    (workspace / "absolute").symlink_to(workspace / "a/b")
    (workspace / "all").symlink_to("absolute/..")
    (workspace / "top").symlink_to(".")
    (workspace / "new").symlink_to("a/made.txt")
    for path in ("a/up", "absolute/f.txt", "all/up", "top/top/a/b/f.txt", "top/absolute/f.txt"):
        assert tools("readTextFile", path).json["content"] == "here", path
    assert tools("readTextFile", "a/up").json["path"] == "a/b/f.txt"
    assert tools("listDirectory", "top").json["path"] == "."
    tools("writeTextFile", "new", text="made")
    assert (workspace / "new").is_symlink()
    assert (workspace / "a/made.txt").read_text() == "made"


def test_links_in_a_circle_are_given_up(tools: Any, workspace: Path) -> None:
    (workspace / "a").symlink_to("b")
    (workspace / "b").symlink_to("a")
    assert "symbolic links" in tools("readTextFile", "a").error
    assert "symbolic links" in tools("writeTextFile", "a/x", text="").error


def test_absolute_paths_and_dots_inside_are_accepted(tools: Any, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "f.txt").write_text("here")
    for path in (str(workspace / "f.txt"), "./f.txt", "d/../f.txt", "none/../f.txt", f"{workspace}/d/..//f.txt"):
        assert tools("readTextFile", path).json == {"path": "f.txt", "content": "here", "from": 0, "to": 1}


def test_a_workspace_reached_through_a_link_is_one_workspace(tools: Any, workspace: Path, tmp_path: Path) -> None:
    (workspace / "f.txt").write_text("here")
    tools.workspace = tmp_path / "alias"
    tools.workspace.symlink_to(workspace)
    for path in ("f.txt", str(workspace / "f.txt"), str(tmp_path / "alias/f.txt")):
        assert tools("readTextFile", path).json["content"] == "here"


@pytest.mark.parametrize(
    "path", ["perstack", "perstack/in", "Perstack/secret.txt", "d/../PERSTACK", "{workspace}/perstack"]
)
def test_the_state_directory_is_off_limits_by_name(tools: Any, workspace: Path, state: Path, path: str) -> None:
    before = snapshot(state)
    path = path.format(workspace=workspace)
    each_tool_fails(tools, path, "the state directory perstack/ is off limits")
    each_tool_fails_as_destination(tools, workspace, path)
    assert snapshot(state) == before


@pytest.mark.parametrize("target", ["perstack", "./perstack/../perstack", "top/perstack", "{workspace}/perstack"])
def test_the_state_directory_is_off_limits_through_links(tools: Any, workspace: Path, state: Path, target: str) -> None:
    (workspace / "top").symlink_to(".")
    (workspace / "way").symlink_to(target.format(workspace=workspace))
    before = snapshot(state)
    each_tool_fails(tools, "way/in", "off limits")
    each_tool_fails_as_destination(tools, workspace, "way/new")
    for tool in ("listDirectory", "getFileInfo"):
        assert "off limits" in tools(tool, "way").error
    assert snapshot(state) == before


def test_a_state_directory_that_is_itself_a_link_is_known_wherever_it_is(tools: Any, workspace: Path) -> None:
    state = plant(workspace / "elsewhere/state")
    (workspace / "perstack").symlink_to("elsewhere/state")
    before = snapshot(state)
    each_tool_fails(tools, "elsewhere/state/in", "off limits")
    assert "off limits" in tools("deleteDirectory", "elsewhere", recursive=True).error
    assert "off limits" in tools("moveFile", source="elsewhere", destination="other").error
    assert tools("listDirectory", "elsewhere").json["items"] == []
    assert snapshot(state) == before


def test_a_state_directory_deeper_down_protects_its_parents(tools: Any, workspace: Path) -> None:
    state = plant(workspace / "var/state")
    tools.state_dir = "var/state"
    (workspace / "var/mine.txt").write_text("mine")
    assert tools("readTextFile", "var/mine.txt").json["content"] == "mine"
    assert "off limits" in tools("readTextFile", "var/state/secret.txt").error
    assert "off limits" in tools("deleteDirectory", "var", recursive=True).error
    assert "off limits" in tools("moveFile", source="var", destination="other").error
    assert (state / "secret.txt").exists()


def test_the_state_directory_is_not_listed_and_not_made(tools: Any, workspace: Path) -> None:
    assert "off limits" in tools("createDirectory", "perstack").error
    assert "off limits" in tools("writeTextFile", "perstack/jobs/x", text="").error
    assert not (workspace / "perstack").exists()
    plant(workspace / "perstack")
    (workspace / "f").touch()
    assert [item["name"] for item in tools("listDirectory", ".").json["items"]] == ["f"]


def test_without_a_state_directory_its_name_is_free(tools: Any, state: Path) -> None:
    tools.state_dir = None
    assert tools("readTextFile", "perstack/secret.txt").json["content"] == SECRET


@pytest.mark.timeout(20)
def test_pipes_and_sockets_neither_block_nor_are_opened(tools: Any, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        before = Path.cwd()
        os.chdir(workspace)  # the path of a socket may not be long
        try:
            server.bind("socket")
        finally:
            os.chdir(before)
        for path in ("pipe", "socket"):
            for tool in ("readTextFile", "readImageFile", "readPdfFile", "writeTextFile", "appendTextFile"):
                assert "not a regular file" in tools(tool, path, **PATH_TOOLS[tool]).error
            assert "not a regular file" in tools("editTextFile", path, oldText="a", newText="b").error
            assert tools("getFileInfo", path).json["type"] == "other"


NAMES = st.sampled_from(["a", "b", "c", "perstack", "Perstack"])
STEPS = st.one_of(NAMES, st.sampled_from(["..", ".", "", "secret.txt", "in", "outside", "workspace"]))
PATHS = st.one_of(
    st.lists(STEPS, min_size=1, max_size=6).map("/".join),
    st.lists(STEPS, max_size=4).map(lambda steps: "/".join(["{workspace}", *steps])),
    st.lists(STEPS, max_size=4).map(lambda steps: "/".join(["{outside}", *steps])),
)
THINGS = st.one_of(
    st.tuples(st.just("directory"), st.just("")),
    st.tuples(st.just("file"), st.just("")),
    st.tuples(st.just("link"), PATHS),
)
TREES = st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3).map("/".join), THINGS), max_size=8)
CALLS = st.lists(st.tuples(st.sampled_from([*PATH_TOOLS, "moveFile", "exec"]), PATHS, PATHS), min_size=1, max_size=8)


def grow(workspace: Path, tree: list[tuple[str, tuple[str, str]]], fill: Callable[[str], str]) -> None:
    """Make what can be made; a tree that contradicts itself is a smaller one."""
    for name, (kind, target) in tree:
        path = workspace / name
        if name.split("/")[0] == "perstack" or any(parent.is_symlink() for parent in path.parents):
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "directory":
                path.mkdir()
            elif kind == "file":
                path.write_text("mine")
            else:
                path.symlink_to(fill(target) or ".")
        except OSError:
            continue


@settings(max_examples=scaled(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES, calls=CALLS)
def test_whatever_the_tree_and_the_path_nothing_outside_is_touched_or_seen(
    tools: Any, tree: list[tuple[str, tuple[str, str]]], calls: list[tuple[str, str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as base:
        outside, workspace = plant(Path(base) / "outside"), Path(base) / "workspace"
        workspace.mkdir()
        state = plant(workspace / "perstack")

        def fill(path: str) -> str:
            return path.format(workspace=workspace, outside=outside)

        grow(workspace, tree, fill)
        before = snapshot(outside), snapshot(state)
        harness = type(tools)(workspace)

        async def play() -> None:
            async with harness.session() as session:
                for tool, path, other in calls:
                    args = {"path": fill(path), **PATH_TOOLS.get(tool, {})}
                    if tool == "moveFile":
                        args = {"source": fill(path), "destination": fill(other)}
                    elif tool == "exec":
                        args = {"command": "/bin/pwd", "args": ["-P"], "cwd": fill(path)}
                    answer = await harness.ask(session, tool, args)
                    assert SECRET not in answer.text
                    if tool == "exec" and not answer.is_error:
                        where = Path(answer.json["output"].strip())
                        assert where.is_relative_to(workspace.resolve())
                        assert not where.is_relative_to(state.resolve())

        asyncio.run(play())
        assert (snapshot(outside), snapshot(state)) == before


def exchange_names(one: Path, other: Path) -> None:
    """Linux's way to swap two names at once; Python has no function for it."""
    exchange = 2
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), exchange) == 0, ctypes.get_errno()


@pytest.mark.parametrize("forbidden", ["outside", "workspace/perstack"])
def test_exchanging_a_directory_for_a_link_while_tools_work_never_leads_out(
    tools: Any, workspace: Path, outside: Path, state: Path, tmp_path: Path, forbidden: str
) -> None:
    target = tmp_path / forbidden
    link, name = workspace / "link", workspace / "d"
    name.mkdir()
    (name / "secret.txt").write_text("mine")
    link.symlink_to(target)
    before = snapshot(outside), snapshot(state)
    done = threading.Event()
    exchanges = 0

    def exchange() -> None:
        nonlocal exchanges
        while not done.is_set():
            exchange_names(name, link)
            exchanges += 1

    async def play() -> int:
        seen = 0
        async with tools.session() as session:
            for turn in range(50):
                for tool in ("writeTextFile", "readTextFile", "appendTextFile", "editTextFile", "deleteFile"):
                    path = "d/secret.txt" if tool != "deleteFile" else f"d/{turn}"
                    answer = await tools.ask(session, tool, {"path": path, **PATH_TOOLS[tool]})
                    assert SECRET not in answer.text
                    seen += not answer.is_error
                await tools.ask(session, "writeTextFile", {"path": f"d/{turn + 1}/x", "text": "x"})
                await tools.ask(session, "deleteDirectory", {"path": f"d/{turn + 1}", "recursive": True})
                await tools.ask(session, "moveFile", {"source": "d/secret.txt", "destination": f"d/{turn}.moved"})
        return seen

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        seen = asyncio.run(play())
    finally:
        done.set()
        thread.join()
    assert (snapshot(outside), snapshot(state)) == before
    assert seen, "no call ever met the directory: the race was not run"
    assert exchanges > 20
