"""Hundreds of Jobs at once, with faults, for minutes: memory stays flat, and at the end nothing is left open.

make soak                                    ten minutes, 200 Jobs at once
make soak ARGS="--seconds 180 --jobs 50"     shorter, and fewer

Jobs ask, delegate, start programs and an MCP server; their models fail, their rates are limited, their tools break;
appends are refused by the storage; they are cancelled in the middle. Each is gone on with until it is done, checked,
and deleted, and another takes its place. Half of them are kept in files, half in SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from command_model import TOKENS, query_for, read_plan
from hosts import QUESTION, Bench, expert
from payment_tool import SKILL, till
from pydantic_core import from_json

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.skills import InteractiveSkill, InteractiveTool, McpStdioSkill
from perstack.core.jobs.summary import JobSummary
from perstack.core.messages.messages import ExpertMessage
from perstack.errors import NotFound, StorageError, UsageError
from perstack.host import Host
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack.ports.storage import RunRef, Storage
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.scripted import ScriptedProvider, Turn, fail, text, tool, turn

SERVER = Path(__file__).parents[1] / "plugins" / "mcp" / "servers" / "from_file.py"
STORAGES = ("file:perstack", "sqlite:perstack/state.db")
STAGES = (
    ("pay",) * 6 + ("look",) * 6 + ("ask", "ask", "fail", "limit", "again", "broken", "delegate", "program", "serve")
)
LEAF_STAGES = ("pay", "look", "fail", "broken")
WARM_UP = 2
"""Tenths of the time after which memory must stay constant."""
WIND_DOWN = 600
"""Seconds for started Jobs to end, on a machine with other load."""
MOST_TRIES = 80
"""Maximum number of commands for a Job; a Job that is not done then never will be."""


class Failing(CrashingStorage):
    """A storage that refuses a share of its appends."""

    def __init__(self, storage: Storage, soak: Soak) -> None:
        super().__init__(storage)
        self._soak = soak

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Append, or fail like a full disk."""
        if self._soak.happens(0.01, "errors of the storage"):
            raise StorageError(f"{run.run_id}: no space left on device")
        await super().append(run, expected_seq, records)


class Forgetful(ScriptedProvider):
    """A scripted model that keeps no requests."""

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        """Play the turn that is due."""
        self.requests.clear()
        return await super().generate(request, on_delta)


@dataclass
class Open:
    """Open resources of this process."""

    files: tuple[str, ...]
    threads: tuple[str, ...]
    """Names of the threads."""
    children: int


@dataclass
class Soak:
    """The Jobs, their faults, and the measurements."""

    folder: Path
    seconds: float
    jobs: int
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter[str])
    paid: Counter[str] = field(default_factory=Counter[str])
    played: set[str] = field(default_factory=set[str])
    memory: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Seconds since the beginning, and MB right after a garbage collection."""
    most: float = 0
    """Peak memory in MB, including garbage."""
    problems: list[str] = field(default_factory=list[str])

    def happens(self, share: float, what: str) -> bool:
        """Return whether a fault occurs now, and count it."""
        comes = self.chance.random() < share
        self.counts[what] += comes
        return comes

    # --- environment ----------------------------------------------------------------------------------------------

    def host(self, storage: str) -> Host:
        """Return a Host whose storage fails now and then."""

        def seen(key: str) -> str:
            if key == "broken":
                raise ValueError("it is broken")
            return "seen " * 200

        asks = InteractiveSkill(name="user", tools=(InteractiveTool(name="askUser", input_schema=QUESTION),))
        server = McpStdioSkill(
            name="server",
            command=sys.executable,
            args=(str(SERVER), str(self.folder / "tools.json"), str(self.folder / "notes")),
        )
        return Bench(self.folder, storage).host(
            Forgetful(self.reply),
            Expert.model_validate({**expert("boss").model_dump(), "skills": (SKILL, asks), "delegates": ("leaf",)}),
            Expert.model_validate({**expert("leaf").model_dump(), "skills": (SKILL,)}),
            Expert.model_validate(
                {**expert("served").model_dump(), "skills": (SKILL, asks, server), "delegates": ("leaf",)}
            ),
            plugins=(till(self.paid, seen),),
            wrap=lambda inner: Failing(inner, self),
        )

    def reply(self, request: GenerationRequest) -> Turn:
        """Return the next turn of the Job's plan."""
        plan, nonce = read_plan(str(request.messages[0]))
        number = sum(isinstance(message, ExpertMessage) for message in request.messages)
        self.counts["generations"] += 1
        if number >= len(plan):
            return text(f"done {nonce}", usage=(TOKENS, 0))
        stage, key = plan[number], f"{nonce}-{number}"
        if stage in ("fail", "limit", "again") and key not in self.played:
            self.played.add(key)
            self.counts["errors of the provider"] += 1
            errors = {
                "fail": fail(400, "no"),
                "limit": fail(429, "later", retry_after=3600),
                "again": fail(503, "busy"),
            }
            return errors[stage]
        calls = {
            "ask": tool("askUser", {"question": "sure?"}),
            "pay": tool("pay", {"key": key}),
            "broken": tool("look", {"key": "broken"}),
            "delegate": tool("leaf", {"query": query_for(self.plan(LEAF_STAGES, 3), f"{key}-leaf")}),
            "program": tool("exec", {"command": "true"}),
            "serve": tool("serve", {}),
        }
        call = calls.get(stage, tool("look", {"key": key}))
        return turn(call, usage=(TOKENS, 0), delay_ms=self.chance.uniform(0, 20))

    def plan(self, stages: Sequence[str], most: int) -> list[str]:
        """Return a random plan of at most `most` stages."""
        return self.chance.choices(stages, k=self.chance.randint(1, most))

    # --- one Job --------------------------------------------------------------------------------------------------

    async def drive_job(self, host: Host, job_id: str) -> None:
        """Drive a Job to its end, through every fault."""
        plan = self.plan(STAGES, 8)
        query, key = query_for(plan, job_id), "served" if "serve" in plan else "boss"
        for _ in range(MOST_TRIES):
            job = await self.stands(host, job_id)
            if job is None:
                work: Awaitable[object] = host.run(key, query, job_id=job_id)
            elif job.status == "completed":
                break
            elif job.question is not None:
                work = host.answer("yes", job_id=job_id)
            else:
                work = host.resume(job_id)
            await self.perform(host, job_id, work)
        else:
            self.problems.append(f"{job_id} is not done after {MOST_TRIES} commands")
            return
        await self.check(host, job)
        await host.jobs.delete(job_id)
        self.counts["Jobs"] += 1

    async def stands(self, host: Host, job_id: str) -> JobSummary | None:
        try:
            return await host.job(job_id)
        except NotFound:
            return None

    async def perform(self, host: Host, job_id: str, work: Awaitable[object]) -> None:
        """Run one command, which may be cancelled."""
        task = asyncio.ensure_future(work)
        if self.chance.random() < 0.1:
            await asyncio.wait({task}, timeout=self.chance.uniform(0, 0.05))
            with suppress(UsageError, StorageError):
                await host.cancel(job_id)
                self.counts["cancellations"] += 1
        try:
            await task
        except (StorageError, UsageError):
            self.counts["commands refused or failed"] += 1
        except asyncio.CancelledError:
            if not task.cancelled():
                raise

    async def check(self, host: Host, job: JobSummary) -> None:
        """Check that the totals match the logs, the logs are complete, and nothing was paid twice."""
        if job.text != f"done {job.id}":
            self.problems.append(f"{job.id} said {job.text!r}")
        logs = await host.jobs.logs(job.id)
        events = [json.loads(line) for log in logs for line in log.lines]
        replies = sum(event["type"] == "finishGeneration" for event in events)
        if job.usage.total_tokens != TOKENS * replies:
            self.problems.append(f"{job.id} used {job.usage.total_tokens} tokens in {replies} replies")
        results = [event for event in events if event["type"] == "finishToolCall" and not event.get("isError")]
        self.counts["programs"] += sum(event["toolName"] == "exec" for event in results)
        self.counts["calls of an MCP server"] += sum(event["toolName"] == "serve" for event in results)
        self.counts["delegations"] += sum(event["type"] == "callDelegate" for event in events)
        self.problems += [f"{job.id}: {one.message}" for one in (await host.audit.verify(job.id)).findings]
        for key in [key for key in self.paid if key.startswith(f"{job.id}-")]:
            if (times := self.paid.pop(key)) != 1:
                self.problems.append(f"{key} was paid {times} times")
        self.played = {key for key in self.played if not key.startswith(f"{job.id}-")}

    # --- all of them ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run Jobs until the time is over, then finish those that have started."""
        began = time.monotonic()

        async def place(number: int, host: Host) -> None:
            count = 0
            while time.monotonic() - began < self.seconds:
                count += 1
                await self.drive_job(host, f"s{number}x{count}")

        async def watch() -> None:
            while True:
                self.most = max(self.most, megabytes())
                gc.collect()  # garbage is no leak, and its amount varies
                self.memory.append((time.monotonic() - began, megabytes()))
                await asyncio.sleep(max(0.2, self.seconds / 100))

        hosts = [self.host(storage) for storage in STORAGES]
        watching = asyncio.create_task(watch())
        try:
            async with asyncio.timeout(self.seconds + WIND_DOWN), asyncio.TaskGroup() as group:
                for number in range(self.jobs):
                    group.create_task(place(number, hosts[number % len(hosts)]))
        finally:
            watching.cancel()
            for host in hosts:
                await host.close()
        await asyncio.wait({watching})
        left = asyncio.all_tasks() - {asyncio.current_task()}
        self.problems += [f"a task is left: {task}" for task in left]

    @property
    def tenths(self) -> list[float]:
        """Return the median memory of each tenth of the time, in MB.

        On a busy machine a tenth may have no measurement: then the measurements are split into ten equal parts.
        """
        measured = [mb for at, mb in self.memory if at < self.seconds] or [megabytes()]
        parts = [(len(measured) * number // 10, len(measured) * (number + 1) // 10) for number in range(10)]
        return [statistics.median(measured[begin : max(end, begin + 1)]) for begin, end in parts]


def megabytes() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def _thread_names() -> tuple[str, ...]:
    for one in threading.enumerate():
        if one is not threading.current_thread():
            one.join(2)  # it may be ending
    return tuple(sorted(one.name for one in threading.enumerate()))


def what_is_open() -> Open:
    """Return this process's open files, threads and child processes."""
    children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return Open(_open_files(), _thread_names(), sum(map(len, children)))


def _open_files() -> tuple[str, ...]:
    found: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the folder itself
            found.append(entry.readlink().as_posix())
    return tuple(sorted(found))


def fill_caches() -> None:
    """Fill caches that otherwise fill while a hundred thousand events are read: pydantic caches 16,384 texts."""
    for number in range(40):
        from_json(json.dumps([f"{number}-{place}" for place in range(5_000)]))


def soak(seconds: float, jobs: int, seed: int, most_growth: float) -> list[str]:
    """Run the soak test, print what was done and measured, and return the problems."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with tempfile.TemporaryDirectory(prefix="perstack-soak-") as folder:
        (Path(folder) / "tools.json").write_text(
            json.dumps([{"name": "serve", "description": "Serves.", "inputSchema": {"type": "object"}}])
        )
        # create objects that exist once per process before counting
        asyncio.run(Soak(Path(folder), 1, 4, random.Random(seed)).run())
        fill_caches()
        before = what_is_open()
        one = Soak(Path(folder), seconds, jobs, random.Random(seed))
        asyncio.run(one.run())
        after = what_is_open()
    print(f"{seconds:g} s, {jobs} Jobs at once, seed {seed}")
    print(", ".join(f"{number} {what}" for what, number in one.counts.most_common()))
    first, last = one.tenths[WARM_UP], one.tenths[-1]
    print(f"memory by tenths of the time: {', '.join(f'{mb:.1f}' for mb in one.tenths)} MB")
    print(f"memory: {first:.1f} MB after warm-up, {last:.1f} MB at the end, {100 * (last / first - 1):+.2f} %")
    print(f"most of all, with what waited to be collected: {one.most:.1f} MB")
    print(f"open: before {before}, after {after}")
    problems = one.problems
    if last > first * (1 + most_growth / 100):
        problems.append(f"memory grew by more than {most_growth:g} %")
    if after != before:
        problems.append(f"left open: {after}, and {before} before")
    return problems


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-growth", type=float, default=3.0, help="percent of memory after the warm-up")
    options = parser.parse_args()
    found = soak(options.seconds, options.jobs, options.seed, options.most_growth)
    sys.exit("\n".join(found[:50]) if found else 0)
