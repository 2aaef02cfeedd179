"""File view of a policy: the directories that programs see, and the files in them that are hidden or read-only now.

Files that git or perstack execute are mounted read-only. Files that do not exist yet cannot be: a program can create a
`.git`, a directory that git takes for a repository, or a file that an `include` pattern matches. Such a file is renamed
when the program has ended, before another one starts.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from itertools import chain
from pathlib import Path
from secrets import token_hex

from perstack.core.definitions.sandbox import SandboxPolicy, is_below
from perstack.core.files.file_names import is_definition, is_git_link, is_state_content, is_state_folder, is_variables
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack.ports.runtime import Surroundings
from perstack.support.sandbox_paths import places
from perstack.system.git_targets import TargetKind, git_targets, repositories_around
from perstack.system.project_states import DEFINITION
from perstack_bubblewrap.bwrap_arguments import FolderView, open_below

# Protected files in the directories of a sandbox, as they are now.
#
# Files of variables, Expert definitions and git repositories are recognised by name, wherever they are. A directory
# that has not changed since the last scan is not read again. Changes are detected by ctime, because a program can set
# every other timestamp back.

MAX_FOLDERS = 50_000

_TIMESTAMP_GRAIN_NS = 50_000_000  # nanoseconds within which a directory may change again without a new timestamp

_HEAD = "HEAD"


@dataclass(frozen=True, slots=True)
class ProtectedFiles:
    """The protected files and directories below one directory, as absolute paths."""

    hidden: tuple[str, ...] = ()  # files that must not be readable
    fixed: tuple[str, ...] = ()  # files and directories that must be read-only
    states: tuple[str, ...] = ()  # directories with the state of projects, which must not be visible
    linked: frozenset[tuple[int, int]] = frozenset()  # device and inode numbers of hidden files with several hard links
    gits: tuple[str, ...] = ()  # paths whose name is `.git`
    executed: tuple[str, ...] = ()
    """Paths that git or perstack would execute, so a program must not add any: every `.git`, the `HEAD` of each other
    repository, and definitions.
    """
    is_whole: bool = True  # False if some directories were not scanned


@dataclass(slots=True)
class _Folder:
    changed: int = -1
    is_settled: bool = False
    folders: list[str] = field(default_factory=list[str])
    hidden: list[str] = field(default_factory=list[str])
    fixed: list[str] = field(default_factory=list[str])
    states: list[str] = field(default_factory=list[str])
    gits: list[str] = field(default_factory=list[str])
    executed: list[str] = field(default_factory=list[str])
    linked: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Device and inode numbers of hidden files with several hard links."""


