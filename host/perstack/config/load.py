"""perstack.toml and the files it includes, read into one `Project`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os.path import normpath
from pathlib import Path

from perstack.config.check import IGNORED, keys_of, kind_of, read_table
from perstack.config.experts import (
    Draft,
    read_expert,
    resolve_compaction,
    resolve_delegates,
    resolve_evaluator,
    warn_of_cycles,
)
from perstack.config.key_path import KeyPath
from perstack.config.models import check_named, resolve_models
from perstack.config.runtimes import warn_of_runtime
from perstack.config.source import Reporter, Source, TomlTable, TomlValue
from perstack.config.toml import NotRead, parse_toml, read_bounded
from perstack.core.definitions import Project, Workspace
from perstack.dataclass import dataclass
from perstack.errors import DefinitionError, Problem

MOST_FILES = 1_000
"""That one definition may be read from."""
MOST_CHAINED = 50

_AT_LINE = r"\(at line (\d+), column \d+\)$"


@dataclass(frozen=True, slots=True)
class LoadedProject:
    """A project whose healthy Experts can be run, and what its author should still look at."""

    project: Project
    warnings: tuple[Problem, ...] = ()
    files: tuple[Path, ...] = ()
    """Every file that was read, the one that includes the others first."""
    patterns: tuple[tuple[Path, str], ...] = ()
    """Those that may match more files one day, of `include` and of Agent Skills, each with the folder that it is seen
    from."""


def load_project(path: Path) -> LoadedProject:
    """Reads a definition file with its includes.

    Raises:
        DefinitionError: with every problem of every file, warnings too, in the order of the files.
    """
    return DefinitionFile(path).loaded(strict=True)


def load_usable(path: Path) -> LoadedProject:
    """The same, with every Expert that can be run: one with errors does not keep its neighbours from running.

    Raises:
        DefinitionError: if an error is of the whole project, or leaves no Expert.
    """
    return DefinitionFile(path).loaded(strict=False)


class DefinitionFile:
    """A definition file with its includes, read as far as they can be, and all that is wrong with them."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        """With a `text` that is what the file is taken to hold, wherever there is one of that name."""
        self.path = path
        self._text = text
        self.problems: list[Problem] = []
        self.drafts: dict[str, Draft] = {}
        self.files: dict[Path, str] = {}
        """Each file met, resolved, and as problems name it."""
        self.patterns: list[tuple[Path, str]] = []
        self.includes: list[str] = []
        self.report: Reporter | None = None
        """For the top of the file; None if it could not be read."""
        self.project = self.read(path, chain=())
        """The settings of the file itself, as far as they are right; the Experts are in `drafts`."""
        for draft in self.drafts.values():
            resolve_delegates(draft, self.drafts)
            resolve_evaluator(draft, self.drafts)
            resolve_compaction(draft.expert, draft.at, draft.report, self.drafts)
            resolve_models(draft.expert.model, draft.at, self.project.models, draft.report)
        if self.report is not None:
            check_named(self.project.models, self.report)
            resolve_models(self.project.model, (), self.project.models, self.report)
            resolve_compaction(self.project, (), self.report, self.drafts)
            if self.project.schedules:
                from perstack.config.calendar import check_schedules  # few definitions have any

                check_schedules(self.project.schedules, self.drafts, self.report)
        if self.project.max_steps == 0 and self.project.max_depth == 0:
            warn_of_cycles(self.drafts)

    def loaded(self, *, strict: bool) -> LoadedProject:
        """The project of all Experts, or if not `strict` of those that can be run. Raises DefinitionError."""
        problems = self.in_order()
        errors = [problem for problem in problems if problem.severity == "error"]
        broken = _broken(self.drafts, errors)
        experts = {key: draft.expert for key, draft in self.drafts.items() if key not in broken}
        if errors and (strict or not experts or any(problem.expert is None for problem in errors)):
            raise DefinitionError(problems)
        update: dict[str, object] = {"experts": experts, "path": str(self.path.absolute()), "broken": broken}
        update["files"] = tuple(dict.fromkeys(str(Path(name).absolute()) for name in self.files.values()))
        update["includes"] = tuple(self.includes)
        warnings = tuple(problem for problem in problems if problem.severity != "error")
        project = self.project.model_copy(update=update)
        return LoadedProject(project, warnings, tuple(self.files), tuple(self.patterns))

    def read(self, path: Path, chain: tuple[Path, ...]) -> Project:
        """Takes in one file and, after it, those that it includes; returns its settings."""
        self.files[path.resolve()] = str(path)
        source = self._source(path)
        raw = None if source is None else self._parse(source)
        if source is None or raw is None:
            return Project()
        report = Reporter(source, self.problems)
        if chain:
            raw = _without_settings(raw, chain[0], report)
        else:
            self.report = report
        self._take_experts(raw.pop("experts", {}), report)
        project = read_table(Project, raw, (), report) or Project()
        warn_of_runtime(project.runtime, ("runtime",), report)
        self._take_includes(project.includes, (*chain, path), report)
        return _placed(project, path.parent.absolute())

    def in_order(self) -> tuple[Problem, ...]:
        """All problems, file by file as they were met, from the top of each down."""
        places = {file: place for place, file in enumerate(self.files.values())}
        return tuple(sorted(self.problems, key=lambda problem: (places.get(problem.file, -1), problem.line or 0)))

    def _source(self, path: Path) -> Source | None:
        if self._text is not None and path == self.path:
            return Source(path, self._text)
        try:
            return Source(path, read_bounded(path).decode("utf-8-sig"))
        except NotRead as error:
            self.problems.append(Problem(str(error), str(path)))
        except UnicodeDecodeError as error:
            self.problems.append(Problem(f"is not UTF-8 at byte {error.start}: save it as UTF-8", str(path)))
        except OSError as error:
            words = error.strerror or type(error).__name__
            self.problems.append(Problem(f"cannot be read: {words}", str(path)))
        return None

    def _parse(self, source: Source) -> TomlTable | None:
        try:
            return parse_toml(source.text)
        except NotRead as error:
            self.problems.append(Problem(str(error), str(source.path)))
            return None
        except tomllib.TOMLDecodeError as error:
            words = str(error)
            found = re.search(_AT_LINE, words)
            line = int(found[1]) if found is not None and found[1] else source.text.count("\n") + 1
            self.problems.append(Problem(f"is not TOML: {words}", str(source.path), line))
            return None

    def _take_experts(self, experts: TomlValue, report: Reporter) -> None:
        if not isinstance(experts, dict):
            report.error(("experts",), f"must be a table, not {kind_of(experts)}: write [experts.NAME]")
            return
        for key, raw in experts.items():
            first = self.drafts.get(key)
            if first is not None:
                report.error(("experts", key), f"is defined already, at {first.report.place(first.at)}: rename one")
                continue
            self.drafts[key] = read_expert(key, raw, report)
            self.patterns += self.drafts[key].patterns

    def _take_includes(self, patterns: Sequence[str], chain: tuple[Path, ...], report: Reporter) -> None:
        for index, pattern in enumerate(patterns):
            self._take_include(pattern, ("include", index), chain, report)

    def _take_include(self, pattern: str, at: KeyPath, chain: tuple[Path, ...], report: Reporter) -> None:
        from glob import has_magic  # few definitions have includes

        from perstack.config.globbing import TooMuch, matches

        folder = chain[-1].parent
        self.includes.append(normpath(folder.absolute() / pattern))
        is_pattern = has_magic(pattern)
        try:
            found = matches(pattern, folder) if is_pattern else [pattern]
        except TooMuch as error:
            report.error(at, f"`{pattern}` {error}")
            return
        if is_pattern:
            self.patterns.append((folder, pattern))
        if not found:
            report.warn(at, f"no file matches `{pattern}`, seen from {folder}")
        for name in found:
            path = Path(normpath(folder / name))
            resolved = _file_at(path)
            if resolved is None:
                report.error(at, f"there is no file `{name}` in {folder}")
            elif resolved == chain[-1].resolve() and is_pattern:
                continue  # `**/perstack.toml` finds the file that says it, and means the others
            elif any(resolved == above.resolve() for above in chain):
                way = " → ".join(map(str, (*chain, path)))
                report.error(at, f"a file cannot include itself, not even by way of others: {way}")
            elif resolved not in self.files and (len(self.files) >= MOST_FILES or len(chain) >= MOST_CHAINED):
                report.error(
                    at,
                    f"more than {MOST_FILES} files, or {MOST_CHAINED} one inside the other, are included: include less",
                )
                return
            elif resolved not in self.files:
                self.read(path, chain)


def _file_at(path: Path) -> Path | None:
    """Where a file really is; None if there is none, or if none can be called that or be looked at."""
    try:
        return path.resolve() if path.is_file() else None
    except OSError:
        return None


def _broken(drafts: Mapping[str, Draft], errors: Sequence[Problem]) -> dict[str, tuple[Problem, ...]]:
    """The Experts that have errors, and those that delegate to one, by whatever way, with what is wrong."""
    own: dict[str, list[Problem]] = {}
    for error in errors:
        if error.expert is not None and error.expert in drafts:
            own.setdefault(error.expert, []).append(error)
    broken = {name: tuple(those) for name, those in own.items()}
    callers: dict[str, list[Draft]] = {}
    for draft in drafts.values():
        for name in draft.delegates:
            callers.setdefault(name, []).append(draft)
    todo = list(broken)
    while todo:
        name = todo.pop()
        for draft in callers.get(name, ()):
            if draft.expert.key not in broken:
                broken[draft.expert.key] = (draft.problem_of(name), *broken[name])
                todo.append(draft.expert.key)
    return broken


def _without_settings(raw: TomlTable, root: Path, report: Reporter) -> TomlTable:
    """An included file gives its Experts only: settings of the project have one place, the file that is run."""
    kept: TomlTable = {}
    for name, value in raw.items():
        if name in (*keys_of(Project), *IGNORED[Project]) and name not in ("experts", "include"):
            report.warn((name,), f"has no effect in an included file: say it in {root}, or in [experts.NAME]")
        else:
            kept[name] = value
    return kept


def _placed(project: Project, folder: Path) -> Project:
    """Names in a definition file are seen from that file, wherever the caller stands."""

    def seen(name: str) -> str:
        with suppress(RuntimeError):  # of a user that nobody knows: there will be no such folder
            return normpath(folder / Path(name).expanduser())
        return normpath(folder / name)

    update: dict[str, object] = {}
    if project.env_path:
        update["env_path"] = tuple(normpath(folder / name) for name in project.env_path)
    if project.folder is not None:
        place = seen(project.folder)
        table = project.workspace if isinstance(project.workspace, Workspace) else None
        update["workspace"] = place if table is None else table.model_copy(update={"path": place})
    if project.sandbox is not None:
        sandbox = project.sandbox
        placed = {"writable": tuple(map(seen, sandbox.writable)), "readable": tuple(map(seen, sandbox.readable))}
        update["sandbox"] = sandbox.model_copy(update=placed)
    if project.audit is not None:
        places = {name: _of_file(value, seen) for name, value in project.audit}
        update["audit"] = project.audit.model_copy(update=places)
    return project.model_copy(update=update)


def _of_file(value: object, seen: Callable[[str], str]) -> object:
    """A `file:` name as an absolute one; that it ends with a slash says that it is a folder."""
    if not isinstance(value, str) or not value.startswith("file:"):
        return value
    path = value.removeprefix("file:")
    return f"file:{seen(path)}{'/' if path.endswith('/') else ''}"
