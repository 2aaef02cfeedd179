"""An Expert whose results are measured as the test says, for tests of `perstack iterate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from terminal import Result, Terminal, reply

SCRIPTED = ("--provider", "scripted")

EVALUATOR = """
import json, os, pathlib, sys
number = os.environ["PERSTACK_ITERATION"]
with pathlib.Path("measured").open("a") as log:
    log.write(number + " ")
pause = pathlib.Path("pause-" + number)
if pause.exists():
    pause.rename("paused-" + number)
    pathlib.Path("reached").write_text(str(os.getpid()))
    import time
    time.sleep(300)  # the test ends it
print("words before the answer")
print(json.dumps(json.loads(pathlib.Path("answers.json").read_text())[int(number) - 1]))
"""


def project(terminal: Terminal, answers: Sequence[Any], *keys: str, said: str = "made") -> Terminal:
    """Write a project with Expert `solo`, whose results are measured as `answers`, one per iteration."""
    lines = "\n".join(keys)
    terminal.project(
        f"""
[experts.solo]
instruction = "You work alone."
[experts.solo.iterate]
evaluator = ["{sys.executable}", "measure.py"]
{lines}
""",
        solo=[reply(said, usage=(10, 1))],
    )
    (terminal.workspace / "measure.py").write_text(EVALUATOR)
    answer(terminal, answers)
    return terminal


def answer(terminal: Terminal, answers: Sequence[Any]) -> None:
    (terminal.workspace / "answers.json").write_text(json.dumps(answers))


def scores(*numbers: float) -> list[dict[str, float]]:
    return [{"score": number} for number in numbers]


def iterate(terminal: Terminal, *args: str, attended: bool = False) -> Result:
    return terminal.call("iterate", "solo", "do it", "--id", "it", *SCRIPTED, *args, attended=attended)


def list_series(terminal: Terminal) -> dict[str, Any]:
    (line,) = terminal.call("iterations", "--json").lines
    return json.loads(line)


def report(terminal: Terminal, *args: str) -> dict[str, Any]:
    shown = terminal.call("report", "it", "--json", *args)
    assert shown.code == 0, shown.err
    return json.loads(shown.out)


def queries(terminal: Terminal) -> list[str]:
    """Return the Expert's queries, iteration by iteration."""
    jobs = sorted(path.name for path in terminal.jobs().iterdir() if path.name.startswith("it-i"))
    starts = [json.loads(terminal.log_of(f"{job}-1").read_text().splitlines()[0]) for job in jobs]
    return [start["query"] for start in starts]
