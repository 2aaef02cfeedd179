"""Problems of definition files, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perstack.core.base import JsonObject
from perstack.errors import Problem


def describe_problems(problems: Sequence[Problem]) -> list[str]:
    """One line each, `file:line: severity: key: message`, and a last line that counts them.

    Editors and terminals make such places clickable.
    """
    lines = [_describe(problem) for problem in problems]
    lines.append(f"{_count(problems, 'error')}, {_count(problems, 'warning')}")
    return lines


def problems_to_json(problems: Iterable[Problem]) -> list[JsonObject]:
    """One object each; `line` and `key` are null where there are none."""
    return [
        {
            "severity": problem.severity,
            "file": problem.file,
            "line": problem.line,
            "key": problem.key,
            "message": problem.message,
        }
        for problem in problems
    ]


def _describe(problem: Problem) -> str:
    parts = [problem.file if problem.line is None else f"{problem.file}:{problem.line}", problem.severity]
    if problem.key is not None:
        parts.append(problem.key)
    return ": ".join((*parts, problem.message))


def _count(problems: Iterable[Problem], severity: str) -> str:
    number = sum(problem.severity == severity for problem in problems)
    return f"{number} {severity}" if number == 1 else f"{number} {severity}s"
