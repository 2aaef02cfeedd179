"""Location of a project: its definition file, its state and the workspace, and whose they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from perstack.core.definitions.project import Project
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.next_steps import Option, SetOption, WriteDefinition

CONFIG_NAME = "perstack.toml"
TRUST_VARIABLE = "PERSTACK_TRUST"
"""Environment variable with absolute paths, separated as in PATH: trusted definition files or their folders, and
projects or state folders whose state is trusted."""
_OWN_SCHEMES = ("file", "sqlite")  # schemes of storage addresses that are paths


@dataclass(frozen=True, slots=True)
class ProjectPlace:
    """Folder in which a project was looked for, and its definition file."""

    folder: Path  # absolute current folder, or the folder named in its place
    config: Path | None  # definition file; None without one
    is_shared: bool = False  # True if the definition file was named and is not the folder's own

    @property
    def state_root(self) -> Path:
        """The folder of a relative `storage`: the definition file's, or the current one if projects share the file."""
        return self.folder if self.config is None or self.is_shared else self.config.parent

    def require_path(self) -> Path:
        """Return the definition file. Raises UsageError without one."""
        if self.config is None:
            raise UsageError(
                f"there is no {CONFIG_NAME} in {self.folder} or above",
                next_steps=(WriteDefinition(), SetOption("config")),
            )
        return self.config

    def workspace(self, project: Project, named_folder: str | Path = ".") -> Path:
        """Return the absolute path of the workspace: the named one, the project's, or the current folder."""
        return workspace_folder(project, named_folder, self.folder)


def workspace_folder(project: Project, named_folder: str | Path, default_folder: str | Path = ".") -> Path:
    """Return the absolute path of the named folder; for the default `.`, the project's own, or `default_folder`."""
    return Path(named_folder if str(named_folder) != "." else project.folder or default_folder).resolve()


def folder_contains(folder: Path, path: str) -> bool:
    """Return whether a path or an address, relative to a folder, stays in the folder even through links."""
    scheme, colon, rest = path.partition(":")
    is_address = bool(colon) and scheme in (*_OWN_SCHEMES, "memory")
    if colon and not is_address and not path.startswith("/"):
        return False
    # a value that looks like an address may still be meant as a path: both must stay in the folder
    names = [path, rest] if is_address and scheme in _OWN_SCHEMES else [path]
    try:
        real_names = [os.path.realpath(folder / Path(name).expanduser()) for name in names]
    except (RuntimeError, ValueError):  # an unknown user, or a NUL character
        return False
    real_folder = os.path.realpath(folder)
    return all(Path(name).is_relative_to(real_folder) for name in real_names)


def folder_of(project: Project, default: Path) -> Path:
    """Return the folder that agreements belong to: the definition file's, or `default` without a file."""
    return default if project.path is None else Path(project.path).parent.resolve()


def find_config(start: Path) -> Path | None:
    """Return the nearest perstack.toml in `start` or above, or None. Raises UsageError if it may be another user's."""
    config = _nearest_config(start)
    if config is not None:
        check_owner(config, "config")
    return config


def _nearest_config(start: Path) -> Path | None:
    folder = start.absolute()
    for directory in (folder, *folder.parents):
        path = directory / CONFIG_NAME
        if path.is_file():
            return path
    return None


def is_named(config: Path) -> bool:
    """Return whether PERSTACK_TRUST of this process names the definition file or its folder, which trusts it."""
    config = _real_path(config)
    return not {config, config.parent}.isdisjoint(_named_paths())


def is_state_named(state: Path, project: Path) -> bool:
    """Return whether PERSTACK_TRUST names this state, or the project whose folder contains it.

    A project is named by its folder or by the perstack.toml in it.
    """
    state, project = _real_path(state), _real_path(project)
    project_names = {project, project / CONFIG_NAME} if state.is_relative_to(project) else set[Path]()
    return not project_names.union((state,)).isdisjoint(_named_paths())


def _named_paths() -> set[Path]:
    paths = map(Path, filter(None, os.environ.get(TRUST_VARIABLE, "").split(os.pathsep)))
    return {_real_path(path) for path in paths if path.is_absolute()}


def _real_path(path: Path) -> Path:
    return Path(os.path.realpath(path))  # `Path.resolve` raises for a loop of links


def check_owner(path: Path, option: Option | None = None, other_owners: Collection[int] = ()) -> None:
    """Raise UsageError if a file that was found, not named, may have been placed by another user.

    The file must belong to the user, root or one of `other_owners`, in a folder that nobody else can write, as git
    requires since CVE-2022-24765. A world-writable folder never qualifies, even with the sticky bit, as /tmp has it.
    `option` is the option with which a person can name the file.
    """
    if not hasattr(os, "geteuid") or is_named(path):
        return
    steps = () if option is None else (SetOption(option),)
    trusted_owners = {0, os.geteuid(), *other_owners}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        trusted_owners.add(int(os.environ["SUDO_UID"]))
    try:
        file_owners = {path.lstat().st_uid, path.stat().st_uid}
        folders = dict.fromkeys((path.parent, path.resolve().parent))
        folder_owners = {folder.stat().st_uid for folder in folders}
        is_writable_by_others = any(map(_is_writable_by_others, folders))
    except OSError as error:
        raise UsageError(f"{path} cannot be examined: {error.strerror}") from error
    if not file_owners <= trusted_owners:
        raise UsageError(f"{path} belongs to another user, so it is not read", next_steps=steps)
    if not folder_owners <= trusted_owners or is_writable_by_others:
        raise UsageError(f"{path} is in a folder that another user can write, so it is not read", next_steps=steps)


def owner_of(config: Path) -> tuple[int, ...]:
    """Return the owner of a definition file, who may own the files that it refers to; empty without a file."""
    try:
        return (config.stat().st_uid,)
    except OSError:
        return ()


def _is_writable_by_others(folder: Path) -> bool:
    status = folder.stat()
    if status.st_mode & stat.S_IWOTH:
        return True
    # With an access control list the group's bits are its mask: some user or group on the list may write.
    return bool(status.st_mode & stat.S_IWGRP) and (_has_acl(folder) or not _is_private(status.st_gid))


def _has_acl(folder: Path) -> bool:
    return hasattr(os, "listxattr") and "system.posix_acl_access" in os.listxattr(folder)


def _is_private(group: int) -> bool:
    """Return whether a group belongs to the user alone, as most systems create one for each user."""
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_gid == user.pw_gid and entry.gr_name == user.pw_name and {*entry.gr_mem} <= {user.pw_name}


def find_place(folder: str | Path, config: str | Path | None = None) -> ProjectPlace:
    """Return the location of a folder's project, or of the named definition file."""
    start = Path(folder).resolve()
    if config is None:
        return ProjectPlace(start, find_config(start))
    nearest = _nearest_config(start)
    path = Path(config).absolute()
    return ProjectPlace(start, path, is_shared=nearest is None or path.resolve() != nearest.resolve())


def check_workspace(project: Project, workspace: Path) -> None:
    """Raise UsageError if the workspace does not exist."""
    if not workspace.is_dir():
        subject = f"workspace in {project.path}" if project.folder == str(workspace) else "workspace"
        raise UsageError(f"{subject}: there is no directory {workspace}; create it, or name another one")


# Templates of new projects: folders of files, in each a perstack.toml with a placeholder for the model.

SHIPPED_SCHEMA = Path(__file__).with_name("perstack.schema.json")
