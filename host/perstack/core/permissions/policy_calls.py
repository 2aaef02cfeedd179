"""Tool calls as permission rules see them: the tool, its paths, addresses and commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from posixpath import join, normpath

from pydantic import JsonValue

from perstack.core.base.records import JsonObject, texts_in
from perstack.core.definitions.skills import (
    BASE_SKILL,
    Effect,
    PathUse,
    Subject,
    ToolKind,
    ToolSpec,
    named_arguments,
    path_uses,
)
from perstack.core.files.file_names import STATE_FOLDER, fold_case, protected_by_name
from perstack.dataclass import dataclass

Resolve = Callable[[str, str], Sequence[str]]
"""Return the names of a path that is relative to a folder: of its target, and also of the link if it is one. Names are
relative to the workspace, which is `.`, or absolute if they are outside. Never raises."""


class PathResolver:
    """Resolver for one call. `resolved` has the names of each path whose target differs from the written path."""

    def __init__(self, resolve: Resolve, known: Mapping[str, Sequence[str]] | None = None) -> None:
        self._resolve = resolve
        self.resolved = dict(known or {})

    def __call__(self, path: str, folder: str) -> Sequence[str]:
        """Return the names of a path, like a `Resolve`."""
        full_path = path if folder == "." else join(folder, path)
        if full_path not in self.resolved:
            names = tuple(self._resolve(path, folder))
            if names == tuple(as_written(path, folder)):
                return names
            self.resolved[full_path] = names
        return self.resolved[full_path]


EXEMPT_KINDS: frozenset[ToolKind] = frozenset({"attemptCompletion", "todo", "clearTodo", "interactive", "refused"})


def as_written(path: str, folder: str) -> Sequence[str]:
    """Return the written path, normalized: a `Resolve` without access to files."""
    return (normpath(join(folder, path)),)


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between a recorded decision on a call and its replay."""

    words: str
    doubt: str = ""  # why the recorded decision may still be right; empty if it is certainly wrong


@dataclass(frozen=True)
class PolicyCall:
    """Inputs of a decision about a call."""

    tool: str  # tool's name within its skill; the Expert's key, for a delegate
    skill: str = ""
    args: JsonObject = field(default_factory=dict[str, JsonValue])
    kind: ToolKind = "tool"
    effect: Effect = "sideEffect"
    subject: Subject | None = None
    shown: str = ""  # tool's name as the model sees it, if that differs
    resolve: Resolve = as_written
    root: str = ""  # absolute path of the workspace, for rules with absolute paths
    is_host: bool = False  # True for a tool of the base skill or the host, which `allow` rules without a skill mean
    changed: str = ""  # why nobody has agreed to the tool's definition; no rule allows such a call without a question

    @property
    def is_exempt(self) -> bool:
        return is_exempt(self.kind, self.subject)

    @cached_property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments; empty if the tool runs none."""
        if self.subject is None or not (self.subject.program or self.subject.script):
            return ()
        if self.subject.script:
            line = self._argument(self.subject.script)
            return ("sh", "-c", line if isinstance(line, str) else "") if not isinstance(line, list) else _texts(line)
        program, arguments = self._argument(self.subject.program), self._argument(self.subject.arguments)
        texts = [word for word in arguments if isinstance(word, str)] if isinstance(arguments, list) else []
        return (program if isinstance(program, str) else "", *texts)

    @property
    def script(self) -> str | None:
        """The script, if the tool passes one to a shell."""
        line = None if self.subject is None else self._argument(self.subject.script)
        return line if isinstance(line, str) else None

    @property
    def folder(self) -> str:
        """The working folder of its program, as the call names it."""
        value = self._argument(self.subject.folder) if self.subject is not None else None
        return value if isinstance(value, str) and value else "."

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that the call adds for its program."""
        value = self._argument(self.subject.variables) if self.subject is not None else None
        return {name: text for name, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}

    def paths(self) -> Mapping[str, Sequence[str]]:
        """Return the resolved names of the paths in each path argument."""
        return self._paths

    @cached_property
    def _paths(self) -> Mapping[str, Sequence[str]]:
        names = self.subject.paths if self.subject is not None else ()
        # keys too, and nested texts: only the tool knows which of them it uses
        texts_by_name = {name: [*texts_in(self.args[name], keys=True)] for name in names if name in self.args}
        return {
            name: tuple(dict.fromkeys(path for text in texts for path in self.resolve(_as_path(text), self.folder)))
            for name, texts in texts_by_name.items()
            if texts
        }

    def path_uses(self) -> Mapping[tuple[str, PathUse], None]:
        """Return each resolved name of a path with what the tool does with it, in order."""
        subject = self.subject
        if subject is None:
            return {}
        return dict.fromkeys(
            (name, use)
            for argument, names in self.paths().items()
            for name in names
            for use in path_uses(subject, argument, self.effect)
        )

    def may_use_paths(self, use: PathUse) -> bool:
        """Return True if the tool reads or changes files that its arguments name."""
        subject = self.subject
        return subject is not None and any(use in path_uses(subject, name, self.effect) for name in subject.paths)

    @cached_property
    def folder_names(self) -> Sequence[str]:
        """The resolved names of the folder in which its program runs."""
        return (".",) if self.folder == "." else tuple(self.resolve(self.folder, "."))

    def is_within(self, path: str) -> bool:
        """Return True if a path argument of the program leads into the workspace, and to no protected file there.

        False also for a link to a hidden file, such as `.env`, unless the path itself is hidden; and for a file that
        tools may only read, since nobody knows whether a program reads or changes its operand.
        """
        names = self.resolve(path, self.folder)
        if any(name.startswith("/") or name.split("/")[0] == ".." or _is_protected(name) for name in names):
            return False
        return all(_hidden_parts(name) <= _hidden_parts(path) for name in names)

    def urls(self) -> Mapping[str, Sequence[str]]:
        """Return the addresses in each address argument."""
        names = self.subject.urls if self.subject is not None else ()
        texts_by_name = {name: tuple(texts_in(self.args[name], keys=True)) for name in names if name in self.args}
        return {name: texts for name, texts in texts_by_name.items() if texts}

    def _argument(self, name: str) -> JsonValue:
        return self.args.get(name) if name else None


def _is_protected(name: str) -> bool:
    """Return True if a path in the workspace is state, or protected from changes by its names alone."""
    parts = fold_case(tuple(name.split("/")))
    return parts[0] == STATE_FOLDER or protected_by_name(parts, change=True) is not None


def _hidden_parts(path: str) -> set[str]:
    return {part for part in path.split("/") if part.startswith(".") and part.strip(".")}


def policy_call(
    spec: ToolSpec,
    own_name: str,
    args: JsonObject,
    resolve: Resolve = as_written,
    root: str = "",
    *,
    is_host: bool | None = None,
) -> PolicyCall:
    """Return the call of an offered tool; `own_name` is the tool's name in its skill (of a delegate: its target).

    `is_host`: True for a tool of the base skill or the host; None: judge by the name of the base skill.
    """
    is_delegate = spec.kind == "delegate"
    return PolicyCall(
        tool=(spec.target or spec.name) if is_delegate else own_name or spec.name,
        skill="" if is_delegate else spec.skill_name,
        args=named_arguments(spec.subject, args),
        kind=spec.kind,
        effect=spec.effect,
        subject=spec.subject,
        shown=spec.name,
        resolve=resolve,
        root=root,
        is_host=spec.skill_name == BASE_SKILL if is_host is None else is_host,
    )


def is_exempt(kind: ToolKind, subject: Subject | None) -> bool:
    """Return True if a tool is exempt from rules. Its name does not count, because a server chooses it freely."""
    return kind in EXEMPT_KINDS or (subject is not None and subject.is_nothing)


def _texts(words: Sequence[JsonValue]) -> tuple[str, ...]:
    return tuple(word for word in words if isinstance(word, str)) or ("",)


def _as_path(text: str) -> str:
    if text[:5].casefold() != "file:":
        return text
    from urllib.parse import unquote

    return unquote(text[5:].removeprefix("//").removeprefix("localhost"))


def quoted_line(words: Sequence[str]) -> str:
    """Return a command line as rules see it: words joined by one space, quoted where needed."""
    return shlex.join(words)
