"""Processor time of a `perstack run` over HTTP in several checkouts, in turns: its start, and one further step.

    python bench/versions.py --rounds 20 /work/old /work/new

Each checkout needs an environment in `.venv`. Each round runs all of them, in alternating order, so that other load
affects all equally. The ratios are medians over the rounds, to the first checkout.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from wires import WIRES, Wire, serving


class Sample(NamedTuple):
    """One round of one checkout; `start_cpu_ms` is the processor time of a Run with one step."""

    first_event_ms: float
    start_cpu_ms: float
    step_cpu_ms: float


def run(checkout: str, wire: Wire, port: int, steps: int) -> tuple[float, float]:
    """Return the milliseconds to the first event, and the processor time in milliseconds."""
    folder = Path(tempfile.mkdtemp(prefix="perstack-bench-"))
    provider = f"[provider]\nproviderName = {wire.provider!r}\n[provider.setting]\n"
    setting = f'baseUrl = "http://127.0.0.1:{port}"\n{wire.setting}\n'
    (folder / "perstack.toml").write_text(f"maxRepeats = 0\n{provider}{setting}[experts.bench]\ninstruction = 'Reads.'")
    (folder / "a.txt").write_text("twenty bytes of text")
    command = [f"{checkout}/.venv/bin/perstack", "run", "bench", "go", "--model", wire.model]
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    env |= {**wire.env, "PERSTACK_TRUST": str(folder)}
    began = time.perf_counter()
    with (folder / "err").open("wb") as err:
        command += ["--max-steps", str(steps)]
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=err)
        assert process.stdout is not None
        process.stdout.readline()
        first_ms = (time.perf_counter() - began) * 1000
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 4:
        raise SystemExit(f"{checkout}: {(folder / 'err').read_text()[-500:]}")
    return first_ms, (usage.ru_utime + usage.ru_stime) * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkouts", nargs="+")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    wire = WIRES[0]
    samples: dict[str, list[Sample]] = {checkout: [] for checkout in args.checkouts}
    with serving(wire) as (port, _):
        for number in range(args.rounds + 1):  # the first round only fills caches
            for checkout in args.checkouts[:: 1 if number % 2 else -1]:
                first_ms, start_ms = run(checkout, wire, port, 1)
                _, all_ms = run(checkout, wire, port, args.steps)
                sample = Sample(first_ms, start_ms, (all_ms - start_ms) / (args.steps - 1))
                samples[checkout] += [sample] if number else []
    for name in ("first_event_ms", "start_cpu_ms", "step_cpu_ms"):
        columns = {checkout: [getattr(sample, name) for sample in samples[checkout]] for checkout in args.checkouts}
        base = columns[args.checkouts[0]]
        for checkout, values in columns.items():
            ratio = median(value / before for value, before in zip(values, base, strict=True))
            print(f"{name:15} {checkout:30} median {median(values):8.3f} least {min(values):8.3f} ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
