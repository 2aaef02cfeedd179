"""Workers on several machines that are killed, frozen and cut off, while their PostgreSQL is restarted.

    .venv/bin/python tests/support/cluster.py [--jobs 500] [--workers 3] [--seconds 200] [--seed N] [--rates 12]

Machines are network namespaces of its own, so it needs root. Jobs have effects (a tool that appends to a ledger by the
key of its call), parallel delegates, questions that are answered, and times before which they may not begin. When all
have come to their end: each was completed once, each has the steps and tokens that it has without faults, no effect is
there twice, none that a log tells of is missing, and `verify` finds nothing. Then one worker and two are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
from namespaces import Network
from postgres_server import PostgresServer

from perstack.core.events import FinishRun, FinishToolCall
from perstack.core.job import JobSummary
from perstack.errors import PerstackError
from perstack.host import Host

PROJECT = """
maxSteps = 20
[provider]
providerName = "scripted"
[experts.plain]
instruction = "You keep a ledger."
[experts.plain.skills.ledger]
type = "pluginSkill"
plugin = "cluster-ledger"
[experts.side]
instruction = "You keep a part of a ledger."
[experts.side.skills.ledger]
type = "pluginSkill"
plugin = "cluster-ledger"
[experts.other]
instruction = "You keep another part."
[experts.other.skills.ledger]
type = "pluginSkill"
plugin = "cluster-ledger"
[experts.boss]
instruction = "You lead."
delegates = ["side", "other"]
[experts.asker]
instruction = "You keep a ledger and ask."
[experts.asker.skills.ledger]
type = "pluginSkill"
plugin = "cluster-ledger"
[experts.asker.skills.user]
type = "interactiveSkill"
[experts.asker.skills.user.tools.askUser]
description = "Ask"
inputJsonSchema = '{"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}'
"""

LEDGER = '''
"""A tool whose effects can be counted."""

import asyncio
import os

from perstack.ports.toolkit import ToolContext, Toolkit

kit = Toolkit("cluster-ledger", required_env=("CLUSTER_LEDGER",))
perstack_skills = kit.perstack_skills


@kit.tool(effect="sideEffect")
async def append(context: ToolContext) -> str:
    """Append a line."""
    await asyncio.sleep(0.01)
    file = os.open(context.env["CLUSTER_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{context.call.key}\\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    await asyncio.sleep(0.01)
    return f"kept {context.call.key}"
'''

APPENDS = {"plain": 2, "boss": 2, "asker": 2}
"""Calls of the ledger in a Job of each kind, over its whole tree."""

_FEW = 60
"""Jobs that are looked at one by one."""

HARMS = ("kill", "freeze", "cut", "postgres")


def script(delay: float) -> dict[str, Any]:
    """What each Expert's model says, after so many milliseconds each time."""

    def turn(*calls: tuple[str, dict[str, Any]], text: str = "") -> dict[str, Any]:
        tools = [{"name": name, "input": given} for name, given in calls]
        return {"text": text, "tools": tools, "delayMs": delay, "usage": {"inputTokens": 100, "outputTokens": 10}}

    add, done = ("append", {}), turn(text="done")
    return {
        "experts": {
            "plain": {"turns": [turn(add), turn(add), done]},
            "side": {"turns": [turn(add), done]},
            "other": {"turns": [turn(add), done]},
            "boss": {"turns": [turn(("side", {"query": "s"}), ("other", {"query": "o"})), done]},
            "asker": {"turns": [turn(add), turn(("askUser", {"question": "Sure?"})), turn(add), done]},
        }
    }


def kind_of(number: int) -> str:
    return ("plain", "plain", "boss", "plain", "asker", "plain", "boss", "plain", "asker", "plain")[number % 10]


