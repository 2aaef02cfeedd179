"""A call as permission rules see it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from posixpath import join, normpath

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.tools import Effect, Subject, ToolKind, ToolSpec

Resolve = Callable[[str, str], Sequence[str]]
"""The names of a path that is seen from a folder: where it leads, and its own name if that is a link.

Relative to the workspace, `.` for itself, or absolute if it leads elsewhere. It never raises.
"""

EXEMPT_KINDS: frozenset[ToolKind] = frozenset({"attemptCompletion", "todo", "clearTodo", "interactive", "refused"})
"""What no rule is ever asked about: the loop's own tools, questions to a person, and calls that are wrong."""


def as_written(path: str, folder: str) -> Sequence[str]:
    """A `Resolve` that knows no files."""
    return (normpath(join(folder, path)),)


@dataclass(frozen=True)
class PolicyCall:
    """Everything of a call that a decision depends on."""

    tool: str
    """As its skill calls it; the Expert's key, for a delegate."""
    skill: str = ""
    args: JsonObject = field(default_factory=dict[str, JsonValue])
    kind: ToolKind = "tool"
    effect: Effect = "sideEffect"
    subject: Subject | None = None
    shown: str = ""
    """The tool's name as the model sees it, if that differs."""
    resolve: Resolve = as_written
    root: str = ""
    """The workspace, absolute, for rules that name absolute paths."""

    @property
    def is_exempt(self) -> bool:
        """Whether no rule applies to it."""
        return is_exempt(self.kind, self.subject)

    @cached_property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments; empty if the tool runs none."""
        if self.subject is None or not self.subject.program:
            return ()
        program = self.args.get(self.subject.program)
        words = self.args.get(self.subject.arguments)
        rest = [word for word in words if isinstance(word, str)] if isinstance(words, list) else []
        return (program if isinstance(program, str) else "", *rest)

    @property
    def folder(self) -> str:
        """Where its program runs."""
        value = self.args.get(self.subject.folder) if self.subject is not None else None
        return value if isinstance(value, str) and value else "."

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that its program gets besides."""
        value = self.args.get(self.subject.variables) if self.subject is not None else None
        return {name: one for name, one in value.items() if isinstance(one, str)} if isinstance(value, dict) else {}

    def paths(self) -> Mapping[str, Sequence[str]]:
        """The names of each path among its arguments, by the argument."""
        return self._paths

    @cached_property
    def _paths(self) -> Mapping[str, Sequence[str]]:
        named = self.subject.paths if self.subject is not None else ()
        given = {name: value for name in named if isinstance(value := self.args.get(name), str)}
        return {name: self.resolve(value, ".") for name, value in given.items()}


def policy_call(
    spec: ToolSpec, own_name: str, args: JsonObject, resolve: Resolve = as_written, root: str = ""
) -> PolicyCall:
    """The call of a tool that is offered. `own_name` is the tool's name in its skill; a delegate's is its target."""
    is_delegate = spec.kind == "delegate"
    return PolicyCall(
        tool=(spec.target or spec.name) if is_delegate else own_name or spec.name,
        skill="" if is_delegate else spec.skill_name,
        args=args,
        kind=spec.kind,
        effect=spec.effect,
        subject=spec.subject,
        shown=spec.name,
        resolve=resolve,
        root=root,
    )


def is_exempt(kind: ToolKind, subject: Subject | None) -> bool:
    """Whether no rule is ever about such a tool. Its name does not matter: a server may call its own what it likes."""
    return kind in EXEMPT_KINDS or (subject is not None and subject.is_nothing)


def line_of(words: Sequence[str]) -> str:
    """A command line as rules see it: its words joined by one space, quoted where needed."""
    return shlex.join(words)
