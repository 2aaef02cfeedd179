"""Paths, confined to the workspace.

The rule: a path is walked one component at a time from a handle of the workspace, and no component is ever opened
through a symbolic link. A link's target is read, and walked by the same rule. So nothing that happens between a check
and its use leads out: what was checked is what is held open.

- A path that a tool is given is normalised as text first: `a/../b` is `b`, an absolute path must begin with the
  workspace's own.
- Inside the target of a link, `..` goes back along the handles already held, never through the file system.
- What `[sandbox]` adds to the workspace are places of the same kind, each with a handle of its own (`reach.py`).
- The state directory is known by name, whatever its case, and by identity, whatever it is called. So are the files that
  hold keys or say what is executed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path

from perstack.core.protected import Parts, folded, is_git_link, matches_pattern, protected_by_name
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack_base.files import Identity, explain, identity, inodes, is_encodable, leads_into, printable, status_at

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40

PROTECTED_WAYS: tuple[Parts, ...] = (
    (".env",),
    (".env.local",),
    ("perstack.toml",),
    ("perstack.lock",),
    (".git", "hooks"),
    (".git", "config"),
)
"""What these lead to through links is protected under its own name too."""


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """A name in a directory that is held open. What has this name is not a link that was to be followed."""

    directory: int
    """A descriptor, open for as long as the place is used."""
    name: str
    """`.` for the workspace itself."""
    parts: Parts
    """The way there from the workspace, free of links."""
    workspace: Workspace
    found: os.stat_result | None = None
    """What was there when the walk came here, and was not protected."""

    @property
    def shown(self) -> str:
        """The path for results and messages: relative to the workspace, or absolute in what was added to it."""
        return self.workspace.shown(self.parts)

    @property
    def path(self) -> Path:
        """Where it is, absolute."""
        return self.workspace.root.joinpath(*self.parts)

    @property
    def is_workspace(self) -> bool:
        return not self.parts

    @property
    def may_change(self) -> bool:
        """Whether it is in a place that may be changed at all."""
        return self.workspace.may_change(self.parts)

    def refuse_removal(self) -> None:
        """Raises SkillError if this is, or holds, what is never moved or deleted."""
        self.workspace.refuse_removal(self.parts)

    def status(self) -> os.stat_result | None:
        """What is there now, itself and not what it may link to; None if nothing."""
        return status_at(self.name, self.directory)

    def check_opened(self, status: os.stat_result) -> None:
        """Raises SkillError if what was opened here is protected, whatever its name was when that was looked at."""
        is_same = self.found is not None and identity(status) == identity(self.found)
        if not is_same and not self.workspace.is_opened(self.parts):
            self.workspace.check_identity(status, self.shown, self.workspace.protected_identities())


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds in a directory besides what the names in it say. Paths are absolute, without links."""

    may_change: Callable[[str], bool] = lambda path: True
    may_remove: Callable[[str], bool] = lambda path: True
    """Whether a place and all that is in it may be removed or moved."""
    shows: Callable[[str], bool] = lambda path: False
    """Whether a protected file may be read: a person has named it."""
    elsewhere: Callable[[str], tuple[Workspace, Parts] | None] = lambda path: None
    """What holds an absolute path that is not in this directory, and the way to it from there."""
    named: Callable[[], str] = lambda: ""
    """The further places, for messages."""


NO_RULES = Rules()


