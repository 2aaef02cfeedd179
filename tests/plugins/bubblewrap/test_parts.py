"""The pure parts: the filter of system calls, the arguments, and what is found in a workspace."""

from __future__ import annotations

import errno
import os
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack_bubblewrap.bwrap_arguments import (
    FolderView,
    System,
    arguments,
    environment,
    find_inner_mounts,
    open_mount_sources,
)
from perstack_bubblewrap.file_view import ProtectedFileScanner
from perstack_bubblewrap.seccomp import MACHINES, Machine, program_of

ALLOWED = 0x7FFF0000


def verdict(machine: Machine, number: int, *args: int, arch: int | None = None) -> int:
    """What the filter says: 0 for yes, or the number of an error."""
    data = struct.pack("<IIQ6Q", number, machine.audit if arch is None else arch, 0, *(*args, *[0] * (6 - len(args))))
    program, at, value = program_of(machine), 0, 0
    while True:
        code, yes, no, operand = program[at]
        at += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x06:
                return 0 if operand == ALLOWED else operand & 0xFFFF
            case _:
                holds = {0x15: value == operand, 0x25: value > operand, 0x35: value >= operand, 0x45: value & operand}
                at += yes if holds[code] else no


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_filter_refuses_what_it_is_there_for_and_allows_the_rest(machine: Machine) -> None:
    assert {verdict(machine, number) for number in machine.denied} == {errno.EPERM}
    assert verdict(machine, machine.clone3) == errno.ENOSYS
    assert verdict(machine, 467) == errno.ENOSYS
    assert verdict(machine, 1, arch=0x40000003) == errno.ENOSYS
    assert verdict(machine, machine.clone, 0x10000000) == errno.EPERM
    assert verdict(machine, machine.clone, 0x00000011) == 0
    assert [verdict(machine, machine.socket, family) for family in (1, 2, 10, 16)] == [0, 0, 0, 0]
    assert [verdict(machine, machine.socket, family) for family in (17, 38, 40)] == [errno.EPERM] * 3
    assert verdict(machine, machine.ioctl, 0, 0x5412) == errno.EPERM
    assert verdict(machine, machine.ioctl, 0, 0x5413) == 0
    assert verdict(machine, machine.personality, 0x40000) == errno.EPERM


