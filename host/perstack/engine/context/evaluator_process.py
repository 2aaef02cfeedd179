"""The process that an evaluator function is called in: one that does not return, or blocks, can be ended.

It has the function and what is to be measured on stdin, as JSON, and writes one JSON object to stdout: the measurement,
or what went wrong. Whatever the function itself prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Awaitable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import cast

from perstack.core.base import JsonObject
from perstack.core.measurements import measurement_of
from perstack.ports.evaluator import Artifact, EvaluatorFunction

BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from perstack.engine.measuring import main; main()"
)
"""What Python is started with, and the module path as JSON after it."""


def main() -> None:
    """Measure, answer, and end, whatever the function has left running."""
    answers = os.dup(1)
    os.dup2(2, 1)
    answer = json.dumps(_answer(json.load(sys.stdin))).encode()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with os.fdopen(answers, "wb") as out:
        out.write(answer)
    os._exit(0)


def request(entry: str, made: Artifact) -> bytes:
    """What is on stdin."""
    fields = {"artefact": made.artefact, "query": made.query, "iteration": made.iteration}
    return json.dumps({"entry": entry, **fields, "workspace": str(made.workspace)}).encode()


def _answer(given: dict[str, object]) -> JsonObject:
    made = Artifact(
        artefact=str(given["artefact"]),
        query=str(given["query"]),
        iteration=cast("int", given["iteration"]),
        workspace=Path(str(given["workspace"])),
    )
    try:
        function = cast("EvaluatorFunction", EntryPoint("evaluator", str(given["entry"]), "perstack").load())
    except (ImportError, AttributeError) as error:
        return {"missing": str(error)}
    try:
        answer = function(made)
        found = measurement_of(asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer)
    except Exception as error:  # noqa: BLE001 - whatever it raises is told
        return {"raised": f"{type(error).__name__}: {error}"}
    cases: list[JsonObject] = [{"name": case.name, "passed": case.passed} for case in found.cases]
    return {"measured": {"metrics": dict(found.metrics), "analysis": found.analysis, "cases": list(cases)}}


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer
