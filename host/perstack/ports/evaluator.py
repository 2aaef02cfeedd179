"""The evaluator port: a Python function that measures the result of an Expert."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Artifact:
    """Argument of an evaluator function: the result to measure."""

    artefact: str  # the Expert's result
    query: str  # the original query, without the feedback added for later iterations
    iteration: int  # iteration number, from 1
    workspace: Path


EvaluatorFunction = Callable[[Artifact], Mapping[str, object] | Awaitable[Mapping[str, object]]]
"""An evaluator returns what an evaluation command prints: metrics, and optionally `analysis` and `cases`.

The function runs in a separate process, which is terminated after the timeout. The process has the host's working
directory and module path, the variables that every program inherits, and the ones that `requiredEnv` names.
"""
