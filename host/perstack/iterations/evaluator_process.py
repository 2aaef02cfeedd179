"""Main module of the child process that calls an evaluator function, so that one that blocks can be killed.

stdin has the function and what to measure, stdout gets the measurement or the error, both in JSON. The workspace is
entered only after this module's imports.
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

from perstack.core.base.records import JsonObject
from perstack.iterations.state import measurement_of
from perstack.ports.evaluator import Artifact, EvaluatorFunction


def main() -> None:
    """Measure, write the answer, and exit, even if the function has left threads running."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    message = json.load(sys.stdin)
    os.chdir(message["directory"])
    answer = json.dumps(_measure(message)).encode()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with os.fdopen(answer_fd, "wb") as answer_file:
        answer_file.write(answer)
    os._exit(0)


def request(entry: str, artifact: Artifact, directory: Path) -> bytes:
    """Return the message that `main` reads from stdin. The function is called in `directory`."""
    fields = {"artefact": artifact.artefact, "query": artifact.query, "iteration": artifact.iteration}
    folders = {"workspace": str(artifact.workspace), "directory": str(directory)}
    return json.dumps({"entry": entry, **fields, **folders}).encode()


def _measure(message: dict[str, object]) -> JsonObject:
    """Call the function. Return `measured`, or `missing` if it cannot be imported, or `raised` with its error."""
    artifact = Artifact(
        artefact=str(message["artefact"]),
        query=str(message["query"]),
        iteration=cast("int", message["iteration"]),
        workspace=Path(str(message["workspace"])),
    )
    try:
        function = cast("EvaluatorFunction", EntryPoint("evaluator", str(message["entry"]), "perstack").load())
    except (ImportError, AttributeError) as error:
        return {"missing": str(error)}
    try:
        answer = function(artifact)
        measurement = measurement_of(asyncio.run(_await(answer)) if inspect.isawaitable(answer) else answer)
    except Exception as error:  # noqa: BLE001 - whatever it raises is reported
        return {"raised": f"{type(error).__name__}: {error}"}
    cases: list[JsonObject] = [{"name": case.name, "passed": case.passed} for case in measurement.cases]
    return {"measured": {"metrics": dict(measurement.metrics), "analysis": measurement.analysis, "cases": list(cases)}}


async def _await(answer: Awaitable[object]) -> object:
    return await answer


if __name__ == "__main__":
    main()
