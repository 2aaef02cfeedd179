"""Experts with those that they may delegate to."""

from __future__ import annotations

from collections.abc import Iterable

from perstack.core.definitions import Expert, Project


def with_delegates(project: Project, keys: Iterable[str]) -> list[Expert]:
    """These Experts, and all that they may delegate to, each once. Keys are ones that the project has."""
    found: dict[str, Expert] = {}
    waiting = list(keys)
    while waiting:
        expert = project.expert(waiting.pop(0))
        if expert is not None and expert.key not in found:
            found[expert.key] = expert
            waiting += expert.delegates
    return list(found.values())
