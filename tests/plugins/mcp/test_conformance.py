"""The client scenarios of the public MCP conformance suite, against an Expert that is run by a Host.

`conformance-failures.toml` names those that do not pass, with the reason of each. It may only shrink: a scenario that
is named and passes fails the test, like one that is not named and does not pass.
"""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from conformance_client import Clients
from conformance_suite import LONGEST, RUNS, VERSIONS, command_of, outcome_of, output_of

STUB = Path(__file__).parents[2] / "support" / "conformance_stub.py"
KNOWN: dict[str, Any] = tomllib.loads((Path(__file__).parent / "conformance-failures.toml").read_text(encoding="utf-8"))
ALL = RUNS | {f"{VERSIONS[1]} extensions": (VERSIONS[1],)}
TIMED = {"sse-retry"}
"""Warns of what comes 0.2 s late, which beside all others on a busy machine says little; later suites do not."""


@pytest.mark.others
@pytest.mark.timeout(350)  # the first time, the suites are installed
@pytest.mark.parametrize("run", ALL)
def test_all_scenarios_pass_but_those_that_are_named_with_a_reason(run: str) -> None:
    version, *options = ALL[run]
    with tempfile.TemporaryDirectory() as folder, Clients.listening(Path(folder)) as clients:
        command = [*command_of(version), "client", "--command", f"{sys.executable} -IS {STUB} {clients.socket}"]
        command += ["--timeout", str(LONGEST * 1000), "--verbose"]
        outcome = outcome_of(run, options, command, os.environ, Path(folder))
        assert outcome.passed, outcome.text
        late = TIMED & outcome.failed
        failed = outcome.failed - {one for one in late if any(_passes(command, one) for _ in range(3))}
    assert sorted(failed) == sorted(KNOWN["failing"].get(run, ())), outcome.text


def _passes(command: list[str], scenario: str) -> bool:
    """Whether it passes by itself, with nothing else at work in this process."""
    return "Passed: 3/3, 0 failed, 0 warnings" in output_of([*command, "--scenario", scenario])


@pytest.mark.timeout(60)
def test_a_suite_that_hangs_is_ended_with_all_that_it_has_started() -> None:
    hanging = "import subprocess, sys; print('scenario 7', flush=True)\n"
    hanging += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    # it returns once nobody holds the output any more
    with pytest.raises(TimeoutError, match=r"did not end in 3 s; the last that it printed: scenario 7$"):
        output_of([sys.executable, "-c", hanging], longest=3)


def test_every_failure_is_one_of_a_run_and_has_a_reason() -> None:
    assert KNOWN["failing"].keys() <= ALL.keys()
    assert KNOWN["reasons"].keys() == set(chain(*KNOWN["failing"].values()))
    assert all(len(reason) > 20 for reason in KNOWN["reasons"].values())
    told = (Path(__file__).parents[3] / "docs" / "mcp.md").read_text(encoding="utf-8")
    assert not [name for name in KNOWN["reasons"] if f"`{name}`" not in told]
