"""A definition file with its includes: read, checked, and built into one `Project`.

`DefinitionFile` collects problems instead of stopping at the first. `to_project` raises if anything is wrong or, if it
is not strict, drops Experts with errors, and Experts that delegate to these, so that the others still run. Includes of
another folder are a problem, unless the caller has found that a person has agreed to them.

Files are untrusted, so everything is bounded: bytes, nesting, included files, patterns. Problems have a file, a line
and a key; lines are computed only when there is a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os.path import normpath
from pathlib import Path

from perstack.config.file_patterns import SearchBudget
from perstack.config.project_place import check_owner, folder_contains, owner_of
from perstack.core.definitions.keys import KeyPath
from perstack.core.definitions.project import Project, Schedule, Workspace
from perstack.core.definitions.skills import PluginSkill
from perstack.dataclass import dataclass
from perstack.errors import DefinitionError, Problem, UsageError
from perstack.ports.parts import Part, Parts
from perstack.toml_reader.experts import (
    Draft,
    check_models,
    check_named_models,
    commands_of,
    read_expert,
    resolve_compaction,
    resolve_delegates,
    resolve_evaluator,
    warn_of_cycles,
    warn_of_runtime,
)
from perstack.toml_reader.skills import with_relative_files
from perstack.toml_reader.source import (
    MAX_DEFINITION_BYTES,
    NotRead,
    Reporter,
    Source,
    TomlTable,
    TomlValue,
    parse_toml,
)
from perstack.toml_reader.tables import IGNORED, keys_of, kind_of, read_table

MAX_FILES = 1_000
MAX_INCLUDE_DEPTH = 50


@dataclass(frozen=True, slots=True)
class LoadedProject:
    """Project with its runnable Experts, and the warnings for its author."""

    project: Project
    warnings: tuple[Problem, ...] = ()
    files: tuple[Path, ...] = ()  # files that were read, the including one first
    # patterns of `include` and of Agent Skills, which may match more files later, each relative to the folder
    patterns: tuple[tuple[Path, str], ...] = ()


SCHEDULES: Part[Callable[[tuple[Schedule, ...], Mapping[str, Draft], Reporter], None]] = Part("schedules")
"""Reports schedules that never occur, or whose Expert does not exist."""


class DefinitionFile:
    """Definition file with its includes, read as far as possible, and all their problems."""

    def __init__(self, path: Path, text: str | None = None, *, parts: Parts, may_leave_folder: bool = False) -> None:
        """Read the file, or `text` in place of its content; `parts` read keys of features.

        Files of another folder are read if it may be left.
        """
        self._parts = parts
        self.path = path
        self._may_leave_folder = may_leave_folder
        self.includes_outside = False  # True if a pattern of `include` leads to files of another folder
        self._text = text
        self.problems: list[Problem] = []
        self.drafts: dict[str, Draft] = {}
        self._search = SearchBudget()
        self.files: dict[Path, str] = {}  # names of the files as problems show them, by resolved path
        self.patterns: list[tuple[Path, str]] = []
        self.includes: list[str] = []
        self.report: Reporter | None = None  # reporter for keys of the first file; None if it could not be read
        self.project = self.read(path, chain=())  # valid settings of the first file; Experts are in `drafts`
        for draft in self.drafts.values():
            resolve_delegates(draft, self.drafts)
            resolve_evaluator(draft, self.drafts)
            resolve_compaction(draft.expert, draft.at, draft.report, self.drafts)
            check_models(draft.expert.model, draft.at, self.project.models, draft.report)
        if self.report is not None:
            check_named_models(self.project.models, self.report)
            check_models(self.project.model, (), self.project.models, self.report)
            resolve_compaction(self.project, (), self.report, self.drafts)
            if self.project.schedules:
                parts.get(SCHEDULES)(self.project.schedules, self.drafts, self.report)
        if self.project.max_steps == 0 and self.project.max_depth == 0:
            warn_of_cycles(self.drafts)

    def to_project(self, *, strict: bool) -> LoadedProject:
        """Return the project with all Experts, or with the runnable ones if not `strict`. Raises DefinitionError."""
        problems = self.in_order()
        errors = [problem for problem in problems if problem.severity == "error"]
        errors_for_new_jobs = [problem for problem in errors if problem.only_new_jobs]
        if not strict:
            errors = [problem for problem in errors if not problem.only_new_jobs]
        broken = _experts_with_errors(self.drafts, errors)
        experts = {key: draft.expert for key, draft in self.drafts.items() if key not in broken}
        if errors and (strict or not experts or any(problem.expert is None for problem in errors)):
            raise DefinitionError(problems)
        update: dict[str, object] = {"experts": experts, "path": str(self.path.absolute()), "broken": broken}
        update["files"] = tuple(dict.fromkeys(str(Path(name).absolute()) for name in self.files.values()))
        update["unguarded"] = _experts_with_errors(self.drafts, errors_for_new_jobs)
        update["includes"] = tuple(self.includes)
        update["test_commands"] = tuple(command for draft in self.drafts.values() for command in commands_of(draft))
        warnings = tuple(problem for problem in problems if problem.severity != "error")
        project = self.project.model_copy(update=update)
        return LoadedProject(project, warnings, tuple(self.files), tuple(self.patterns))

    def read(self, path: Path, chain: tuple[Path, ...]) -> Project:
        """Read a file and then its includes; return the file's own settings."""
        self.files[path.resolve()] = str(path)
        source_and_table = self._read_source(path)
        if source_and_table is None:
            return Project()
        source, raw = source_and_table
        report = Reporter(source, self.problems, self._search, self._parts)
        if chain:
            raw = _without_settings(raw, chain[0], report)
        else:
            self.report = report
        self._add_experts(raw.pop("experts", {}), report)
        project = read_table(Project, raw, (), report) or Project()
        warn_of_runtime(project.runtime, ("runtime",), report)
        self._read_includes(project.includes, (*chain, path), report)
        return _with_absolute_paths(project, path.parent.absolute())

    def in_order(self) -> tuple[Problem, ...]:
        """Return all problems by file, in the order of reading, and by line."""
        order = {file: index for index, file in enumerate(self.files.values())}
        return tuple(sorted(self.problems, key=lambda problem: (order.get(problem.file, -1), problem.line or 0)))

    def _read_source(self, path: Path) -> tuple[Source, TomlTable] | None:
        text = self._text if path == self.path else None
        try:
            source = Source.of(path, MAX_DEFINITION_BYTES) if text is None else Source(path, text)
            return source, parse_toml(source.text)
        except NotRead as error:
            self.problems.append(Problem(str(error), str(path), error.line))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            self.problems.append(Problem(f"cannot be read: {reason}", str(path)))
        return None

    def _add_experts(self, experts: TomlValue, report: Reporter) -> None:
        if not isinstance(experts, dict):
            report.error(("experts",), f"must be a table, not {kind_of(experts)}: write [experts.NAME]")
            return
        for key, raw in experts.items():
            first = self.drafts.get(key)
            if first is not None:
                report.error(("experts", key), f"is defined already, at {first.report.place(first.at)}: rename one")
                continue
            draft = self.drafts[key] = read_expert(key, raw, report)
            self.patterns += draft.patterns
            if any(isinstance(skill, PluginSkill) and skill.file for skill in draft.expert.skills):
                draft.expert = with_relative_files(draft.expert, draft.at, report, self.path.absolute().parent)

    def _read_includes(self, patterns: Sequence[str], chain: tuple[Path, ...], report: Reporter) -> None:
        for index, pattern in enumerate(patterns):
            self._read_include(pattern, ("include", index), chain, report)

    def _leaves_folder(self, path: str) -> bool:
        """Return whether a path, or a pattern, leads out of the folder of the first file, which needs an agreement."""
        if self._may_leave_folder or folder_contains(self.path.absolute().parent, path):
            return False
        self.includes_outside = True
        return True

    def _check_trusted_owner(self, path: Path, at: KeyPath, report: Reporter) -> bool:
        """Report an included file that may be another user's; a file in the first file's folder is trusted like it."""
        if path.absolute().parent.resolve() == self.path.absolute().parent.resolve() == path.resolve().parent:
            return True
        try:
            check_owner(path, other_owners=owner_of(self.path))
        except UsageError as error:
            report.error(at, f"{error.message}: make it yours, or take it out")
            return False
        return True

    def _read_include(self, pattern: str, at: KeyPath, chain: tuple[Path, ...], report: Reporter) -> None:
        from glob import has_magic  # few definitions have includes

        from perstack.config.file_patterns import TooManyNames, matches

        folder = chain[-1].parent
        self.includes.append(normpath(folder.absolute() / pattern))
        if self._leaves_folder(self.includes[-1]):
            report.error(
                at,
                f"`{pattern}` leads to another folder, which nobody has agreed to",
            )
            return
        is_pattern = has_magic(pattern)
        try:
            names = matches(pattern, folder, report.search) if is_pattern else [pattern]
        except TooManyNames as error:
            report.error(at, f"`{pattern}` {error}")
            return
        if is_pattern:
            self.patterns.append((folder, pattern))
        if not names:
            report.warn(at, f"no file matches `{pattern}`, seen from {folder}")
        for name in names:
            if not self._read_included_file(name, at, chain, report, is_pattern=is_pattern):
                return

    def _read_included_file(
        self, name: str, at: KeyPath, chain: tuple[Path, ...], report: Reporter, *, is_pattern: bool
    ) -> bool:
        """Read an included file, or report why not; return False once too many are included."""
        path = Path(normpath(chain[-1].parent / name))
        resolved = _existing_file(path)
        if self._leaves_folder(str(path)):
            report.error(
                at,
                f"`{name}` is a link to another folder, which nobody has agreed to",
            )
        elif resolved is None:
            report.error(at, f"there is no file `{name}` in {chain[-1].parent}")
        elif resolved == chain[-1].resolve() and is_pattern:
            return True  # `**/perstack.toml` matches the including file too, but means the others
        elif any(resolved == includer.resolve() for includer in chain):
            include_path = " → ".join(map(str, (*chain, path)))
            report.error(at, f"a file cannot include itself, not even through others: {include_path}")
        elif resolved not in self.files and (len(self.files) >= MAX_FILES or len(chain) >= MAX_INCLUDE_DEPTH):
            report.error(
                at,
                f"more than {MAX_FILES} files, or {MAX_INCLUDE_DEPTH} one inside the other, are included: include less",
            )
            return False
        elif resolved not in self.files and self._check_trusted_owner(path, at, report):
            self.read(path, chain)
        return True


