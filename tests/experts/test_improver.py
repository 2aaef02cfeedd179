"""The improver mends a program until every case of its real test command passes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hosting import wait_for

from perstack.config.load import load_project
from perstack.config.settings import Overrides
from perstack.core.iterations import SeriesState
from perstack.host import Host
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import ScriptedProvider, Turn, tool, turn

ROOT = Path(__file__).parents[2]
EDITS = (
    ("return self.items.pop(0)", "return self.items.pop()"),
    ("return self.items[0]", "return self.items.pop()"),
    ("self.items) - 1", "self.items)"),
    ("    def peek(self):\n        return self.items.pop()", "    def peek(self):\n        return self.items[-1]"),
)
"""What the model does in each iteration. The second is no full repair: peek takes the number away."""


def improve(workspace: Path) -> tuple[SeriesState, list[GenerationRequest]]:
    requests: list[GenerationRequest] = []

    def model(request: GenerationRequest) -> Turn:
        requests.append(request)
        old, new = EDITS[int(request.run_id.split("-i")[1].split("-")[0]) - 1]
        calls = (
            tool("readTextFile", {"path": "stack.py"}),
            tool("editTextFile", {"path": "stack.py", "oldText": old, "newText": new}),
            tool("attemptCompletion", {"result": f"I wrote {new.strip()}"}),
        )
        return turn(calls[request.step - 1], usage=(10, 1))

    for name in ("stack.py", "check.py"):
        shutil.copy(ROOT / "experts" / "improver" / name, workspace)
    host = Host(
        load_project(ROOT / "perstack.toml").project,
        workspace=workspace,
        env={"PATH": os.environ["PATH"]},
        overrides=Overrides(provider="scripted"),
        plugins=[ScriptedProvider(model)],
    )

    async def work() -> SeriesState:
        async with host:
            return await host.iterations.begin("improver", "Mend stack.py", series_id="mend")

    return wait_for(work()), requests


def test_it_mends_the_program_until_all_cases_pass_and_is_told_each_time_what_fails(tmp_path: Path) -> None:
    series, requests = improve(tmp_path)
    assert (series.status, series.finish_reason, series.best_iteration) == ("completed", "targetReached", 4)
    assert [one.score for one in series.iterations] == [0.6, 0.6, 0.8, 1.0]
    assert [one.job_id for one in series.iterations] == ["mend-i1", "mend-i2", "mend-i3", "mend-i4"]
    assert series.iterations[0].failed == ("peek_gives_the_last_and_leaves_it", "size_counts_all")
    assert all(one.usage.total_tokens == 33 for one in series.iterations)
    queries = [str(request.messages[0]) for request in requests if request.step == 1]
    assert "iteration" not in queries[0]
    assert "Cases that fail: peek_gives_the_last_and_leaves_it, size_counts_all" in queries[1]
    assert all(f"Iteration {number}: passed" in queries[3] for number in (1, 2, 3))
    assert "I wrote return self.items.pop()" in queries[1]
