"""Locations of state and workspace, from any folder of a project."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from pathlib import Path

import pytest
from terminal import Terminal, reply

from perstack.core.definitions.settings import Overrides
from perstack.host import Host
from perstack.memory import ExecutionMemory

SOLO = '[experts.solo]\ninstruction = "You work alone."\n'
SCRIPTED = ("--provider", "scripted")
WRITE = [reply("", ("writeTextFile", {"path": "made.txt", "text": "x"})), reply("ok")]


def standing_in(terminal: Terminal, folder: Path) -> Terminal:
    """Return a terminal with the same environment in another folder."""
    folder.mkdir(parents=True, exist_ok=True)
    inner = Terminal(folder)
    inner.env = terminal.env
    return inner


def ids(terminal: Terminal, *args: str) -> list[str]:
    return [json.loads(line)["id"] for line in terminal.call("jobs", "--json", *args).lines]


@pytest.fixture
def subfolder(terminal: Terminal) -> Terminal:
    terminal.project(SOLO, solo=WRITE)
    return standing_in(terminal, terminal.workspace / "src/deep")


def test_below_a_project_state_is_beside_its_perstack_toml_and_files_are_where_one_stands(
    terminal: Terminal, subfolder: Terminal
) -> None:
    assert subfolder.call("run", "solo", "q", *SCRIPTED, "--job-id", "job").code == 0
    assert (terminal.jobs() / "job").is_dir()
    assert (subfolder.workspace / "made.txt").exists()
    assert not (subfolder.workspace / "perstack").exists()
    for one in (terminal, subfolder):
        assert ids(one) == ["job"]
        assert one.call("log", "--job", "job").code == 0
        assert one.call("verify", "job").code == 0
    assert subfolder.call("task", "create", "t").code == 0
    assert terminal.call("task", "get", "t").code == 0
    assert not (subfolder.workspace / "perstack").exists()


def test_a_workspace_that_perstack_toml_names_is_seen_from_that_file(terminal: Terminal, subfolder: Terminal) -> None:
    (terminal.workspace / "out").mkdir()
    terminal.project(f'workspace = "out"\n{SOLO}', solo=WRITE)
    assert subfolder.call("run", "solo", "q", *SCRIPTED).code == 0
    assert (terminal.workspace / "out/made.txt").exists()
    assert terminal.jobs().is_dir()
    named = terminal.workspace / "named"
    named.mkdir()
    assert subfolder.call("run", "solo", "q", *SCRIPTED, "--workspace", str(named)).code == 0
    assert (named / "made.txt").exists()
    assert len(ids(terminal)) == 2


def test_a_workspace_that_is_not_there_is_refused_before_anything_is_written(terminal: Terminal) -> None:
    terminal.project(f'workspace = "out"\n{SOLO}', solo=WRITE)
    result = terminal.call("run", "solo", "q", *SCRIPTED)
    assert (result.code, result.out) == (2, "")
    assert f"there is no directory {terminal.workspace / 'out'}; create it" in result.err
    assert not (terminal.workspace / "perstack").exists()
    assert terminal.call("jobs").code == 0


def test_with_a_shared_definition_state_stays_where_one_stands(terminal: Terminal, tmp_path: Path) -> None:
    shared = tmp_path / "shared/team.toml"
    shared.parent.mkdir()
    shared.write_text(SOLO)
    terminal.script(solo=WRITE)
    args = ("--config", str(shared))
    assert terminal.call("run", "solo", "q", *SCRIPTED, *args, "--job-id", "job").code == 0
    assert (terminal.jobs() / "job").is_dir()
    assert (terminal.workspace / "made.txt").exists()
    assert not (shared.parent / "perstack").exists()
    assert ids(terminal, *args) == ["job"]


def test_naming_the_definition_that_would_be_found_changes_nothing(terminal: Terminal, subfolder: Terminal) -> None:
    result = subfolder.call("run", "solo", "q", *SCRIPTED, "--job-id", "job", "--config", "../../perstack.toml")
    assert result.code == 0
    assert ids(terminal) == ids(subfolder) == ["job"]


def test_a_storage_that_is_named_is_seen_from_where_one_stands(terminal: Terminal, subfolder: Terminal) -> None:
    args = ("--storage", "sqlite:mine.db")
    assert subfolder.call("run", "solo", "q", *SCRIPTED, *args, "--job-id", "job").code == 0
    assert (subfolder.workspace / "mine.db").is_file()
    assert ids(subfolder, *args) == ["job"]
    assert ids(subfolder) == []


def test_a_perstack_folder_below_the_project_is_no_state(terminal: Terminal, subfolder: Terminal) -> None:
    (subfolder.workspace / "perstack/jobs/other").mkdir(parents=True)
    result = subfolder.call("run", "solo", "q", *SCRIPTED, "--job-id", "job")
    assert result.code == 0
    assert str(subfolder.workspace / "perstack") not in result.err
    assert ids(terminal) == ["job"]


@pytest.mark.parametrize("storage", ["file:.state", "sqlite:var/state.db", "file:src/../hidden"])
def test_tools_keep_off_state_in_the_workspace_under_any_name(terminal: Terminal, storage: str) -> None:
    place = os.path.normpath(storage.partition(":")[2])
    tries = ("readTextFile", "writeTextFile", "deleteFile", "getFileInfo")
    calls = [reply("", (tool, {"path": f"{place}", "text": ""})) for tool in tries]
    subfolder = standing_in(terminal, terminal.workspace / "src")
    terminal.project(f'storage = "{storage}"\nworkspace = "."\n{SOLO}', solo=[*calls, reply("ok")])
    result = subfolder.call("run", "solo", "q", *SCRIPTED)
    assert result.code == 0
    said = [event["contents"][0]["text"] for event in result.events if event["type"] == "finishToolCall"]
    assert len(said) == len(tries)
    assert all("off limits" in text for text in said), said
    assert subfolder.call("verify").code == 0


def test_from_python_state_is_beside_perstack_toml_too(terminal: Terminal, subfolder: Terminal) -> None:
    async def work() -> None:
        overrides = Overrides(provider="scripted")
        async with Host.open(workspace=subfolder.workspace, overrides=overrides, env=terminal.env) as host:
            assert host.workspace == subfolder.workspace
            assert (await host.run("solo", "q", job_id="job")).status == "completed"
        async with ExecutionMemory.open(workspace=subfolder.workspace) as memory:
            await memory.create("t")

    asyncio.run(work())
    assert ids(terminal) == ["job"]
    assert terminal.call("task", "get", "t").code == 0
    assert not (subfolder.workspace / "perstack").exists()


def test_printed_settings_of_an_editor_find_the_same_state_and_workspace(
    terminal: Terminal, subfolder: Terminal
) -> None:
    def printed(*options: str) -> list[str]:
        shown = json.loads(subfolder.call("mcp", "--print-config", "claude-code", *options).out)
        (server,) = shown["mcpServers"].values()
        return server["args"]

    assert printed()[-2:] == ["--workspace", str(subfolder.workspace)]
    named = printed("--storage", "file:mine")
    assert named[named.index("--storage") + 1] == "file:mine"
    outside = terminal.workspace.parent / "outside"
    outside.mkdir(exist_ok=True)
    terminal.project(f'workspace = "../outside"\n{SOLO}')
    args = printed()
    assert args[args.index("--workspace") + 1] == str(outside)
    assert args[args.index("--config") + 1] == str(terminal.workspace / "perstack.toml")
    assert args[args.index("--storage") + 1] == f"file:{terminal.workspace / 'perstack'}"
    args = printed("--storage", "file:mine")
    assert args[args.index("--storage") + 1] == f"file:{subfolder.workspace / 'mine'}"


STRANGER = 54321
"""A user id that need not exist."""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def give(path: Path, mode: int | None = None, user: int | None = None) -> None:
    if user is not None:
        os.chown(path, user, -1, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)


@pytest.mark.parametrize(
    ("file", "mode", "user", "why"),
    [
        (".", 0o777, None, "another user can write"),
        (".", 0o1777, None, "another user can write"),
        pytest.param("perstack.toml", 0o644, STRANGER, "belongs to another user", marks=AS_ROOT),
        pytest.param(".", 0o755, STRANGER, "another user can write", marks=AS_ROOT),
    ],
)
def test_a_definition_above_that_may_be_another_users_is_not_obeyed(
    subfolder: Terminal, file: str, mode: int, user: int | None, why: str
) -> None:
    top = subfolder.as_stranger().workspace.parent.parent
    give(top / file, mode, user)
    for command in (("run", "solo", "hi", *SCRIPTED), ("jobs",), ("validate",), ("trust", "--yes"), ("mcp",)):
        result = subfolder.run(*command)
        assert (result.code, why in result.err, "--config" in result.err) == (2, True, True), result.err
        assert str(top / "perstack.toml") in result.err
        assert result.err.count("\n") == 1
    config = str(top / "perstack.toml")
    assert subfolder.run("run", "solo", "hi", *SCRIPTED, "--config", config).code == 0
    assert subfolder.run("run", "solo", "hi", *SCRIPTED, env={"PERSTACK_TRUST": config}).code == 0
    give(top, 0o700, 0 if user else None)
    give(top / "perstack.toml", 0o644, 0 if user else None)
    assert subfolder.run("jobs").code == 0


@AS_ROOT
def test_a_link_that_another_user_has_put_there_is_not_followed(subfolder: Terminal) -> None:
    top = subfolder.as_stranger().workspace.parent.parent
    (top / "perstack.toml").rename(top / "mine.toml")
    (top / "perstack.toml").symlink_to("mine.toml")
    assert subfolder.run("jobs").code == 0
    give(top / "perstack.toml", user=STRANGER)
    assert "belongs to another user" in subfolder.run("jobs").err


def test_a_link_into_a_folder_of_others_is_not_followed(subfolder: Terminal) -> None:
    top = subfolder.as_stranger().workspace.parent.parent
    (top / "open").mkdir()
    (top / "open").chmod(0o777)
    (top / "perstack.toml").rename(top / "open/perstack.toml")
    (top / "perstack.toml").symlink_to("open/perstack.toml")
    assert "another user can write" in subfolder.run("jobs").err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("who", "code"), [("1234", 0), ("1235", 2), ("", 2), ("x", 2)])
def test_under_sudo_ones_own_files_stay_ones_own(subfolder: Terminal, who: str, code: int) -> None:
    top = subfolder.as_stranger().workspace.parent.parent
    give(top, user=1234)
    give(top / "perstack.toml", user=1234)
    assert subfolder.run("jobs", env={"SUDO_UID": who}).code == code


@AS_ROOT
def test_a_group_that_others_are_in_may_not_write_beside_a_definition(subfolder: Terminal) -> None:
    top = subfolder.as_stranger().workspace.parent.parent
    top.chmod(0o770)
    assert subfolder.run("jobs").code == 0, "the group of this user has nobody else in it"
    os.chown(top, -1, STRANGER)
    assert "another user can write" in subfolder.run("jobs").err


@pytest.mark.skipif(sys.platform != "linux", reason="an access control list is written as Linux keeps it")
@pytest.mark.parametrize(("allowed", "code"), [(0o7, 2), (0o2, 2), (0o5, 0)])
def test_another_user_on_an_access_control_list_may_not_write_beside_a_definition(
    subfolder: Terminal, allowed: int, code: int
) -> None:
    top = subfolder.as_stranger().workspace.parent.parent
    entries = [(0x01, 7, -1), (0x02, allowed, STRANGER), (0x04, 5, -1), (0x10, allowed | 5, -1), (0x20, 5, -1)]
    packed = b"".join(struct.pack("<HHI", tag, mode, user & 0xFFFFFFFF) for tag, mode, user in entries)
    try:
        os.setxattr(top, "system.posix_acl_access", struct.pack("<I", 2) + packed)
    except OSError:
        pytest.skip("this file system has no access control lists")
    result = subfolder.run("jobs")
    assert (result.code, "another user can write" in result.err) == (code, code == 2), result


@pytest.mark.parametrize("name", [".env", ".env.local"])
@pytest.mark.parametrize("user", [None, pytest.param(STRANGER, marks=AS_ROOT)])
def test_variables_that_another_user_has_put_there_are_not_taken(
    subfolder: Terminal, name: str, user: int | None
) -> None:
    dotenv = subfolder.workspace / name
    dotenv.write_text("OPENAI_BASE_URL=https://evil.example\n")
    if user is None:
        subfolder.workspace.chmod(0o1777)
    else:
        give(dotenv, user=user)
    result = subfolder.run("run", "solo", "hi", *SCRIPTED)
    assert (result.code, str(dotenv) in result.err, "--env-path" in result.err) == (2, True, True)
    assert subfolder.run("run", "solo", "hi", *SCRIPTED, "--env-path", name).code == 0


@pytest.mark.parametrize("pattern", ["more/*.toml", "more/one.toml", "*/one.toml"])
@pytest.mark.parametrize("user", [None, pytest.param(STRANGER, marks=AS_ROOT)])
def test_an_included_file_of_another_user_is_an_error_with_its_line(
    terminal: Terminal, pattern: str, user: int | None
) -> None:
    terminal.project(f'include = ["{pattern}"]\n{SOLO}', solo=[reply("ok")])
    more = terminal.workspace / "more"
    more.mkdir()
    (more / "one.toml").write_text('[experts.other]\ninstruction = "x"\n')
    assert terminal.run("validate").code == 0
    if user is None:
        more.chmod(0o777)
    else:
        give(more / "one.toml", user=user)
    for config in ((), ("--config", "perstack.toml")):
        result = terminal.run("validate", *config)
        assert result.code == 2
        assert "perstack.toml:1: error: include[0]: " in result.out + result.err
        assert "so it is not read" in result.out + result.err


@AS_ROOT
def test_a_project_that_was_named_is_whole_whoever_it_belongs_to(terminal: Terminal) -> None:
    terminal.as_stranger().project(f'include = ["more/*.toml"]\nenvPath = ["more/env"]\n{SOLO}', solo=[reply("ok")])
    more = terminal.workspace / "more"
    more.mkdir()
    (more / "one.toml").write_text('[experts.other]\ninstruction = "x"\n')
    (more / "env").write_text("A=b\n")
    for path in (terminal.workspace, terminal.workspace / "perstack.toml", more, more / "one.toml", more / "env"):
        give(path, user=STRANGER)
    assert terminal.run("run", "solo", "hi", *SCRIPTED).code == 2
    assert terminal.run("run", "solo", "hi", *SCRIPTED, "--config", "perstack.toml").code == 0


def test_what_shells_complete_is_quiet_about_a_definition_of_another_user(subfolder: Terminal) -> None:
    subfolder.as_stranger().workspace.parent.parent.chmod(0o777)
    asked = {"COMP_WORDS": "perstack run ", "COMP_CWORD": "2", "_PERSTACK_COMPLETE": "bash_complete"}
    result = subfolder.run(env=asked)
    assert (result.out, "Traceback" in result.err) == ("", False)


@pytest.mark.parametrize(
    ("storage", "link", "target"),
    [
        ("", "perstack", "outside"),
        ("", "perstack", "../beyond"),
        ("", "perstack", "/nowhere/at/all"),
        ('storage = "file:perstack"\n', "perstack", "outside"),
        ('storage = "file:kept/in/here"\n', "kept", "outside"),
        ('storage = "file:kept/in/here"\n', "kept/in/here", "outside"),
        ('storage = "file:./kept/../perstack"\n', "perstack", "outside"),
        ('storage = "sqlite:perstack/state.db"\n', "perstack", "outside"),
        ('storage = "sqlite:perstack/state.db"\n', "perstack/state.db", "outside/their.db"),
        ('storage = "sqlite:state.db"\n', "state.db", "outside/new.db"),
    ],
)
def test_a_link_in_a_project_does_not_say_where_its_state_is(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory, storage: str, link: str, target: str
) -> None:
    outside = tmp_path_factory.mktemp("home")
    (outside / "their.db").write_bytes(b"")
    path = terminal.workspace / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target.replace("outside", str(outside), 1) if target.startswith("outside") else target)
    terminal.project(storage + SOLO, solo=[reply("ok")])
    for words in (
        ("run", "solo", "go", *SCRIPTED),
        ("jobs",),
        ("log",),
        ("verify", "--all"),
        ("inbox",),
        ("cost",),
        ("doctor",),
        ("task", "create", "t"),
        ("task", "list"),
        ("prune", "--keep-last", "1", "--yes"),
        ("mcp",),
    ):
        refused = terminal.run(*words, stdin="")
        assert refused.code in (1, 2), (words, refused)
        assert "because a link there leads to " in refused.out + refused.err, words
        assert "--storage" in refused.out + refused.err
        assert "Traceback" not in refused.err
        if words[0] not in ("doctor", "mcp"):
            assert len(refused.err.splitlines()) == 1, refused.err
    assert [path.name for path in outside.iterdir()] == ["their.db"]
    assert (outside / "their.db").read_bytes() == b""
    assert not (outside.parent / "beyond").exists()


def test_a_link_that_a_person_names_is_where_the_state_is(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("disk")
    (terminal.workspace / "perstack").symlink_to(outside)
    terminal.project(SOLO, solo=[reply("ok")])
    result = terminal.run("run", "solo", "go", *SCRIPTED, "--storage", "file:perstack", "--job-id", "here")
    assert result.code == 0, result.err
    assert (outside / "jobs" / "here").is_dir()
    assert ids(terminal, "--storage", "file:perstack") == ["here"]


def test_a_project_that_is_reached_through_a_link_has_its_state(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    link = tmp_path_factory.mktemp("links") / "project"
    link.symlink_to(terminal.workspace)
    there = Terminal(link)
    there.env = terminal.env
    result = there.run("run", "solo", "go", *SCRIPTED, "--job-id", "here")
    assert result.code == 0, result.err
    assert ids(terminal) == ["here"]