@dataclass
class Machine:
    """One worker, and the machine that it is on."""

    number: int
    network: Network
    command: list[str]
    folder: Path
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    is_frozen: bool = False
    is_cut: bool = False

    def start(self) -> None:
        with (self.folder / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.network.within(self.network.machine(self.number)), *self.command],
                cwd=self.folder,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, sign: int) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(sign)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
            self.process, self.is_frozen = None, False

    def heal(self) -> None:
        """Whatever was done to it is over."""
        if self.process is None or self.process.poll() is not None:
            self.process = None
            self.start()
        if self.is_frozen:
            self.process.send_signal(signal.SIGCONT)
        if self.is_cut:
            self.network.join(self.number)
        self.is_frozen = self.is_cut = False


@dataclass
class Cluster:
    """PostgreSQL, and workers that share it."""

    folder: Path
    server: PostgresServer
    machines: list[Machine]
    host: Host
    random: random.Random
    done: Counter[str] = field(default_factory=Counter[str])
    """How often each was done to somebody."""

    async def statuses(self, jobs: list[str]) -> dict[str, str]:
        """Of those that are not completed. What the storage keeps of a Job beside its log may be older than that."""
        kept = await asyncio.to_thread(self._kept)
        left = [job for job in jobs if kept.get(job) != "completed"]
        found = {job: kept.get(job) or "" for job in left}
        for job in left if len(left) <= _FEW else []:
            with suppress(PerstackError):  # the next round sees it
                found[job] = (await self.host.job(job)).status
        return {job: status for job, status in found.items() if status != "completed"}

    def _kept(self) -> dict[str, str]:
        while True:
            try:
                rows = self.server.execute("SELECT job_id, convert_from(summary, 'UTF8') FROM cluster.jobs")
            except psycopg.OperationalError:  # it is being restarted
                time.sleep(0.1)
            else:
                return {str(name): "" if text is None else json.loads(str(text))["status"] for name, text in rows}

    def ledger(self) -> Counter[str]:
        file = self.folder / "ledger"
        return Counter(file.read_text().split()) if file.exists() else Counter()

    async def submit(self, count: int, prefix: str = "job", kinds: Any = kind_of) -> list[str]:
        """So many Jobs; some are not due at once."""
        places = asyncio.Semaphore(8)

        async def one(number: int) -> str:
            at = int(time.time() * 1000) + 3000 if kinds is kind_of and number % 10 == 9 else None
            async with places:
                job = await self.host.submit(kinds(number), "go", job_id=f"{prefix}-{number:04}", at=at)
                return job.id

        return list(await asyncio.gather(*(one(number) for number in range(count))))

    async def answer(self, statuses: Mapping[str, str], asked: set[str]) -> None:
        """Whatever is asked; and resume what had the bad luck to be there when three workers in a row were ended."""
        for job_id, status in statuses.items():
            with suppress(PerstackError):  # the next round does it
                if status == "stoppedByInteractiveTool" and job_id not in asked:
                    await self.host.answer("yes", job_id=job_id)
                    asked.add(job_id)
                elif status == "stoppedByError":
                    self.done["poison"] += 1
                    await self.host.resume(job_id, drive=False)

    async def until_done(self, jobs: list[str], seconds: float) -> float:
        """Seconds until every one is completed."""
        began, asked = time.monotonic(), set[str]()
        while left := await self.statuses(jobs):
            await self.answer(left, asked)
            assert time.monotonic() - began < seconds, f"after {seconds:g} s: {Counter(left.values())} {[*left][:5]}"
            await asyncio.sleep(0.25)
        return time.monotonic() - began

    async def harm(self, until: asyncio.Event) -> None:
        """One thing after another, until that is set; then all is well again."""
        while not until.is_set():
            what = self.random.choice(HARMS)
            machine = self.random.choice(self.machines)
            seconds = self.random.choice((1.0, 4.0, 9.0))
            self.done[what] += 1
            await asyncio.to_thread(self._do, what, machine)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await until.wait()
            if self.random.random() < 0.6:  # else it stays so while something else happens
                machine.heal()
        for machine in self.machines:
            machine.heal()

    def _do(self, what: str, machine: Machine) -> None:
        match what:
            case "kill":
                if machine.process is not None:
                    machine.process.kill()
                    machine.process.wait(10)
            case "freeze" if machine.process is not None and machine.process.poll() is None:
                machine.process.send_signal(signal.SIGSTOP)
                machine.is_frozen = True
            case "cut":
                machine.network.cut(machine.number)
                machine.is_cut = True
            case _:
                self.server.stop(self.random.choice((signal.SIGINT, signal.SIGQUIT)))
                self.server.start()