class ProtectedFileScanner:
    """Scanner for one directory and everything below it. Not thread-safe."""

    def __init__(self, root: str, *, without: frozenset[str] = frozenset()) -> None:
        """Scan `root`, except what is below the directories `without`."""
        self._root = root
        self._without = without
        self._cached_folders: dict[str, _Folder] = {}

    def scan(self, *, may_be_partial: bool = False) -> ProtectedFiles:
        """Return the protected files. Raises SkillError if there are too many directories to scan.

        With `may_be_partial` the result is incomplete instead.
        """
        folders, is_whole = self._folders()
        if not is_whole and not may_be_partial:
            raise SkillError(
                f"{self._root} has more than {MAX_FOLDERS:,} folders, too many to find every file in them that a"
                " sandbox has to hide: use a smaller workspace"
            )
        self._cached_folders = folders
        return ProtectedFiles(
            tuple(dict.fromkeys(path for folder in folders.values() for path in folder.hidden)),
            tuple(path for folder in folders.values() for path in folder.fixed),
            tuple(path for folder in folders.values() for path in folder.states),
            frozenset(identity for folder in folders.values() for identity in folder.linked),
            tuple(path for folder in folders.values() for path in folder.gits),
            tuple(path for folder in folders.values() for path in folder.executed),
            is_whole,
        )

    def _folders(self) -> tuple[dict[str, _Folder], bool]:
        pending, scanned = deque([self._root]), dict[str, _Folder]()
        while pending:
            path = pending.popleft()
            if path in self._without:
                continue
            if len(scanned) == MAX_FOLDERS:
                return scanned, False
            with suppress(OSError):
                scanned[path] = folder = self._scan_folder(path)
                pending += folder.folders
        return scanned, True

    def _scan_folder(self, path: str) -> _Folder:
        """Return the protected entries of a directory, from the last scan if its ctime is unchanged."""
        ctime_ns = Path(path).stat(follow_symlinks=False).st_ctime_ns
        cached = self._cached_folders.get(path)
        if cached is not None and cached.is_settled and cached.changed == ctime_ns:
            return cached
        now = time.time_ns()
        folder = _Folder(ctime_ns, is_settled=ctime_ns < now - _TIMESTAMP_GRAIN_NS)
        with os.scandir(path) as entries:
            names = {entry.name: entry for entry in entries}
        is_in_state = is_state_folder(os.path.basename(path))  # noqa: PTH119 - for each folder of a workspace
        for entry in names.values():
            is_state = is_state_content(entry.name) if is_in_state else False
            if (is_state or (DEFINITION in names and is_state_folder(entry.name))) and entry.is_dir():
                folder.states.append(os.path.realpath(entry.path) if entry.is_symlink() else entry.path)
            else:
                _add_entry(entry, folder)
        if _is_repository(names):
            folder.folders.clear()
            folder.fixed.append(path)
            folder.executed.append(f"{path.rstrip('/')}/{_HEAD}")
        return folder

    def names_of(self, linked: frozenset[tuple[int, int]]) -> Iterator[str]:
        """Yield every name of these hard-linked files in the directories of the last scan."""
        inodes = {inode for _, inode in linked}
        for path in self._cached_folders:
            with suppress(OSError), os.scandir(path) as entries:
                for entry in entries:
                    if entry.inode() in inodes and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        if (status.st_dev, status.st_ino) in linked:
                            yield entry.path


def _is_repository(names: Mapping[str, os.DirEntry[str]]) -> bool:
    """Return whether git recognises a directory as a repository; `commondir` points to the rest of one."""
    head = names.get(_HEAD)
    if head is None or head.is_dir(follow_symlinks=False):
        return False
    return "commondir" in names or {"objects", "refs"} <= names.keys()


def _add_entry(entry: os.DirEntry[str], folder: _Folder) -> None:
    """Record an entry in the list of its protection; ordinary files in none."""
    name = entry.name
    if is_git_link(name):
        folder.gits.append(entry.path)
    elif entry.is_dir(follow_symlinks=False):
        folder.folders.append(entry.path)
        return
    elif is_variables(name):
        _add_hidden(entry, folder)
        return
    elif not is_definition(name):
        return
    folder.fixed.append(os.path.realpath(entry.path) if entry.is_symlink() else entry.path)
    folder.executed.append(entry.path)


def _add_hidden(entry: os.DirEntry[str], folder: _Folder) -> None:
    path = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
    with suppress(OSError):
        status = Path(path).stat()
        if stat.S_ISREG(status.st_mode):
            folder.hidden.append(path)
            if status.st_nlink > 1:
                folder.linked.append((status.st_dev, status.st_ino))


Identity = tuple[int, int]

_MAX_SCANS = 50  # maximum number of scans after a program, as many as `.git` directories may be nested


@dataclass(frozen=True, slots=True)
class _Roots:
    named: tuple[str, ...]  # the workspace and writable directories, under each of their names
    writable: tuple[str, ...]  # the named directories, without those inside another named one
    readable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Scan:
    emptied: tuple[str, ...]
    covered: tuple[str, ...]
    files: tuple[ProtectedFiles, ...]
    targets: tuple[str, ...]  # paths that git's configuration names, in directories that programs may change

    @property
    def is_whole(self) -> bool:
        """True if every directory was scanned."""
        return all(part.is_whole for part in self.files)


_Executed = dict[tuple[str, str], Identity | None]
"""Executed paths with their resolved form, and the identity of the path itself.

The identity recognises a repository after a move. None for a symbolic link, whose meaning depends on its location.
"""


