"""Resolve the files and folders that `[sandbox]` names, alike for programs and file tools; refuse dangerous ones."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from perstack.core.definitions.sandbox import SandboxPolicy, is_below
from perstack.core.files.file_names import fold_case, protected_by_name
from perstack.dataclass import dataclass
from perstack.errors import SkillError, UsageError
from perstack.ports.runtime import Surroundings
from perstack.system.project_states import is_state_of_project

_KERNEL_FOLDERS = ("/proc", "/sys", "/dev", "/run")
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/boot", "/var")
_MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class SandboxPath:
    """An existing file or folder that `[sandbox]` names."""

    name: str  # the path as configured, absolute
    real: str  # the path without links
    is_writable: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Both paths, without duplicates."""
        return tuple(dict.fromkeys((self.name, self.real)))


def places(workspace: Path, writable: Iterable[str], readable: Iterable[str]) -> tuple[SandboxPath, ...]:
    """Return the configured paths that exist now; a path in both lists is writable.

    Raises SkillError for a path through a link that programs may have created, as it may lead elsewhere than meant.
    """
    writable, readable = tuple(writable), tuple(readable)
    changeable_folders = tuple(os.path.realpath(path) for path in (str(workspace), *writable))
    by_path: dict[str, SandboxPath] = {}
    for key, paths, is_writable in (("writable", writable, True), ("readable", readable, False)):
        for path in paths:
            try:
                real = _real_path(path, changeable_folders)
            except _ChangeableLink as link:
                raise SkillError(
                    f"`{key}` of [sandbox] is {path}, and {link} on the way there is a link that programs may change:"
                    " name what it leads to"
                ) from None
            if real is not None:
                by_path.setdefault(path, SandboxPath(os.path.normpath(path), real, is_writable))
    return tuple(by_path.values())


def check_places(policy: SandboxPolicy, surroundings: Surroundings) -> None:
    """Raise UsageError for a configured path that would expose too much."""
    for key, paths in (("writable", policy.writable), ("readable", policy.readable)):
        for path in paths:
            setting, writable = f"`{key}` of [sandbox]", key == "writable"
            check_place(setting, path, surroundings, writable=writable)
            for name in {path, os.path.realpath(path)}:
                _check_not_reserved(setting, path, name, surroundings, writable=writable)
    try:
        places(surroundings.workspace, policy.writable, policy.readable)
    except SkillError as error:
        raise UsageError(str(error)) from None


def check_place(setting: str, path: str, surroundings: Surroundings, *, writable: bool) -> None:
    """Raise UsageError for a folder that contains the home folder, and for a system folder."""
    home_folders = {str(Path(name)) for name in (surroundings.env.get("HOME"), os.path.expanduser("~")) if name}  # noqa: PTH111
    for name in {path, os.path.realpath(path)}:
        if any(is_below(folder, (name,)) for folder in home_folders):
            raise UsageError(f"{setting} is {path}, which contains your home folder: name a folder in it")
        if is_below(name, _KERNEL_FOLDERS) or (writable and is_below(name, _SYSTEM_FOLDERS)):
            raise UsageError(f"{setting} is {path}, which belongs to the system: name another folder")


def _check_not_reserved(setting: str, path: str, name: str, surroundings: Surroundings, *, writable: bool) -> None:
    """Raise UsageError for a path of the host or of a project's state; `name`: the path, perhaps without links."""
    for reserved_name in _both_names(surroundings.hidden):
        if is_below(str(surroundings.workspace), (reserved_name,)) or not is_below(name, (reserved_name,)):
            continue
        if not writable and is_below(name, tuple(_both_names(surroundings.shown))):
            continue
        if writable or name != reserved_name or Path(reserved_name).is_dir():
            raise UsageError(f"{setting} is {path}, which only the host may use: name another folder")
    if is_state_of_project(os.path.abspath(name)):  # noqa: PTH100 - resolve() would follow links
        raise UsageError(f"{setting} is {path}, the state of a perstack project: name another folder")
    if not writable:
        return
    reason = protected_by_name(fold_case(Path(name).parts[1:]), change=True)
    if name in _both_names(surroundings.protected):
        reason = "a file that the host reads"
    if reason is not None:
        raise UsageError(f"{setting} is {path}, {reason}: nothing that tools start may change that")


def _both_names(paths: Iterable[Path]) -> Iterable[str]:
    return dict.fromkeys(name for path in paths for name in (os.path.normpath(path), os.path.realpath(path)))


class _ChangeableLink(Exception):
    """Error of a path with a link in a folder where programs may create links."""


def _real_path(path: str, changeable_folders: Sequence[str]) -> str | None:
    """Return a path without links; None if there is none. Raises _ChangeableLink for a link in a changeable folder."""
    pending, current, links = deque(path.split("/")), "/", 0
    while pending:
        part = pending.popleft()
        if part in ("", "."):
            continue
        if part == "..":
            current = os.path.dirname(current)  # noqa: PTH120 - names only, without disk access
            continue
        step = f"{current.rstrip('/')}/{part}"
        if not os.path.islink(step):  # noqa: PTH114 - this runs before each program
            current = step
            continue
        links += 1
        if is_below(current, changeable_folders):
            raise _ChangeableLink(step)
        if links > _MAX_LINKS:
            return None
        target = os.readlink(step)  # noqa: PTH115 - pathlib would drop parts that matter
        current = "/" if target.startswith("/") else current
        pending.extendleft(reversed(target.split("/")))
    return current if os.path.exists(current) else None  # noqa: PTH110 - as above
