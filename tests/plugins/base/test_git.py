"""File tools make nothing that git executes, and programs of `exec` get a git that asks no folder what to execute."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fuzzing import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.system.git_targets import git_targets

from .conftest import Tools

CHANGES: dict[str, dict[str, Any]] = {
    "writeTextFile": {"text": "x"},
    "appendTextFile": {"text": "x"},
    "editTextFile": {"oldText": "before", "newText": "after"},
    "deleteFile": {},
}


def git(folder: Path, *args: str, **env: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *args], env=_env(env), capture_output=True, text=True, timeout=30)
    return done.stdout.strip()


def _env(env: dict[str, str]) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", **env}


def plant(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("before")
    return path


def none_changes(tools: Tools, workspace: Path, name: str) -> None:
    """No tool makes the file, nor changes, moves or deletes it when it is there."""
    assert "off limits" in tools("writeTextFile", name, text="x").error
    plant(workspace / name)
    for tool, args in CHANGES.items():
        assert "off limits" in tools(tool, name, **args).error, (tool, name)
    assert "off limits" in tools("moveFile", source=name, destination="taken").error
    assert tools("readTextFile", name).json["content"] == "before"


@pytest.mark.parametrize(
    "name", ["commondir", "HEAD", "objects/info/alternates", "info/attributes", "modules/m/commondir", "index"]
)
@pytest.mark.parametrize("folder", [".git", "deep/.git", ".GIT", "git~1", ".g\u200cit"])
def test_nothing_in_a_git_folder_is_changed_and_it_can_be_read(
    tools: Tools, workspace: Path, folder: str, name: str
) -> None:
    none_changes(tools, workspace, f"{folder}/{name}")
    assert "off limits" in tools("createDirectory", f"{folder}/new").error
    assert "off limits" in tools("moveFile", source=folder, destination="taken").error
    assert "off limits" in tools("deleteDirectory", folder, recursive=True).error
    (workspace / "link").symlink_to(folder)
    assert "off limits" in tools("writeTextFile", f"link/{name}", text="x").error
    assert (workspace / folder / name).read_text() == "before"


def test_a_git_folder_is_not_made(tools: Tools, workspace: Path) -> None:
    plant(workspace / "made/HEAD")
    for answer in (
        tools("createDirectory", "sub/.git"),
        tools("moveFile", source="made", destination=".git"),
        tools("moveFile", source="made", destination="sub/.git/modules"),
    ):
        assert "off limits" in answer.error
    assert not (workspace / ".git").exists()
    assert not (workspace / "sub/.git").exists()


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "head": ("writeTextFile", {"path": "d/HEAD", "text": "ref: refs/heads/x\n"}),
    "head, moved": ("moveFile", {"source": "mine", "destination": "d/HEAD"}),
    "config": ("writeTextFile", {"path": "d/config", "text": "[core]\n\tbare = true\n\tfsmonitor = touch ran;\n"}),
    "objects": ("writeTextFile", {"path": "d/objects/x", "text": ""}),
    "refs": ("createDirectory", {"path": "d/refs"}),
    "refs, moved": ("moveFile", {"source": "references", "destination": "d/refs"}),
    "commondir": ("writeTextFile", {"path": "d/commondir", "text": "../common"}),
    "all, moved": ("moveFile", {"source": "d", "destination": "e"}),
    "head, edited": ("editTextFile", {"path": "d/HEAD", "oldText": "nothing", "newText": "ref: refs/heads/x"}),
}


def scene(root: str, head: str) -> Path:
    """A workspace with the parts of a repository in different folders; a `HEAD` may have come with a clone."""
    workspace = Path(root, "workspace")
    for name in ("d", "references/heads", "common/objects", "common/refs"):
        (workspace / name).mkdir(parents=True)
    (workspace / "mine").write_text("ref: refs/heads/x\n")
    if head:
        (workspace / "d/HEAD").write_text(head)
    return workspace


def is_repository(folder: Path) -> bool:
    return git(folder, "rev-parse", "--is-bare-repository", GIT_CEILING_DIRECTORIES=str(folder.parent)) == "true"


@settings(deadline=None, max_examples=25)
@given(st.permutations(list(CALLS)), st.sampled_from(["", "nothing", "ref: refs/heads/x\n"]))
def test_no_order_of_calls_makes_a_folder_a_repository(order: list[str], head: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        workspace = scene(root, head)
        tools = Tools(workspace)
        for name in order:
            tool, args = CALLS[name]
            tools(tool, **args)
        assert not any(is_repository(workspace / name) for name in ("d", "e") if (workspace / name).exists())


def test_the_same_made_by_hand_is_a_repository(tmp_path: Path) -> None:
    workspace = scene(str(tmp_path), "ref: refs/heads/x\n")
    plant(workspace / "d/config").write_text("[core]\n\tbare = true\n")
    assert not is_repository(workspace / "d")
    (workspace / "d/commondir").write_text("../common")
    (workspace / "common/config").write_text("[core]\n\tbare = true\n")
    assert is_repository(workspace / "d")


def test_a_bare_repository_is_not_changed_and_can_be_read(tools: Tools, workspace: Path) -> None:
    bare = workspace / "fixtures/bare.git"
    bare.parent.mkdir()
    git(workspace, "init", "-q", "--bare", str(bare))
    for name in ("config", "hooks/post-update", "objects/info/alternates", "new/deep/file", "description"):
        assert "off limits" in tools("writeTextFile", f"fixtures/bare.git/{name}", text="x").error
    assert "off limits" in tools("deleteFile", "fixtures/bare.git/HEAD").error
    assert tools("readTextFile", "fixtures/bare.git/HEAD").json["content"].startswith("ref:")
    assert not tools("writeTextFile", "fixtures/other", text="x").is_error


POINTED_AT = {
    "[core]\n\thooksPath = {at}.githooks": ".githooks/pre-commit",
    "[core]\n\thookspath={at}.husky/_\n": ".husky/_/pre-commit",
    '[core] hooksPath = "{at}tools/git hooks" ; of ours': "tools/git hooks/deep/er",
    "[CORE]\n\tHooksPath = {at}tools/\\\nhooks": "tools/hooks/pre-push",
    "[core]\n\thooksPath = {workspace}/hooks": "hooks/pre-commit",
    "[include]\n\tpath = {workspace}/shared.gitconfig": "shared.gitconfig",
    '[includeIf "gitdir:/nowhere"]\n\tpath = {workspace}/conditional': "conditional",
    "[include]\n\tpath = {workspace}/../first": "second/pre-commit",
    "[core]\n\tfsmonitor = {at}tools/monitor --fast": "tools/monitor",
    '[filter "x"]\n\tclean = python3 {at}tools/clean.py %f': "tools/clean.py",
    '[alias]\n\tship = "!sh ./{at}ship.sh now"': "ship.sh",
    '[diff "x"]\n\ttextconv = {at}present.sh': "present.sh",
    "[future]\n\tcommand = {at}present.sh": "present.sh",
}
UNUSUAL = '\ufeff[core]\n\thooksPath = unusual\n\tbroken "\n[other\n\\'


@pytest.mark.parametrize("where", ["its own", "of a worktree", "the user's", "the user's under XDG", "of one around"])
@pytest.mark.parametrize("config", POINTED_AT)
def test_what_the_configuration_of_git_names_is_not_changed(
    tools: Tools, workspace: Path, tmp_path: Path, config: str, where: str
) -> None:
    target, at = POINTED_AT[config], "workspace/" if where == "of one around" else ""
    (tmp_path / "first").write_text(f"[core]\n\thooksPath = {at}second\n")
    (workspace / "present.sh").write_text("before")
    top = tmp_path if where == "of one around" else workspace
    (top / ".git").mkdir()
    home = tmp_path / "home"
    places = {
        "its own": top / ".git/config",
        "of a worktree": top / ".git/config.worktree",
        "the user's": home / ".gitconfig",
        "the user's under XDG": home / "xdg/git/config",
        "of one around": top / ".git/config",
    }
    plant(places[where]).write_text(config.format(workspace=workspace, at=at))
    tools.env = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "xdg")}
    none_changes(tools, workspace, target)
    assert not tools("writeTextFile", "ordinary/pre-commit", text="x").is_error
    above = str(Path(target).parent)
    if above != ".":
        assert "off limits" in tools("moveFile", source=above, destination="taken").error
        assert "off limits" in tools("deleteDirectory", above, recursive=True).error
        assert "off limits" in tools("writeTextFile", target.upper(), text="x").error


def test_a_folder_does_not_take_the_place_of_one_that_git_executes(tools: Tools, workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git/config").write_text("[core]\n\thooksPath = .husky/_\n")
    plant(workspace / "made/_/pre-commit")
    assert "off limits" in tools("moveFile", source="made", destination=".husky").error
    (workspace / "real").mkdir()
    (workspace / ".husky").symlink_to("real")
    assert "off limits" in tools("writeTextFile", "real/_/pre-commit", text="x").error
    assert "off limits" in tools("writeTextFile", ".husky/_/pre-commit", text="x").error


def test_a_shell_that_redirects_there_is_refused(tools: Tools, workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git/config").write_text("[core]\n\thooksPath = .githooks\n")
    for path in (".githooks/pre-commit", ".git/commondir", "sub/.git"):
        assert "off limits" in tools("exec", command="sh", args=["-c", f"echo x > {path}"]).error
    assert not tools("exec", command="sh", args=["-c", "echo x > ordinary"]).is_error


def test_the_linked_worktree_of_a_repository_has_its_configuration(tools: Tools, workspace: Path) -> None:
    repository = workspace.parent / "repository"
    git(workspace.parent, "init", "-q", "repository")
    git(repository, "config", "core.hooksPath", ".githooks")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "x")
    git(repository, "worktree", "add", "-q", str(workspace / "linked"))
    assert (workspace / "linked/.git").is_file()
    none_changes(tools, workspace, "linked/.githooks/pre-commit")


@pytest.mark.parametrize(
    "config",
    [UNUSUAL, "[include]\n\tpath = config\n", "[core]\n\thooksPath = /\n", "[core]\n\thooksPath =\n", "\0[a", ""],
)
def test_settings_that_say_nothing_of_use_leave_the_workspace_usable(
    tools: Tools, workspace: Path, config: str
) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git/config").write_text(config)
    assert not tools("writeTextFile", "ordinary/file", text="x").is_error


def test_settings_of_an_ordinary_repository_name_nothing(tools: Tools, workspace: Path) -> None:
    git(workspace, "init", "-q", ".")
    for key, value in [
        ("user.name", "a"),
        ("remote.origin.url", "https://example.com/a/b.git"),
        ("core.excludesFile", ".gitignore"),
        ("commit.template", "template"),
        ("core.worktree", ".."),
        ("alias.last", "log -1 HEAD -- src"),
        ("branch.main.merge", "refs/heads/main"),
    ]:
        git(workspace, "config", key, value)
    for path in (".gitignore", "template", "src/main.py", "refs/heads/main", "a/b.git"):
        assert not tools("writeTextFile", path, text="x").is_error, path


def test_a_fifo_in_the_place_of_settings_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git/config")
    assert git_targets(str(tmp_path), {"HOME": str(tmp_path)}) == ()


def test_the_home_folder_of_another_user_is_found(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("[core]\n\thooksPath = ~root/hooks\n")
    found = {target.path for target in git_targets(str(tmp_path), {"HOME": str(tmp_path)})}
    assert f"{pwd.getpwnam('root').pw_dir}/hooks" in found


@settings(deadline=None, max_examples=scaled(60))
@given(st.text("[core]hpaths=\\\"'#; \n\t!~/.x\0", max_size=60))
def test_any_text_is_read_as_settings(text: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / ".git").mkdir()
        (Path(root) / ".git/config").write_text(text)
        git_targets(root, {"HOME": root})


RUNS = "[core]\n\tbare = {bare}\n\tfsmonitor = touch {ran};\n"


@pytest.mark.parametrize("env", [{}, {"GIT_CONFIG_COUNT": "1"}, {"GIT_CONFIG_COUNT": "x"}, {"GIT_CONFIG_COUNT": "-1"}])
@pytest.mark.parametrize("bare", ["true", "false"])
def test_git_executes_nothing_that_a_folder_names(
    tools: Tools, workspace: Path, tmp_path: Path, bare: str, env: dict[str, str]
) -> None:
    ran = tmp_path / "ran"
    if "GIT_CONFIG_COUNT" in env:
        env = {**env, "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": f"touch {ran};"}
    git(workspace, "init", "-q", *(["--bare"] if bare == "true" else []), "d")
    (workspace / "d/config" if bare == "true" else workspace / "d/.git/config").write_text(
        RUNS.format(bare=bare, ran=ran)
    )
    args = ["-C", "d", "--work-tree=.", "status"] if bare == "true" else ["-C", "d", "status"]
    answer = tools("exec", command="git", args=args, env=env)
    assert not ran.exists(), answer.text
    if bare == "true":
        assert "cannot use bare repository" in answer.json["output"]
    git(workspace / "d", *args[2:], HOME=str(tmp_path))
    assert ran.exists(), "the control: it is executed without"


def test_settings_that_are_given_to_git_stay(tools: Tools) -> None:
    given = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "somebody"}
    answer = tools("exec", command="git", args=["config", "--list"], env=given)
    assert answer.json["output"].splitlines()[-3:] == [
        "user.name=somebody",
        "safe.barerepository=explicit",
        "core.fsmonitor=false",
    ]