@dataclass(slots=True)
class FileViewBuilder:
    """Builder of file views. Its methods block and must not run concurrently."""

    policy: SandboxPolicy
    surroundings: Surroundings
    _scanners: dict[str, ProtectedFileScanner] = field(default_factory=dict[str, ProtectedFileScanner])
    _known_executed: _Executed | None = None  # executed paths that existed when no program was running
    _roots: _Roots = field(default_factory=lambda: _Roots((), (), ()))
    """Directories given to the latest program. Kept for set_aside, so that links created since do not redirect it."""

    def build(self, more_readable: tuple[str, ...] = (), *, is_quiet: bool = True) -> FolderView:
        """Return the file view of a program. With `is_quiet` no program runs, so existing files count as the person's.

        Raises SkillError for a directory that is too large to scan, or that a link redirects.
        """
        surroundings = self.surroundings
        roots = self._roots = self._policy_roots()
        scan = self._scan()
        if is_quiet or self._known_executed is None:
            self._known_executed = self._executed_paths(scan)
        writable, readable = roots.writable, roots.readable
        linked = frozenset(chain(*(part.linked for part in scan.files), _hard_linked_inodes(surroundings.hidden)))
        other_names = (path for finder in self._scanners.values() for path in finder.names_of(linked)) if linked else ()
        hidden = (*(path for part in scan.files for path in part.hidden), *scan.covered, *other_names)
        protected = _add_resolved(map(str, surroundings.protected))
        unmovable = (path for path in roots.named if path not in writable and is_below(path, readable))
        return FolderView(
            (*readable, *(path for path in _add_resolved(more_readable) if not is_below(path, writable))),
            writable,
            scan.emptied,
            tuple(dict.fromkeys(path for path in hidden if path not in readable)),
            tuple(dict.fromkeys((*(path for part in scan.files for path in part.fixed), *protected, *scan.targets))),
            tuple(unmovable),
            (*protected, *scan.targets),
        )

    def set_aside(self) -> tuple[str, ...]:
        """Rename new files that git or perstack would execute, and return a line for each.

        Scans repeatedly, because the content of a `.git` is only seen once it has another name.
        """
        notes: dict[str, str] = {}
        is_complete = True
        known, moved_ids = self._known_executed or {}, frozenset((self._known_executed or {}).values())
        for _ in range(_MAX_SCANS):
            scan = self._scan(may_be_partial=True)
            is_complete = scan.is_whole
            new_paths = [
                path
                for (path, real), identity in self._executed_paths(scan).items()
                if (path, real) not in known and (identity is None or identity not in moved_ids) and path not in notes
            ]
            for path in new_paths:
                notes[path] = _rename_or_remove(path, self._roots.writable)
            if not new_paths:
                break
        if not is_complete:
            notes[""] = "there are too many folders to find every repository in them: look before you use git there"
        return tuple(notes.values())

    def _policy_roots(self) -> _Roots:
        """Resolve the directories of the policy. Raises SkillError if a link redirects one."""
        paths = places(self.surroundings.workspace, self.policy.writable, self.policy.readable)
        changeable = (name for place in paths if place.is_writable for name in place.names)
        named = tuple(dict.fromkeys((*_add_resolved((str(self.surroundings.workspace),)), *changeable)))
        only_read = (name for place in paths if not place.is_writable for name in place.names)
        readable = tuple(path for path in dict.fromkeys(only_read) if path not in named)
        writable = tuple(path for path in named if not any(path != top and is_below(path, (top,)) for top in named))
        return _Roots(named, writable, readable)

    def _scan(self, *, may_be_partial: bool = False) -> _Scan:
        roots = self._roots
        hidden, covered = _existing_paths(map(str, self.surroundings.hidden), roots.writable)
        folders = [root for root in (*roots.writable, *roots.readable) if Path(root).is_dir()]
        finders = [self._scanner_for(root, frozenset(hidden)) for root in folders]
        files = tuple(finder.scan(may_be_partial=may_be_partial) for finder in finders)
        states = (path for part in files for path in part.states)
        emptied = dict.fromkeys((*hidden, *(path for path in states if not _contains_root(path, roots))))
        targets = tuple(_git_target_paths(files, roots.writable, self.surroundings.env))
        return _Scan(tuple(emptied), tuple(covered), files, targets)

    def _executed_paths(self, scan: _Scan) -> _Executed:
        """Return the executed paths that programs may change. Read-only paths always exist and need no check."""
        candidates = (
            *(path for part in scan.files for path in part.executed),
            *scan.targets,
            *map(str, self.surroundings.protected),
            *map(str, self.surroundings.included()),
        )
        return {
            (path, os.path.realpath(path)): _read_identity(path)
            for path in dict.fromkeys(candidates)
            if os.path.lexists(path) and is_below(os.path.realpath(os.path.dirname(path)), self._roots.writable)  # noqa: PTH120
        }

    def _scanner_for(self, root: str, without: frozenset[str]) -> ProtectedFileScanner:
        key = root + "\0".join(sorted(without))
        if key not in self._scanners:
            self._scanners[key] = ProtectedFileScanner(root, without=without)
        return self._scanners[key]


