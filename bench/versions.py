"""Several checkouts in turns: processor time of commands, of a `perstack run` over HTTP, and of one further step.

    python bench/versions.py --rounds 20 ../before ../now
    python bench/versions.py --rounds 20 --only commands ../before ../now
    make bench ARGS="--before ../before"

Measured are `run --help`, `jobs` without a Job, a Run to its first event, a Run with one step, and its further steps,
each as the processor time of a process; then what 1,000 waiting Jobs on SQLite take at once. Each checkout needs an
environment in `.venv`. Each round runs all of them, in alternating order, so that other load affects all equally. The
ratios are medians over the rounds, to the first checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from wires import WIRES, Wire, serving

JOBS = 1_000
DURABLE = Path(__file__).with_name("durable.py")
_UNWANTED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
ENV = {name: value for name, value in os.environ.items() if name not in _UNWANTED}


class Sample(NamedTuple):
    """One round of one checkout; `start_cpu_ms` is the processor time of a Run with one step."""

    first_event_ms: float
    first_event_cpu_ms: float
    start_cpu_ms: float
    step_cpu_ms: float


class Commands(NamedTuple):
    """Processor time of one round of one checkout."""

    help_cpu_ms: float
    jobs_cpu_ms: float


def measure_command(checkout: str, folder: Path, *args: str) -> float:
    """Return the milliseconds of processor time of a command."""
    process = subprocess.Popen(
        [f"{checkout}/.venv/bin/perstack", *args], cwd=folder, env=ENV, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{checkout}: perstack {' '.join(args)} ended with {process.returncode}")
    return (usage.ru_utime + usage.ru_stime) * 1000


def measure_memory(checkout: str) -> float:
    """Return the megabytes that 1,000 Jobs of a checkout take while all of them wait for their first reply."""
    command = [f"{checkout}/.venv/bin/python", str(DURABLE), "--measure"]  # one way to measure for all checkouts
    with tempfile.TemporaryDirectory(prefix="perstack-bench-") as folder:
        args = ("sqlite:state.db", str(JOBS), "3", "1")
        done = subprocess.run([*command, *args], cwd=folder, env=ENV, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["mb"])


def cpu_ms_of(pid: int) -> float:
    """Return the milliseconds that a process has had the processor, from Linux's scheduler."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def run(checkout: str, wire: Wire, port: int, steps: int) -> tuple[float, float, float]:
    """Return the milliseconds to the first event, those of the processor to it, and those of the processor in all."""
    folder = Path(tempfile.mkdtemp(prefix="perstack-bench-"))
    provider = f"[provider]\nproviderName = {wire.provider!r}\n[provider.setting]\n"
    setting = f'baseUrl = "http://127.0.0.1:{port}"\n{wire.setting}\n'
    (folder / "perstack.toml").write_text(f"maxRepeats = 0\n{provider}{setting}[experts.bench]\ninstruction = 'Reads.'")
    (folder / "a.txt").write_text("twenty bytes of text")
    command = [f"{checkout}/.venv/bin/perstack", "run", "bench", "go", "--model", wire.model]
    env = {**ENV, **wire.env, "PERSTACK_TRUST": str(folder)}
    began = time.perf_counter()
    with (folder / "err").open("wb") as err:
        command += ["--max-steps", str(steps)]
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=err)
        assert process.stdout is not None
        process.stdout.readline()
        first_ms, first_cpu_ms = (time.perf_counter() - began) * 1000, cpu_ms_of(process.pid)
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 4:
        raise SystemExit(f"{checkout}: {(folder / 'err').read_text()[-500:]}")
    return first_ms, first_cpu_ms, (usage.ru_utime + usage.ru_stime) * 1000


def in_turns(checkouts: Sequence[str], rounds: int, measure: Callable[[str], NamedTuple]) -> None:
    """Measure each checkout once a round, in alternating order, and print medians and ratios."""
    samples: dict[str, list[NamedTuple]] = {checkout: [] for checkout in checkouts}
    for number in range(rounds + 1):  # the first round only fills caches
        for checkout in checkouts[:: 1 if number % 2 else -1]:
            sample = measure(checkout)
            samples[checkout] += [sample] if number else []
    for name in samples[checkouts[0]][0]._fields:
        columns = {checkout: [getattr(sample, name) for sample in samples[checkout]] for checkout in checkouts}
        base = columns[checkouts[0]]
        for checkout, values in columns.items():
            ratio = median(value / before for value, before in zip(values, base, strict=True))
            print(f"{name:18} {checkout:30} median {median(values):8.3f} least {min(values):8.3f} ratio {ratio:.3f}")


def compare(checkouts: Sequence[str], rounds: int, steps: int, only: str | None = None) -> None:
    """Print the figures of all checkouts, or one kind of them."""
    if only in (None, "commands"):
        folder = Path(tempfile.mkdtemp(prefix="perstack-bench-"))
        (folder / "perstack.toml").write_text("[experts.bench]\ninstruction = 'Reads.'")
        in_turns(
            checkouts,
            rounds,
            lambda checkout: Commands(
                measure_command(checkout, folder, "run", "--help"), measure_command(checkout, folder, "jobs")
            ),
        )
    if only in (None, "run"):
        wire = WIRES[0]
        with serving(wire) as (port, _):

            def measure_run(checkout: str) -> Sample:
                first_ms, first_cpu_ms, start_ms = run(checkout, wire, port, 1)
                _, _, all_ms = run(checkout, wire, port, steps)
                return Sample(first_ms, first_cpu_ms, start_ms, (all_ms - start_ms) / (steps - 1))

            in_turns(checkouts, rounds, measure_run)
    if only in (None, "memory"):
        for checkout in checkouts:
            print(
                f"memory             {checkout:30} {measure_memory(checkout):.0f} MB of {JOBS:,} waiting Jobs, SQLite"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkouts", nargs="+")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", choices=("commands", "run", "memory"))
    args = parser.parse_args()
    compare(args.checkouts, args.rounds, args.steps, args.only)


if __name__ == "__main__":
    main()