@given(number=st.integers(0, 600), args=st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_every_call_gets_a_verdict(number: int, args: list[int]) -> None:
    for machine in MACHINES.values():
        assert verdict(machine, number, *args) in (0, errno.EPERM, errno.ENOSYS)


def words(view: FolderView, **env: str) -> list[str]:
    within = find_inner_mounts(view)
    handles = dict.fromkeys((*within.changeable, *within.fixed), 9)
    made = arguments(System(hidden="/hidden"), view, cwd="/w", env=env, handles=handles)
    return made.decode().split("\0")[:-1]


def mounted_places(view: FolderView) -> list[tuple[str, str]]:
    """Of what is mounted where a person's folders are, the option and the place, in order."""
    found = words(view)
    options = ("--bind", "--ro-bind", "--tmpfs", "--bind-fd", "--ro-bind-fd")
    return [
        (word, found[at + (1 if word == "--tmpfs" else 2)])
        for at, word in enumerate(found)
        if word in options and found[at + (1 if word == "--tmpfs" else 2)].startswith("/w")
    ]


def test_what_is_within_comes_after_what_is_around_it() -> None:
    view = FolderView(
        readable=("/w/a/b",),
        writable=("/w",),
        emptied=("/w/perstack",),
        hidden=("/w/.env",),
        fixed=("/w/.git/hooks", "/w/x/perstack.toml"),
        unmovable=("/w/.git",),
        anchored=("/w/x/perstack.toml",),
    )
    assert sorted(mounted_places(view)) == sorted(
        [
            ("--bind", "/w"),
            ("--bind-fd", "/w/.git"),
            ("--bind-fd", "/w/x"),
            ("--ro-bind", "/w/.env"),
            ("--tmpfs", "/w/perstack"),
            ("--ro-bind-fd", "/w/a/b"),
            ("--ro-bind-fd", "/w/.git/hooks"),
            ("--ro-bind-fd", "/w/x/perstack.toml"),
        ]
    )
    depths = [path.count("/") for _, path in mounted_places(view)]
    assert depths == sorted(depths)


def test_what_is_not_shown_is_not_mounted_over() -> None:
    assert mounted_places(FolderView(writable=("/w",), hidden=("/elsewhere/.env",), emptied=("/state",))) == [
        ("--bind", "/w")
    ]


@given(name=st.text(max_size=6), value=st.text(max_size=6))
def test_a_variable_is_one_argument_whatever_is_in_it(name: str, value: str) -> None:
    try:
        found = words(FolderView(writable=("/w",)), **{name: value})
    except ValueError:
        assert "\0" in name + value or "=" in name or not name or not (name + value).isprintable()
        return
    assert found[-3:] == ["--setenv", name, value]
    assert found[:-3] == words(FolderView(writable=("/w",)))


def test_a_home_that_is_not_there_becomes_the_temporary_folder() -> None:
    view = FolderView(writable=("/w",))
    assert environment({"HOME": "/home/me", "USER": "me", "PATH": "/bin"}, view) == {
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "USER": "user",
        "LOGNAME": "user",
        "PATH": "/bin",
    }
    assert environment({"HOME": "/w/home"}, view)["HOME"] == "/w/home"


def test_what_changes_in_a_folder_is_found_at_the_next_look(tmp_path: Path) -> None:
    finder = ProtectedFileScanner(str(tmp_path))
    assert finder.scan().hidden == ()
    for name in (".env", ".ENV.prod", ".env.example", ".envrc", "a/.env.local"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {Path(path).name for path in finder.scan().hidden} == {".env", ".ENV.prod", ".env.local"}
    (tmp_path / ".env").unlink()
    assert len(finder.scan().hidden) == 2


def test_repositories_are_found_by_name_and_by_what_is_in_them(tmp_path: Path) -> None:
    files = (
        *(".git/config", "sub/.git", "deep/.GIT/hooks/x", "bare/HEAD", "bare/objects/x", "bare/refs/x"),
        *("linked/HEAD", "linked/commondir", "none/HEAD", "none/objects/x", "folder/HEAD/x", "folder/objects/x"),
        *("folder/refs/x", "in/perstack.toml"),
    )
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = ProtectedFileScanner(str(tmp_path)).scan()
    fixed = {".git", "sub/.git", "deep/.GIT", "bare", "linked", "in/perstack.toml"}
    assert {str(Path(path).relative_to(tmp_path)) for path in found.fixed} == fixed
    executed = fixed - {"bare", "linked"} | {"bare/HEAD", "linked/HEAD"}
    assert {str(Path(path).relative_to(tmp_path)) for path in found.executed} == executed
    assert not (tmp_path / ".git" / "hooks").exists()


def test_a_folder_whose_times_were_set_back_is_looked_at_again(tmp_path: Path) -> None:
    os.utime(tmp_path, ns=(10**18, 10**18))
    finder = ProtectedFileScanner(str(tmp_path))
    settled = time.monotonic() + 10
    while not finder._cached_folders or not next(iter(finder._cached_folders.values())).is_settled:
        assert finder.scan().gits == ()
        assert time.monotonic() < settled
    (tmp_path / ".git").mkdir()
    os.utime(tmp_path, ns=(10**18, 10**18))
    assert finder.scan().gits == (str(tmp_path / ".git"),)


def test_a_workspace_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perstack.errors import SkillError
    from perstack_bubblewrap import file_view as keeping

    monkeypatch.setattr(keeping, "MAX_FOLDERS", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
    with pytest.raises(SkillError, match="more than 2 folders"):
        ProtectedFileScanner(str(tmp_path)).scan()


def test_what_has_become_a_link_since_it_was_found_is_not_mounted(tmp_path: Path) -> None:
    work, keys = tmp_path / "work", tmp_path / "keys"
    for folder in (work / "a" / ".git" / "hooks", work / "b" / ".git" / "hooks", keys / "hooks"):
        folder.mkdir(parents=True)
    found = ProtectedFileScanner(str(work)).scan()
    (work / "a" / ".git").rename(work / "old")
    (work / "a" / ".git").symlink_to(keys)
    (work / "b").rename(work / "c")
    (work / "b").symlink_to(keys)
    assert len(found.fixed) == 2
    view = FolderView(writable=(str(work),), fixed=(*found.fixed, str(work / "gone")), unmovable=found.fixed)
    with open_mount_sources(view) as handles:
        assert handles == {}