def _git_target_paths(
    files: Iterable[ProtectedFiles], writable: tuple[str, ...], env: Mapping[str, str]
) -> Iterator[str]:
    """Yield paths named by git's configuration that programs may change, under each of their names.

    A missing hooks directory or settings file is created, because otherwise a program could create it.
    """
    tops = {os.path.dirname(path) for part in files for path in part.gits}  # noqa: PTH120
    for root in writable:
        tops.update(repositories_around(root))
    for target in dict.fromkeys(target for top in sorted(tops) for target in git_targets(top, env)):
        for path in dict.fromkeys((target.path, os.path.realpath(target.path))):
            if is_below(path, writable) and not any(is_below(root, (path,)) for root in writable):
                _create_target(path, target.kind)
                if target.kind is not TargetKind.WORD or not Path(path).is_dir():
                    yield path


def _create_target(path: str, kind: TargetKind) -> None:
    """Create a missing hooks directory or settings file."""
    if kind is TargetKind.WORD or os.path.lexists(path):
        return
    with suppress(OSError):
        if kind is TargetKind.FOLDER:
            Path(path).mkdir(parents=True)
        else:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch(exist_ok=False)


def _rename_or_remove(path: str, writable: tuple[str, ...]) -> str:
    """Rename a file that git would execute, and return a sentence about it. One that was renamed before is removed."""
    folder = os.path.realpath(os.path.dirname(path))  # noqa: PTH120
    name = os.path.basename(path)  # noqa: PTH119
    mark = f"set-aside-{token_hex(4)}"
    # Toggle the leading dot: most patterns match only names with it, or only names without it.
    new_name = f"{mark}{name}" if name.startswith(".") else f".{name}.{mark}"
    reason = f"a program in the sandbox created {path}, which git or perstack would execute"
    root = next(root for root in writable if is_below(folder, (root,)))
    handle = open_below(root, Path(folder).relative_to(root).parts)
    if handle is None:
        return f"{reason}: remove it"
    try:
        if "set-aside-" in name:
            os.unlink(name, dir_fd=handle)
            return f"{reason} under any name, so it was removed"
        os.rename(name, new_name, src_dir_fd=handle, dst_dir_fd=handle)
    except OSError as error:
        return f"{reason}: it could not be renamed ({error.strerror}), so remove it"
    finally:
        os.close(handle)
    return f"{reason}, so it was renamed to {new_name}"


def _read_identity(path: str) -> Identity | None:
    try:
        status = Path(path).stat(follow_symlinks=False)
    except OSError:
        return None
    return None if stat.S_ISLNK(status.st_mode) else (status.st_dev, status.st_ino)


def _add_resolved(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the existing paths, each followed by its form without links."""
    all_paths: list[str] = []
    for path in paths:
        if Path(path).exists():
            all_paths += [os.path.normpath(path), os.path.realpath(path)]
    return tuple(dict.fromkeys(all_paths))


def _hard_linked_inodes(paths: Iterable[Path]) -> Iterator[tuple[int, int]]:
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                yield status.st_dev, status.st_ino


def _contains_root(path: str, roots: _Roots) -> bool:
    """Return whether a directory contains one that the policy names, so that it cannot be hidden."""
    return any(is_below(root, (path,)) for root in (*roots.named, *roots.readable))


def _existing_paths(paths: Iterable[str], writable: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the existing directories and files, except ancestors of a writable root: these cannot be hidden."""
    names = [path for path in _add_resolved(paths) if not any(is_below(root, (path,)) for root in writable)]
    return [path for path in names if Path(path).is_dir()], [path for path in names if not Path(path).is_dir()]
