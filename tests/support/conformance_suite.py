"""The public MCP conformance suite, from npm: run in bounded time, with its counts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npm import installed

VERSIONS = ("0.1.16", "0.2.0-alpha.12")
REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28")
RUNS = {"0.1.16": (VERSIONS[0],)} | {
    f"{VERSIONS[1]} {name}": (VERSIONS[1], "--spec-version", name) for name in REVISIONS
}
"""The suite's version and options of each run. The older version knows no revisions."""

LONGEST = 110
"""Seconds after which a run is ended, with all that it has started."""

_LINE = re.compile(r"^([✓✗]) (\S+): (\d+) passed, (\d+) failed", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """Scenarios by outcome, and all that the suite has printed."""

    passed: frozenset[str]
    failed: frozenset[str]
    counts: str
    text: str


def command_of(version: str, *options: str) -> list[str]:
    """Return the command of a suite, with a Node.js that is new enough for it."""
    suite = installed(f"conformance-{version}", (f"@modelcontextprotocol/conformance@{version}",), ("conformance",))
    return [str(installed("node", ("node@24.9.0",), ("node",)) / "node"), *options, str(suite / "conformance")]


def outcome_of(
    run: str, options: Sequence[str], command: Sequence[str], env: Mapping[str, str], folder: Path
) -> Outcome:
    """Run all scenarios, print the counts, and return the outcome."""
    text = output_of([*command, "--suite", "all", *options, "--output-dir", str(folder)], env)
    rows = _LINE.findall(text.rpartition("SUMMARY ===")[2])
    # a scenario without a check is one that does not apply
    passed = frozenset(name for mark, name, checks, _ in rows if mark == "✓" and checks != "0")
    failed = frozenset(name for mark, name, _, _ in rows if mark == "✗")
    right, wrong = (sum(int(one[place]) for one in rows) for place in (2, 3))
    counts = f"{len(passed)} of {len(passed | failed)} scenarios, {right} of {right + wrong} checks"
    print(f"\n{next(one for one in ('client', 'server') if one in command)}, {run}: {counts}", end="")
    return Outcome(passed, failed, counts, text)


def output_of(command: Sequence[str], env: Mapping[str, str] = os.environ, longest: float = LONGEST) -> str:
    """Run a command and return what it prints.

    Raises TimeoutError with its last line after `longest` seconds, and ends all that it has started.
    """
    process = subprocess.Popen(
        command,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=longest)[0]
    except subprocess.TimeoutExpired as error:
        printed = (error.output or b"").decode(errors="replace").split("\n")
        last = next((line for line in reversed(printed) if line.strip()), "nothing")
        raise TimeoutError(f"{command[0]} did not end in {longest:g} s; the last that it printed: {last}") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
