"""The client scenarios of the public MCP conformance suite, against an Expert that is run by a Host.

`conformance-failures.toml` names those that do not pass, with the reason of each. It may only shrink: a scenario that
is named and passes fails the test, like one that is not named and does not pass.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from conformance_client import Clients
from npm import installed

STUB = Path(__file__).parents[2] / "support" / "conformance_stub.py"
KNOWN: dict[str, dict[str, str]] = tomllib.loads(
    (Path(__file__).parent / "conformance-failures.toml").read_text(encoding="utf-8")
)
RUNS = {
    "0.1.16": ("0.1.16", "--suite", "all"),
    "0.2.0-alpha.12": ("0.2.0-alpha.12", "--suite", "all"),
    "0.2.0-alpha.12 up to 2025-11-25": ("0.2.0-alpha.12", "--suite", "all", "--spec-version", "2025-11-25"),
    "0.2.0-alpha.12 at 2026-07-28": ("0.2.0-alpha.12", "--suite", "all", "--spec-version", "2026-07-28"),
}
TIMED = {"sse-retry"}
"""Warns of what comes 0.2 s late, which beside all others on a busy machine says little; later suites do not."""
LONGEST = 110
"""Seconds."""


def _suite(version: str) -> list[str]:
    """The command of a suite. It wants a newer Node.js than many systems have."""
    suite = installed(f"conformance-{version}", (f"@modelcontextprotocol/conformance@{version}",), ("conformance",))
    return [str(installed("node", ("node@24.9.0",), ("node",)) / "node"), str(suite / "conformance")]


@pytest.mark.others
@pytest.mark.timeout(350)  # the first time, the suites are installed
@pytest.mark.parametrize("run", RUNS)
def test_all_scenarios_pass_but_those_that_are_named_with_a_reason(run: str) -> None:
    version, *options = RUNS[run]
    with tempfile.TemporaryDirectory() as folder, Clients.listening(Path(folder)) as clients:
        command = [*_suite(version), "client", "--command", f"{sys.executable} -IS {STUB} {clients.socket}"]
        command += ["--timeout", str(LONGEST * 1000), "--verbose", "--output-dir", folder]
        done = _finished([*command, *options])
        summary = done.stdout.partition("=== SUITE SUMMARY ===")[2]
        passed = set(re.findall(r"^✓ (\S+):", summary, re.MULTILINE))
        failed = set(re.findall(r"^✗ (\S+):", summary, re.MULTILINE))
        assert passed, done.stdout + done.stderr
        late = TIMED & failed
        failed -= {one for one in late if any(_passes(command, one) for _ in range(3))}
    known = KNOWN.get(run, {})
    assert failed == known.keys(), summary


def _finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)


def _passes(command: list[str], scenario: str) -> bool:
    """Whether it passes by itself, with nothing else at work in this process."""
    return "Passed: 3/3, 0 failed, 0 warnings" in _finished([*command, "--scenario", scenario]).stderr


def test_every_failure_is_one_of_a_run_and_has_a_reason() -> None:
    assert KNOWN.keys() <= RUNS.keys()
    assert all(len(reason) > 20 for failures in KNOWN.values() for reason in failures.values())
