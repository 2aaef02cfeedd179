"""Path resolution confined to the workspace.

Invariant: a path is walked component by component from a handle of the workspace, and no component is opened through a
symbolic link. A link's target is read and walked by the same rule. So nothing that happens between a check and its use
leads outside: what was checked is held open.

- A tool's path is first normalised as text: `a/../b` is `b`, and an absolute path must begin with the workspace's own.
- In a link's target, `..` goes back along the open handles, never through the file system.
- Directories that `[sandbox]` adds are workspaces of their own, each with a handle (`WorkspaceSet`).
- The state directory is recognised by name in any case, and by identity under any name. So are files that hold keys or
  determine what is executed.
- The state of any other project is recognised during the walk, by the definition next to it at the time of the call.
- A program that the host or a permission rule runs can be read but not changed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, cast

from perstack.core.definitions.sandbox import is_below
from perstack.core.files.file_names import (
    Parts,
    fold_case,
    is_git_content,
    is_git_link,
    is_state_folder,
    matches_pattern,
    protected_by_name,
)
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack.system.git_targets import git_targets, repositories_around
from perstack.system.project_states import contains_any, has_definition, states_of
from perstack.system.project_states import is_at_or_below as is_at_or_below_path
from perstack_base.files import (
    Identity,
    explain,
    identity,
    inodes,
    is_at_or_below,
    is_encodable,
    is_repository,
    printable,
    status_at,
)

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
_Name = TypeVar("_Name", Path, str, Parts)

PROTECTED_WAYS: tuple[Parts, ...] = (
    (".env",),
    (".env.local",),
    ("perstack.toml",),
    ("perstack.lock",),
    (".git", "hooks"),
    (".git", "config"),
)
"""Protected paths. If they are links, their targets are protected too."""


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """A name in an open directory. It is a link only if the caller asked not to follow one at the end."""

    directory: int  # descriptor that is open for as long as the path is used
    name: str  # `.` for the workspace itself
    parts: Parts  # path from the workspace, without links
    workspace: OpenWorkspace
    # status found by the walk, which has checked that the file is not protected
    checked_status: os.stat_result | None = None
    change: bool = False  # True if it will be changed or removed

    @property
    def display_path(self) -> str:
        """The path for results and messages: relative to the workspace, absolute in an added directory."""
        return self.workspace.display_path(self.parts)

    @property
    def path(self) -> Path:
        return self.workspace.root.joinpath(*self.parts)

    @property
    def is_workspace(self) -> bool:
        return not self.parts

    @property
    def may_change(self) -> bool:
        """True if the path is in a directory that may be changed."""
        return self.workspace.may_change(self.parts)

    def refuse_removal(self) -> None:
        """Raise SkillError if this path is, or contains, a file that must not be moved or deleted."""
        self.workspace.refuse_removal(self.parts)

    def status(self) -> os.stat_result | None:
        """Return the current status without following a link; None if nothing exists."""
        return status_at(self.name, self.directory)

    def check_opened(self, status: os.stat_result) -> None:
        """Raise SkillError if the opened file is protected, even if the walk has checked another file of its name."""
        is_same = self.checked_status is not None and identity(status) == identity(self.checked_status)
        if not is_same and not self.workspace.is_opened(self.parts):
            self.workspace.check_identity(status, self.display_path, change=self.change)


@dataclass(frozen=True, slots=True)
class WorkspaceRules:
    """Rules of a directory, in addition to its protected names. Paths are absolute and without links."""

    may_change: Callable[[str], bool] = lambda path: True
    may_remove: Callable[[str], bool] = lambda path: True
    """Return whether a path and everything in it may be removed or moved."""
    may_read_protected: Callable[[str], bool] = lambda path: False
    """Return whether a protected file may be read because a person has named it."""
    locate: Callable[[str], tuple[OpenWorkspace, Parts] | None] = lambda path: None
    """Return the workspace that contains an absolute path outside this one, and the path in it; None without one."""
    describe_added: Callable[[], str] = lambda: ""  # return the added directories, for messages


NO_RULES = WorkspaceRules()


def _intern_names(names: tuple[_Name, ...]) -> tuple[_Name, ...]:
    """Return the earliest equal tuple: the workspaces of a thousand Jobs keep one of each."""
    return cast("tuple[_Name, ...]", _intern(names))


@lru_cache(maxsize=256)
def _intern(names: tuple[object, ...]) -> tuple[object, ...]:
    return names


class OpenWorkspace:
    """A directory that file tools are confined to, as an open handle. The owner must `close` it."""

    def __init__(
        self,
        root: Path,
        state_dir: str | None = None,
        off_limits: Iterable[Path] = (),
        protected: Iterable[Path] = (),
        patterns: Iterable[str] = (),
        rules: WorkspaceRules = NO_RULES,
        *,
        is_added: bool = False,
        only: str = "",
        read_only: Iterable[Path] = (),
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Open the directory. Raises SkillError if it cannot be opened.

        `off_limits` is the state. Files of `protected` and `patterns` may only be listed; those of `read_only` may also
        be read. `is_added` is True for a directory of `[sandbox]`. `only`, if not empty, is the only usable name. `env`
        says where git's settings are.
        """
        try:
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            is_there = os.path.isdir(root)  # noqa: PTH112 - like os.open above
            remedy = "try again after repairing that" if is_there else "create it, or name another one"
            raise SkillError(f"the workspace {root} cannot be opened ({error.strerror}): {remedy}") from error
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would follow links
        self.real = Path(os.path.realpath(root))
        self._names = (self.root, self.real)
        self._tops = tuple(f"{str(name).rstrip('/')}/" for name in self._names)
        state_parts = [Path(os.path.normpath(state_dir)).parts] if state_dir else []
        off_limits, protected = tuple(off_limits), tuple(protected)
        self._states = _intern_names(tuple(dict.fromkeys((*state_parts, *self._paths_within(off_limits)))))
        self._protected = _intern_names(tuple(dict.fromkeys(self._paths_within(protected))))
        read_only = tuple(read_only)
        self._read_only = _intern_names(tuple(dict.fromkeys(self._paths_within(read_only))))
        self._outside_paths = _intern_names(
            tuple(path for path in (*off_limits, *protected) if not self._contains_workspace(path))
        )
        self._patterns = tuple(Path(pattern).parts for pattern in patterns)
        self._folded_states = _intern_names(tuple(map(fold_case, self._states)))
        self._folded_protected = _intern_names(tuple(map(fold_case, self._protected)))
        self._folded_read_only = _intern_names(tuple(map(fold_case, self._read_only)))
        self._read_only_names = _intern_names(tuple(str(path.absolute()) for path in read_only))
        self._state_names = _intern_names(tuple("/".join(parts) for parts in self._states))
        inner_names = (*self._state_names, *("/".join(parts) for parts in (*self._protected, *PROTECTED_WAYS)))
        outer_names = (str(path.absolute()) for path in self._outside_paths if not self.relative_parts(str(path)))
        self._protected_names = _intern_names(tuple(dict.fromkeys((*inner_names, *outer_names))))
        self._opened: frozenset[Parts] = frozenset()
        self._opens: tuple[str, ...] = ()
        self._rules = rules
        self._env = env
        self._is_added = is_added
        self.only = only
        self._outer_names: Parts = (".git",) if is_added and any(map(is_git_link, self.real.parts)) else ()

    def opening(self, paths: Iterable[str]) -> OpenWorkspace:
        """Return this workspace for one call that may use these protected paths, which a permission rule names."""
        opened_paths = tuple(paths)
        if not opened_paths:
            return self
        opened = copy(self)
        ways = (self.relative_parts(path) if path.startswith("/") else Path(path).parts for path in opened_paths)
        opened._opened = frozenset(fold_case(way) for way in ways if way is not None)
        opened._opens = opened_paths
        return opened

    def close(self) -> None:
        """Close the handle. The workspace is unusable afterwards."""
        handle, self._root = self._root, -1
        if handle >= 0:
            os.close(handle)

    @contextmanager
    def place(
        self, path: str, *, follow: bool = True, create: bool = False, change: bool = False
    ) -> Generator[ResolvedPath]:
        """Resolve a path. Raises SkillError if it is outside, protected, or in the state directory.

        `follow`: follow a link at the end of the path. `change`: the file will be changed or removed. `create`: create
        missing directories on the way.
        """
        display_path = printable(path)
        home, parts = self._locate_checked(path)
        walk = _PathWalk(home, display_path, follow=follow, create=create, change=change or create)
        try:
            home.check_way(parts, display_path, change=walk.change)  # check before a directory is created on the way
            resolved = walk.to(parts)
            if walk.change:
                resolved.workspace.check_change(resolved.parts)
            yield resolved
        except OSError as error:
            raise SkillError(explain(error, display_path)) from error
        finally:
            walk.close()

    @contextmanager
    def directory(self, path: str) -> Generator[tuple[int, ResolvedPath]]:
        """Open a directory and yield its handle and place."""
        with self.place(path) as place:
            handle = os.open(place.name, _OPEN_DIRECTORY, dir_fd=place.directory)
            try:
                yield handle, place
            finally:
                os.close(handle)

    def size(self, path: str) -> int:
        """Return the current size in bytes, without checks; 0 for a missing file.

        Raises SkillError for a path outside.
        """
        home, parts = self._locate_checked(path)
        try:
            return os.stat("/".join(parts) or ".", dir_fd=home._root).st_size
        except OSError:
            return 0

    def refuse_removal(self, parts: Parts) -> None:
        """Raise SkillError for the workspace, a place that [sandbox] names, or a directory that contains the state."""
        if not parts:
            raise SkillError("the workspace itself can be neither moved nor deleted; name a file or folder in it")
        way = fold_case(parts)
        if any(fold_case(state)[: len(way)] == way for state in self._state_paths()):
            raise self.state_refusal(self.display_path(parts))
        if not self.is_opened(parts) and any(program[: len(way)] == way for program in self._folded_read_only):
            raise self.program_refusal(self.display_path(parts))
        if not self._rules.may_remove(self._real_path(parts)):
            display_path = self.display_path(parts)
            raise SkillError(
                f"{display_path} is, or contains, a path of [sandbox]: it can be neither moved nor deleted"
            )
        self.check_git(parts, whole=True)

    def may_change(self, parts: Parts) -> bool:
        return self._rules.may_change(self._real_path(parts))

    def check_change(self, parts: Parts) -> None:
        """Raise SkillError for a read-only path, and for files that git's configuration makes git execute."""
        if not self.may_change(parts):
            raise SkillError(
                f"{self.display_path(parts)} can be read but not changed (`readable` of [sandbox]); use another path"
            )
        self.check_git(parts)

    def check_repository(self, directory: int, parts: Parts) -> None:
        """Raise SkillError if changing `parts`, in an open directory, changes a git repository or makes one."""
        head = status_at("HEAD", directory) if is_git_content(parts[-1]) else None
        is_completed = head is not None and not stat.S_ISDIR(head.st_mode)
        if not self.is_opened(parts) and (is_completed or is_repository(directory)):
            raise SkillError(f"{self.display_path(parts)} belongs to git and is off limits to tools; use another path")

    def check_git(self, parts: Parts, *, whole: bool = False) -> None:
        """Raise SkillError for files that git's configuration makes git execute; with `whole` also below `parts`."""
        if self.is_opened(parts):
            return
        path = self._real_path(parts)
        for top in repositories_around(path):
            for target in git_targets(top, self._env):
                if _is_covered(path, target.path, whole=whole) and not is_below(top, (target.path,)):
                    place = f"{self.display_path(parts)} is, or holds, {printable(target.path)}"
                    reason = "which git's configuration names and which is off limits to tools"
                    raise SkillError(f"{place}, {reason}; ask a person to see to it")

    def check_way(self, parts: Parts, display_path: str, *, change: bool = True) -> None:
        """Raise SkillError for a path to the state or a protected file; with `change` also for a readable one."""
        if self.only and parts[:1] != (self.only,):
            raise self.outside(display_path)
        if self.is_opened(parts):
            return
        way = fold_case(parts)
        if is_at_or_below(way, self._folded_states):
            raise self.state_refusal(display_path)
        if not change and self.is_shown(parts):
            return
        reason = protected_by_name((*self._outer_names, *way), change=change) or self._protection_problem(parts, way)
        if reason is not None:
            raise SkillError(f"{display_path} is {reason}, which is off limits to tools; ask a person to see to it")
        if change and is_at_or_below(way, self._folded_read_only):
            raise self.program_refusal(display_path)

    def is_project_state(self, directory: int, name: str) -> bool:
        """Return whether an entry of an open directory is the state of the project that is defined there."""
        return is_state_folder(name) and has_definition(directory)

    def project_states(self, directory: int, parts: Parts) -> tuple[str, ...]:
        """Return the real paths of the state that a definition in an open directory names."""
        return states_of(directory, self._real_path(parts).rstrip("/") or "/")

    def is_in(self, states: tuple[str, ...], parts: Parts, *, whole: bool = False) -> bool:
        """Return whether a path is in one of these states of projects, or with `whole` contains one."""
        if not states:
            return False
        path = self._real_path(parts)
        return is_at_or_below_path(path, states) or (whole and contains_any(path, states))

    def is_opened(self, parts: Parts, *, is_on_the_way: bool = False) -> bool:
        """Return whether a call may use a protected path; with `is_on_the_way` also a path that leads to one."""
        way = fold_case(parts) if self._opened else ()
        return way in self._opened or (is_on_the_way and any(parts[: len(way)] == way for parts in self._opened))

    def is_shown(self, parts: Parts) -> bool:
        """Return whether a protected file may be read because a person has named it."""
        return self._rules.may_read_protected(self._real_path(parts))

    def display_path(self, parts: Parts) -> str:
        """Return a path in the form for results and messages."""
        way = self.root.joinpath(*parts) if self._is_added else "/".join(parts)
        return printable(str(way)) or "."

    def locate(self, path: str) -> tuple[OpenWorkspace, Parts] | None:
        """Return the workspace that contains an absolute path, and the path in it; None without one."""
        parts = self.relative_parts(path)
        if parts is not None and not (self.only and parts[:1] != (self.only,)):
            return self, parts
        location = self._rules.locate(path)
        return location if location is None else (location[0].opening(self._opens), location[1])

    def outside(self, display_path: str) -> SkillError:
        """Return the error for a path outside."""
        return SkillError(
            f"{display_path} is outside the workspace; use a path relative to the workspace"
            f"{self._rules.describe_added()}"
        )

    def check_identity(
        self, status: os.stat_result, display_path: str, protected: frozenset[Identity] | None = None, *, change: bool
    ) -> None:
        """Raise SkillError for a file or directory that is off limits under another name, or must not be changed."""
        if identity(status) in (self.protected_identities() if protected is None else protected):
            raise SkillError(f"{display_path} is another name of a file that is off limits to tools; use another path")
        if change and stat.S_ISREG(status.st_mode) and identity(status) in self._read_identities(self._read_only_names):
            raise self.program_refusal(display_path)
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and self._is_hard_link_to_kept(identity(status)):
            raise SkillError(f"{display_path} is a link to a file that is off limits to tools; use another path")

    def relative_parts(self, path: str) -> Parts | None:
        """Return an absolute path relative to the workspace, judged by its text; None if it begins outside."""
        plain = os.path.normpath(path)
        for top in self._tops:
            if f"{plain}/".startswith(top):
                remaining = plain[len(top) :].lstrip("/")
                return tuple(remaining.split("/")) if remaining else ()
        return None

    def open_root(self) -> int:
        """Return a new descriptor of the workspace."""
        return os.dup(self._root)

    def state_identities(self) -> frozenset[Identity]:
        """Return the identities of the existing state directories and files."""
        return self._read_identities(self._state_names)

    def protected_identities(self) -> frozenset[Identity]:
        """Return the identities of the state and the protected files."""
        return self._read_identities(self._protected_names)

    def is_state(self, parts: Parts) -> bool:
        """Return whether a path leads to or into the state, judged by its names."""
        return is_at_or_below(fold_case(parts), self._folded_states)

    def state_refusal(self, display_path: str) -> SkillError:
        name = "/".join(self._states[0])
        return SkillError(f"{display_path}: the state directory {name}/ is off limits to tools; use another path")

    def project_state_refusal(self, display_path: str) -> SkillError:
        """Return the error for the state of another project."""
        return SkillError(
            f"{display_path} is the state of a perstack project, which is off limits to tools; use another path"
        )

    def program_refusal(self, display_path: str) -> SkillError:
        """Return the error for changing a program that the host or a permission rule runs."""
        return SkillError(
            f"{display_path} is, or holds, what a command in perstack.toml or a permission rule runs: tools may only"
            " read it; use another path, or ask a person for a rule that names this one"
        )

    def _read_identities(self, names: Iterable[str]) -> frozenset[Identity]:
        root, identities = self._root, set[Identity]()
        for name in names:  # not cached: a protected name may lead to another file at each call
            try:
                identities.add(identity(os.stat(name, dir_fd=root)))
            except OSError:
                continue
        return frozenset(identities)

    def _protection_problem(self, parts: Parts, way: Parts) -> str | None:
        if is_at_or_below(way, self._folded_protected):
            return "a file that the host reads"
        for name in self._names if self._patterns else ():
            full_parts = (*name.parts, *parts)
            if any(matches_pattern(full_parts, pattern) for pattern in self._patterns):
                return "a file that perstack.toml includes"
        return None

    def _is_hard_link_to_kept(self, target: Identity) -> bool:
        """Return whether a file is also in the state, or under another protected path."""
        ways = (*self._states, *PROTECTED_WAYS)
        starts = [*(self.root.joinpath(*way) for way in ways), *self._outside_paths]
        return any(target[1] == inode for inode in inodes(starts))

    def _contains_workspace(self, path: Path) -> bool:
        real = Path(os.path.realpath(path))
        return any(name.is_relative_to(real) for name in self._names)

    def _state_paths(self) -> Iterator[Parts]:
        for way in self._states:
            yield way
            real = self.relative_parts(os.path.realpath(self.root.joinpath(*way)))
            if real is not None:
                yield real

    def _paths_within(self, paths: Iterable[Path]) -> Iterator[Parts]:
        """Yield the paths below the workspace. A path that contains the workspace cannot be protected."""
        for path in paths:
            for name in (str(path), os.path.realpath(path)):
                parts = self.relative_parts(name)
                if parts:
                    yield parts

    def _real_path(self, parts: Parts) -> str:
        return "/".join((str(self.real).rstrip("/"), *parts))

    def _locate_checked(self, path: str) -> tuple[OpenWorkspace, Parts]:
        """Return the workspace and parts of a path. Raises SkillError for an invalid one or one outside."""
        if "\0" in path:
            raise SkillError("a path cannot contain a NUL character; remove it")
        if not is_encodable(path):
            raise SkillError(f"the path {path!r} is not valid Unicode; use another path")
        location = self.locate(os.path.join(self.root, path))  # noqa: PTH118 - Path would drop what normpath needs
        if location is None:
            raise self.outside(printable(path))
        return location


