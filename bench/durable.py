"""Durable steps of perstack beside LangGraph and DBOS, on the same SQLite and PostgreSQL, in one run.

    .venv/bin/python bench/durable.py [--steps 200] [--jobs 1000] [--peers PYTHON]

PYTHON is the interpreter of an environment with the packages that bench/peers.py names; by default `uv run` makes one.
Each measurement is a process of its own; PostgreSQL is the tests' server, with syncs on. Measured are one Run of STEPS
steps with a model that answers at once, and JOBS concurrent Jobs of 3 steps with a model that takes a second. Then, for
perstack alone: 10,000 such Jobs, replay, and one decision under 100 rules.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from postgres_server import PostgresServer
from typing_extensions import override
from waiting import Gate, peak_megabytes, resident_megabytes

from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.permissions import Permissions, RuleSet
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import Subject
from perstack.core.permissions.decide_call import decide_call
from perstack.core.permissions.policy_calls import PolicyCall
from perstack.engine.context.job_limit import job_slots
from perstack.host import Host
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack.testing.scripted import ScriptedProvider, TurnLike, text, tool, turn

HERE = Path(__file__).parent
EXEC = Subject(program="command", arguments="args", folder="cwd", variables="env")
EXPERT = Expert(key="bench", instruction="You read.")


class MemorylessProvider(ScriptedProvider):
    """Scripted model that keeps no requests."""

    def __init__(self, steps: int, delay: float) -> None:
        """Read a file in each step but the last; `delay` is in seconds."""
        self.gate: Gate | None = None

        def reply(request: GenerationRequest) -> TurnLike:
            self.requests.clear()
            if len(request.messages) // 2 >= steps or "hello" in str(request.messages[0]):
                return text("Done.", delay_ms=round(delay * 1000))
            return turn(tool("readTextFile", {"path": "notes.txt"}), delay_ms=round(delay * 1000))

        super().__init__(reply)

    @override
    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        if self.gate is not None and request.step == 1:
            await self.gate.wait()
        return await super().generate(request, on_delta)


async def drive_jobs(storage: str, jobs: int, steps: int, delay: float) -> dict[str, float]:
    """Drive the Jobs in this process, and return their figures.

    `mb` is the memory that they take while all of them wait for their first reply, or all that the process drives at a
    time; `peak_mb` the most until they have ended.
    """
    provider = MemorylessProvider(steps, delay)
    host = Host(
        Project(experts={EXPERT.key: EXPERT}, max_repeats=0),
        workspace=Path.cwd(),
        storage=storage,
        env={},
        overrides=Overrides(provider="scripted", max_steps=0),
        plugins=[provider],
    )
    async with host:
        await host.run(EXPERT.key, "Say hello.")  # imports and connects
        before, peak_before = resident_megabytes(), peak_megabytes()
        gate = provider.gate = Gate(min(jobs, job_slots().limit))
        began, cpu_began = time.perf_counter(), time.process_time()
        summaries = await asyncio.gather(*(host.run(EXPERT.key, "Read the file.") for _ in range(jobs)))
        figures = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu_began}
        if {job.status for job in summaries} != {"completed"}:
            raise RuntimeError(next(job.error or job.status for job in summaries if job.status != "completed"))
        began = time.perf_counter()
        report = await host.audit.replay(summaries[0].id)
        if not report.ok:
            raise RuntimeError(str(report.findings))
        replay_rate = report.events / (time.perf_counter() - began)
    tasks = len(asyncio.all_tasks()) - 1
    memory = {"mb": gate.resident_mb - before, "peak_mb": peak_megabytes() - peak_before}
    return {**figures, **memory, "replayed": replay_rate, "files": _open_files(), "tasks": tasks}


def measure_decision() -> float:
    """Return the microseconds of one decision about a command under 100 rules, of which the last one matches."""
    allowed = (*(f"exec(tool-{number} *)" for number in range(99)), "exec(git status *)")
    chain = [RuleSet(source="perstack.toml [permissions]", permissions=Permissions(default="deny", allow=allowed))]
    words: JsonObject = {"command": "git", "args": ["status", "--short"]}
    rounds = 2_000
    began = time.perf_counter()
    for _ in range(rounds):
        call = PolicyCall("exec", "@perstack/base", words, subject=EXEC)
        if decide_call(chain, call).decision != "allow":
            raise RuntimeError("git status is not allowed")
    return (time.perf_counter() - began) / rounds * 1e6


def measure_process(command: Sequence[str], storage: str, jobs: int, steps: int, delay: float) -> dict[str, float]:
    """Return the figures of the Jobs, run in a new process."""
    with TemporaryDirectory(prefix="perstack-bench-") as folder:
        args = (storage.replace("FOLDER", folder), str(jobs), str(steps), str(delay))
        process = subprocess.run(
            [*command, *args], cwd=folder, capture_output=True, text=True, check=False, timeout=1800
        )
    if process.returncode:
        raise RuntimeError(f"{command}: {process.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return figures


def main(steps: int, jobs: int, peers: Sequence[str]) -> None:
    """Print the tables."""
    perstack = (sys.executable, str(HERE / "durable.py"), "--measure")
    peer = (*peers, str(HERE / "peers.py"))
    server = PostgresServer(settings={"fsync": "on", "listen_addresses": "127.0.0.1"}).start()
    try:
        kinds = [
            ("perstack, files", perstack, "file:state"),
            ("perstack, SQLite", perstack, "sqlite:state.db"),
            ("LangGraph, SQLite", (*peer, "langgraph"), "FOLDER/state.db"),
            ("DBOS, SQLite", (*peer, "dbos"), "FOLDER/state.db"),
            ("perstack, PostgreSQL", perstack, server.address()),
            ("LangGraph, PostgreSQL", (*peer, "langgraph"), f"postgresql://postgres@/postgres?host={server.folder}"),
            ("DBOS, PostgreSQL", (*peer, "dbos"), f"postgresql://postgres@/postgres?host={server.folder}"),
        ]
        print(f"| durable steps | ms of one of {steps} | a second and core | MB of {jobs:,} waiting Jobs |")
        print("| --- | --- | --- | --- |")
        for name, command, storage in kinds:
            single = measure_process(command, storage, 1, steps, 0)
            parallel = measure_process(command, storage, jobs, 3, 1)
            per_core = steps / single["cpu"]
            step_ms = single["seconds"] / steps * 1000
            print(f"| {name} | {step_ms:.1f} | {per_core:,.0f} | {parallel['mb']:,.0f} |", flush=True)
    finally:
        server.close()
    parallel = measure_process(perstack, "file:state", 10_000, 3, 1)
    print(f"\n10,000 Jobs at once in one process: {parallel['mb']:,.0f} MB, {parallel['seconds']:.0f} s")
    print(f"  of the processor a step: {parallel['cpu'] / 30_000 * 1000:.2f} ms")
    print(f"  open afterwards: {parallel['files']:.0f} files, {parallel['tasks']:.0f} tasks")
    replay_rate = measure_process(perstack, "file:state", 1, 2_000, 0)["replayed"]
    print(f"replay of 2,000 steps: {replay_rate:,.0f} events a second")
    print(f"one decision under 100 rules: {measure_decision():.0f} µs; load of the machine: {os.getloadavg()[0]:.1f}")


def _open_files() -> int:
    """Count the regular files that are open."""
    return sum(path.is_file() and not path.is_char_device() for path in Path("/proc/self/fd").iterdir())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        _storage, _jobs, _steps, _delay = sys.argv[2:]
        Path("notes.txt").write_text("twenty bytes of text")
        print(json.dumps(asyncio.run(drive_jobs(_storage, int(_jobs), int(_steps), float(_delay)))))
    else:
        _options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        _options.add_argument("--steps", type=int, default=200)
        _options.add_argument("--jobs", type=int, default=1000)
        _options.add_argument("--peers", help="interpreter with the packages of bench/peers.py; default: uv run")
        _args = _options.parse_args()
        main(_args.steps, _args.jobs, [_args.peers] if _args.peers else ["uv", "run", "-q"])