class Workspace:
    """A handle of a directory that file tools are confined to. `close` it."""

    def __init__(
        self,
        root: Path,
        state_dir: str | None = None,
        off_limits: Iterable[Path] = (),
        protected: Iterable[Path] = (),
        patterns: Iterable[str] = (),
        rules: Rules = NO_RULES,
        *,
        is_added: bool = False,
        only: str = "",
    ) -> None:
        """`off_limits` is the state; `protected` and `patterns` are further files, which may be listed, no more.
        `is_added`: it is none of the Job's own, but one that `[sandbox]` names. `only`: the one name in it that is.

        Raises SkillError if the root is not a directory that can be opened.
        """
        try:
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            is_there = os.path.isdir(root)  # noqa: PTH112 - as the line above has it
            remedy = "try again when that is repaired" if is_there else "make it, or give another one"
            raise SkillError(f"the workspace {root} cannot be opened ({error.strerror}): {remedy}") from error
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would follow links
        self.real = Path(os.path.realpath(root))
        self._names = (self.root, self.real)
        self._tops = tuple(f"{str(name).rstrip('/')}/" for name in self._names)
        named = [Path(os.path.normpath(state_dir)).parts] if state_dir else []
        off_limits, protected = tuple(off_limits), tuple(protected)
        self._states: tuple[Parts, ...] = tuple(dict.fromkeys((*named, *self._within(off_limits))))
        self._protected: tuple[Parts, ...] = tuple(dict.fromkeys(self._within(protected)))
        self._elsewhere = tuple(path for path in (*off_limits, *protected) if not self._holds_workspace(path))
        self._patterns = tuple(Path(pattern).parts for pattern in patterns)
        self._folded_states = tuple(map(folded, self._states))
        self._folded_protected = tuple(map(folded, self._protected))
        self._state_names = tuple("/".join(own) for own in self._states)
        within = (*self._state_names, *("/".join(own) for own in (*self._protected, *PROTECTED_WAYS)))
        elsewhere = (str(path.absolute()) for path in self._elsewhere if not self.inside(str(path)))
        self._protected_names = tuple(dict.fromkeys((*within, *elsewhere)))
        self._opened: frozenset[Parts] = frozenset()
        self._opens: tuple[str, ...] = ()
        self._rules = rules
        self._is_added = is_added
        self.only = only
        self._above: Parts = (".git",) if is_added and any(map(is_git_link, self.real.parts)) else ()

    def opening(self, paths: Iterable[str]) -> Workspace:
        """The same workspace for one call that may use these protected paths, which a permission rule names."""
        named = tuple(paths)
        if not named:
            return self
        other = copy(self)
        ways = (self.inside(path) if path.startswith("/") else Path(path).parts for path in named)
        other._opened = frozenset(folded(way) for way in ways if way is not None)
        other._opens = named
        return other

    def close(self) -> None:
        """Give the handle back; the workspace is of no use afterwards."""
        handle, self._root = self._root, -1
        if handle >= 0:
            os.close(handle)

    @contextmanager
    def place(
        self, path: str, *, follow: bool = True, create: bool = False, change: bool = False
    ) -> Generator[ResolvedPath]:
        """Where a path leads. Raises SkillError if that is outside, or in the state directory.

        `follow`: a link at its end is followed too, not meant itself. `change`: it is to be made, changed or removed.
        `create`: the same, and missing directories on the way are made.
        """
        shown = printable(path)
        home, parts = self._home(path)
        walk = _Walk(home, shown, follow=follow, create=create, change=change or create)
        try:
            home.check_way(parts, shown, change=walk.change)  # before a directory is made on the way
            found = walk.to(parts)
            if walk.change:
                found.workspace.check_change(found.parts)
            yield found
        except OSError as error:
            raise SkillError(explain(error, shown)) from error
        finally:
            walk.close()

    @contextmanager
    def directory(self, path: str) -> Generator[tuple[int, ResolvedPath]]:
        """A directory, open."""
        with self.place(path) as place:
            handle = os.open(place.name, _OPEN_DIRECTORY, dir_fd=place.directory)
            try:
                yield handle, place
            finally:
                os.close(handle)

    def size(self, path: str) -> int:
        """How large what a path names is now, in bytes; 0 if there is nothing. It is a hint: nothing is checked.

        Raises SkillError if the path begins outside.
        """
        home, parts = self._home(path)
        try:
            return os.stat("/".join(parts) or ".", dir_fd=home._root).st_size
        except OSError:
            return 0

    def refuse_removal(self, parts: Parts) -> None:
        """Raises SkillError if the state directory is at or below a way, or what [sandbox] names, or it is the top."""
        if not parts:
            raise SkillError("the workspace itself can be neither moved nor deleted; name something in it")
        way = folded(parts)
        if any(folded(own)[: len(way)] == way for own in self._state_ways()):
            raise self.off_limits(self.shown(parts))
        if not self._rules.may_remove(self._real(parts)):
            shown = self.shown(parts)
            raise SkillError(f"{shown} is or holds a place that [sandbox] names: it can be neither moved nor deleted")

    def may_change(self, parts: Parts) -> bool:
        """Whether a way leads to what may be changed."""
        return self._rules.may_change(self._real(parts))

    def check_change(self, parts: Parts) -> None:
        """Raises SkillError for what may only be read."""
        if not self.may_change(parts):
            raise SkillError(
                f"{self.shown(parts)} can be read and not changed (`readable` of [sandbox]); use another path"
            )

    def check_way(self, parts: Parts, shown: str, *, change: bool = True) -> None:
        """Raises SkillError for a way to the state or to what is protected, or into it, by its names.

        `change`: also for one that may be read because a person has named it.
        """
        if self.only and parts[:1] != (self.only,):
            raise self.outside(shown)
        if self.is_opened(parts):
            return
        way = folded(parts)
        if leads_into(way, self._folded_states):
            raise self.off_limits(shown)
        if not change and self.is_shown(parts):
            return
        what = protected_by_name((*self._above, *way)) or self._protected_here(parts, way)
        if what is not None:
            raise SkillError(f"{shown} is {what}, which is off limits to tools; ask a person to see to it")

    def is_opened(self, parts: Parts, *, is_on_the_way: bool = False) -> bool:
        """Whether a way is one that this call may use although it is protected, or leads there."""
        way = folded(parts) if self._opened else ()
        return way in self._opened or (is_on_the_way and any(one[: len(way)] == way for one in self._opened))

    def is_shown(self, parts: Parts) -> bool:
        """Whether a protected file may be read: a person has named it."""
        return self._rules.shows(self._real(parts))

    def shown(self, parts: Parts) -> str:
        """A way as results and messages have it."""
        way = self.root.joinpath(*parts) if self._is_added else "/".join(parts)
        return printable(str(way)) or "."

    def elsewhere(self, path: str) -> tuple[Workspace, Parts] | None:
        """What holds an absolute path, and the way to it from there."""
        parts = self.inside(path)
        if parts is not None and not (self.only and parts[:1] != (self.only,)):
            return self, parts
        found = self._rules.elsewhere(path)
        return found if found is None else (found[0].opening(self._opens), found[1])

    def outside(self, shown: str) -> SkillError:
        """What is raised for a path that begins elsewhere."""
        return SkillError(
            f"{shown} is outside the workspace; use a path relative to the workspace{self._rules.named()}"
        )

    def check_identity(self, status: os.stat_result, shown: str, protected: frozenset[Identity]) -> None:
        """Raises SkillError for a file or directory that is off limits under another name."""
        if identity(status) in protected:
            raise SkillError(f"{shown} is a name of something that is off limits to tools; use another path")
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and self._is_kept_elsewhere(identity(status)):
            raise SkillError(f"{shown} is a link to a file that is off limits to tools; use another path")

    def inside(self, path: str) -> Parts | None:
        """The way from the workspace to an absolute path, by its text; None if it begins elsewhere."""
        plain = os.path.normpath(path)
        for top in self._tops:
            if f"{plain}/".startswith(top):
                rest = plain[len(top) :].lstrip("/")
                return tuple(rest.split("/")) if rest else ()
        return None

    def open_root(self) -> int:
        """A new descriptor of the workspace."""
        return os.dup(self._root)

    def state_identities(self) -> frozenset[Identity]:
        """Which directories and files the state is now, as far as it is there."""
        return self._identities(self._state_names)

    def protected_identities(self) -> frozenset[Identity]:
        """The state's, and those of protected files."""
        return self._identities(self._protected_names)

    def is_state(self, parts: Parts) -> bool:
        """Whether a way leads to the state, or into it, by its names."""
        return leads_into(folded(parts), self._folded_states)

    def off_limits(self, shown: str) -> SkillError:
        """What is raised for the state."""
        own = "/".join(self._states[0])
        return SkillError(f"{shown}: the state directory {own}/ is off limits to tools; use another path")

    def _identities(self, names: Iterable[str]) -> frozenset[Identity]:
        root, found = self._root, set[Identity]()
        for name in names:  # at every use of every path: what is protected may be another file each time
            try:
                found.add(identity(os.stat(name, dir_fd=root)))
            except OSError:
                continue
        return frozenset(found)

    def _protected_here(self, parts: Parts, way: Parts) -> str | None:
        if leads_into(way, self._folded_protected):
            return "a file that the host reads"
        for name in self._names if self._patterns else ():
            whole = (*name.parts, *parts)
            if any(matches_pattern(whole, pattern) for pattern in self._patterns):
                return "a file that perstack.toml includes"
        return None

    def _is_kept_elsewhere(self, wanted: Identity) -> bool:
        """Whether a file with several names has one in a directory that is off limits."""
        ways = (*self._states, *PROTECTED_WAYS)
        starts = [*(self.root.joinpath(*own) for own in ways), *self._elsewhere]
        return any(wanted[1] == inode for inode in inodes(starts))

    def _holds_workspace(self, place: Path) -> bool:
        real = Path(os.path.realpath(place))
        return any(name.is_relative_to(real) for name in self._names)

    def _state_ways(self) -> Iterator[Parts]:
        for own in self._states:
            yield own
            real = self.inside(os.path.realpath(self.root.joinpath(*own)))
            if real is not None:
                yield real

    def _within(self, places: Iterable[Path]) -> Iterator[Parts]:
        """The ways to those that are below the workspace. One that holds the workspace cannot be kept off."""
        for place in places:
            for name in (str(place), os.path.realpath(place)):
                parts = self.inside(name)
                if parts:
                    yield parts

    def _real(self, parts: Parts) -> str:
        """A way that is free of links, absolute."""
        return "/".join((str(self.real).rstrip("/"), *parts))

    def _home(self, path: str) -> tuple[Workspace, Parts]:
        if "\0" in path:
            raise SkillError("a path cannot contain a NUL character; leave it out")
        if not is_encodable(path):
            raise SkillError(f"the path {path!r} is not valid Unicode; use another path")
        found = self.elsewhere(os.path.join(self.root, path))  # noqa: PTH118 - Path would drop what normpath needs
        if found is None:
            raise self.outside(printable(path))
        return found