def _is_covered(path: str, target: str, *, whole: bool) -> bool:
    """Return whether a path is or is below a target or, with `whole`, contains one. Case is ignored everywhere."""
    folded_path = path.casefold()
    for name in {target, os.path.realpath(target)}:
        folded_target = name.casefold()
        if is_below(folded_path, (folded_target,)) or (whole and is_below(folded_target, (folded_path,))):
            return True
    return False


class _PathWalk:
    def __init__(
        self, workspace: OpenWorkspace, display_path: str, *, follow: bool, create: bool, change: bool
    ) -> None:
        self._workspace = workspace
        self._display_path = display_path
        self._follow = follow
        self._create = create
        self.change = change
        self._protected_ids: frozenset[Identity] | None = None
        self._checked: Parts = ()
        self._handles = [workspace.open_root()]
        self._states = workspace.project_states(self._handles[0], ())
        """Real paths of the state of the projects whose folders the walk has entered."""
        self._parts: list[str] = []
        self._links = 0

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)

    def to(self, parts: Parts) -> ResolvedPath:
        """Walk a path whose names were checked, and return its end."""
        self._checked = parts
        remaining = list(reversed(parts))
        while remaining:
            name = remaining.pop()
            if name == "..":
                if not self._parts:
                    remaining = self._leave_workspace("/".join(("..", *reversed(remaining))))
                else:
                    self._leave_directory()
                continue
            is_last = not remaining
            if is_last and not self._follow:
                return self._resolve_last(name)
            target = self._read_link(name)
            if target is not None:
                self._check_project(name, (*self._parts, name))
                remaining += reversed(self._follow_link(target))
            elif is_last:
                return self._resolve_last(name)
            else:
                self._enter_directory(name)
        if not self._parts:
            status = os.fstat(self._handles[-1])
            return ResolvedPath(self._handles[-1], ".", (), self._workspace, status, self.change)
        last = self._parts[-1]
        self._leave_directory()
        return self._resolve_last(last)

    def _resolve_last(self, name: str) -> ResolvedPath:
        """Check the last component and return it unopened."""
        parts = (*self._parts, name)
        home = self._workspace
        if parts != self._checked:
            home.check_way(parts, self._display_path, change=self.change)
        if self.change:
            home.check_repository(self._handles[-1], parts)
        self._check_project(name, parts, whole=self.change and not self._follow)  # the link itself is moved or deleted
        status = status_at(name, self._handles[-1])
        if status is not None and not home.is_opened(parts) and (self.change or not home.is_shown(parts)):
            self._check_opened(status)
        return ResolvedPath(self._handles[-1], name, parts, self._workspace, status, self.change)

    def _check_project(self, name: str, parts: Parts, *, whole: bool = False) -> None:
        home = self._workspace
        is_state = home.is_project_state(self._handles[-1], name) or home.is_in(self._states, parts, whole=whole)
        if is_state and not home.is_opened(parts):
            raise home.project_state_refusal(self._display_path)

    def _check_opened(self, status: os.stat_result) -> None:
        if self._protected_ids is None:
            self._protected_ids = self._workspace.protected_identities()
        self._workspace.check_identity(status, self._display_path, self._protected_ids, change=self.change)

    def _leave_directory(self) -> None:
        os.close(self._handles.pop())
        self._parts.pop()

    def _read_link(self, name: str) -> str | None:
        """Return a link's target; None if this is not a link."""
        try:
            return os.readlink(name, dir_fd=self._handles[-1])
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    def _follow_link(self, target: str) -> Parts:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise SkillError(
                f"{self._display_path} goes through more than {_MAX_LINKS} symbolic links; use another path"
            )
        if not target.startswith("/"):
            return tuple(part for part in target.split("/") if part not in ("", "."))
        return self._restart_at(target)

    def _leave_workspace(self, target: str) -> list[str]:
        return list(reversed(self._restart_at(str(self._workspace.real / target))))

    def _restart_at(self, target: str) -> Parts:
        """Continue the walk at an absolute target, possibly in another workspace. Return the parts to walk."""
        location = self._workspace.locate(target)
        if location is None:
            raise SkillError(
                f"{self._display_path} leads outside the workspace through a symbolic link; use another path"
            )
        self._workspace, parts = location
        self._protected_ids, self._checked, self._parts = None, (), []
        handle = self._workspace.open_root()
        self.close()
        self._handles = [handle]
        self._states += self._workspace.project_states(handle, ())
        return parts

    def _enter_directory(self, name: str) -> None:
        """Check and open a directory on the way, creating it if the walk may."""
        way = (*self._parts, name)
        is_opened = self._workspace.is_opened(way, is_on_the_way=True)
        if not is_opened:
            self._workspace.check_way(way, self._display_path, change=self.change)
            if self.change:
                self._workspace.check_repository(self._handles[-1], way)
            self._check_project(name, way)
        handle = self._open_directory(name)
        self._handles.append(handle)
        self._parts.append(name)
        self._states += self._workspace.project_states(handle, way)
        if not is_opened:
            self._check_opened(os.fstat(handle))

    def _open_directory(self, name: str) -> int:
        if self._create and status_at(name, self._handles[-1]) is None:
            self._workspace.check_change((*self._parts, name))
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self._handles[-1])
        return os.open(name, _OPEN_DIRECTORY, dir_fd=self._handles[-1])
