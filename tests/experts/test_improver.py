"""The improver mends a program until every case of its real test command passes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import wait_for
from terminal import trusting

from perstack.core.definitions.settings import Overrides
from perstack.host import Host
from perstack.iterations.state import SeriesState
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import ScriptedProvider, Turn, text
from perstack.trust.definition_files import load_project

ROOT = Path(__file__).parents[2]
PROGRAM = (ROOT / "experts" / "improver" / "maths.py").read_text()
EDITS = (
    ("range(1, number)", "range(1, number + 1)"),
    ("year % 4 == 0", "year % 100 != 0"),
    ("year % 100 != 0", "year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"),
    ("(len(numbers) - 1)", "len(numbers)"),
)
"""What the model does in each iteration. The second mends one case and breaks two."""


def programs() -> Iterator[str]:
    program = PROGRAM
    for old, new in EDITS:
        assert old in program
        program = program.replace(old, new)
        yield f"```python\n{program}```"


def improve(workspace: Path) -> tuple[SeriesState, list[GenerationRequest]]:
    requests: list[GenerationRequest] = []
    replies = programs()

    def model(request: GenerationRequest) -> Turn:
        requests.append(request)
        return text(next(replies), usage=(10, 1))

    shutil.copy(ROOT / "experts" / "improver" / "check.py", workspace)
    with trusting(ROOT):
        host = Host(
            load_project(ROOT / "perstack.toml").project,
            workspace=workspace,
            env={"PATH": os.environ["PATH"]},
            overrides=Overrides(provider="scripted"),
            plugins=[ScriptedProvider(model)],
        )

    async def work() -> SeriesState:
        async with host:
            return await host.iterations.begin("improver", PROGRAM, series_id="mend")

    with trusting(ROOT):
        return wait_for(work()), requests


def test_it_mends_the_program_until_all_cases_pass_and_is_told_each_time_what_fails(tmp_path: Path) -> None:
    series, requests = improve(tmp_path)
    assert (series.status, series.finish_reason, series.best_iteration) == ("completed", "targetReached", 4)
    assert [one.score for one in series.iterations] == [0.7, 0.6, 0.8, 1.0]
    assert [one.job_id for one in series.iterations] == ["mend-i1", "mend-i2", "mend-i3", "mend-i4"]
    assert series.iterations[0].failed == ("is_leap_year(1900)", "mean([3, 1, 2])", "mean([4])")
    assert series.iterations[1].regressions == ("is_leap_year(2023)", "is_leap_year(2000)")
    assert all(one.usage.total_tokens == 11 for one in series.iterations)
    assert all(not request.tools for request in requests)
    queries = [str(request.messages[0]) for request in requests]
    assert "iteration" not in queries[0]
    assert "is_leap_year(1900) must be False, but is True" in queries[1]
    assert "Cases that fail: is_leap_year(2023), is_leap_year(2000), mean([3, 1, 2]), mean([4])" in queries[2]
    assert series.current_artefact is not None
    assert "range(1, number + 1)" in series.current_artefact


@pytest.mark.parametrize(
    ("program", "words"), [("def", "cannot be run"), ("", "KeyError"), ("raise OSError", "OSError")]
)
def test_a_program_that_cannot_be_run_passes_no_case(program: str, words: str) -> None:
    check = ROOT / "experts" / "improver" / "check.py"
    ran = subprocess.run([sys.executable, check], input=program, capture_output=True, text=True, check=True)
    measured = json.loads(ran.stdout)
    assert measured["metrics"] == {"passed": 0}
    assert words in measured["analysis"]