def _existing_file(path: Path) -> Path | None:
    try:
        return path.resolve() if path.is_file() else None
    except OSError:
        return None


def _experts_with_errors(drafts: Mapping[str, Draft], errors: Sequence[Problem]) -> dict[str, tuple[Problem, ...]]:
    """Return the Experts that have errors or delegate to one, directly or not, with the problems.

    An error outside of Experts that lets the rest be read concerns each Expert.
    """
    errors_by_expert: dict[str, list[Problem]] = {}
    for error in errors:
        for key in drafts:
            if error.expert == key or (error.expert is None and error.only_new_jobs):
                errors_by_expert.setdefault(key, []).append(error)
    broken = {name: tuple(own_errors) for name, own_errors in errors_by_expert.items()}
    callers: dict[str, list[Draft]] = {}
    for draft in drafts.values():
        for name in draft.delegates:
            callers.setdefault(name, []).append(draft)
    pending = list(broken)
    while pending:
        name = pending.pop()
        for draft in callers.get(name, ()):
            if draft.expert.key not in broken:
                broken[draft.expert.key] = (draft.problem_of(name), *broken[name])
                pending.append(draft.expert.key)
    return broken


def _without_settings(raw: TomlTable, root: Path, report: Reporter) -> TomlTable:
    allowed_keys: TomlTable = {}
    for name, value in raw.items():
        if name in (*keys_of(Project), *IGNORED[Project]) and name not in ("experts", "include"):
            report.warn((name,), f"has no effect in an included file: say it in {root}, or in [experts.NAME]")
        else:
            allowed_keys[name] = value
    return allowed_keys