class _Walk:
    """One walk: the handles held on the way, and the names that led to them."""

    def __init__(self, workspace: Workspace, shown: str, *, follow: bool, create: bool, change: bool) -> None:
        self._workspace = workspace
        self._shown = shown
        self._follow = follow
        self._create = create
        self.change = change
        self._known: frozenset[Identity] | None = None
        self._checked: Parts = ()
        self._handles = [workspace.open_root()]
        self._parts: list[str] = []
        self._links = 0

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)

    def to(self, parts: Parts) -> ResolvedPath:
        """The place at the end of a way that was checked by its names."""
        self._checked = parts
        todo = list(reversed(parts))
        while todo:
            name = todo.pop()
            if name == "..":
                if not self._parts:
                    todo = self._out("/".join(("..", *reversed(todo))))
                else:
                    self._back()
                continue
            is_last = not todo
            if is_last and not self._follow:
                return self._arrive(name)
            target = self._link(name)
            if target is not None:
                todo += reversed(self._redirect(target))
            elif is_last:
                return self._arrive(name)
            else:
                self._enter(name)
        if not self._parts:
            return ResolvedPath(self._handles[-1], ".", (), self._workspace, os.fstat(self._handles[-1]))
        last = self._parts[-1]
        self._back()
        return self._arrive(last)

    def _arrive(self, name: str) -> ResolvedPath:
        parts = (*self._parts, name)
        home = self._workspace
        if parts != self._checked:
            home.check_way(parts, self._shown, change=self.change)
        found = status_at(name, self._handles[-1])
        if found is not None and not home.is_opened(parts) and (self.change or not home.is_shown(parts)):
            self._check(found)
        return ResolvedPath(self._handles[-1], name, parts, self._workspace, found)

    def _check(self, status: os.stat_result) -> None:
        if self._known is None:
            self._known = self._workspace.protected_identities()
        self._workspace.check_identity(status, self._shown, self._known)

    def _back(self) -> None:
        os.close(self._handles.pop())
        self._parts.pop()

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self._handles[-1])
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    def _redirect(self, target: str) -> Parts:
        self._links += 1
        if self._links > _MOST_LINKS:
            raise SkillError(f"{self._shown} goes through more than {_MOST_LINKS} symbolic links; use another path")
        if not target.startswith("/"):
            return tuple(part for part in target.split("/") if part not in ("", "."))
        return self._from(target)

    def _out(self, target: str) -> list[str]:
        """From the top of one directory to where a link leads from there."""
        return list(reversed(self._from(str(self._workspace.real / target))))

    def _from(self, target: str) -> Parts:
        """Begin anew where an absolute path begins: in this directory, or in another one that tools may use."""
        found = self._workspace.elsewhere(target)
        if found is None:
            raise SkillError(f"{self._shown} leads outside the workspace through a symbolic link; use another path")
        self._workspace, parts = found
        self._known, self._checked, self._parts = None, (), []
        handle = self._workspace.open_root()
        self.close()
        self._handles = [handle]
        return parts

    def _enter(self, name: str) -> None:
        way = (*self._parts, name)
        is_opened = self._workspace.is_opened(way, is_on_the_way=True)
        if not is_opened:
            self._workspace.check_way(way, self._shown, change=self.change)
        handle = self._open(name)
        self._handles.append(handle)
        self._parts.append(name)
        if not is_opened:
            self._check(os.fstat(handle))

    def _open(self, name: str) -> int:
        if self._create and status_at(name, self._handles[-1]) is None:
            self._workspace.check_change((*self._parts, name))
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self._handles[-1])
        return os.open(name, _OPEN_DIRECTORY, dir_fd=self._handles[-1])
