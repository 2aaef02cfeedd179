"""The evaluator port: what a Python function is given that measures what an Expert has made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Artifact:
    """What is to be measured."""

    artefact: str
    """The Expert's result."""
    query: str
    """What was asked for, without what later iterations were told besides."""
    iteration: int
    """From 1."""
    workspace: Path


EvaluatorFunction = Callable[[Artifact], Mapping[str, object] | Awaitable[Mapping[str, object]]]
"""Returns what a command prints: metrics, and perhaps `analysis` and `cases`. It is called in a process of its own,
with the environment, the working directory and the module path of the host, and ended after the timeout. The variable
that `[audit] signingKey` names is not in that environment."""

Made = Artifact
"""The older name."""
