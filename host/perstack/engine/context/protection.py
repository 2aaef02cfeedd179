"""Files of this machine that Experts and their programs must keep off, and how: the one answer of the host.

File tools, the views of sandboxes, snapshots, attachments and rewinds follow a `Protection`. In addition, some names
are protected wherever they are (`core.files.file_names`): files of variables, definitions, git's own, and the state of
any project.

| kind | file tools | programs in a sandbox |
| --- | --- | --- |
| state: storage, anchors, and the user's folders of perstack | neither listed nor used | absent |
| secret: files of variables and keys | listed | absent |
| definitions, and what `include` matches | listed | read |
| programs: what the host or an `allow` rule runs | read | read |
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from perstack.config.lock import lock_path
from perstack.config.named_files import Words, modules_at, programs_at, words_of, words_of_command
from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import is_below
from perstack.core.files.file_names import STATE_FOLDER
from perstack.dataclass import dataclass
from perstack.system.user import user_directories


@dataclass(frozen=True, slots=True)
class Protection:
    """Protected files and folders, as absolute paths. Some may not exist yet, and must not be created."""

    state: tuple[Path, ...]
    secret: tuple[Path, ...]
    definitions: tuple[Path, ...]
    programs: tuple[Path, ...]

    @property
    def hidden(self) -> tuple[Path, ...]:
        """Files and folders that no program may reach, and no snapshot may contain."""
        return (*self.state, *self.secret)


def protection_of(
    projects: Iterable[Project],
    workspace: Path,
    env: Mapping[str, str],
    state: Iterable[Path],
    secret: Iterable[Path],
    commands: Iterable[str | tuple[str, ...]] = (),
    rules: Iterable[str] = (),
) -> Protection:
    """Return what is protected in a workspace. Reads no content of files.

    `projects`: the definition in force, and today's. `commands` and `rules` belong to the user and to tasks; no
    definition has them.
    """
    projects = tuple(projects)
    definitions = (Path(name).absolute() for project in projects for name in _definitions(project))
    return _shared(
        Protection(
            tuple(dict.fromkeys((workspace / STATE_FOLDER, *state, *user_directories(os.environ, env)))),
            tuple(dict.fromkeys(secret)),
            tuple(dict.fromkeys(definitions)),
            tuple(dict.fromkeys(_programs(projects, workspace, commands, rules))),
        )
    )


@lru_cache(maxsize=64)
def _shared(protection: Protection) -> Protection:
    """Return an equal value of an earlier call: a thousand Jobs that wait keep the paths once."""
    return protection


def _definitions(project: Project) -> Iterator[str | Path]:
    yield from project.files
    if project.path is not None:
        yield lock_path(project.path)


def _programs(
    projects: Sequence[Project], workspace: Path, commands: Iterable[str | tuple[str, ...]], rules: Iterable[str]
) -> Iterator[Path]:
    """Yield the files that are run, under each folder that a command may start in. Reads no content."""
    files: dict[str, bool] = {}
    entries: list[str] = []
    for command in commands:
        files |= words_of_command(command).protected
    named = (*rules, *(rule for project in projects for rule in _allowed(project)))
    if named:  # the reader of rules and its grammar of shells take 10 ms to import
        from perstack.core.permissions.rule_programs import programs_named_by

        files |= dict.fromkeys(programs_named_by(named), True)
    folders, writable = [workspace], list[str]()
    for project in projects:
        for words in _files_of(project):
            files |= words.protected
            entries += words.entries
        folders += [] if project.path is None else [Path(project.path).absolute().parent]
        writable += () if project.sandbox is None else project.sandbox.writable
    folders = [*dict.fromkeys(folders)]
    roots = (*map(str, folders), os.path.realpath(workspace))
    for name, is_certain in files.items():
        for folder in folders:
            plain = os.path.normpath(os.path.expanduser(name) if name.startswith("~/") else folder / name)  # noqa: PTH111
            if is_below(plain, roots) and not is_below(plain, writable):
                yield from programs_at(Path(plain), is_certain=is_certain)
    for entry in entries:
        yield from modules_at(entry, roots)


def _allowed(project: Project) -> Iterator[str]:
    of_experts = (expert.permissions for expert in project.experts.values())
    for permissions in (project.permissions, project.recorded_permissions, *of_experts):
        yield from () if permissions is None else permissions.allow


def _files_of(project: Project) -> Iterator[Words]:
    for command in project.test_commands:
        yield words_of_command(command)
    if project.audit is not None:
        yield words_of(project.audit)
    for expert in project.experts.values():
        if expert.iterate is not None:
            yield words_of(expert.iterate)
        yield from map(words_of, expert.skills)
