"""Find the files that definitions, commands and allow rules run: no Expert may change them.

These are the functions of `RunFiles`, the kernel's protocol. A grant of a rule covers the content of exactly
the files that are protected because of the rule: both come from `named_files.words_of`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import is_below
from perstack.core.files.file_names import STATE_FOLDER
from perstack.engine.context.protection import FileOwners, Protection
from perstack.lockfile.lock import lock_path
from perstack.system.user import user_directories
from perstack.trust.named_files import (
    NamedPaths,
    contents_of,
    modules_at,
    named_paths,
    named_paths_of_command,
    programs_at,
)


def protection_of(owners: FileOwners) -> Protection:
    projects, workspace = owners.projects, owners.workspace
    state = (workspace / STATE_FOLDER, *owners.state, *user_directories(os.environ, owners.env))
    definitions = (Path(name).absolute() for project in projects for name in _definition_files(project))
    programs = _programs(projects, workspace, owners.commands, owners.rules)
    return _share_equal(
        Protection(*(tuple(dict.fromkeys(paths)) for paths in (state, owners.secret, definitions, programs)))
    )


@lru_cache(maxsize=64)
def _share_equal(protection: Protection) -> Protection:
    """Return an equal value of an earlier call: a thousand Jobs that wait keep the paths once."""
    return protection


def _definition_files(project: Project) -> Iterator[str | Path]:
    yield from project.files
    if project.path is not None:
        yield lock_path(project.path)


def _programs(
    projects: Sequence[Project], workspace: Path, commands: Iterable[tuple[str, ...]], rules: Iterable[str]
) -> Iterator[Path]:
    """Yield the files that are run, under each folder that a command may start in. Reads no content."""
    files: dict[str, bool] = {}
    entries: list[str] = []
    for command in commands:
        files |= named_paths_of_command(command).protected
    all_rules = (*rules, *(rule for project in projects for rule in _allow_rules(project)))
    if all_rules:  # the reader of rules and its grammar of shells take 10 ms to import
        from perstack.trust.rule_programs import programs_named_by

        files |= dict.fromkeys(programs_named_by(all_rules), True)
    folders, writable = [workspace], list[str]()
    for project in projects:
        for paths in _named_paths_of_project(project):
            files |= paths.protected
            entries += paths.entries
        folders += [] if project.path is None else [Path(project.path).absolute().parent]
        writable += () if project.sandbox is None else project.sandbox.writable
    folders = [*dict.fromkeys(folders)]
    roots = (*map(str, folders), os.path.realpath(workspace))
    for name, is_certain in files.items():
        for folder in folders:
            path = os.path.normpath(os.path.expanduser(name) if name.startswith("~/") else folder / name)  # noqa: PTH111
            if is_below(path, roots) and not is_below(path, writable):
                yield from programs_at(Path(path), is_certain=is_certain)
    for entry in entries:
        yield from modules_at(entry, roots)


def _allow_rules(project: Project) -> Iterator[str]:
    expert_rules = (expert.permissions for expert in project.experts.values())
    for permissions in (project.permissions, project.recorded_permissions, *expert_rules):
        yield from () if permissions is None else permissions.allow


def _named_paths_of_project(project: Project) -> Iterator[NamedPaths]:
    for command in project.test_commands:
        yield named_paths_of_command(command)
    if project.audit is not None:
        yield named_paths(project.audit)
    for expert in project.experts.values():
        if expert.iterate is not None:
            yield named_paths(expert.iterate)
        yield from map(named_paths, expert.skills)


def names_files(rule: str) -> bool:
    return bool(named_paths(Permissions(allow=(rule,))).started)


def contents_of_rule(rule: str, workspace: Path) -> dict[str, str]:
    return contents_of(Permissions(allow=(rule,)), workspace, workspace)