@asynccontextmanager
async def cluster(workers: int, seed: int, delay: float = 100, concurrency: int = 8) -> AsyncGenerator[Cluster]:
    """A cluster with nothing to do; no worker is started yet."""
    network = Network(workers)
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    server = PostgresServer(settings={"listen_addresses": Network.address, "fsync": "on"})
    server.within = (*network.within(network.hub), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    machines = list[Machine]()
    try:
        with (server.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.77.0.0/24 trust\n")
        server.start()
        (folder / "cluster_ledger.py").write_text(LEDGER)
        (folder / "script.json").write_text(json.dumps(script(delay)))
        path = [str(folder), *(one for one in sys.path if one)]
        given = {
            "PERSTACK_PLUGINS": "perstack.testing.plugin,cluster_ledger",
            "PERSTACK_SCRIPT": str(folder / "script.json"),
            "CLUSTER_LEDGER": str(folder / "ledger"),
        }
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **given}
        storage = f"postgresql://postgres@{Network.address}/postgres?schema=cluster"
        for number in range(workers):
            place = folder / f"m{number}"
            place.mkdir()
            (place / "perstack.toml").write_text(PROJECT)
            program = str(Path(sys.executable).with_name("perstack"))
            command = [program, "worker", "--storage", storage, "--name", f"m{number}", "--log", "json"]
            machines.append(Machine(number, network, [*command, "--concurrency", str(concurrency)], place, env))
        here = folder / "here"
        here.mkdir()
        (here / "perstack.toml").write_text(PROJECT)
        address = server.address("cluster")
        with mock.patch.dict(os.environ, given), mock.patch.object(sys, "path", [str(folder), *sys.path]):
            async with Host.open(workspace=here, storage=address, dispatcher=address) as host:
                await host.jobs.list(limit=1)  # a server that was never there is an error at once
                if host.dispatcher is not None:
                    await host.dispatcher.load()
                yield Cluster(folder, server, machines, host, random.Random(seed))
        shutil.rmtree(folder, ignore_errors=True)  # of a failure it has the logs of the workers
    finally:
        for machine in machines:
            machine.end(signal.SIGKILL)
        server.close()
        network.close()


@dataclass
class Counts:
    """What came of it."""

    jobs: int = 0
    completed_twice: int = 0
    wrong_totals: list[str] = field(default_factory=list[str])
    effects: int = 0
    doubled: int = 0
    lost: int = 0
    interrupted: int = 0
    events: int = 0
    taken_over: int = 0
    findings: list[str] = field(default_factory=list[str])
    noise: list[str] = field(default_factory=list[str])
    """What workers wrote that is no line of their log."""

    def __str__(self) -> str:
        return (
            f"{self.jobs} Jobs, each completed once; {self.events} events; {self.taken_over} takeovers;"
            f" {self.effects} effects: {self.doubled} doubled, {self.lost} lost, {self.interrupted} calls interrupted;"
            f" {len(self.wrong_totals)} wrong totals; verify: {len(self.findings)} findings"
        )


async def counted(running: Cluster, jobs: list[str]) -> Counts:
    """Look at every log."""
    host, ledger, counts = running.host, running.ledger(), Counts(jobs=len(jobs))
    totals: dict[str, Counter[tuple[int, int, int]]] = {}
    of_job: dict[str, tuple[str, tuple[int, int, int]]] = {}
    for job_id in jobs:
        job: JobSummary = await host.job(job_id)
        total = (job.total_steps, job.usage.input_tokens, job.usage.output_tokens)
        of_job[job_id] = (job.expert_key, total)
        totals.setdefault(job.expert_key, Counter())[total] += 1
        ends = appended = 0
        for run in job.runs:
            for event in [line.event for line in await host.events(run.id)]:
                counts.events += 1
                ends += isinstance(event, FinishRun) and run.id == job.coordinator_run_id
                if isinstance(event, FinishToolCall) and event.tool_name == "append":
                    appended += 1
                    text = "".join(getattr(part, "text", "") for part in event.contents)
                    key = text.removeprefix("kept ")
                    counts.interrupted += key == text
                    counts.lost += key != text and ledger[key] == 0
        counts.completed_twice += ends != 1
        if appended != APPENDS[job.expert_key]:
            counts.wrong_totals.append(f"{job_id} has {appended} results")
    for job_id, (kind, total) in of_job.items():
        if total != totals[kind].most_common(1)[0][0]:
            counts.wrong_totals.append(f"{job_id} ({kind}) has {total}")
    counts.effects, counts.doubled = len(ledger), sum(ledger.values()) - len(ledger)
    async for report in host.verify_all():
        counts.findings += [f"{report.job_id}: {one}" for one in report.findings]
    for machine in running.machines:
        for line in (machine.folder / "worker.log").read_text().splitlines():
            try:
                counts.taken_over += "takeovers" in json.loads(line)
            except ValueError:
                counts.noise.append(line)
    return counts


async def endure(
    jobs: int, workers: int, seconds: float, seed: int, *, delay: float = 100
) -> tuple[Counts, Counter[str]]:
    """Do all that is done to workers while these Jobs are driven. Raises AssertionError for what is wrong.

    SIGTERM ends it, and what it has made is taken away.
    """
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with cluster(workers, seed, delay) as running:
        for machine in running.machines:
            machine.start()
        submitting, over = asyncio.create_task(running.submit(jobs)), asyncio.Event()
        harming = asyncio.create_task(running.harm(over))
        try:
            names = await submitting
            await running.until_done(names, seconds)
        finally:
            submitting.cancel()
            over.set()
            await harming
        counts = await counted(running, names)
    assert counts.completed_twice == counts.doubled == counts.lost == 0, counts
    assert counts.wrong_totals == [], counts
    assert counts.findings == counts.noise == [], counts
    return counts, running.done


async def rate(workers: int, jobs: int, delay: float, concurrency: int) -> float:
    """Jobs a second on models that wait, once the workers are there."""
    async with cluster(workers, 0, delay, concurrency) as running:
        for machine in running.machines:
            machine.start()
        await running.submit(1, "first", lambda _: "plain")
        async with asyncio.timeout(60):
            while len(await running.host.dispatcher.workers()) < workers:  # type: ignore[union-attr]
                await asyncio.sleep(0.1)
        await running.until_done(["first-0000"], 60)
        names = await running.submit(jobs, "rate", lambda _: "plain")
        await running.until_done(names, 120)
        starts, ends = list[int](), list[int]()
        for name in names:
            job = await running.host.job(name)
            starts.append(job.started_at)
            ends.append(job.finished_at or 0)
        return jobs / ((max(ends) - min(starts)) / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--rates", type=int, default=0, help="compare one worker and two, by so many Jobs each")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    began = time.monotonic()
    counts, done = asyncio.run(endure(args.jobs, args.workers, args.seconds, args.seed))
    print(f"{time.monotonic() - began:.0f} s; {dict(done)}")
    print(counts, flush=True)
    if args.rates:
        one, two = (asyncio.run(rate(workers, args.rates * workers, 3000, 4)) for workers in (1, 2))
        print(f"{one:.2f} Jobs a second by one worker, {two:.2f} by two: {two / one:.2f} times")


if __name__ == "__main__":
    main()
