"""perstack.toml and the files it includes, read into one `Project`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path

from perstack.config.check import read_table
from perstack.config.experts import Draft, read_expert, resolve_delegates, resolve_evaluator
from perstack.config.runtimes import OF_THE_ORIGINAL, check_runtimes
from perstack.config.schema import PROJECT, PROVIDER
from perstack.config.source import KeyPath, Reporter, Source, TomlTable, TomlValue
from perstack.core.definitions import Project
from perstack.errors import DefinitionError, Problem

_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)$")


@dataclass(frozen=True, slots=True)
class LoadedProject:
    """A project that can be run, and what its author should still look at."""

    project: Project
    warnings: tuple[Problem, ...] = ()
    files: tuple[Path, ...] = ()
    """Every file that was read, the one that includes the others first."""
    patterns: tuple[tuple[Path, str], ...] = ()
    """The includes that may match more files one day, each with the folder that it is seen from."""


def load_project(path: Path) -> LoadedProject:
    """Reads a definition file with its includes.

    Raises:
        DefinitionError: with every problem of every file, warnings too, in the order of the files.
    """
    reading = _Reading()
    fields = reading.read(path, chain=())
    for draft in reading.drafts.values():
        resolve_delegates(draft, reading.drafts)
        resolve_evaluator(draft, reading.drafts)
    problems = reading.in_order()
    if any(problem.severity == "error" for problem in problems):
        raise DefinitionError(problems)
    experts = {key: draft.finish() for key, draft in reading.drafts.items()}
    project = Project.model_validate({**fields, "experts": experts, "path": str(path.absolute())})
    return LoadedProject(project, problems, tuple(reading.files), tuple(reading.patterns))


class _Reading:
    """What has been met so far, over all files."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.drafts: dict[str, Draft] = {}
        self.files: dict[Path, str] = {}
        """Each file met, resolved, and as problems name it."""
        self.patterns: list[tuple[Path, str]] = []

    def read(self, path: Path, chain: tuple[Path, ...]) -> TomlTable:
        """Takes in one file and, after it, those that it includes; returns its settings."""
        self.files[path.resolve()] = str(path)
        source = self._source(path)
        if source is None:
            return {}
        report = Reporter(source, self.problems)
        raw = self._parse(source)
        if raw is None:
            return {}
        if chain:
            raw = _without_settings(raw, chain[0], report)
        fields = read_table(raw, PROJECT, (), report) or {}
        _check_settings(fields, report)
        _place_paths(fields, path.parent)
        self._take_experts(fields.pop("experts", {}), report)
        self._take_includes(fields.pop("include", []), (*chain, path), report)
        return fields

    def in_order(self) -> tuple[Problem, ...]:
        """All problems, file by file as they were met, from the top of each down."""
        files = list(self.files.values())
        return tuple(sorted(self.problems, key=lambda problem: (files.index(problem.file), problem.line or 0)))

    def _source(self, path: Path) -> Source | None:
        try:
            return Source(path, path.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            self.problems.append(Problem(f"is not UTF-8 at byte {error.start}: save it as UTF-8", str(path)))
        except OSError as error:
            words = error.strerror or type(error).__name__
            self.problems.append(Problem(f"cannot be read: {words}", str(path)))
        return None

    def _parse(self, source: Source) -> TomlTable | None:
        try:
            return tomllib.loads(source.text)
        except tomllib.TOMLDecodeError as error:
            words = str(error)
            found = _AT_LINE.search(words)
            line = int(found[1]) if found is not None and found[1] else source.text.count("\n") + 1
            self.problems.append(Problem(f"is not TOML: {words}", str(source.path), line))
            return None

    def _take_experts(self, experts: TomlValue, report: Reporter) -> None:
        for key, raw in experts.items() if isinstance(experts, dict) else ():
            first = self.drafts.get(key)
            if first is not None:
                report.error(("experts", key), f"is defined already, at {first.report.place(first.at)}: rename one")
                continue
            self.drafts[key] = read_expert(key, raw, report)

    def _take_includes(self, patterns: TomlValue, chain: tuple[Path, ...], report: Reporter) -> None:
        for index, pattern in enumerate(patterns if isinstance(patterns, list) else ()):
            if isinstance(pattern, str):
                self._take_include(pattern, ("include", index), chain, report)

    def _take_include(self, pattern: str, at: KeyPath, chain: tuple[Path, ...], report: Reporter) -> None:
        from glob import has_magic

        folder = chain[-1].parent
        is_pattern = has_magic(pattern)
        found = matches(pattern, folder) if is_pattern else [pattern]
        if is_pattern:
            self.patterns.append((folder, pattern))
        if not found:
            report.warn(at, f"no file matches `{pattern}`, seen from {folder}")
        for name in found:
            path = Path(normpath(folder / name))
            resolved = path.resolve()
            if resolved == chain[-1].resolve() and is_pattern:
                continue  # `**/perstack.toml` finds the file that says it, and means the others
            if any(resolved == above.resolve() for above in chain):
                way = " → ".join(map(str, (*chain, path)))
                report.error(at, f"a file cannot include itself, not even by way of others: {way}")
            elif not path.is_file():
                report.error(at, f"there is no file `{name}` in {folder}")
            elif resolved not in self.files:
                self.read(path, chain)


def matches(pattern: str, folder: Path) -> list[str]:
    """The files below a folder that a pattern of `include` means, as seen from there."""
    # not Path.glob: that takes no absolute patterns and does not pass over hidden files
    from glob import glob

    found = glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207
    return sorted(name for name in found if (folder / name).is_file())


def _without_settings(raw: TomlTable, root: Path, report: Reporter) -> TomlTable:
    """An included file gives its Experts only: settings of the project have one place, the file that is run."""
    kept: TomlTable = {}
    for name, value in raw.items():
        if name in PROJECT and name not in ("experts", "include"):
            report.warn((name,), f"has no effect in an included file: say it in {root}, or in [experts.NAME]")
        else:
            kept[name] = value
    return kept


def _place_paths(fields: TomlTable, folder: Path) -> None:
    """Names in a definition file are seen from that file, wherever the caller stands."""
    names = fields.get("envPath")
    if isinstance(names, list):
        fields["envPath"] = [normpath(folder.absolute() / name) for name in names if isinstance(name, str)]
    workspace = fields.get("workspace")
    if isinstance(workspace, str):
        fields["workspace"] = normpath(folder.absolute() / Path(workspace).expanduser())


def _check_settings(fields: TomlTable, report: Reporter) -> None:
    provider = fields.get("provider")
    if provider is not None:
        fields["provider"] = read_table(provider, PROVIDER, ("provider",), report) or {}
    runtime = fields.get("runtime")
    check_runtimes(runtime, ("runtime",), report)
    if runtime in OF_THE_ORIGINAL:
        report.warn(("runtime",), f"`{runtime}` has no effect: Experts run in this process, without its isolation")