def _with_absolute_paths(project: Project, folder: Path) -> Project:

    def resolve(name: str) -> str:
        with suppress(RuntimeError):  # an unknown user: there will be no such folder
            return normpath(folder / Path(name).expanduser())
        return normpath(folder / name)

    update: dict[str, object] = {}
    if project.env_path:
        update["env_path"] = tuple(normpath(folder / name) for name in project.env_path)
    if project.folder is not None:
        path = resolve(project.folder)
        table = project.workspace if isinstance(project.workspace, Workspace) else None
        update["workspace"] = path if table is None else table.model_copy(update={"path": path})
    if project.sandbox is not None:
        sandbox = project.sandbox
        paths = {"writable": tuple(map(resolve, sandbox.writable)), "readable": tuple(map(resolve, sandbox.readable))}
        update["sandbox"] = sandbox.model_copy(update=paths)
    if project.audit is not None:
        addresses = {name: _resolve_file_address(value, resolve) for name, value in project.audit}
        update["audit"] = project.audit.model_copy(update=addresses)
    return project.model_copy(update=update)


def _resolve_file_address(value: object, resolve: Callable[[str], str]) -> object:
    # a final slash, which marks a folder, stays
    if not isinstance(value, str) or not value.startswith("file:"):
        return value
    path = value.removeprefix("file:")
    return f"file:{resolve(path)}{'/' if path.endswith('/') else ''}"


# Files with one `[permissions]` table, which a person names to apply or to try its rules.
