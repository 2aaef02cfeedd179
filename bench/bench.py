"""The figures of docs/speed.md, through the command line, on a scripted model, beside a floor measured in the same run.

make bench                     all of it, a few minutes
make bench ARGS="--steps 50"   only these numbers of steps
make bench ARGS="--before ../old"   a start, a step and memory, in turns with another checkout (versions.py)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from skills import skills
from versions import compare
from wire_formats import print_providers

TASKS = 10_000
PERSTACK = str(Path(sys.executable).with_name("perstack"))
ENV = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "PERSTACK_PLUGINS": "perstack.testing.plugin",
    "PERSTACK_SCRIPT": "script.json",
}
TOML = """
maxSteps = 0
maxRepeats = 0
[experts.bench]
instruction = "[[bench]] Reads a file, again and again."
[experts.boss]
instruction = "[[boss]] Delegates."
delegates = [{delegates}]
{workers}
"""


@dataclass
class ProcessFigures:
    """Output and costs of one process."""

    wall: float
    rss_mb: float
    first_event: float
    first_cpu: float
    """Processor time up to the first event, as exact as the kernel's ticks of 10 ms."""
    stdout: bytes


def run(folder: Path, *args: str) -> ProcessFigures:
    """Run perstack, taking the time to its first event."""
    began = time.perf_counter()
    process = subprocess.Popen([PERSTACK, *args], cwd=folder, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first_line = process.stdout.readline()
    first_event = time.perf_counter() - began
    first_cpu = cpu_of(process.pid)
    remaining, errors = process.communicate(timeout=600)
    wall = time.perf_counter() - began
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode not in (0, 4):
        sys.exit(f"perstack {' '.join(args)} ended with {process.returncode}: {errors.decode()[-500:]}")
    return ProcessFigures(wall, usage.ru_maxrss / 1024, first_event, first_cpu, first_line + remaining)


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def folder_with(script: dict, workers: list[str]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="perstack-bench-"))
    names = ", ".join(f'"{name}"' for name in workers)
    tables = "\n".join(f'[experts.{name}]\ninstruction = "[[{name}]] works."' for name in workers)
    (folder / "perstack.toml").write_text(TOML.format(delegates=names, workers=tables))
    (folder / "a.txt").write_text("twenty bytes of text")
    (folder / "script.json").write_text(json.dumps(script))
    return folder


def one_expert(steps: int) -> dict:
    usage = {"input_tokens": 1000, "output_tokens": 50}
    read = {"name": "readTextFile", "input": {"path": "a.txt"}}
    return {
        "experts": {"[[bench]]": {"turns": [{"tools": [read], "usage": usage, "repeat": steps - 1}, {"text": "done"}]}}
    }


def log_of(folder: Path) -> Path:
    return next(folder.glob("perstack/jobs/*/runs/*-1/events.jsonl"))


def measure_floor(log: Path, steps: int) -> float:
    """Return the milliseconds per step for writing the same bytes, a step at a time, each synced, and nothing else."""
    data = log.read_bytes()
    size = len(data) // steps
    target = log.with_name("floor")
    descriptor = os.open(target, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    began = time.perf_counter()
    for index in range(steps):
        os.write(descriptor, data[index * size : (index + 1) * size])
        os.fdatasync(descriptor)
    seconds = time.perf_counter() - began
    os.close(descriptor)
    target.unlink()
    return seconds / steps * 1000


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "perstack").rglob("*") if path.is_file())


def step_times(log: Path) -> list[int]:
    events = [json.loads(line) for line in log.read_bytes().splitlines()]
    return [event["timestamp"] for event in events if event["type"] == "finishStep"]


def slowdown(times: list[int]) -> float:
    """Return the duration of the last tenth of the steps as a multiple of the first tenth's."""
    count = len(times) // 10
    if count < 10:
        return float("nan")
    first, last = times[count] - times[0], times[-1] - times[-count - 1]
    return last / max(first, 1)


def print_step_table(numbers: list[int]) -> None:
    print("| steps | ms a step | floor | last tenth / first | disk B a step | stdout B a step | MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for steps in numbers:
        folder = folder_with(one_expert(steps), [])
        figures = run(folder, "run", "bench", "go", "--provider", "scripted")
        log = log_of(folder)
        times = step_times(log)
        step_ms = (times[-1] - times[0]) / max(len(times) - 1, 1)
        print(
            f"| {steps} | {step_ms:.2f} | {measure_floor(log, steps):.2f} | {slowdown(times):.2f}"
            f" | {disk_bytes(folder) / steps:.0f} | {len(figures.stdout) / steps:.0f} | {figures.rss_mb:.0f} |"
        )


def print_start() -> None:
    folder = folder_with(one_expert(2), [])
    runs = [run(folder, "run", "bench", "go", "--provider", "scripted") for _ in range(9)]
    python_times = []
    for _ in range(9):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        python_times.append(time.perf_counter() - began)
    first = sorted(figures.first_event for figures in runs)[4]
    cpu = sorted(figures.first_cpu for figures in runs)[4]
    python = sorted(python_times)[4]
    print(f"\nfirst event after {first:.3f} s, {cpu:.2f} s of it CPU; floor, bare Python: {python:.3f} s")


def encode_request(method: str, request_id: int, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode() + b"\n"


def time_mcp_answers(folder: Path) -> tuple[float, float]:
    """Return the seconds from the start of `perstack mcp` to its answers to `initialize` and to `tools/list`."""
    opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    began = time.perf_counter()
    process = subprocess.Popen([PERSTACK, "mcp"], cwd=folder, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(encode_request("initialize", 1, **opening))
    process.stdin.flush()
    process.stdout.readline()
    first = time.perf_counter() - began
    process.stdin.write(encode_request("tools/list", 2))
    process.stdin.flush()
    process.stdout.readline()
    second = time.perf_counter() - began
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()
    return first, second


def print_mcp_start() -> None:
    folder = folder_with(one_expert(2), [])
    firsts, seconds = zip(*(time_mcp_answers(folder) for _ in range(9)), strict=True)
    first, second = sorted(firsts)[4], sorted(seconds)[4]
    print(f"perstack mcp: initialize answered after {first:.3f} s, tools listed after {second:.3f} s")


def print_resume() -> None:
    folder = folder_with(one_expert(1002), [])
    run(folder, "run", "bench", "go", "--provider", "scripted", "--max-steps", "1000")
    resumed = run(folder, "resume", "--provider", "scripted", "--max-steps", "1001")
    events = [line for line in resumed.stdout.splitlines() if b'"type":"initializeRuntime"' not in line]
    assert b"resumeRun" in events[0]
    shown = run(folder, "log")
    print(
        f"resume of a 1,000-step Job: first event after {resumed.first_event:.3f} s; perstack log: {shown.wall:.3f} s"
    )


def print_parallel_delegates() -> None:
    workers = [f"w{number}" for number in range(50)]
    todo = {"tools": [{"name": "todo", "input": {}}], "delay_ms": 200, "repeat": 4}
    script = {f"[[{name}]]": {"turns": [todo, {"text": "done", "delay_ms": 200}]} for name in workers}
    calls = [{"name": name, "input": {"query": "go"}} for name in workers]
    script["[[boss]]"] = {"turns": [{"tools": calls}, {"text": "all"}]}
    folder = folder_with({"experts": script}, workers)
    run(folder, "run", "boss", "go", "--provider", "scripted")
    times = [json.loads(line) for line in log_of(folder).read_bytes().splitlines()]
    called_at = next(event["timestamp"] for event in times if event["type"] == "callDelegate")
    finished_at = max(event["timestamp"] for event in times if event["type"] == "finishToolCall")
    seconds = (finished_at - called_at) / 1000
    print(f"50 parallel delegates of 5 steps at 200 ms: {seconds:.2f} s, {seconds / 1.0:.2f} times the ideal 1.00 s")


async def measure_steps_per_second(jobs: int, steps: int) -> float:
    """Return the steps per second of all Jobs of one process; each step has one tool call."""
    from perstack.core.definitions.experts import Expert
    from perstack.core.definitions.project import Project
    from perstack.core.definitions.settings import Overrides
    from perstack.host import Host
    from perstack.testing.scripted import ScriptedProvider, text, tool

    expert = Expert(key="bench", instruction="Reads a file, again and again.")
    with tempfile.TemporaryDirectory(prefix="perstack-bench-") as folder:
        (Path(folder) / "a.txt").write_text("twenty bytes of text")
        host = Host(
            Project(experts={expert.key: expert}, max_repeats=0),
            workspace=Path(folder),
            storage="file:perstack",
            env={},
            overrides=Overrides(provider="scripted", max_steps=0),
            plugins=[ScriptedProvider([tool("readTextFile", {"path": "a.txt"})] * (steps - 1) + [text("done")])],
        )
        async with host:
            began = time.perf_counter()
            summaries = await asyncio.gather(*(host.run(expert.key, "go") for _ in range(jobs)))
            assert {job.status for job in summaries} == {"completed"}
            return jobs * steps / (time.perf_counter() - began)


def print_parallel_jobs(jobs: int = 20, steps: int = 300) -> None:
    single_rates, combined_rates = [], []
    for _ in range(5):
        single_rates.append(asyncio.run(measure_steps_per_second(1, steps)))
        combined_rates.append(asyncio.run(measure_steps_per_second(jobs, steps)))
    single, combined = sorted(single_rates)[2], sorted(combined_rates)[2]
    print(
        f"{jobs} Jobs in one process: {combined:,.0f} steps a second in all, {combined / single:.2f} times the"
        f" {single:,.0f} of one Job (target 1.6)"
    )


async def time_tasks(storage: str) -> tuple[float, float, float]:
    """Return the milliseconds for creating a task, for a list by status and agent, and for getting a task."""
    from perstack.memory import ExecutionMemory

    with tempfile.TemporaryDirectory(prefix="perstack-bench-") as folder:
        async with ExecutionMemory.open(workspace=folder, storage=storage) as memory:
            began = time.perf_counter()
            for number in range(TASKS):
                await memory.create(f"t{number}", agent_id=f"agent{number % 100}", start=number % 2 == 0)
            create_s = (time.perf_counter() - began) / TASKS
        list_times, get_times = [], []
        for number in range(9):
            async with ExecutionMemory.open(workspace=folder, storage=storage) as memory:
                began = time.perf_counter()
                await memory.list(status="running", agent_id="agent4")
                list_times.append(time.perf_counter() - began)
                began = time.perf_counter()
                await memory.get(f"t{number * 1000}")
                get_times.append(time.perf_counter() - began)
    return create_s * 1000, sorted(list_times)[4] * 1000, sorted(get_times)[4] * 1000


def print_tasks() -> None:
    for name, storage in (("folder", "file:perstack"), ("SQLite", "sqlite:state.db")):
        create_ms, list_ms, get_ms = asyncio.run(time_tasks(storage))
        print(
            f"{TASKS:,} tasks, {name}: {create_ms:.1f} ms to create one, {list_ms:.0f} ms to list them by status and"
            f" agent, {get_ms:.1f} ms to get one"
        )


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # child processes write to it too
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, nargs="*", default=[50, 200, 1000, 5000])
    parser.add_argument("--before", metavar="CHECKOUT", help="compare with this checkout, in turns, and nothing else")
    args = parser.parse_args()
    if args.before:
        compare([args.before, str(Path(__file__).parents[1])], rounds=14, steps=200)
        return
    print_step_table(args.steps)
    print_start()
    print_mcp_start()
    print_resume()
    print_parallel_delegates()
    print_parallel_jobs()
    print_tasks()
    skills(ENV)
    print_providers()
    # In a process of its own: the kernel counts the memory of the parent before `exec` as the child's.
    subprocess.run([sys.executable, Path(__file__).with_name("wires.py")], check=True)


if __name__ == "__main__":
    main()
